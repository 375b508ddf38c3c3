// Text from outside (paths, names in files) as a message of one line can show it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace attend {

// UTF-8, with control characters and bytes that are none as \xNN, and cut off behind `limit` bytes.
std::string printable(std::string_view found, std::size_t limit = 4096);
inline std::string in_quotes(std::string_view found) { return "'" + printable(found, 60) + "'"; }

}  // namespace attend
