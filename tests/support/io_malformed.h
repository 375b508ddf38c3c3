// Files that break one rule of their format each, with the piece of the message that says so. The
// tests require them to be refused for that reason; the fuzzer starts from them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace attend::test {

struct MalformedFile {
  std::string rule;  // snake_case
  std::string name;
  std::string bytes;
  std::string says;

  friend std::ostream& operator<<(std::ostream& os, const MalformedFile& file) {
    return os << file.rule << ": " << file.name;
  }
};

std::vector<MalformedFile> malformed_npy();
std::vector<MalformedFile> malformed_safetensors();

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int n = 0; n < bytes; ++n) out += static_cast<char>(value >> 8 * n & 0xFF);
  return out;
}

// A file whose header is `header` and a newline, and whose lengths are right.
inline std::string npy_file(std::string_view header, std::string_view data, int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += little_endian(header.size() + 1, version == 1 ? 2 : 4);
  return bytes.append(header).append("\n").append(data);
}

inline std::string npy_header(std::string_view descr, std::string_view shape,
                              std::string_view order = "False") {
  std::string header = "{'descr': '";
  header.append(descr).append("', 'fortran_order': ").append(order).append(", 'shape': ");
  return header.append(shape).append(", }");
}

inline std::string safetensors_file(std::string_view json, std::string_view data = "") {
  return little_endian(json.size(), 8).append(json).append(data);
}

}  // namespace attend::test
