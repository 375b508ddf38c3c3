// Malformed `safetensors` files.
#include "io_malformed.h"

namespace attend::test {
namespace {

using namespace std::string_literals;

const std::string kFloats(24, '\0');  // the data of six f32
const std::string kTensor = R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

class Table {
 public:
  void rule(const char* name) { rule_ = name; }
  void add(const char* name, std::string bytes, std::string says) {
    files.push_back({rule_, name, std::move(bytes), std::move(says)});
  }
  void json(const char* name, const std::string& json, std::string says) {
    add(name, safetensors_file(json, kFloats), std::move(says));
  }
  // One tensor 'a' with another value in one of its fields.
  void dtype(const char* name, const std::string& value, std::string says) {
    json(name, "{\"a\":" + tensor(value, "[2,3]", "[0,24]") + "}", std::move(says));
  }
  void shape(const char* name, const std::string& value, std::string says) {
    json(name, "{\"a\":" + tensor("\"F32\"", value, "[0,24]") + "}", std::move(says));
  }
  void offsets(const char* name, const std::string& value, std::string says) {
    json(name, "{\"a\":" + tensor("\"F32\"", "[2,3]", value) + "}", std::move(says));
  }
  // Bytes as tensors of u8, laid out as the offsets say.
  void layout(const char* name, const std::vector<std::pair<int, int>>& places, std::size_t bytes,
              std::string says) {
    std::string text = "{";
    char letter = 'a';
    for (const auto& [begin, end] : places) {
      text += (text.size() > 1 ? ",\"" : "\"") + std::string{letter++} + "\":";
      text += tensor("\"U8\"", "[" + std::to_string(end - begin) + "]",
                     "[" + std::to_string(begin) + "," + std::to_string(end) + "]");
    }
    add(name, safetensors_file(text + "}", std::string(bytes, '\0')), std::move(says));
  }
  std::vector<MalformedFile> files;

