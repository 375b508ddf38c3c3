// The first values of parameters: pure functions of a seed, the parameter's name and the element's
// number, in arithmetic that is exact or correctly rounded. The same bits on every machine.
#pragma once

#include <attend/tensor.h>

#include <cstdint>
#include <string_view>

namespace attend {

// A weight matrix [out, in], uniform from -bound to bound, bound = sqrt(6 / (in + out)).
Tensor xavier_uniform(const Shape& shape, DType type, std::uint64_t seed, std::string_view name);

// Mean 0 and the given standard deviation: the sum of twelve uniform draws less six, times the
// deviation. No value is more than six deviations out.
Tensor normal(const Shape& shape, double deviation, DType type, std::uint64_t seed,
              std::string_view name);

// All ones.
Tensor ones(const Shape& shape, DType type);

// The seed of a part of a layer: parts of other names, or of other seeds, share nothing.
std::uint64_t derived_seed(std::uint64_t seed, std::string_view name) noexcept;

}  // namespace attend
