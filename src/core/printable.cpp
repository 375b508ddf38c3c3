// Text from outside, made fit for a message.
#include "core/printable.h"

#include <cstdio>

namespace attend {
namespace {

// Bytes of the character of UTF-8 that a text begins with; 0 if it is none.
std::size_t character_size(std::string_view s) {
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(s[n]); };
  const unsigned char lead = byte(0);
  const std::size_t size = lead < 0x80                  ? 1
                           : lead < 0xC2 || lead > 0xF4 ? 0
                           : lead < 0xE0                ? 2
                           : lead < 0xF0                ? 3
                                                        : 4;
  if (size < 2) return size;
  if (size > s.size()) return 0;
  for (std::size_t n = 1; n < size; ++n)
    if ((byte(n) & 0xC0) != 0x80) return 0;
  // Longer than need be, half of a surrogate pair, or past the last character.
  const bool outside = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
                       (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
  return outside ? 0 : size;
}

}  // namespace

std::string printable(std::string_view found, std::size_t limit) {
  std::string out;
  while (!found.empty()) {
    if (out.size() >= limit) return out + "...";
    const std::size_t size = character_size(found);
    const auto byte = static_cast<unsigned char>(found[0]);
    char escape[8] = "";
    if (size == 0 || byte < 0x20 || byte == 0x7F)
      std::snprintf(escape, sizeof escape, "\\x%02X", byte);
    out += *escape != '\0' ? std::string_view(escape) : found.substr(0, size);
    found.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

}  // namespace attend
