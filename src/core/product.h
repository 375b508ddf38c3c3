// The products of matrices that the layers are made of, and the kernels for them: one for each
// instruction set. A layer says what is to be multiplied and which part of it a task makes.
#pragma once

#include "core/interrupt.h"
#include "core/kernel.h"

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace attend {

//   c [m, n] = a [m, k] b [k, n] + bias [n]        (the bias may be none)
//
// Every element of c is a sum over k in blocks of kSumBlock at multiples of it: each block one
// ascending chain of multiply-adds, the blocks' sums added in order, the bias last (the reference's
// sums are f64). So its bits depend on its row of a, its column of b, its bias and the row of the
// kernel table alone.
inline constexpr std::int64_t kSumBlock = 256;

// Where a's rows lie side by side (a_row is 1, a_depth is not), a kernel brings so many of
// them together at a time, some kernels any rows: a part should have several columns for each.
template <class T>
inline constexpr std::int64_t kAcrossRows = (96 << 10) / kSumBlock /
                                            static_cast<std::int64_t>(sizeof(T));

inline constexpr std::int64_t kEveryRow = std::numeric_limits<std::int64_t>::max();

// An Operand is what is multiplied, a Sum what is added up: the same so far.
template <class Sum, class Operand = Sum>
struct Matrices {
  std::int64_t m = 0, n = 0, k = 0;
  const Operand* a = nullptr;
  std::int64_t a_row = 0, a_depth = 0;  // strides; one of them is 1
  const Operand* b = nullptr;
  std::int64_t b_depth = 0, b_column = 0;  // likewise
  const Operand* packed = nullptr;         // b as the kernel's pack() left it: then b is not read
  const Sum* bias = nullptr;
  Sum* c = nullptr;
  std::int64_t c_row = 0;  // columns lie side by side
};

struct MatrixPart {
  std::int64_t row_begin, row_end;
  std::int64_t column_begin, column_end;  // begins at a multiple of the kernel's `columns`
  Interrupt* interrupt = nullptr;
};

struct PartOfB {
  std::int64_t k_begin, k_end;            // k_begin is a multiple of kSumBlock
  std::int64_t column_begin, column_end;  // likewise of `columns`
};

template <class Sum, class Operand = Sum>
struct MatrixFunctions {
  std::int64_t columns;  // of c that are made together: parts should hold a multiple of them
  std::int64_t rows;     // of c that run() makes with a b that it packs once
  // A part of b in the order in which run() reads it; all of it takes packed_size() elements.
  void (*pack)(const Matrices<Sum, Operand>&, const PartOfB&, Operand* packed) noexcept;
  void (*run)(const Matrices<Sum, Operand>&, const MatrixPart&) noexcept;

  std::int64_t packed_size(std::int64_t n, std::int64_t k) const noexcept {
    return (n + columns - 1) / columns * columns * k;
  }
};

// A row of the kernel table for products: not tasks, which the layers cut themselves, but what they
// are made of. It is chosen by the type: sizes change nothing, and weights that are kept packed
// keep their row.
template <>
struct Kernel<Product> {
  using Problem = ProductProblem;

  std::string_view name;  // "cpu.avx2.product"
  bool only_if_forced;
  Features takes;
  std::string (*declines)(const Problem&, const Machine&);
  MatrixFunctions<float> f32;  // for 16-bit tensors too, which are widened first
  MatrixFunctions<double> f64;

  template <class T>
  const MatrixFunctions<T>& of() const noexcept {
    if constexpr (sizeof(T) == sizeof(double)) return f64;
    else return f32;
  }
};

// Ends are made by whoever cuts the tasks, while a task's part of c is close.
inline constexpr Features kTakenByProducts =
    kHostTypes | Features{Feature::row_bias, Feature::row_activation, Feature::row_residual};

}  // namespace attend
