// Options in the metadata of a safetensors file, where everything is text. Reading is strict: a
// value that is not wholly what it should be is refused, with the file, the key and the value.
#pragma once

#include <attend/io.h>

#include <optional>
#include <span>
#include <string_view>

namespace attend {

class MetadataReader {
 public:
  explicit MetadataReader(const TensorFile& file) : file_(file) {}

  bool has(const std::string& key) const { return file_.metadata.count(key) != 0; }
  // The metadata's "format" must be this.
  void format_is(std::string_view format) const;
  // Each throws a FileError if the key is missing or its value is of another kind.
  std::int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key) const;
  // The place of the value among `names`.
  int choice(const std::string& key, std::span<const std::string_view> names) const;

 private:
  const std::string& value(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, std::string_view what) const;

  const TensorFile& file_;
};

// "path: ", for messages; "" of a file that is none yet.
std::string place_of(const TensorFile& file);

// The fewest digits that give the number back.
std::string digits(double number);

}  // namespace attend
