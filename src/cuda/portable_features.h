// What the host hands to the kernels on rows of features (portable_norm.cu, portable_elements.cu).
#pragma once

#include "core/row_operations.h"

namespace attend::cuda {

inline constexpr int kFeatureThreads = 128;  // of a row of a norm, and of columns
inline constexpr int kElementThreads = 256, kElementsEach = 4;

// normalised = (x * unit - mean) * factor
struct NormStatistics {
  double unit, mean, factor;
};

struct PortableNorm {
  NormProblem problem;
  NormCall call;
  std::int64_t rows;
};

struct PortableNormBackward {
  NormProblem problem;
  NormBackwardCall call;
  std::int64_t rows;
  NormStatistics* statistics;    // [rows]
  double* sums;                  // [blocks, 2, dim]
  std::int64_t blocks, columns;  // blocks of rows, and of columns
};

struct PortableActivation {
  Activation kind;
  ActivationCall call;
  std::int64_t count;
};

struct PortableActivationBackward {
  Activation kind;
  ActivationBackwardCall call;
  std::int64_t count;
};

struct PortableRotary {
  bool halves;
  RotaryCall call;  // the frequencies are on the device
  std::int64_t rows;
};

struct PortableConvert {
  DType to;
  ConvertCall call;
  std::int64_t count;
};

struct PortableAdd {
  AddCall call;
  std::int64_t rows, columns;  // columns: blocks of them in a row
};

// c + bias; act of it, with a gate silu(gate) * it; then + residual. Each may be none, and is
// rounded.
struct PortableEnd {
  std::int64_t m, n;
  const void* bias;
  std::int64_t bias_stride;
  bool activated;
  Activation kind;
  const void *gate, *residual;
  std::int64_t gate_row, gate_column, residual_row, residual_column;
  void* c;
  std::int64_t c_row, c_column;
  std::int64_t columns;
};

}  // namespace attend::cuda
