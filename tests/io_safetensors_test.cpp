// Files of safetensors: what is written is read back, in order, as the format's own library has it,
// and what breaks a rule of the format is refused by that rule's name.
#include "io/safetensors.h"
#include "support/io_files.h"
#include "support/io_malformed.h"

#include <attend/io.h>

#include <gtest/gtest.h>

#include <map>

namespace attend::test {
namespace {

using namespace std::string_literals;

TensorFile read_bytes(const std::string& bytes) {
  return read_safetensors(MemorySource("load_safetensors: x.safetensors", bytes));
}

std::string written_bytes(const std::vector<NamedView>& tensors, const Metadata& metadata = {}) {
  MemorySink sink;
  write_safetensors(sink, safetensors_head("test", tensors, metadata), tensors);
  return sink.bytes;
}

std::string names_of(const TensorFile& file) {
  std::string names;
  for (const NamedTensor& t : file.tensors) names += (names.empty() ? "" : " ") + t.name;
  return names;
}

// ---- What is written is read back --------------------------------------------------------------

TEST(Safetensors, every_type_and_shape_is_read_back) {
  const TemporaryFolder folder;
  std::vector<NamedTensor> tensors;
  for (const DType type : kAllTypes)
    for (const Shape& shape : file_shapes())
      tensors.push_back({text(name_of(type), shape), random_tensor(shape, type)});
  std::vector<NamedView> views;
  for (const NamedTensor& t : tensors) views.push_back({t.name, t.tensor});
  save_safetensors(folder / "x.safetensors", views);
  const TensorFile file = load_safetensors(folder / "x.safetensors");
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    EXPECT_EQ(file.tensors[n].name, tensors[n].name) << "the order changed";
    EXPECT_EQ(difference(file.tensors[n].tensor, tensors[n].tensor), "") << tensors[n].name;
  }
  EXPECT_EQ(file.path, folder / "x.safetensors");
  EXPECT_TRUE(file.metadata.empty());
  EXPECT_EQ(folder.listing(), "x.safetensors");
}

TEST(Safetensors, every_stride_is_written_in_order) {
  for (const DType type : kAllTypes) {
    const Tensor tensor = random_tensor({3, 2, 4, 5}, type);
    std::vector<NamedView> views;
    for (const StridedView& strided : strided_views(tensor))
      views.push_back({strided.name, strided.view});
    const TensorFile file = read_bytes(written_bytes(views));
    for (const NamedView& strided : views)
      EXPECT_EQ(difference(file.at(strided.name), strided.tensor), "")
          << name_of(type) << " " << strided.name;
  }
}

TEST(Safetensors, names_and_metadata_of_any_text_are_read_back) {
  const Tensor x = random_tensor({2}, DType::f32);
  const std::string strange[] = {"",
                                 "a b",
                                 "\"quoted\"",
                                 "back\\slash",
                                 "line\nfeed",
                                 "zero\0x"s,
                                 "\xC3\xA9t\xC3\xA9",
                                 "\xF0\x9F\x99\x82",
                                 "</script>",
                                 "{\"dtype\":\"F32\"}"};
  std::vector<NamedView> views;
  Metadata metadata;
  for (const std::string& name : strange) {
    views.push_back({name, x});
    metadata[name] = "value of " + name;
  }
  const TensorFile file = read_bytes(written_bytes(views, metadata));
  EXPECT_EQ(file.metadata, metadata);
  ASSERT_EQ(file.tensors.size(), std::size(strange));
  for (std::size_t n = 0; n < std::size(strange); ++n) EXPECT_EQ(file.tensors[n].name, strange[n]);
}

TEST(Safetensors, ten_thousand_tensors_are_read_back) {
  const Tensor x = random_tensor({3}, DType::f16);
  std::vector<NamedView> views;
  for (int n = 0; n < 10000; ++n) views.push_back({"layers." + std::to_string(n) + ".weight", x});
  const TensorFile file = read_bytes(written_bytes(views));
  ASSERT_EQ(file.tensors.size(), views.size());
  EXPECT_EQ(difference(file.at("layers.9999.weight"), x), "");
}

TEST(Safetensors, the_readme_way_to_save_compiles_and_works) {
  const TemporaryFolder folder;
  const Tensor q = random_tensor({2, 3}, DType::f32), k = random_tensor({3}, DType::bf16);
  save_safetensors(folder / "qk.safetensors", {{"q", q}, {"k", k}}, {{"heads", "8"}});
  const TensorFile file = load_safetensors(folder / "qk.safetensors");
  EXPECT_EQ(difference(file.at("q"), q), "");
  EXPECT_EQ(difference(file.at("k"), k), "");
  EXPECT_EQ(file.metadata.at("heads"), "8");
}

TEST(Safetensors, every_tensor_is_aligned_in_the_file_and_keeps_its_place_in_the_order) {
  const Tensor bytes = random_tensor({3}, DType::u8), halves = random_tensor({3}, DType::bf16),
               doubles = random_tensor({1}, DType::f64), floats = random_tensor({3}, DType::f32);
  const std::string file =
      written_bytes({{"b", bytes}, {"h", halves}, {"d", doubles}, {"f", floats}});
  EXPECT_EQ(names_of(read_bytes(file)), "b h d f");
  for (const char* offsets : {"\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}",
                              "\"f\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,20]}",
                              "\"h\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[20,26]}",
                              "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[26,29]}"})
    EXPECT_NE(file.find(offsets), std::string::npos) << offsets;
  EXPECT_EQ((file.size() - 29) % 8, 0U) << "the data itself begins at a multiple of 8";
}

TEST(Safetensors, find_and_at_give_the_tensor_of_a_name) {
  const TensorFile file{
      {{"a", random_tensor({2}, DType::f32)}, {"b", random_tensor({3}, DType::i8)}}, {}, {}};
  EXPECT_EQ(file.find("b"), &file.tensors[1].tensor);
  EXPECT_EQ(&file.at("a"), &file.tensors[0].tensor);
  EXPECT_EQ(file.find("c"), nullptr);
}

// ---- As the format's own library has it --------------------------------------------------------

// Written by safetensors 0.8: a file with every kind of thing in it, and one with nothing.
const std::string kGolden =
    "8\x01\x00\x00\x00\x00\x00\x00{\"__metadata__\":{\"heads\":\"8\"},"
    "\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},"
    "\"z\":{\"dtype\":\"I32\",\"shape\":[0,2],\"data_offsets\":[24,24]},"
    "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[24,27]},"
    "\"m\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[27,29]}}       "
    "\x00\x00\x00\x00\x00\x00\x00@\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@\x00\x00@@"
    "\x00\x01\x02\x01\x00"s;
const std::string kGoldenEmpty = "\x08\x00\x00\x00\x00\x00\x00\x00{}      "s;

std::vector<NamedTensor> golden_tensors() {
  return {{"s", Tensor({2.0}, Shape{})},
          {"a", Tensor({0.0F, 1.0F, 2.0F, 3.0F}, {2, 2})},
          {"z", Tensor({0, 2}, DType::i32)},
          {"b", Tensor({std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{2}}, {3})},
          {"m", Tensor({true, false}, {2})}};
}

TEST(SafetensorsGolden, a_file_of_the_library_is_read) {
  const TensorFile file = read_bytes(kGolden);
  EXPECT_EQ(names_of(file), "s a z b m");
  for (const NamedTensor& t : golden_tensors())
    EXPECT_EQ(difference(file.at(t.name), t.tensor), "") << t.name;
  EXPECT_EQ(file.metadata, (Metadata{{"heads", "8"}}));
  EXPECT_TRUE(read_bytes(kGoldenEmpty).tensors.empty());
}

TEST(SafetensorsGolden, the_bytes_are_those_of_the_library) {
  const std::vector<NamedTensor> tensors = golden_tensors();
  std::vector<NamedView> views;
  for (const NamedTensor& t : tensors) views.push_back({t.name, t.tensor});
  EXPECT_EQ(written_bytes(views, {{"heads", "8"}}), kGolden);
  EXPECT_EQ(written_bytes({}), kGoldenEmpty);
}

TEST(SafetensorsGolden, bf16_f16_i64_and_i8_by_hand) {
  const std::string data = "\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x80\x3F\x00\x3C\x80"s;
  const std::string file =
      safetensors_file(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]},)"
                       R"("h":{"dtype":"F16","shape":[1],"data_offsets":[10,12]},)"
                       R"("c":{"dtype":"I8","shape":[1],"data_offsets":[12,13]}})",
                       data);
  const TensorFile read = read_bytes(file);
  EXPECT_EQ(read.at("i").at<std::int64_t>({0}), -2);
  EXPECT_EQ(read.at("b").at<bf16>({0}), bf16(1.0));
  EXPECT_EQ(read.at("h").at<f16>({0}), f16(1.0));
  EXPECT_EQ(read.at("c").at<std::int8_t>({0}), -128);
}

