// Files of NumPy: what is written is read back, byte for byte as NumPy has it, and what breaks a
// rule of the format is refused by that rule's name.
#include "io/npy.h"
#include "support/io_files.h"
#include "support/io_malformed.h"

#include <attend/io.h>

#include <gtest/gtest.h>

#include <map>

namespace attend::test {
namespace {

using namespace std::string_literals;

Tensor read_bytes(const std::string& bytes) {
  return read_npy(MemorySource("load_npy: x.npy", bytes));
}

std::string written_bytes(const ConstTensorView& tensor) {
  MemorySink sink;
  write_npy(sink, tensor);
  return sink.bytes;
}

// ---- What is written is read back --------------------------------------------------------------

TEST(Npy, every_type_and_shape_is_read_back) {
  const TemporaryFolder folder;
  for (const DType type : kAllTypes)
    for (const Shape& shape : file_shapes()) {
      if (type == DType::bf16) continue;
      const Tensor tensor = random_tensor(shape, type);
      save_npy(folder / "x.npy", tensor);
      EXPECT_EQ(difference(load_npy(folder / "x.npy"), tensor), "") << name_of(type);
    }
  EXPECT_EQ(folder.listing(), "x.npy");
}

TEST(Npy, every_stride_is_written_in_order) {
  const TemporaryFolder folder;
  for (const DType type : kAllTypes) {
    if (type == DType::bf16) continue;
    const Tensor tensor = random_tensor({3, 2, 4, 5}, type);
    for (const StridedView& strided : strided_views(tensor)) {
      save_npy(folder / "x.npy", strided.view);
      EXPECT_EQ(difference(load_npy(folder / "x.npy"), strided.view), "")
          << name_of(type) << " " << strided.name;
    }
  }
}

TEST(Npy, a_strided_tensor_larger_than_the_buffer_is_written_in_order) {
  for (const DType type : {DType::f64, DType::f16, DType::boolean}) {
    const Tensor tensor = random_tensor({301, 467}, type);
    const ConstTensorView transposed = tensor.view().permute({1, 0});
    EXPECT_EQ(difference(read_bytes(written_bytes(transposed)), transposed), "") << name_of(type);
  }
}

TEST(Npy, any_byte_but_zero_is_written_as_true) {
  const unsigned char bytes[] = {0, 1, 2, 255};
  const std::string file = written_bytes(ConstTensorView(bytes, DType::boolean, {4}));
  EXPECT_EQ(file.substr(file.size() - 4), "\0\1\1\1"s);
}

TEST(Npy, the_null_address_of_an_empty_tensor_is_fine) {
  const ConstTensorView none(nullptr, DType::i32, {0, 3});
  EXPECT_EQ(difference(read_bytes(written_bytes(none)), Tensor({0, 3}, DType::i32)), "");
}

// ---- As NumPy has it ---------------------------------------------------------------------------

// Written by numpy.save of NumPy 2.4: `header`, spaces up to byte 127, a newline, `data`.
struct Golden {
  const char* name;
  std::string start, header, data;
  Tensor tensor;

  std::string bytes() const {
    std::string all = start + header;
    return all.append(127 - all.size(), ' ') + "\n" + data;
  }
};

const std::string kV1 = "\x93NUMPY\x01\x00v\x00"s, kV2 = "\x93NUMPY\x02\x00t\x00\x00\x00"s,
                  kV3 = "\x93NUMPY\x03\x00t\x00\x00\x00"s;

std::vector<Golden> version_1() {
  const std::string six =
      "\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@\x00\x00@@\x00\x00\x80@"
      "\x00\x00\xa0@"s;
  return {
      {"f4", kV1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", six,
       Tensor({0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F}, {2, 3})},
      {"f8", kV1, "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
       "\x00\x00\x00\x00\x00\x00\xf8?"s, Tensor({1.5}, Shape{})},
      {"f2", kV1, "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1), }", "\x00<"s,
       Tensor({f16(1.0)}, {1, 1})},
      {"i8", kV1, "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 3), }", "",
       Tensor({0, 3}, DType::i64)},
      {"i4", kV1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }",
       "\xFE\xFF\xFF\xFF\x00\x01\x00\x00"s, Tensor({-2, 256}, {2})},
      {"i1", kV1, "{'descr': '|i1', 'fortran_order': False, 'shape': (3,), }", "\xFF\x02\x03",
       Tensor({std::int8_t{-1}, std::int8_t{2}, std::int8_t{3}}, {3})},
      {"u1", kV1, "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2), }", "\xFF\x07",
       Tensor({std::uint8_t{255}, std::uint8_t{7}}, {1, 2})},
      {"b1", kV1, "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", "\x01\x00"s,
       Tensor({true, false}, {2})},
  };
}

TEST(NpyGolden, files_of_numpy_are_read) {
  std::vector<Golden> files = version_1();
  files.push_back({"v2", kV2, "{'descr': '|i1', 'fortran_order': False, 'shape': (2,), }",
                   "\x01\x02", Tensor({std::int8_t{1}, std::int8_t{2}}, {2})});
  files.push_back({"v3", kV3, "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }",
                   "\x01\x00"s, Tensor({true, false}, {2})});
  files.push_back({"fortran", kV1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }",
                   "\0\3\1\4\2\5"s,
                   Tensor({std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3},
                           std::uint8_t{4}, std::uint8_t{5}},
                          {2, 3})});
  for (const Golden& file : files)
    EXPECT_EQ(difference(read_bytes(file.bytes()), file.tensor), "") << file.name;
}

