// Draws come from Philox with key = seed and counter = (number of the draw, hash of the name).
#include "layer/initialise.h"

#include "core/philox.h"
#include "core/strided.h"

#include <cmath>

namespace attend {
namespace {

using Words = std::array<std::uint32_t, 4>;

std::uint64_t fnv1a(std::string_view name) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

Words draw(std::uint64_t seed, std::uint64_t name_hash, std::uint64_t number) noexcept {
  return philox(
      {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
       static_cast<std::uint32_t>(name_hash), static_cast<std::uint32_t>(name_hash >> 32)},
      seed);
}

// A tensor whose element n is value(n), rounded once.
template <class Value>
Tensor filled(const Shape& shape, DType type, Value value) {
  Tensor tensor = Tensor::uninitialized(shape, type);
  const std::int64_t count = tensor.count();
  with_type(type, [&]<class T>(T) {
    T* to = static_cast<T*>(tensor.view().data());
    for (std::int64_t n = 0; n < count; ++n)
      to[n] = static_cast<T>(value(static_cast<std::uint64_t>(n)));
  });
  return tensor;
}

}  // namespace

Tensor xavier_uniform(const Shape& shape, DType type, std::uint64_t seed, std::string_view name) {
  const double bound =
      std::sqrt(6.0 / (static_cast<double>(shape[0]) + static_cast<double>(shape[1])));
  const std::uint64_t hash = fnv1a(name);
  return filled(shape, type, [=](std::uint64_t n) {
    const Words words = draw(seed, hash, n);
    const double integer = (words[0] >> 5) * 0x1p26 + (words[1] >> 6);  // of 53 bits
    return (integer * 0x1p-52 - 1) * bound;                             // [-1, 1) times the bound
  });
}

Tensor normal(const Shape& shape, double deviation, DType type, std::uint64_t seed,
              std::string_view name) {
  const std::uint64_t hash = fnv1a(name);
  return filled(shape, type, [=](std::uint64_t n) {
    std::int64_t sum = 6;  // twelve halves: each draw stands for the middle of its interval
    for (std::uint64_t i = 0; i < 3; ++i)
      for (const std::uint32_t word : draw(seed, hash, 3 * n + i)) sum += word;
    return static_cast<double>(sum - (std::int64_t{6} << 32)) * 0x1p-32 * deviation;
  });
}

Tensor ones(const Shape& shape, DType type) {
  return filled(shape, type, [](std::uint64_t) { return 1.0; });
}

std::uint64_t derived_seed(std::uint64_t seed, std::string_view name) noexcept {
  const Words words = draw(seed, fnv1a(name), ~std::uint64_t{0});  // a number that no element has
  return std::uint64_t{words[1]} << 32 | words[0];
}

}  // namespace attend