TEST(Safetensors, other_ways_to_write_the_same_header_are_read) {
  const std::string data = "\1\2\3";
  for (const char* json : {
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           R"({ "a" : { "data_offsets" : [ 0 , 2 ] , "shape":[2],"dtype":"U8" },)"
           "\n\t\r \"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}   \n",
           R"({"__metadata__":{},"\u0061":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       }) {
    const TensorFile file = read_bytes(safetensors_file(json, data));
    EXPECT_EQ(names_of(file), "a b");
    EXPECT_EQ(file.at("b").at<std::uint8_t>({0}), 3);
  }
}

TEST(Safetensors, the_data_may_stand_in_another_order_than_the_header) {
  const TensorFile file =
      read_bytes(safetensors_file(R"({"last":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                  R"("none":{"dtype":"F64","shape":[0],"data_offsets":[2,2]},)"
                                  R"("first":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                  "\1\2\3"));
  EXPECT_EQ(names_of(file), "last none first");
  EXPECT_EQ(file.at("last").at<std::uint8_t>({0}), 3);
  EXPECT_EQ(file.at("first").at<std::uint8_t>({1}), 2);
}

// ---- What breaks a rule ------------------------------------------------------------------------

TEST(SafetensorsMalformed, every_rule_has_five_files) {
  std::map<std::string, int> rules;
  for (const MalformedFile& file : malformed_safetensors()) ++rules[file.rule];
  for (const auto& [rule, count] : rules) EXPECT_GE(count, 5) << rule;
  EXPECT_GE(rules.size(), 22U);
  EXPECT_GE(malformed_safetensors().size(), 170U);
}

class SafetensorsMalformed : public testing::TestWithParam<MalformedFile> {};

TEST_P(SafetensorsMalformed, is_refused_by_the_rule) {
  const MalformedFile& file = GetParam();
  const std::string from_memory = error_of([&] { read_bytes(file.bytes); });
  EXPECT_EQ(from_memory.rfind("FileError: load_safetensors: x.safetensors: ", 0), 0U)
      << from_memory;
  EXPECT_NE(from_memory.find(file.says), std::string::npos) << from_memory << "\n" << file.says;
  EXPECT_EQ(from_memory.find('\n'), std::string::npos) << "more than one line: " << from_memory;
  EXPECT_LT(from_memory.size(), 400U) << from_memory;

  const TemporaryFolder folder;
  write_bytes(folder / "x.safetensors", file.bytes);
  std::string from_file = error_of([&] { load_safetensors(folder / "x.safetensors"); });
  const std::size_t at = from_file.find(folder.path().string() + "/");
  ASSERT_NE(at, std::string::npos) << from_file;
  EXPECT_EQ(from_file.erase(at, folder.path().string().size() + 1), from_memory);
}

std::string test_name(const testing::TestParamInfo<MalformedFile>& info) {
  return info.param.rule + "__" + info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Rules, SafetensorsMalformed, testing::ValuesIn(malformed_safetensors()),
                         test_name);

TEST(SafetensorsDamaged, every_beginning_and_every_continuation_is_refused) {
  for (std::size_t size = 0; size < kGolden.size(); ++size)
    EXPECT_EQ(error_of([&] { read_bytes(kGolden.substr(0, size)); }).rfind("FileError: ", 0), 0U)
        << size;
  EXPECT_EQ(error_of([&] { read_bytes(kGolden + '\0'); }).rfind("FileError: ", 0), 0U);
  EXPECT_EQ(error_of([&] { read_bytes(kGolden + kGolden); }).rfind("FileError: ", 0), 0U);
}

TEST(SafetensorsDamaged, a_changed_byte_of_the_header_is_refused_or_harmless) {
  const std::size_t data = kGolden.size() - 29;
  int refused = 0;
  for (std::size_t at = 0; at < data; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = kGolden;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const std::string error = error_of([&] {
        std::int64_t bytes = 0;
        for (const NamedTensor& t : read_bytes(damaged).tensors)
          bytes += t.tensor.count() * size_of(t.tensor.dtype());
        if (bytes != 29) throw std::logic_error("another size");
      });
      EXPECT_TRUE(error == "nothing" || error.starts_with("FileError: ")) << error;
      refused += error != "nothing";
    }
  EXPECT_GT(refused, static_cast<int>(7 * data)) << "of " << 8 * data;
}

}  // namespace
}  // namespace attend::test
