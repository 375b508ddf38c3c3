// Deflate without zlib: stored blocks of at most 65535 bytes. The page works the same and is
// larger.
#include "view/blobs.h"

#include <algorithm>

namespace attend::view {

std::string deflated(std::string_view bytes) {
  constexpr std::size_t kBlock = 65535;
  std::string out;
  do {
    const std::string_view block = bytes.substr(0, kBlock);
    bytes.remove_prefix(block.size());
    const auto size = static_cast<unsigned>(block.size());
    for (const unsigned byte : {bytes.empty() ? 1U : 0U, size & 255, size >> 8, ~size & 255,
                                ~size >> 8 & 255})  // last or not, length, its complement
      out += static_cast<char>(byte);
    out += block;
  } while (!bytes.empty());
  return out;
}

}  // namespace attend::view
