// Messages put together from anything that can be printed.
#pragma once

#include <attend/tensor.h>

#include <charconv>
#include <concepts>
#include <sstream>
#include <string>

namespace attend {

inline std::ostream& operator<<(std::ostream& os, const Shape& shape) {
  return os << to_string(shape);
}
inline std::ostream& operator<<(std::ostream& os, DType type) { return os << name_of(type); }
inline std::ostream& operator<<(std::ostream& os, Device device) { return os << to_string(device); }

template <class Part>
void write_part(std::ostream& os, const Part& part) {
  os << part;
}

// The fewest digits that give this number back: two numbers that differ are seen to differ.
template <std::same_as<double> Number>
void write_part(std::ostream& os, const Number& number) {
  char digits[32];
  os.write(digits, std::to_chars(digits, digits + sizeof digits, number).ptr - digits);
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream os;
  os.exceptions(std::ios::badbit);  // or half a text, where memory ends, would pass for all of it
  (write_part(os, parts), ...);
  return os.str();
}

}  // namespace attend
