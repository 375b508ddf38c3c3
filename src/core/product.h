// The products of matrices that the layers are made of, and the kernels for them: one for each
// instruction set. A layer says what is to be multiplied and which part of it a task makes; or it
// hands a whole product to a row that launches.
#pragma once

#include "core/interrupt.h"
#include "core/kernel.h"

#include <attend/feed_forward.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace attend {

//   c [m, n] = a [m, k] b [k, n] + bias [n]        (the bias may be none)
//
// b may be weights of 8 bits, whole numbers with a scale for each column:
//
//   c [m, n] = (a [m, k] b [k, n]) * scales [n] + bias [n]
//
// Every element of c is a sum over k in blocks of kSumBlock at multiples of it: each block one
// ascending chain of multiply-adds, the blocks' sums added in order, then multiplied by the
// column's scale, the bias last (the reference's sums are f64; those of cpu/pairs_gemm.h and
// cpu/neon_bf16_gemm.cpp other trees). So its bits depend on its row of a, its column of b, its
// bias and the row of the kernel table alone.
inline constexpr std::int64_t kSumBlock = 256;

// No sizes: a row is chosen by these alone.
struct ProductProblem {
  Device device;
  DType type = DType::f32;  // of a, b and c; sums are f32, of f64 tensors f64
  bool bias = false;
  bool eight_bit_weights = false;  // b is i8, with scales
  // Ends, c = act(c) and c = c + residual, that the row itself is to make: asked of rows that
  // launch. On the host whoever cuts the tasks makes them, while a task's part of c is close, and
  // the row depends on type and bias alone: it is the one that packed the weights, or would.
  bool activation = false, residual = false;
  Activation kind = Activation::relu;  // of the activation, if there is one

  static constexpr std::size_t kVariants = 40;  // of each type
  std::size_t variant() const noexcept {
    return (bias ? 1 : 0) + (residual ? 2 : 0) +
           (activation ? 4 * (1 + static_cast<std::size_t>(kind)) : 0) +
           (eight_bit_weights ? 20 : 0);
  }
  friend bool operator==(const ProductProblem&, const ProductProblem&) = default;
};

// A whole product, for rows that launch: memory of the device, all of the problem's type but
// weights of 8 bits and their scales, which are f32.
struct ConstMatrix {
  const void* data = nullptr;
  std::int64_t row = 0, column = 0;  // strides, of any size
};
struct ProductCall {
  std::int64_t m = 0, n = 0, k = 0;
  ConstMatrix a, b;  // a without data: ones, and c is the sum of b's rows
  const void* scales = nullptr;
  std::int64_t scales_stride = 0;
  const void* bias = nullptr;
  std::int64_t bias_stride = 0;
  ConstMatrix gate, residual;  // [m, n]; the gate of swiglu: c = silu(gate) * c
  void* c = nullptr;
  std::int64_t c_row = 0, c_column = 0;
};

struct Product {
  static constexpr std::string_view kName = "product";
  using Problem = ProductProblem;
  using Call = ProductCall;
};

// ---- Functions on the host ---------------------------------------------------------------------

// Where a's rows lie side by side (a_row is 1, a_depth is not), a kernel brings so many of
// them together at a time, some kernels any rows: a range should have several columns for each.
template <class T>
inline constexpr std::int64_t kAcrossRows = (96 << 10) / kSumBlock /
                                            static_cast<std::int64_t>(sizeof(T));

inline constexpr std::int64_t kEveryRow = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kAnyDepth = kEveryRow;

// Of float, double, bf16 or f16. Sums of 16-bit numbers are f32, rounded once when they go to c.
template <class T>
struct Matrices {
  std::int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  std::int64_t a_row = 0, a_depth = 0;  // strides; one of them is 1
  const T* b = nullptr;
  std::int64_t b_depth = 0, b_column = 0;  // likewise
  const T* packed = nullptr;               // b as the kernel's pack() left it: then b is not read
  // Instead of both, a b of fewer bits than T, which is widened where it is multiplied or packed:
  // i8, or bf16 and f16 where T is float. With the strides of b, or as pack_narrow() left it.
  DType b_type = dtype_of<T>();
  const void *narrow = nullptr, *packed_narrow = nullptr;
  const T* scales = nullptr;  // [n], of the columns, where b is i8
  const T* bias = nullptr;
  T* c = nullptr;
  std::int64_t c_row = 0;  // columns lie side by side
  float* sums = nullptr;   // [m, n], for a kernel that has a longest_sum, where k is beyond it
  // Instead of c, where T is float and a's rows lie side by side, one of bf16 or f16: sums are
  // rounded to it once.
  DType c_type = dtype_of<T>();
  void* narrow_c = nullptr;