 private:
  std::string rule_;
};

void add_lengths(Table& t) {
  const std::string good = safetensors_file("{\"a\":" + kTensor + "}", kFloats);
  t.rule("has_a_complete_length");
  t.add("empty", "", "is empty");
  for (const std::size_t bytes : {1, 2, 4, 6, 7})
    t.add(("cut_at_" + std::to_string(bytes)).c_str(), good.substr(0, bytes),
          "ends inside the length of its header");

  t.rule("header_is_at_most_100_mb");
  t.add("npy", "\x93NUMPY\x01"s + good.substr(7), "is a .npy file, not safetensors");
  const auto length = [&](const char* name, std::uint64_t value, const char* says) {
    t.add(name, little_endian(value, 8) + good.substr(8),
          "has a header of "s + says + " bytes; at most 100000000 are allowed");
  };
  length("just_over", 100'000'001, "100000001");
  length("four_gib", 1ULL << 32, "4294967296");
  length("sign_bit", 1ULL << 63, "9223372036854775808");
  length("largest", ~0ULL, "18446744073709551615");
  length("wraps_with_the_length_itself", ~0ULL - 7, "18446744073709551608");
  t.add("text", "{\"a\":" + kTensor + "}", "bytes; at most 100000000 are allowed");

  t.rule("header_is_inside_the_file");
  const auto inside = [&](const char* name, std::uint64_t value, std::size_t follow) {
    t.add(name, little_endian(value, 8) + std::string(follow, '{'),
          "has a header of " + std::to_string(value) + " bytes, but only " +
              std::to_string(follow) + " follow");
  };
  inside("nothing_follows", 2, 0);
  inside("one_missing", 3, 2);
  inside("largest_allowed", 100'000'000, 1000);
  inside("as_long_as_the_file", 24, 16);
  inside("megabyte", 1 << 20, 12);
}

void add_grammar(Table& t) {
  t.rule("header_begins_with_a_brace");
  const std::string brace = "the header does not begin with '{'";
  t.json("empty", "", brace);
  t.json("space_first", " {}", brace);
  t.json("array", "[]", brace);
  t.json("string", "\"a\"", brace);
  t.json("null", "null", brace);
  t.json("number", "0", brace);
  t.json("byte_order_mark", "\xEF\xBB\xBF{}", brace);
  t.json("zero", "\0{}"s, brace);

  t.rule("header_is_json");
  const std::string broken = "the header is not JSON: it breaks at byte ";
  t.json("only_an_opening", "{", broken + "2");
  t.json("spaces", "{      ", broken);
  t.json("not_closed", "{\"a\":" + kTensor, broken);
  t.json("closed_twice", "{\"a\":" + kTensor + "}}", broken);
  t.json("two_objects", "{}{}", broken + "3");
  t.json("text_after", "{} x", broken + "4");
  t.json("comma_at_the_end", "{\"a\":" + kTensor + ",}", broken);
  t.json("comma_first", "{,\"a\":" + kTensor + "}", broken + "2");
  t.json("no_colon", "{\"a\"" + kTensor + "}", broken + "5");
  t.json("single_quotes", "{'a':" + kTensor + "}", broken + "2");
  t.json("key_without_quotes", "{a:" + kTensor + "}", broken + "2");
  t.json("number_as_key", "{1:" + kTensor + "}", broken + "2");
  t.json("comment", "{/* a */}", broken + "2");
  t.json("not_a_number", "{\"a\":NaN}", broken + "6");
  t.json("leading_zero", "{\"a\":" + tensor("\"F32\"", "[02,3]", "[0,24]") + "}", broken);
  t.json("hexadecimal", "{\"a\":" + tensor("\"F32\"", "[0x2,3]", "[0,24]") + "}", broken);
  t.json("plus", "{\"a\":" + tensor("\"F32\"", "[+2,3]", "[0,24]") + "}", broken);
  t.json("string_without_end", "{\"a", broken + "4");
  t.json("newline_in_a_string", "{\"a\nb\":" + kTensor + "}", broken + "4");
  t.json("unknown_escape", "{\"\\q\":" + kTensor + "}", broken + "4");
  t.json("half_a_surrogate", "{\"\\uD800\":" + kTensor + "}", broken);
  t.json("array_closed_by_a_brace", "{\"a\":" + tensor("\"F32\"", "[2,3}", "[0,24]") + "}", broken);

  t.rule("header_holds_no_zero");
  const std::string zero = "the header is not JSON: byte ", is_zero = " is zero";
  t.json("at_the_end", "{}\0"s, zero + "3" + is_zero);
  t.json("as_padding", "{\"a\":" + kTensor + "}" + std::string(5, '\0'), is_zero);
  t.json("before_more", "{}\0{}"s, zero + "3" + is_zero);
  t.json("in_a_name", "{\"\0\":"s + kTensor + "}", zero + "3" + is_zero);
  t.json("second", "{\0}"s, zero + "2" + is_zero);

  t.rule("header_is_utf8");
  t.json("stray_continuation", "{\"\x80\":" + kTensor + "}", broken + "3");
  t.json("latin_1", "{\"\xE9\":" + kTensor + "}", broken + "4");
  t.json("overlong", "{\"\xC0\x80\":" + kTensor + "}", broken + "3");
  t.json("surrogate", "{\"\xED\xA0\x80\":" + kTensor + "}", broken + "4");
  t.json("too_large", "{\"\xF5\x80\x80\x80\":" + kTensor + "}", broken + "3");
  t.json("cut_off", "{\"\xE2\x82", broken);
}

void add_structure(Table& t) {
  t.rule("no_key_twice");
  const std::string a = "\"a\":" + kTensor;
  t.json("tensor", "{" + a + "," + a + "}", "the header has the key 'a' twice");
  t.json("tensor_far_apart",
         "{" + a + ",\"b\":" + tensor("\"U8\"", "[0]", "[24,24]") + "," + a + "}",
         "the header has the key 'a' twice");
  t.json("one_of_them_escaped", "{" + a + ",\"\\u0061\":" + kTensor + "}", "the key 'a' twice");
  t.json("metadata", "{\"__metadata__\":{},\"__metadata__\":{}," + a + "}",
         "the header has the key '__metadata__' twice");
  t.json("in_metadata", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}," + a + "}",
         "'__metadata__' has the key 'k' twice");
  t.json("dtype", R"({"a":{"dtype":"F32","dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
         "'a' has the key 'dtype' twice");
  t.json("shape", R"({"a":{"dtype":"F32","shape":[2,3],"shape":[6],"data_offsets":[0,24]}})",
         "'a' has the key 'shape' twice");
  t.json("offsets",
         R"({"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24],"data_offsets":[0,24]}})",
         "'a' has the key 'data_offsets' twice");
  t.json("control_character", "{\"\\n\":" + kTensor + ",\"\\n\":" + kTensor + "}",
         "the header has the key '\\x0A' twice");

  t.rule("tensor_is_an_object");
  const auto value = [&](const char* name, const std::string& found, const std::string& says) {
    t.json(name, "{\"a\":" + found + "}", "'a' is " + says + "; it must be an object");
  };
  value("null", "null", "null");
  value("yes", "true", "true");
  value("number", "24", "the number 24");
  value("negative", "-24", "the number -24");
  value("float", "0.5", "the number 0.5");
  value("string", "\"F32\"", "the string 'F32'");
  value("array", "[]", "an array");
  value("deep_array", std::string(100000, '['), "an array");

  t.rule("tensor_has_exactly_three_fields");
  const std::string fields = "; the fields are dtype, shape and data_offsets";
  t.json("none", "{\"a\":{}}", "tensor 'a' has no dtype");
  t.json("no_dtype", R"({"a":{"shape":[6],"data_offsets":[0,24]}})", "tensor 'a' has no dtype");
  t.json("no_shape", R"({"a":{"dtype":"F32","data_offsets":[0,24]}})", "'a' has no shape");
  t.json("no_offsets", R"({"a":{"dtype":"F32","shape":[6]}})", "'a' has no data_offsets");
  t.json("another", R"({"a":{"dtype":"F32","strides":[1],"shape":[6],"data_offsets":[0,24]}})",
         "tensor 'a' has the field 'strides'" + fields);
  t.json("capital", R"({"a":{"Dtype":"F32","shape":[6],"data_offsets":[0,24]}})",
         "tensor 'a' has the field 'Dtype'" + fields);
  t.json("nested", "{\"a\":{\"b\":" + kTensor + "}}", "tensor 'a' has the field 'b'" + fields);
  t.json("empty_name", "{\"a\":{\"\":0}}", "tensor 'a' has the field ''" + fields);

  t.rule("metadata_is_strings");
  const auto metadata = [&](const char* name, const std::string& found, const std::string& says) {
    t.json(name, "{\"__metadata__\":" + found + "," + a + "}", says);
  };
  metadata("number", "{\"heads\":8}", "metadata 'heads' is the number 8; it must be a string");
  metadata("negative", "{\"k\":-1}", "metadata 'k' is the number -1; it must be a string");
  metadata("float", "{\"k\":1e400}", "the header is not JSON");
  metadata("small_float", "{\"k\":1e-3}", "metadata 'k' is the number 1e-3; it must be a string");
  metadata("null", "{\"k\":null}", "metadata 'k' is null; it must be a string");
  metadata("no", "{\"k\":false}", "metadata 'k' is false; it must be a string");
  metadata("array", "{\"k\":[]}", "metadata 'k' is an array; it must be a string");
  metadata("object", "{\"k\":{}}", "metadata 'k' is an object; it must be a string");
  metadata("second", "{\"j\":\"1\",\"k\":2}", "metadata 'k' is the number 2");
  metadata("metadata_array", "[]", "'__metadata__' is an array; it must be an object");
  metadata("metadata_null", "null", "'__metadata__' is null; it must be an object");
  metadata("metadata_string", "\"x\"", "'__metadata__' is the string 'x'; it must be an object");
}

