// Messages put together from anything that can be printed.
#pragma once

#include <attend/tensor.h>

#include <sstream>
#include <string>

namespace attend {

inline std::ostream& operator<<(std::ostream& os, const Shape& shape) {
  return os << to_string(shape);
}
inline std::ostream& operator<<(std::ostream& os, DType type) { return os << name_of(type); }
inline std::ostream& operator<<(std::ostream& os, Device device) { return os << to_string(device); }

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream os;
  (os << ... << parts);
  return os.str();
}

}  // namespace attend