  bool is_narrow() const noexcept { return b_type != dtype_of<T>(); }
  bool is_across() const noexcept { return a_depth != 1; }  // a's rows lie side by side
};

struct MatrixRange {
  std::int64_t row_begin, row_end;
  std::int64_t column_begin, column_end;  // begins at a multiple of the kernel's `columns`
  Interrupt* interrupt = nullptr;
};

struct RangeOfB {
  std::int64_t k_begin, k_end;            // k_begin is a multiple of kSumBlock
  std::int64_t column_begin, column_end;  // likewise of `columns`
};

template <class T>
struct MatrixFunctions {
  std::int64_t columns = 0;  // of c that are made together: ranges should hold a multiple of them
  std::int64_t rows = 0;     // of c that run() makes with a b that it packs once
  // A range of b in the order in which run() reads it; all of it takes packed_size() elements.
  void (*pack)(const Matrices<T>&, const RangeOfB&, T* packed) noexcept = nullptr;
  void (*run)(const Matrices<T>&, const MatrixRange&) noexcept = nullptr;
  std::int64_t steps = 1;                // of the depth that are multiplied together
  std::int64_t parts = 1;                // elements that each of b is packed as
  std::int64_t longest_sum = kAnyDepth;  // the depth beyond which run() needs memory for sums
  // The same of a b of fewer bits, of f32 and f64 functions: packed_narrow_size() of its elements.
  void (*pack_narrow)(const Matrices<T>&, const RangeOfB&, void* packed) noexcept = nullptr;

  std::int64_t packed_size(std::int64_t n, std::int64_t k) const noexcept {
    return (n + columns - 1) / columns * columns * ((k + steps - 1) / steps * steps) * parts;
  }
};

// A b of fewer bits is packed for so many columns at a time, of 8 bits a line of the cache with
// each step, and ranges of such products begin at a multiple of it.
inline constexpr std::int64_t kNarrowColumns = 64;
constexpr std::int64_t packed_narrow_size(std::int64_t n, std::int64_t k) noexcept {
  return (n + kNarrowColumns - 1) / kNarrowColumns * kNarrowColumns * k;
}

// ---- Rows of the kernel table ------------------------------------------------------------------

// Not tasks, which the layers cut themselves, but what they are made of; or a launch. Sizes change
// nothing, and weights that are kept packed keep their row.
template <>
struct Kernel<Product> {
  using Problem = ProductProblem;

  std::string_view name;  // "cpu.avx2.product"
  bool only_if_forced;
  Features takes;
  std::string (*declines)(const Problem&, const Machine&);
  std::string (*slower)(const Machine&) = nullptr;  // as in core/kernel.h
  MatrixFunctions<float> f32{};  // for 16-bit tensors too: a is widened first, b on the way
  MatrixFunctions<double> f64{};
  MatrixFunctions<attend::bf16> bf16{};  // if the row has them, for such tensors instead of f32's
  MatrixFunctions<attend::f16> f16{};    // likewise
  // Instead of all of them; as in core/kernel.h.
  Status (*launch)(const Problem&, const ProductCall&, Queue&) noexcept = nullptr;
  bool widens_f16 = true;  // by an instruction; else packed weights of f16 are kept in f32

  template <class T>
  const MatrixFunctions<T>& of() const noexcept {
    if constexpr (std::is_same_v<T, double>) return f64;
    else if constexpr (std::is_same_v<T, float>) return f32;
    else if constexpr (std::is_same_v<T, attend::bf16>) return bf16;
    else return f16;
  }
  // The type of the functions for tensors of a type.
  DType multiplies(DType type) const noexcept {
    const bool as_it_is = type == DType::f64 || (type == DType::bf16 && bf16.run != nullptr) ||
                          (type == DType::f16 && f16.run != nullptr);
    return as_it_is ? type : DType::f32;
  }
};

Features features_of(const ProductProblem& problem);

inline constexpr Features kTakenByProducts =
    kHostTypes | Features{Feature::row_bias, Feature::eight_bit_weights};

}  // namespace attend