void add_fields(Table& t) {
  t.rule("dtype_is_known");
  const std::string known = "; it must be one of F64 F32 BF16 F16 I64 I32 I8 U8 BOOL";
  for (const char* other : {"", "f32", "F32 ", "F8_E4M3", "F8_E5M2", "I16", "U16", "U32", "U64",
                            "C64", "F128", "float32", "OBJECT"})
    t.dtype(("other_" + std::to_string(t.files.size())).c_str(), "\""s + other + "\"",
            "dtype of 'a' is '"s + other + "'" + known);
  t.dtype("long", "\"" + std::string(1000, 'F') + "\"", "FFF...'" + known);

  t.rule("dtype_is_a_string");
  for (const char* other : {"null", "true", "the number 32", "the number -1", "the number 3.5"}) {
    const std::string found = other, number = "the number ";
    const std::string value = found.starts_with(number) ? found.substr(number.size()) : found;
    t.dtype(("other_" + std::to_string(t.files.size())).c_str(), value,
            "dtype of 'a' is " + found + "; it must be a string");
  }
  t.dtype("array", "[\"F32\"]", "dtype of 'a' is an array; it must be a string");
  t.dtype("object", "{}", "dtype of 'a' is an object; it must be a string");

  t.rule("shape_is_an_array_of_sizes");
  const std::string sizes = "; sizes are integers from 0",
                    array = "; it must be an array of integers";
  t.shape("null", "null", "shape of 'a' is null" + array);
  t.shape("number", "6", "shape of 'a' is the number 6" + array);
  t.shape("string", "\"[2,3]\"", "shape of 'a' is the string '[2,3]'" + array);
  t.shape("object", "{\"0\":2}", "shape of 'a' is an object" + array);
  t.shape("negative", "[-2,-3]", "shape of 'a' holds the number -2" + sizes);
  t.shape("minus_zero", "[-0]", "shape of 'a' holds the number -0" + sizes);
  t.shape("float", "[2.0,3]", "shape of 'a' holds the number 2.0" + sizes);
  t.shape("exponent", "[6e0]", "shape of 'a' holds the number 6e0" + sizes);
  t.shape("string_in_it", "[\"2\",3]", "shape of 'a' holds the string '2'" + sizes);
  t.shape("null_in_it", "[2,null]", "shape of 'a' holds null" + sizes);
  t.shape("yes_in_it", "[true,6]", "shape of 'a' holds true" + sizes);
  t.shape("nested", "[[2,3]]", "shape of 'a' holds an array" + sizes);
  t.shape("object_in_it", "[{}]", "shape of 'a' holds an object" + sizes);
  t.shape("two_64", "[18446744073709551616]", "holds the number 18446744073709551616" + sizes);

  t.rule("sizes_are_less_than_2_63");
  const std::string limit = "; a size is less than 2^63";
  t.shape("two_63", "[9223372036854775808]", "has the size 9223372036854775808" + limit);
  t.shape("two_64_less_1", "[18446744073709551615]", "has the size 18446744073709551615" + limit);
  t.shape("second", "[1,9223372036854775809]", "has the size 9223372036854775809" + limit);
  t.shape("after_zero", "[0,9223372036854775808]", "has the size 9223372036854775808" + limit);
  t.shape("before_zero", "[10000000000000000000,0]", "has the size 10000000000000000000" + limit);

  t.rule("at_most_eight_dimensions");
  for (const int rank : {9, 10, 16, 64, 100000}) {
    std::string ones = "[2,3";
    for (int n = 2; n < rank; ++n) ones += ",1";
    t.shape(("rank_" + std::to_string(rank)).c_str(), ones + "]",
            "shape of 'a' has more than 8 dimensions");
  }

  t.rule("shape_times_size_does_not_overflow");
  const std::string large = "is larger than a file can be";
  t.shape("wraps_to_zero", "[4294967296,4294967296]",
          "shape [4294967296, 4294967296] of 'a' in f32 " + large);
  t.shape("bytes_wrap_to_zero", "[4611686018427387904]", large);
  t.shape("bytes_are_two_63", "[2305843009213693952]", large);
  t.shape("wraps_to_the_right_size", "[6,1,4611686018427387905]", large);
  t.shape("largest_twice", "[9223372036854775807,9223372036854775807]", large);
  t.shape("after_zero", "[0,4294967296,4294967296]", large);
  t.shape("before_zero", "[4611686018427387904,4,0]", large);
}

