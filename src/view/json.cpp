#include "view/json.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace attend::view {
namespace {

// The first code point of a text, which is not empty, and how many bytes it has; U+FFFD and one
// byte where that is no UTF-8.
struct CodePoint {
  std::uint32_t value;
  std::size_t bytes;
};

CodePoint first_of(std::string_view text) {
  constexpr CodePoint kNone{0xFFFD, 1};
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return kNone;
  std::uint32_t value = lead & (0x7FU >> bytes);
  for (std::size_t n = 1; n < bytes; ++n) {
    if ((byte(n) & 0xC0U) != 0x80) return kNone;
    value = value << 6 | (byte(n) & 0x3FU);
  }
  // Longer than need be, half of a surrogate pair, or past the last.
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool half = value >= 0xD800 && value < 0xE000;
  return value < kLeast[bytes] || half || value > 0x10FFFF ? kNone : CodePoint{value, bytes};
}

void append_escape(std::string& to, std::uint32_t unit) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", unit & 0xFFFF);
  to += escape;
}

}  // namespace

Json::Json(double value) : text_("null") {
  char digits[32];
  if (std::isfinite(value))
    text_.assign(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

Json::Json(std::string_view text) : text_("\"") {
  while (!text.empty()) {
    const CodePoint point = first_of(text);
    text.remove_prefix(point.bytes);
    const std::uint32_t c = point.value;
    if (c >= 0x10000) {
      append_escape(text_, 0xD800 + ((c - 0x10000) >> 10));
      append_escape(text_, 0xDC00 + (c & 0x3FF));
    } else if (c < 0x20 || c > 0x7E || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&') {
      append_escape(text_, c);
    } else {
      text_ += static_cast<char>(c);
    }
  }
  text_ += '"';
}

void Json::push(const Json& element) {
  if (text_.size() > 1) text_ += ',';
  text_ += element.text_;
  if (element.close_ != 0) text_ += element.close_;
}

Json& Json::set(std::string_view name, const Json& element) {
  if (text_.size() > 1) text_ += ',';
  text_ += Json(name).text_ + ':' + element.text();
  return *this;
}

}  // namespace attend::view
