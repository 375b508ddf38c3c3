// The parts of the page that are the same for all data. They are files of web/; the build puts them
// together and makes a source of them (assemble.cmake).
#pragma once

#include <string_view>

namespace attend::view {

struct Asset {
  std::string_view text;
  std::string_view sha256;  // in hexadecimal digits
};

extern const Asset kShell, kStyle, kScript;

}  // namespace attend::view