void add_offsets(Table& t) {
  t.rule("data_offsets_are_two_integers");
  const std::string integers = "; offsets are integers from 0";
  t.offsets("null", "null", "data_offsets of 'a' is null; it must be an array of integers");
  t.offsets("string", "\"0,24\"", "is the string '0,24'; it must be an array of integers");
  t.offsets("object", "{}", "data_offsets of 'a' is an object; it must be an array of integers");
  t.offsets("none", "[]", "data_offsets of 'a' has 0 numbers; it must have two");
  t.offsets("one", "[0]", "data_offsets of 'a' has 1 numbers; it must have two");
  t.offsets("three", "[0,24,24]", "data_offsets of 'a' has more than two numbers");
  t.offsets("negative", "[-24,0]", "data_offsets of 'a' holds the number -24" + integers);
  t.offsets("float", "[0.0,24]", "data_offsets of 'a' holds the number 0.0" + integers);
  t.offsets("string_in_it", "[\"0\",24]", "holds the string '0'" + integers);
  t.offsets("nested", "[[0,24]]", "data_offsets of 'a' holds an array" + integers);
  t.offsets("two_64", "[0,18446744073709551616]",
            "holds the number 18446744073709551616" + integers);

  t.rule("offsets_are_in_order");
  t.offsets("exchanged", "[24,0]",
            "data_offsets of 'a' are 24 to 0: the end comes before the beginning");
  t.offsets("by_one", "[24,23]", "are 24 to 23: the end comes before the beginning");
  t.offsets("difference_wraps", "[18446744073709551615,23]", "18446744073709551615 to 23: the end");
  t.offsets("empty_range", "[1,0]", "are 1 to 0: the end comes before the beginning");
  t.offsets("both_outside", "[99,98]", "are 99 to 98: the end comes before the beginning");

  t.rule("offsets_are_inside_the_file");
  const std::string data = "; the file has 24 bytes of data";
  t.offsets("one_outside", "[0,25]", "data_offsets of 'a' are 0 to 25" + data);
  t.offsets("shifted", "[1,25]", "are 1 to 25" + data);
  t.offsets("all_outside", "[24,48]", "are 24 to 48" + data);
  t.offsets("terabyte", "[0,1099511627776]", "are 0 to 1099511627776" + data);
  t.offsets("largest", "[0,18446744073709551615]", "are 0 to 18446744073709551615" + data);
  t.offsets("empty_outside", "[25,25]", "are 25 to 25" + data);
  t.add("no_data", safetensors_file("{\"a\":" + kTensor + "}"), "; the file has 0 bytes of data");
  t.add("one_byte_cut", safetensors_file("{\"a\":" + kTensor + "}", kFloats.substr(1)),
        "; the file has 23 bytes of data");

  t.rule("offsets_have_the_size_of_the_shape");
  t.offsets("one_short", "[0,23]",
            "data_offsets of 'a' are 0 to 23, 23 bytes; shape [2, 3] of f32 has 24");
  t.offsets("nothing", "[0,0]", "are 0 to 0, 0 bytes; shape [2, 3] of f32 has 24");
  t.shape("more_elements", "[2,4]", "24 bytes; shape [2, 4] of f32 has 32");
  t.shape("fewer_elements", "[5]", "24 bytes; shape [5] of f32 has 20");
  t.shape("no_dimension", "[]", "24 bytes; shape [] of f32 has 4");
  t.shape("zero", "[0]", "24 bytes; shape [0] of f32 has 0");
  t.dtype("larger_type", "\"F64\"", "24 bytes; shape [2, 3] of f64 has 48");
  t.dtype("smaller_type", "\"BOOL\"", "24 bytes; shape [2, 3] of bool has 6");
}

