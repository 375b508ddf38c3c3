// What the rows for Hopper GPUs have in common: tensors for the copy engine, and positions as ints.
#pragma once

#include "cuda/key_range.h"
#include "cuda/prepare.h"
#include "cuda/tensor_map.h"

#include "core/kernel.h"

namespace attend::cuda {

// Why a problem is not for the kernels of sm_90a: the GPU (90: of sm_90), sizes, numbers.
std::string declines_sm90(const Problem& problem, int capability);
template <class Problem>
std::string sm90_declines(const Problem& p) {
  if (std::string reason = Gpu::why_not(p.device.index); !reason.empty()) return reason;
  return declines_sm90(p, Gpu::find(p.device.index)->capability());
}

// The kernels' d: fewer features are padded with zeros by the copy engine.
inline int kernel_size(const Problem& p) noexcept {
  const std::int64_t widest = p.d > p.dv ? p.d : p.dv;
  return widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
}
// "forward_bf16_128"
enum class Sm90Kernel : unsigned char { forward, backward, one_query };
const char* sm90_module(Sm90Kernel kernel, DType type, int size) noexcept;

// Keys and values of 8 bits: of kernels of their own, "forward_i8_128".
inline bool has_byte_keys(const Problem& p) noexcept {
  return p.own_k_type && p.own_v_type && p.k_type == DType::i8 && p.v_type == DType::i8;
}
inline DType module_type(const Problem& p) noexcept {
  return has_byte_keys(p) ? DType::i8 : p.type;
}

// A tensor [batch, heads, length, d] in memory that the copy engine can read and write, or of 8
// bits in pieces of 8.
struct AlignedTensor {
  Strided given, tensor;  // the caller's, and the same or a copy
  std::int64_t batch = 0, heads = 0, length = 0, d = 0;

  bool is_copy() const noexcept { return tensor.data != given.data; }
  Rows rows() const noexcept {
    return {tensor.data, tensor.stride[0], tensor.stride[1], tensor.stride[2]};
  }
  // In boxes of so many rows, of 128, 64 or 32 bytes each. at_once: bytes that the L2 reads at a
  // time. permuted: 16-byte pieces of a row by its place, as matrix units want them.
  struct Box {
    int rows, heads = 1, features = 64, at_once = 256;
    bool permuted = true;
  };
  // Of 8 bits: whether there is a map.
  bool takes_boxes() const noexcept;
  Status map(const Box& box, TensorMap& to) const noexcept;
  ByteKeys bytes(const Strided& scales) const noexcept;
};

// Brings tensors into such memory: where strides or addresses are no multiples of 16 bytes they are
// copied, and results copied back. The bits do not depend on it.
class Sm90Tensors {
 public:
  Sm90Tensors(const Problem& problem, const Call& call, Loans& loans, StreamQueue& queue) noexcept
      : p_(problem), call_(call), loans_(loans), queue_(queue) {}
  Status queries(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept;
  Status keys(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept;
  // Memory alone: for a result, which is not given if nobody wants it.
  Status query_result(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept;
  Status key_result(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept;
  // To where the caller wants it.
  Status finish(const AlignedTensor& result) noexcept;

 private:
  AlignedTensor of_queries(const Strided& given, std::int64_t d) const noexcept;
  AlignedTensor of_keys(const Strided& given, std::int64_t d) const noexcept;
  Status prepare(AlignedTensor& t, bool read) noexcept;

  const Problem& p_;
  const Call& call_;
  Loans& loans_;
  StreamQueue& queue_;
};

// Which keys a query sees, in numbers of 32 bits: i + offset - left <= j <= i + offset + right.
struct Sm90Positions {
  int left, right, offset, offset_given;
};
Sm90Positions sm90_positions(const Problem& problem, const Call& call) noexcept;
inline constexpr std::int64_t kFarthestOffset = std::int64_t{1} << 28;

// Rows of packed tensors are counted by ints, with some to spare behind the last tile: longer ones
// are for the portable kernels. (The table does not know how long they are.)
inline constexpr std::int64_t kMostPackedRows = (std::int64_t{1} << 31) - (std::int64_t{1} << 10);
inline bool has_too_many_rows(const Problem& p, const Call& call) noexcept {
  return (p.packed_queries && call.packed_queries >= kMostPackedRows) ||
         (p.keys == KeyAddressing::packed && call.packed_keys >= kMostPackedRows);
}

inline const int* integers(const Strided& t, bool given) noexcept {
  return given ? reinterpret_cast<const int*>(t.data) : nullptr;
}

// Where keys are on pages, for tiles of so many; a piece is a tile where they are not.
KeyPages sm90_pages(const Problem& problem, const Call& call, int tile) noexcept;

}  // namespace attend::cuda
