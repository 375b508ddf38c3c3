// Numbers on the page: bytes, deflated, in base64, each in an element of its own. The JSON names
// them by number, type and shape.
#pragma once

#include "view/json.h"

#include <attend/context.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attend::view {

// Raw deflate (RFC 1951), without a header: what the browser's DecompressionStream("deflate-raw")
// takes. By zlib (deflate.cpp); where that is missing stored (no_zlib.cpp).
std::string deflated(std::string_view bytes);

// The same format with the bytes as they are, in blocks of at most 65535.
std::string stored(std::string_view bytes);

// Written out: no library that is used here has it.
std::string base64(std::string_view bytes);

// The weight p as a byte: 0 is 0, and n = 1..255 is 2^((n - 255) / 8), the nearest of them. What is
// no number, or no weight, is 0.
std::uint8_t log8(double p);

// The weight p as 16 bits: n is 2^(-n / 2048), the nearest of them, and 65535 is 0 and whatever is
// below 2^-32. What is no number is 0.
std::uint16_t log16(double p);

// Characters of the page that a blob of so many bytes takes, at most: what deflate adds to bytes
// that do not become fewer, base64, the element, and its entry in the JSON.
std::int64_t characters_of_blob(std::int64_t bytes);

// Little endian, as every machine that this is built for.
class Blobs {
 public:
  // {"blob": 0, "type": "f32", "shape": [8, 10]}
  Json add(std::string_view type, const Shape& shape, std::string bytes);

  template <class Element>
  Json add(std::string_view type, const Shape& shape, const std::vector<Element>& elements) {
    return add(type, shape,
               std::string(reinterpret_cast<const char*>(elements.data()),
                           elements.size() * sizeof(Element)));
  }

  // Numbers from 0 on in 16 bits: log16 in parts of the largest, which is the blob's "scale"; f16
  // where one of them is not finite.
  Json add_halved(const Shape& shape, const std::vector<float>& numbers);

  // Makes elements of what was added, over the Context's threads.
  void pack(const Context& context);

  // <script type="text/plain" id="blob-0">...</script> of each that is packed.
  const std::string& elements() const noexcept { return elements_; }

 private:
  std::int64_t packed_ = 0;
  std::vector<std::string> added_;  // the bytes of those from packed_ on
  std::string elements_;
};

}  // namespace attend::view
