#include "view/blobs.h"

#include <algorithm>
#include <cmath>

namespace attend::view {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;  // bytes, the missing ones 0
    for (std::size_t n = 0; n < 3; ++n)
      three = three << 8 | (at + n < bytes.size() ? static_cast<unsigned char>(bytes[at + n]) : 0U);
    for (std::size_t n = 0; n < 4; ++n)
      text += at + n <= bytes.size() ? kLetters[three >> (18 - 6 * n) & 63] : '=';
  }
  return text;
}

std::string stored(std::string_view bytes) {
  constexpr std::size_t kBlock = 65535;
  std::string out;
  do {
    const std::string_view block = bytes.substr(0, kBlock);
    bytes.remove_prefix(block.size());
    const auto size = static_cast<unsigned>(block.size());
    const unsigned last = bytes.empty() ? 1 : 0;
    for (const unsigned byte : {last, size & 255, size >> 8, ~size & 255, ~size >> 8 & 255})
      out += static_cast<char>(byte);  // last or not, length, its complement
    out += block;
  } while (!bytes.empty());
  return out;
}

std::uint8_t log8(double p) {
  if (!(p > 0)) return 0;
  return static_cast<std::uint8_t>(std::clamp(std::lround(255 + 8 * std::log2(p)), 1L, 255L));
}

Json Blobs::add(std::string_view type, const Shape& shape, std::string_view bytes) {
  elements_ += "<script type=\"text/plain\" id=\"blob-" + std::to_string(count_) + "\">" +
               base64(deflated(bytes)) + "</script>\n";
  return Json::object().set("blob", count_++).set("type", type).set("shape", Json::array(shape));
}

}  // namespace attend::view
