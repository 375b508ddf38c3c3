// Elements of any floating-point type as numbers to compute with, and back: by the Context's row
// for conversion, where they lie side by side.
#pragma once

#include "api/context.h"
#include "core/strided.h"

namespace attend {

// Elements of one type as another, each rounded once.
class Conversion {
 public:
  Conversion(DType from, DType to, const Where& where)
      : problem_{.device = {}, .type = from, .to = to},
        row_(&ContextState::of(where).row_for<Convert>(problem_)) {}

  void operator()(const void* from, std::int64_t count, void* to) const noexcept {
    row_->run(problem_, {.features = count, .from = from, .to = to}, {0, 1});
  }

 private:
  ConvertProblem problem_;
  const Kernel<Convert>* row_;
};

// A copy in another type, each number rounded once; the tensor itself if it has that type. In host
// memory.
inline Tensor in_type(const Tensor& tensor, DType type) {
  if (!tensor || tensor.dtype() == type) return tensor;
  Tensor other = Tensor::uninitialized(tensor.shape(), type);
  const Conversion convert(tensor.dtype(), type, default_context());
  convert(tensor.view().data(), tensor.count(), other.view().data());
  return other;
}

// A Number is float, double, bf16 or f16. `count` elements from data[begin] on, each `stride` from
// the next.
template <class Number>
class Numbers {
 public:
  Numbers(DType type, const Where& where)
      : type_(type), widen_(type, dtype_of<Number>(), where),
        round_(dtype_of<Number>(), type, where) {}

  void load(const void* data, std::int64_t begin, std::int64_t stride, std::int64_t count,
            Number* to) const noexcept {
    const auto* const from = static_cast<const std::byte*>(data) + begin * size_of(type_);
    if (stride == 1) return widen_(from, count, to);
    with_type(type_, [&]<class E>(E) {
      for (std::int64_t n = 0; n < count; ++n)
        to[n] = static_cast<Number>(widened(reinterpret_cast<const E*>(from)[n * stride]));
    });
  }
  void store(const Number* from, std::int64_t count, void* data, std::int64_t begin,
             std::int64_t stride) const noexcept {
    auto* const to = static_cast<std::byte*>(data) + begin * size_of(type_);
    if (stride == 1) return round_(from, count, to);
    with_type(type_, [&]<class E>(E) {
      for (std::int64_t n = 0; n < count; ++n)
        reinterpret_cast<E*>(to)[n * stride] = static_cast<E>(widened(from[n]));
    });
  }

 private:
  DType type_;
  Conversion widen_, round_;
};

}  // namespace attend