void add_layout(Table& t) {
  t.rule("no_overlap");
  t.layout("same_place", {{0, 8}, {0, 8}}, 8, "data of 'b' begins at 0, inside the tensor before");
  t.layout("one_byte", {{0, 8}, {7, 16}}, 16,
           "begins at 7, inside the tensor before it, which ends at 8");
  t.layout("contained", {{0, 16}, {4, 8}}, 16, "data of 'b' begins at 4, inside");
  t.layout("empty_inside", {{0, 16}, {8, 8}}, 16, "data of 'b' begins at 8, inside");
  t.layout("not_in_order", {{4, 12}, {0, 8}}, 12, "data of 'a' begins at 4, inside");
  t.layout("third", {{0, 4}, {4, 8}, {6, 10}}, 10, "data of 'c' begins at 6, inside");

  t.rule("no_hole");
  t.layout("at_the_front", {{1, 8}}, 8, "data of 'a' begins at 1, but what is before it ends at 0");
  t.layout("between", {{0, 4}, {5, 8}}, 8,
           "'b' begins at 5, but what is before it ends at 4: there is a hole");
  t.layout("to_align", {{0, 3}, {8, 16}}, 16, "data of 'b' begins at 8, but what");
  t.layout("not_in_order", {{6, 8}, {0, 4}}, 8, "data of 'a' begins at 6, but what");
  t.layout("before_an_empty_one", {{0, 4}, {8, 8}}, 8, "data of 'b' begins at 8, but what");

  t.rule("the_last_tensor_ends_the_file");
  const std::string ends = " bytes of data, but the last tensor ends at ";
  t.layout("one_more", {{0, 8}}, 9, "has 9" + ends + "8");
  t.layout("many_more", {{0, 8}, {8, 12}}, 5000, "has 5000" + ends + "12");
  t.layout("no_tensors", {}, 1, "has 1" + ends + "0");
  t.layout("empty_tensor", {{0, 0}}, 8, "has 8" + ends + "0");
  t.json("metadata_only", "{\"__metadata__\":{\"k\":\"v\"}}", "has 24" + ends + "0");

  t.rule("bool_is_0_or_1");
  const auto bools = [&](const char* name, const std::string& shape, const std::string& bytes,
                         std::string says) {
    const std::string end = "[0," + std::to_string(bytes.size()) + "]";
    t.add(name, safetensors_file("{\"a\":" + tensor("\"BOOL\"", shape, end) + "}", bytes),
          says + "; a bool is 0 or 1");
  };
  bools("two", "[3]", "\1\2\0"s, "element 1 of 'a' is 2");
  bools("all_bits", "[1,3]", "\1\0\xFF"s, "element 2 of 'a' is 255");
  bools("digit", "[1]", "1", "element 0 of 'a' is 49");
  bools("no_dimension", "[]", "\x80", "element 0 of 'a' is 128");
  bools("last_of_many", "[1000]", std::string(999, '\1') + "\3", "element 999 of 'a' is 3");
}

}  // namespace

std::vector<MalformedFile> malformed_safetensors() {
  Table table;
  add_lengths(table);
  add_grammar(table);
  add_structure(table);
  add_fields(table);
  add_offsets(table);
  add_layout(table);
  return table.files;
}

}  // namespace attend::test
