// Every message about files, each produced at least once: those about paths and arguments word for
// word here, those about malformed files by their tables.
#include "errors/sources.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "support/io_files.h"
#include "support/io_malformed.h"

#include <attend/io.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

namespace attend::test {
namespace {

using namespace std::string_literals;

const Tensor& small() {
  static const Tensor tensor = random_tensor({2, 3}, DType::f32);
  return tensor;
}

struct Mistake {
  std::string name;
  std::function<void(const TemporaryFolder&)> make;
  std::string message;  // FOLDER stands for the folder
};

void save_two(const TemporaryFolder& folder, const std::string& first, const std::string& second) {
  save_safetensors(folder / "x", {{first, small()}, {second, small()}});
}

// Reads `count` bytes of a file from its beginning.
void read_some(const fs::path& path, std::size_t count) {
  FileSource("load_npy", path).read_text(0, count);
}

std::vector<Mistake> reading_mistakes() {
  return {
      {"absent", [](const auto& f) { load_npy(f / "x"); },
       "FileError: load_npy: FOLDER/x: cannot be opened: No such file or directory"},
      {"empty_path", [](const auto&) { load_npy(""); },
       "FileError: load_npy: the name of the file is empty"},
      {"inside_a_file",
       [](const auto& f) {
         write_bytes(f / "file", "");
         load_safetensors(f / "file/x");
       },
       "FileError: load_safetensors: FOLDER/file/x: cannot be opened: Not a directory"},
      {"folder", [](const auto& f) { load_npy(f.path()); },
       "FileError: load_npy: FOLDER: is a folder, not a file"},
      {"device", [](const auto&) { load_safetensors("/dev/zero"); },
       "FileError: load_safetensors: /dev/zero: is not a regular file; its size cannot be known"},
      {"pipe",
       [](const auto& f) {
         ASSERT_EQ(::mkfifo((f / "x").c_str(), 0600), 0);
         load_npy(f / "x");
       },
       "FileError: load_npy: FOLDER/x: is not a regular file; its size cannot be known"},
      {"path_with_a_zero", [](const auto& f) { load_npy(f / "x\0y"s); },
       "FileError: load_npy: FOLDER/x\\x00y: the path holds a NUL character"},
      {"path_of_two_lines", [](const auto& f) { load_npy(f / "x\ny"); },
       "FileError: load_npy: FOLDER/x\\x0Ay: cannot be opened: No such file or directory"},
      {"unreadable", [](const auto&) { read_some("/proc/self/mem", 1); },
       "FileError: load_npy: /proc/self/mem: cannot be read: Input/output error"},
      {"cut_while_it_is_read",
       [](const auto& f) {
         write_bytes(f / "x", "0123456789");
         const FileSource source("load_npy", f / "x");
         fs::resize_file(f / "x", 4);
         source.read_text(0, 10);
       },
       "FileError: load_npy: FOLDER/x: ends at byte 4; it had 10 bytes when it was opened"},
      {"no_memory",
       [](const auto& f) {
         with_memory_errors("load_npy", f / "x", [] { throw std::bad_alloc(); });
       },
       "OutOfMemory: load_npy: FOLDER/x: no memory for the header"},
      {"unknown_name",
       [](const auto& f) {
         save_two(f, "a", "b");
         load_safetensors(f / "x").at("c");
       },
       "FileError: TensorFile::at: FOLDER/x: there is no tensor 'c'; there are 'a', 'b'"},
      {"no_names", [](const auto&) { TensorFile().at("c"); },
       "FileError: TensorFile::at: there is no tensor 'c'; there are none"},
  };
}

std::vector<Mistake> argument_mistakes() {
  const auto save = [](const TemporaryFolder& f, const ConstTensorView& view) {
    save_npy(f / "x", view);
  };
  static const float zero = 0;
  static const ConstTensorView huge(&zero, {std::int64_t{1} << 62}, {0});
  static const ConstTensorView bytes(&zero, DType::u8, {std::int64_t{1} << 62}, {0});
  return {
      {"no_tensor", [=](const auto& f) { save(f, {}); },
       "InvalidArgument: save_npy: FOLDER/x: the tensor is missing"},
      {"device_memory",
       [=](const auto& f) {
         save(f, ConstTensorView(&zero, DType::f32, {1}, Device{Device::Kind::cuda, 1}));
       },
       "InvalidArgument: save_npy: FOLDER/x: the tensor is on cuda:1, not in host memory"},
      {"no_address",
       [=](const auto& f) {
         save(f, ConstTensorView(nullptr, DType::f32, {1, 2}));
       },
       "InvalidArgument: save_npy: FOLDER/x: the tensor [1, 2] has no address"},
      {"too_large", [=](const auto& f) { save(f, huge); },
       "InvalidArgument: save_npy: FOLDER/x: the tensor [4611686018427387904] of f32 is larger "
       "than a file can be"},
      {"bf16", [=](const auto& f) { save(f, Tensor({2}, DType::bf16)); },
       "InvalidArgument: save_npy: FOLDER/x: the tensor is bf16, which NumPy does not have; use "
       "save_safetensors"},
      {"no_named_tensor",
       [](const auto& f) {
         save_safetensors(f / "x", {{"q", {}}});
       },
       "InvalidArgument: save_safetensors: FOLDER/x: tensor 'q' is missing"},
      {"two_of_one_name", [](const auto& f) { save_two(f, "q", "q"); },
       "InvalidArgument: save_safetensors: FOLDER/x: two tensors are named 'q'"},
      {"reserved_name", [](const auto& f) { save_two(f, "q", "__metadata__"); },
       "InvalidArgument: save_safetensors: FOLDER/x: no tensor can be named '__metadata__'"},
      {"name_of_other_bytes", [](const auto& f) { save_two(f, "q", "k\xE9"); },
       "InvalidArgument: save_safetensors: FOLDER/x: name 'k\\xE9' is not UTF-8"},
      {"key_of_other_bytes",
       [](const auto& f) {
         save_safetensors(f / "x", {}, {{"\xE9", ""}});
       },
       "InvalidArgument: save_safetensors: FOLDER/x: metadata key '\\xE9' is not UTF-8"},
      {"value_of_other_bytes",
       [](const auto& f) {
         save_safetensors(f / "x", {}, {{"k", "\xFF"}});
       },
       "InvalidArgument: save_safetensors: FOLDER/x: metadata of 'k' is not UTF-8"},
      {"too_large_together",
       [=](const auto& f) {
         save_safetensors(f / "x", {{"a", bytes}, {"b", bytes}, {"c", bytes}, {"d", bytes}});
       },
       "InvalidArgument: save_safetensors: FOLDER/x: the tensors are larger than a file can be"},
      {"too_long_a_header",
       [](const auto& f) {
         save_safetensors(f / "x", {}, {{"k", std::string(100'000'000, 'v')}});
       },
       "InvalidArgument: save_safetensors: FOLDER/x: names and metadata make a header of "
       "100000032 bytes; at most 100000000 are allowed"},
  };
}

std::vector<Mistake> writing_mistakes() {
  return {
      {"to_an_empty_path", [](const auto&) { save_npy("", small()); },
       "FileError: save_npy: the name of the file is empty"},
      {"no_such_folder", [](const auto& f) { save_npy(f / "no/x", small()); },
       "FileError: save_npy: FOLDER/no/x: no file can be made in the folder 'FOLDER/no': No such "
       "file or directory"},
      {"onto_a_folder", [](const auto& f) { save_npy(f.path(), small()); },
       "FileError: save_npy: FOLDER: is a folder, not a file"},
      {"onto_a_pipe",
       [](const auto& f) {
         ASSERT_EQ(::mkfifo((f / "x").c_str(), 0600), 0);
         save_npy(f / "x", small());
       },
       "FileError: save_npy: FOLDER/x: is not a regular file; it cannot be written whole or not at "
       "all"},
      {"below_a_file",
       [](const auto& f) {
         write_bytes(f / "file", "");
         save_safetensors(f / "file/x", {});
       },
       "FileError: save_safetensors: FOLDER/file/x: cannot be written: Not a directory"},
      {"to_a_path_with_a_zero", [](const auto& f) { save_npy(f / "x\0y"s, small()); },
       "FileError: save_npy: FOLDER/x\\x00y: the path holds a NUL character"},
      {"to_a_loop_of_links",
       [](const auto& f) {
         fs::create_symlink("y", f / "x");
         fs::create_symlink("x", f / "y");
         save_npy(f / "x", small());
       },
       "FileError: save_npy: FOLDER/x: cannot be written: Too many levels of symbolic links"},
      {"full_disk",
       [](const auto&) {
         const int full = ::open("/dev/full", O_WRONLY);
         ASSERT_GE(full, 0);
         const std::string error = error_of([&] { write_all("save_npy: x", full, "1234", 4); });
         ::close(full);
         throw FileError(error.substr(error.find(": ") + 2));
       },
       "FileError: save_npy: x: cannot be written: No space left on device"},
      {"onto_what_has_become_a_folder",
       [](const auto& f) {
         AtomicFile file("save_npy", f / "x");
         fs::create_directory(f / "x");
         file.commit();
       },
       "FileError: save_npy: FOLDER/x: cannot be put in place: Is a directory"},
  };
}

std::vector<Mistake> all_mistakes() {
  std::vector<Mistake> all;
  for (const auto& table : {reading_mistakes(), argument_mistakes(), writing_mistakes()})
    all.insert(all.end(), table.begin(), table.end());
  return all;
}

class FileMistake : public testing::TestWithParam<Mistake> {};

TEST_P(FileMistake, is_told_in_one_line_and_leaves_nothing_behind) {
  const TemporaryFolder folder;
  std::string error = error_of([&] { GetParam().make(folder); });
  for (std::size_t at; (at = error.find(folder.path().string())) != std::string::npos;)
    error.replace(at, folder.path().string().size(), "FOLDER");
  EXPECT_EQ(error, GetParam().message);
  EXPECT_EQ(folder.listing().find(".attend"), std::string::npos) << folder.listing();
}

INSTANTIATE_TEST_SUITE_P(Files, FileMistake, testing::ValuesIn(all_mistakes()),
                         [](const auto& param) { return param.param.name; });

TEST(FileMessages, every_message_in_the_sources_is_covered) {
  std::vector<std::string> seen;
  for (const Mistake& mistake : all_mistakes())
    seen.push_back(mistake.message.substr(mistake.message.find(": ") + 2));
  for (const MalformedFile& file : malformed_npy())
    seen.push_back(error_of([&] { read_npy(MemorySource("x", file.bytes)); }).substr(11));
  for (const MalformedFile& file : malformed_safetensors())
    seen.push_back(error_of([&] { read_safetensors(MemorySource("x", file.bytes)); }).substr(11));
  std::vector<MessagePattern> patterns;
  for (const auto& entry : fs::directory_iterator(fs::path(ATTEND_SOURCE_DIR) / "src/io"))
    for (MessagePattern& pattern :
         message_patterns(entry.path().filename().string(), bytes_of(entry.path())))
      patterns.push_back(std::move(pattern));
  EXPECT_GT(patterns.size(), 60U) << "the sources were not understood";
  EXPECT_EQ(uncovered(patterns, seen), "");
}

TEST(Printable, text_from_outside_stays_one_short_line_of_whole_characters) {
  EXPECT_EQ(printable("a\tb\x7F\x1B[0m"), "a\\x09b\\x7F\\x1B[0m");
  EXPECT_EQ(printable("\xC3\xA9t\xC3\xA9", 1), "\xC3\xA9...");
  EXPECT_EQ(printable("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82"),
            "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82");
  for (const auto& [bytes, text] : {std::pair{"\x80", "\\x80"},
                                    {"\xE9", "\\xE9"},
                                    {"\xC1\x81", "\\xC1\\x81"},
                                    {"\xE0\x9F\xBF", "\\xE0\\x9F\\xBF"},
                                    {"\xED\xA0\x80", "\\xED\\xA0\\x80"},
                                    {"\xF4\x90\x80\x80", "\\xF4\\x90\\x80\\x80"},
                                    {"\xE2\x82", "\\xE2\\x82"},
                                    {"\xE2(\x82", "\\xE2(\\x82"}})
    EXPECT_EQ(printable(bytes), text);
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc...");
  EXPECT_EQ(in_quotes(std::string(100, 'x')), "'" + std::string(60, 'x') + "...'");
}

}  // namespace
}  // namespace attend::test
