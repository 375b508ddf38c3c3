#include "view/blobs.h"

#include <algorithm>
#include <cmath>
#include <exception>

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

std::uint16_t log16(double p) {
  if (!(p > 0)) return 65535;
  return static_cast<std::uint16_t>(std::clamp(std::lround(-2048 * std::log2(p)), 0L, 65535L));
}

std::int64_t characters_of_blob(std::int64_t bytes) {
  constexpr std::int64_t kAround = 224;  // the element's tags, and type, shape and scale in JSON
  const std::int64_t packed = bytes + bytes / 2048 + 32;  // of zlib n / 4096 + n / 16384 + 13
  return kAround + (packed + 2) / 3 * 4;
}

Json Blobs::add(std::string_view type, const Shape& shape, std::string bytes) {
  const std::int64_t number = packed_ + std::ssize(added_);
  added_.push_back(std::move(bytes));
  return Json::object().set("blob", number).set("type", type).set("shape", Json::array(shape));
}

Json Blobs::add_halved(const Shape& shape, const std::vector<float>& numbers) {
  double largest = 0;
  bool finite = true;
  for (const float x : numbers) {
    finite = finite && std::isfinite(x);
    largest = std::max(largest, static_cast<double>(x));
  }
  if (!finite) {
    std::vector<f16> halves;
    halves.reserve(numbers.size());
    for (const float x : numbers) halves.push_back(static_cast<f16>(x));
    return add("f16", shape, halves);
  }
  const double scale = largest > 0 ? largest : 1;
  std::vector<std::uint16_t> steps;
  steps.reserve(numbers.size());
  for (const float x : numbers) steps.push_back(log16(static_cast<double>(x) / scale));
  return add("log16", shape, steps).set("scale", scale);
}

void Blobs::pack(const Context& context) {
  std::vector<std::string> texts(added_.size());
  std::vector<std::exception_ptr> failed(added_.size());  // a body must not throw
  context.parallel_for(std::ssize(added_), [&](std::int64_t at) {
    const auto n = static_cast<std::size_t>(at);
    try {
      texts[n] = base64(deflated(added_[n]));
    } catch (...) {
      failed[n] = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : failed)
    if (failure) std::rethrow_exception(failure);
  for (const std::string& text : texts)
    elements_ += "<script type=\"text/plain\" id=\"blob-" + std::to_string(packed_++) + "\">" +
                 text + "</script>\n";
  added_.clear();
}

}  // namespace attend::view
