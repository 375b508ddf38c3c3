// Malformed `.npy` files.
#include "io_malformed.h"

namespace attend::test {
namespace {

using namespace std::string_literals;

const std::string kFloats(24, '\0');  // the data of six f32
const std::string kHeader = npy_header("<f4", "(2, 3)");

class Table {
 public:
  void rule(const char* name) { rule_ = name; }
  void add(const char* name, std::string bytes, std::string says) {
    files.push_back({rule_, name, std::move(bytes), std::move(says)});
  }
  void header(const char* name, const std::string& header, std::string says) {
    add(name, npy_file(header, kFloats), std::move(says));
  }
  void descr(const char* name, const std::string& descr, std::string says) {
    header(name, npy_header(descr, "(2, 3)"), std::move(says));
  }
  void shape(const char* name, const std::string& shape, std::string says) {
    header(name, npy_header("<f4", shape), std::move(says));
  }
  std::vector<MalformedFile> files;

 private:
  std::string rule_;
};

void add_beginnings(Table& t) {
  const std::string good = npy_file(kHeader, kFloats);
  t.rule("begins_with_the_magic");
  const std::string no_magic = "it does not begin with \\x93NUMPY";
  t.add("one_byte", "x", no_magic);
  t.add("five_of_six", good.substr(0, 5), no_magic);
  t.add("other_first_byte", "\x92" + good.substr(1), no_magic);
  t.add("lower_case", "\x93numpy" + good.substr(6), no_magic);
  t.add("as_utf8", "\xC2" + good, no_magic);
  t.add("zip", "PK\3\4" + good, no_magic);
  t.add("shifted", " " + good, no_magic);
  t.add("zeros", std::string(200, '\0'), no_magic);

  t.rule("has_a_complete_beginning");
  t.add("empty", "", "is empty");
  t.add("magic_only", good.substr(0, 6), "ends inside its first 10 bytes");
  t.add("half_a_version", good.substr(0, 7), "ends inside its first 10 bytes");
  t.add("no_length", good.substr(0, 8), "ends inside its first 10 bytes");
  t.add("half_a_length", good.substr(0, 9), "ends inside its first 10 bytes");
  t.add("half_a_long_length", npy_file(kHeader, kFloats, 2).substr(0, 10),
        "ends inside the length of its header");
  t.add("three_bytes_of_a_long_length", npy_file(kHeader, kFloats, 3).substr(0, 11),
        "ends inside the length of its header");

  t.rule("version_is_known");
  const auto version = [&](const char* name, char major, char minor, const char* says) {
    std::string bytes = good;
    bytes[6] = major;
    bytes[7] = minor;
    t.add(name, bytes, std::string("is of version ") + says + "; 1.0, 2.0 and 3.0 are known");
  };
  version("v0_0", 0, 0, "0.0");
  version("v1_1", 1, 1, "1.1");
  version("v2_1", 2, 1, "2.1");
  version("v3_7", 3, 7, "3.7");
  version("v4_0", 4, 0, "4.0");
  version("v255_255", '\xFF', '\xFF', "255.255");
}

void add_lengths(Table& t) {
  const auto length = [](int major, std::uint64_t value, std::size_t follow) {
    const std::string text = kHeader + std::string(follow, ' ');
    return "\x93NUMPY" + std::string{static_cast<char>(major), '\0'} +
           little_endian(value, major == 1 ? 2 : 4) + text.substr(0, follow);
  };
  t.rule("header_is_at_most_64_kib");
  const std::string limit = "; at most 65536 are allowed";
  t.add("just_over", length(2, 65537, 65537), "a header of 65537 bytes" + limit);
  t.add("near_4_gib", length(2, 0xFFFFFFF0, 100), "a header of 4294967280 bytes" + limit);
  t.add("largest", length(2, 0xFFFFFFFF, 100), "a header of 4294967295 bytes" + limit);
  t.add("sign_bit", length(3, 0x80000000, 100), "a header of 2147483648 bytes" + limit);
  t.add("megabyte", length(3, 1 << 20, 1 << 10), "a header of 1048576 bytes" + limit);

  t.rule("header_is_inside_the_file");
  t.add("nothing_follows", length(1, 118, 0), "a header of 118 bytes, but only 0 follow");
  t.add("one_missing", length(1, 118, 117), "a header of 118 bytes, but only 117 follow");
  t.add("one_byte", length(1, 1, 0), "a header of 1 bytes, but only 0 follow");
  t.add("largest_of_version_1", length(1, 65535, 200), "of 65535 bytes, but only 200 follow");
  t.add("largest_allowed", length(2, 65536, 65535), "of 65536 bytes, but only 65535 follow");
  t.add("version_3", length(3, 200, 199), "a header of 200 bytes, but only 199 follow");

  t.rule("header_ends_with_a_newline");
  const std::string no_newline = "the header does not end with a newline";
  const auto raw = [](const std::string& text) {
    return "\x93NUMPY\x01\x00"s + little_endian(text.size(), 2) + text;
  };
  t.add("empty_header", raw(""), no_newline);
  t.add("none", raw(kHeader), no_newline);
  t.add("spaces_after_it", raw(kHeader + "\n  "), no_newline);
  t.add("carriage_return", raw(kHeader + "\r"), no_newline);
  t.add("zero", raw(kHeader + "\n\0"s), no_newline);
  t.add("cut_before_it", raw(kHeader + "     ") + "\n", no_newline);

  t.rule("header_is_printable_ascii");
  t.header("tab", "{\t" + kHeader.substr(1), "byte 1 of the header is 9, not a printable");
  t.header("newline", kHeader + "\n",
           "byte " + std::to_string(kHeader.size()) + " of the header is 10");
  t.header("zero_as_padding", kHeader + "\0\0"s, "of the header is 0, not a printable");
  t.header("latin_1", npy_header("\xE9", "(2, 3)"), "byte 11 of the header is 233");
  t.header("utf8", "{'d\xC3\xA9scr': 3}", "byte 3 of the header is 195");
  t.header("delete", "\x7F" + kHeader, "byte 0 of the header is 127");
  t.header("bell", npy_header("<f4\a", "(2, 3)"), "of the header is 7, not a printable");
}

void add_grammar(Table& t) {
  t.rule("header_follows_the_grammar");
  const std::string descr = "'descr': '<f4'", order = "'fortran_order': False",
                    shape = "'shape': (2, 3)";
  const std::string items = descr + ", " + order + ", " + shape;
  t.header("blank", "   ", "must have '{' at byte 3, where there is its end");
  t.header("only_a_newline", "", "must have '{' at byte 0, where there is its end");
  t.header("no_brace", items + "}", "must have '{' at byte 0, where there is ''descr'");
  t.header("a_tuple", "(" + items + ")", "must have '{' at byte 0");
  t.header("not_closed", "{" + items, "must have '}' at byte " + std::to_string(items.size() + 1));
  t.header("closed_by_another", "{" + items + "]", "must have '}'");
  t.header("only_an_opening", "{", "must have a string at byte 1, where there is its end");
  t.header("no_colon", "{'descr' '<f4', " + order + ", " + shape + "}", "must have ':' at byte 9");
  t.header("equals", "{'descr'='<f4', " + order + ", " + shape + "}", "must have ':' at byte 8");
  t.header("no_comma", "{" + descr + " " + order + ", " + shape + "}", "must have '}' at byte 16");
  t.header("two_commas", "{" + descr + ",, " + order + ", " + shape + "}", "must have a string");
  t.header("comma_first", "{, " + items + "}", "must have a string at byte 1");
  t.header("comma_twice_at_the_end", "{" + items + ",,}", "must have a string");
  t.header("text_after", "{" + items + "} x", "must have spaces to the end");
  t.header("two_dictionaries", "{" + items + "}{" + items + "}", "must have spaces to the end");
  t.header("key_without_quotes", "{descr: '<f4', " + order + ", " + shape + "}",
           "must have a string at byte 1, where there is 'descr: '<f4', ");
  t.header("string_without_end", "{'descr: (2, 3)}", "must have a string that ends");
  t.header("mixed_quotes", "{'descr\": \"<f4\"}", "must have a string that ends");
  t.header("backslash", "{'descr': '\\x3cf4', " + order + ", " + shape + "}",
           "must have a string that ends and holds no \\");
  t.header("bytes_prefix", "{b" + items + "}", "must have a string at byte 1");
  t.header("call", "{'descr': str('<f4'), " + order + ", " + shape + "}", "must have a string");
  t.header("comment", "{" + items + "} # made by hand", "must have spaces to the end");
  t.header("value_missing", "{'descr': , " + order + ", " + shape + "}", "must have a string");
  t.header("value_none", "{'descr': None, " + order + ", " + shape + "}", "must have a string");

  t.rule("header_has_exactly_three_keys");
  t.header("empty_dictionary", "{}", "the header has no 'descr'");
  t.header("no_descr", "{" + order + ", " + shape + "}", "the header has no 'descr'");
  t.header("no_order", "{" + descr + ", " + shape + "}", "the header has no 'fortran_order'");
  t.header("no_shape", "{" + descr + ", " + order + "}", "the header has no 'shape'");
  t.header("another_key", "{" + items + ", 'version': 1}", "has the key 'version'; it must be");
  t.header("capital", "{'Descr': '<f4', " + order + ", " + shape + "}", "has the key 'Descr'");
  t.header("empty_key", "{'': '<f4', " + items + "}", "has the key ''; it must be");
  t.header("long_key", "{'" + std::string(200, 'k') + "': 1}", "kkkk...'; it must be");
  t.header("descr_twice", "{" + items + ", " + descr + "}", "has the key 'descr' twice");
  t.header("order_twice", "{" + order + ", " + items + "}", "the key 'fortran_order' twice");
  t.header("shape_twice", "{" + shape + ", " + items + "}", "has the key 'shape' twice");
}

void add_types(Table& t) {
  t.rule("no_python_objects");
  for (const char* object : {"|O", "<O", "|O8", "|O4", "O", ">O"})
    t.descr(("object_" + std::to_string(t.files.size())).c_str(), object,
            "descr is '"s + object + "': Python objects; reading them would run code");

  t.rule("little_endian");
  for (const std::string kind : {"f8", "f4", "f2", "i8", "i4"})
    t.descr(("big_endian_" + kind).c_str(), ">" + kind,
            "descr is '>" + kind + "': big-endian; it must be little-endian, '<" + kind + "'");
  t.descr("big_endian_byte", ">i1", "must be little-endian, '|i1'");

  t.rule("type_is_known");
  const std::string known = "; it must be one of <f8 <f4 <f2 <i8 <i4 |i1 |u1 |b1";
  const char* const others[] = {"<u2",    "<i2", "<u4", "<u8", "<c8", "<c16", "|S3",  "<U2",
                                "<M8[s]", "",    "<",   "f4",  "=f4", "|f4",  "<f16", "<f4 ",
                                " <f4",   "<F4", "<b2", "<f",  "<4",  "|V8",  "<e",   "float32"};
  for (const char* other : others)
    t.descr(("other_" + std::to_string(t.files.size())).c_str(), other,
            "descr is '"s + other + "'" + known);
  t.descr("bf16_as_void", "<V2", "as NumPy writes bf16; use safetensors for bf16");
  t.descr("two_bytes_of_void", "|V2", "as NumPy writes bf16; use safetensors for bf16");

  t.rule("type_is_not_structured");
  for (const char* list : {"[('a', '<f4')]", "[]", "[('a', '<f4'), ('b', '|O')]",
                           "[('x', '<f4', (2,))]", "['<f4']", "[[[[[[[["})
    t.header(("list_" + std::to_string(t.files.size())).c_str(),
             "{'descr': "s + list + ", 'fortran_order': False, 'shape': (2, 3), }",
             "descr is a list: a structured type");

  t.rule("fortran_order_is_true_or_false");
  for (const char* order : {"true", "FALSE", "1", "0", "None", "'False'", "", "Yes", "(False)"})
    t.header(("order_" + std::to_string(t.files.size())).c_str(),
             npy_header("<f4", "(2, 3)", order), "must have True or False at byte 34");
  t.header("more_than_true", npy_header("<f4", "(2, 3)", "Truely"), "must have '}' at byte 38");
}

void add_shapes(Table& t) {
  t.rule("shape_is_a_tuple");
  t.shape("none", "None", "must have '(' at byte 50, where there is 'None, }'");
  t.shape("number", "6", "must have '('");
  t.shape("list", "[2, 3]", "must have '('");
  t.shape("string", "'(2, 3)'", "must have '('");
  t.shape("number_in_brackets", "(6)", "shape is (6); one size is written (6,)");
  t.shape("not_closed", "(2, 3", "must have a size, which is digits only");
  t.shape("no_comma", "(2 3)", "must have ',' or ')'");
  t.shape("two_commas", "(2,, 3)", "must have a size");
  t.shape("only_a_comma", "(,)", "must have a size");
  t.shape("nested", "((2, 3),)", "must have a size");
  t.shape("semicolon", "(2; 3)", "must have ',' or ')'");

  t.rule("sizes_are_digits");
  const std::string digits = "must have a size, which is digits only";
  t.shape("negative", "(-2, -3)", digits);
  t.shape("negative_second", "(2, -3)", digits);
  t.shape("plus", "(+2, 3)", digits);
  t.shape("quoted", "('2', 3)", digits);
  t.shape("bool", "(True, 6)", digits);
  t.shape("none", "(None, 6)", digits);
  t.shape("point", "(2.0, 3)", "must have ',' or ')'");
  t.shape("exponent", "(6e0, 1)", "must have ',' or ')'");
  t.shape("hexadecimal", "(0x2, 3)", "must have ',' or ')'");
  t.shape("long_of_python_2", "(2L, 3L)", "must have ',' or ')'");
  t.shape("underscore", "(1_0,)", "must have ',' or ')'");
  t.shape("product", "(2*3,)", "must have ',' or ')'");
  t.shape("leading_zero", "(02, 3)", "the size '02', which begins with 0");
  t.shape("two_zeros", "(00,)", "the size '00', which begins with 0");

  t.rule("sizes_are_less_than_2_63");
  const std::string limit = "; a size is less than 2^63";
  t.shape("two_63", "(9223372036854775808,)", "the size 9223372036854775808" + limit);
  t.shape("two_64_less_1", "(18446744073709551615,)", "18446744073709551615" + limit);
  t.shape("two_64", "(18446744073709551616,)", "18446744073709551616" + limit);
  t.shape("two_64_and_6", "(18446744073709551622,)", "18446744073709551622" + limit);
  t.shape("beside_zero", "(0, 99999999999999999999)", "99999999999999999999" + limit);
  t.shape("hundred_digits", "(" + std::string(100, '9') + ",)",
          std::string(60, '9') + "..." + limit);

  t.rule("at_most_eight_dimensions");
  for (const int rank : {9, 10, 16, 32, 64, 1000}) {
    std::string ones = "(";
    for (int n = 0; n < rank; ++n) ones += "1, ";
    t.shape(("rank_" + std::to_string(rank)).c_str(), ones + ")",
            "shape has " + std::to_string(rank) + " dimensions; at most 8 are allowed");
  }

  t.rule("shape_times_size_does_not_overflow");
  const std::string large = "is larger than a file can be";
  t.shape("wraps_to_zero", "(4294967296, 4294967296)", "[4294967296, 4294967296] of f32 " + large);
  t.shape("bytes_wrap_to_zero", "(4611686018427387904,)", "[4611686018427387904] of f32 " + large);
  t.shape("bytes_are_two_63", "(2305843009213693952,)", large);
  t.shape("wraps_to_the_right_size", "(6, 1, 4611686018427387905)", large);
  t.shape("largest_twice", "(9223372036854775807, 9223372036854775807)", large);
  t.shape("beside_zero", "(0, 4294967296, 4294967296)", large);
  t.shape("zero_last", "(4611686018427387904, 4, 0)", large);
  t.shape("eight_of_256", "(256, 256, 256, 256, 256, 256, 256, 256)", large);
}

void add_data(Table& t) {
  t.rule("data_has_the_size_of_the_shape");
  const auto data = [&](const char* name, const char* type, const char* shape, std::size_t bytes,
                        std::string says, int version = 1) {
    t.add(name, npy_file(npy_header(type, shape), std::string(bytes, '\0'), version), says);
  };
  data("one_short", "<f4", "(2, 3)", 23, "has 23 bytes of data; shape [2, 3] of f32 has 24");
  data("one_long", "<f4", "(2, 3)", 25, "has 25 bytes of data; shape [2, 3] of f32 has 24");
  data("none", "<f4", "(2, 3)", 0, "has 0 bytes of data");
  data("twice", "<f4", "(2, 3)", 48, "has 48 bytes of data");
  data("of_another_type", "<f8", "(2, 3)", 24, "shape [2, 3] of f64 has 48");
  data("terabyte", "|u1", "(1099511627776,)", 24, "of u8 has 1099511627776");
  data("largest", "|u1", "(9223372036854775807,)", 24, "of u8 has 9223372036854775807");
  data("no_dimension", "<f8", "()", 0, "shape [] of f64 has 8");
  data("empty_with_data", "<f4", "(0, 3)", 4, "has 4 bytes of data; shape [0, 3] of f32 has 0");
  data("version_2", "<f4", "(2, 3)", 23, "has 23 bytes of data", 2);
  data("version_3", "<i8", "(3,)", 25, "has 25 bytes of data", 3);

  t.rule("bool_is_0_or_1");
  const auto bools = [&](const char* name, const char* shape, const char* order,
                         const std::string& bytes, std::string says) {
    t.add(name, npy_file(npy_header("|b1", shape, order), bytes), says + "; a bool is 0 or 1");
  };
  bools("two", "(3,)", "False", "\1\2\0"s, "element 1 of the tensor is 2");
  bools("all_bits", "(3,)", "False", "\1\0\xFF"s, "element 2 of the tensor is 255");
  bools("digit", "(1,)", "False", "1", "element 0 of the tensor is 49");
  bools("no_dimension", "()", "False", "\x80", "element 0 of the tensor is 128");
  bools("in_fortran_order", "(2, 2)", "True", "\0\1\1\3"s, "element 3 of the tensor is 3");
}

}  // namespace

std::vector<MalformedFile> malformed_npy() {
  Table table;
  add_beginnings(table);
  add_lengths(table);
  add_grammar(table);
  add_types(table);
  add_shapes(table);
  add_data(table);
  return table.files;
}

}  // namespace attend::test
