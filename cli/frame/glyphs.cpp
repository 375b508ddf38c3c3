#include "glyphs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>

namespace attend::cli {
namespace {

struct Letter {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: no UTF-8
};

// The letter that the text begins with. Overlong forms, surrogates and what is above U+10FFFF are
// not UTF-8.
Letter first_of(std::string_view text) {
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (bytes == 0 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fu >> bytes);
  for (std::size_t n = 1; n < bytes; ++n) {
    if ((byte(n) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(n) & 0x3fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

struct Range {
  std::uint32_t first, last;
};

template <std::size_t n>
bool in(const Range (&ranges)[n], std::uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](Range range) { return code >= range.first && code <= range.last; });
}

// Controls, line and paragraph separators, marks of direction, and the byte order mark.
constexpr Range kUnseen[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},
                             {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
                             {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},  {0x3041, 0xa4cf},
                           {0xac00, 0xd7a3},   {0xf900, 0xfaff},  {0xfe30, 0xfe4f},
                           {0xff00, 0xff60},   {0xffe0, 0xffe6},  {0x1f300, 0x1f64f},
                           {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
constexpr Range kCombining[] = {
    {0x300, 0x36f}, {0x1ab0, 0x1aff}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};

std::size_t width_of(std::uint32_t code) {
  return in(kCombining, code) ? 0 : in(kWide, code) ? 2 : 1;
}

}  // namespace

std::string printable(std::string_view utf8) {
  std::string out;
  char escape[16];
  while (!utf8.empty()) {
    const Letter letter = first_of(utf8);
    const std::size_t bytes = std::max<std::size_t>(letter.bytes, 1);
    if (letter.bytes > 0 && !in(kUnseen, letter.code)) {
      out += utf8.substr(0, bytes);
    } else {
      const unsigned code = letter.bytes > 0 ? letter.code : static_cast<unsigned char>(utf8[0]);
      std::snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : "\\u%04x", code);
      out += escape;
    }
    utf8.remove_prefix(bytes);
  }
  return out;
}

std::string shortened(const std::string& utf8, std::size_t limit) {
  if (utf8.size() <= limit) return utf8;
  const auto inside = [&](std::size_t at) { return (utf8[at] & 0xc0) == 0x80; };  // of a letter
  std::size_t head = limit / 2, tail = utf8.size() - limit / 2;
  while (head > 0 && inside(head)) --head;
  while (tail < utf8.size() && inside(tail)) ++tail;
  return utf8.substr(0, head) + " ... " + utf8.substr(tail);
}

std::size_t width_of(std::string_view utf8) {
  std::size_t width = 0;
  while (!utf8.empty()) {
    const Letter letter = first_of(utf8);
    width += letter.bytes > 0 ? width_of(letter.code) : 1;
    utf8.remove_prefix(std::max<std::size_t>(letter.bytes, 1));
  }
  return width;
}

std::string fitted(std::string_view utf8, std::size_t width, bool right) {
  std::string text(utf8);
  if (width_of(utf8) > width) {
    text.clear();
    std::size_t used = 0;
    for (;;) {
      const Letter letter = first_of(utf8);
      const std::size_t bytes = std::max<std::size_t>(letter.bytes, 1);
      const std::size_t more = letter.bytes > 0 ? width_of(letter.code) : 1;
      if (used + more + 1 > width) break;
      text += utf8.substr(0, bytes);
      used += more;
      utf8.remove_prefix(bytes);
    }
    text += '.';
  }
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + text : text + space;
}

const char* shade(double weight, bool unicode) {
  constexpr const char* kBlocks[] = {" ", "░", "▒", "▓", "█"};
  constexpr const char* kPlain[] = {" ", ".", ":", "+", "#"};
  if (std::isnan(weight)) return "?";
  // The first shade begins at 0.02, so that what is seen at all is seen.
  const int level = weight < 0.02   ? 0
                    : weight < 0.25 ? 1
                    : weight < 0.5  ? 2
                    : weight < 0.75 ? 3
                                    : 4;
  return unicode ? kBlocks[level] : kPlain[level];
}

}  // namespace attend::cli