TEST(NpyGolden, the_bytes_are_those_of_numpy) {
  for (const Golden& file : version_1())
    EXPECT_EQ(written_bytes(file.tensor), file.bytes()) << file.name;
}

TEST(NpyGolden, the_data_begins_at_a_multiple_of_64) {
  for (std::int64_t size = 1; size < std::int64_t{1} << 60; size *= 7) {
    const std::string file =
        written_bytes(ConstTensorView(nullptr, DType::u8, {0, size, 1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(file.size() % 64, 0U) << size;
    EXPECT_EQ(file.back(), '\n') << size;
  }
}

TEST(Npy, fortran_order_is_read_in_every_rank) {
  for (const Shape& shape : file_shapes()) {
    const Tensor tensor = random_tensor(shape, DType::i32);
    Shape order = shape;
    for (int dim = 0; dim < shape.rank(); ++dim) order[dim] = shape.rank() - 1 - dim;
    // The reversed tensor's rows are the columns of the file.
    const std::string reversed = written_bytes(tensor.view().permute(order));
    std::string sizes = "(";
    for (const std::int64_t size : shape) sizes += std::to_string(size) + ",";
    const std::string data = reversed.substr(reversed.find('\n') + 1);
    const std::string file = npy_file(npy_header("<i4", sizes + ")", "True"), data);
    EXPECT_EQ(difference(read_bytes(file), tensor), "") << to_string(shape);
  }
}

TEST(Npy, other_ways_to_write_the_same_header_are_read) {
  const Tensor tensor = random_tensor({2, 3}, DType::i8);
  const std::string data(static_cast<const char*>(tensor.view().data()), 6);
  for (const char* header : {
           "{'descr':'|i1','fortran_order':False,'shape':(2,3)}",
           "{'shape': (2, 3), 'fortran_order': False, 'descr': '|i1'}",
           R"({"descr": "|i1", "fortran_order": False, "shape": (2, 3,)})",
           "  { 'descr'  : '<i1' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , }  ",
       })
    for (const int version : {1, 2, 3})
      EXPECT_EQ(difference(read_bytes(npy_file(header, data, version)), tensor), "") << header;
}

TEST(Npy, the_longest_header_is_read) {
  const std::string header = npy_header("|u1", "(1,)");
  const std::string padding(65535 - header.size(), ' ');
  EXPECT_EQ(read_bytes(npy_file(header + padding, "\7", 2)).at<std::uint8_t>({0}), 7);
  EXPECT_EQ(read_bytes(npy_file(header + padding.substr(1), "\7", 1)).at<std::uint8_t>({0}), 7);
}

// ---- What breaks a rule ------------------------------------------------------------------------

TEST(NpyMalformed, every_rule_has_five_files) {
  std::map<std::string, int> rules;
  for (const MalformedFile& file : malformed_npy()) ++rules[file.rule];
  for (const auto& [rule, count] : rules) EXPECT_GE(count, 5) << rule;
  EXPECT_GE(rules.size(), 18U);
  EXPECT_GE(malformed_npy().size(), 150U);
}

class NpyMalformed : public testing::TestWithParam<MalformedFile> {};

TEST_P(NpyMalformed, is_refused_by_the_rule) {
  const MalformedFile& file = GetParam();
  const std::string from_memory = error_of([&] { read_bytes(file.bytes); });
  EXPECT_EQ(from_memory.rfind("FileError: load_npy: x.npy: ", 0), 0U) << from_memory;
  EXPECT_NE(from_memory.find(file.says), std::string::npos) << from_memory << "\n" << file.says;
  EXPECT_EQ(from_memory.find('\n'), std::string::npos) << "more than one line: " << from_memory;

  const TemporaryFolder folder;
  write_bytes(folder / "x.npy", file.bytes);
  std::string from_file = error_of([&] { load_npy(folder / "x.npy"); });
  const std::size_t at = from_file.find(folder.path().string() + "/");
  ASSERT_NE(at, std::string::npos) << from_file;
  EXPECT_EQ(from_file.erase(at, folder.path().string().size() + 1), from_memory);
}

std::string test_name(const testing::TestParamInfo<MalformedFile>& info) {
  return info.param.rule + "__" + info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Rules, NpyMalformed, testing::ValuesIn(malformed_npy()), test_name);

TEST(NpyDamaged, every_beginning_and_every_continuation_is_refused) {
  const std::string file = written_bytes(random_tensor({2, 3}, DType::f32));
  for (std::size_t size = 0; size < file.size(); ++size)
    EXPECT_EQ(error_of([&] { read_bytes(file.substr(0, size)); }).rfind("FileError: ", 0), 0U)
        << size;
  EXPECT_EQ(error_of([&] { read_bytes(file + '\0'); }).rfind("FileError: ", 0), 0U);
  EXPECT_EQ(error_of([&] { read_bytes(file + file); }).rfind("FileError: ", 0), 0U);
}

TEST(NpyDamaged, a_changed_byte_of_the_header_is_refused_or_harmless) {
  const Tensor tensor = random_tensor({2, 3}, DType::f32);
  const std::string file = written_bytes(tensor);
  const std::size_t data = file.size() - 24;
  int refused = 0;
  for (std::size_t at = 0; at < data; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const std::string error = error_of([&] {
        const Tensor read = read_bytes(damaged);
        if (read.count() * size_of(read.dtype()) != 24) throw std::logic_error("another size");
      });
      EXPECT_TRUE(error == "nothing" || error.starts_with("FileError: ")) << error;
      refused += error != "nothing";
    }
  EXPECT_GT(refused, static_cast<int>(7 * data)) << "of " << 8 * data;
}

}  // namespace
}  // namespace attend::test
