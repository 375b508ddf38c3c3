// A tensor as the kernels know it.
#pragma once

namespace attend::cuda {

// What the driver's cuTensorMapEncodeTiled() makes: a description of a tensor for the copy engine.
// A type of its own, so that no header of the toolkit is needed; of the same size and alignment.
struct alignas(128) TensorMap {
  unsigned long long words[16];
};

// The same tensor without the copy engine: strides in elements, innermost 1.
struct Rows {
  void* data;
  long long batch, head, row;
};

// Keys on pages: tensors are then [pages, heads, size, d], and key j of a sequence is row j % size
// of its page j / size.
struct KeyPages {
  const int* table;  // [batch, width], all of them pages of the tensors; null: there are none
  int width, size;
  int piece;  // keys of a box of the copy engine: it divides a page and a tile
};

// Keys or values of 8 bits with a scale each, for who copies without the copy engine: strides in
// elements, those
// of the first dimension, which counts sequences or pages, of heads and of rows.
struct ByteKeys {
  const signed char* data;  // rows begin at multiples of 8 bytes
  long long batch, head, row;
  const float* scales;
  long long scale_batch, scale_head, scale_row;
  int d;      // a multiple of 8
  int boxes;  // whether the copy engine can bring them: all in multiples of 16, pages as well
};
inline constexpr int kLeastPiece = 16;  // tiles are multiples of it, and pages have to be

}  // namespace attend::cuda
