#include "layer/rotary.h"

#include "layer/run_rows.h"

#include <cmath>
#include <vector>

namespace attend {
namespace {

std::int64_t integer(const ConstTensorView& view, std::int64_t n) {
  return view.dtype() == DType::i32 ? view.at<std::int32_t>({n}) : view.at<std::int64_t>({n});
}

// Rows of a batch element count from 0, rows of packed sequences from 0 in each of them; `first`
// gives where sequence number b begins.
template <class First>
RowPositions count_rows(const ConstTensorView& x, const ConstTensorView& cu_seqlens, First first,
                        const Where& where) {
  const std::int64_t rows = x.size(2), sequences = cu_seqlens ? cu_seqlens.size(0) - 1 : x.size(0);
  RowPositions positions(x.size(0), rows, where);
  std::int64_t* next = positions.data();
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t length =
        cu_seqlens ? integer(cu_seqlens, b + 1) - integer(cu_seqlens, b) : rows;
    for (std::int64_t i = 0; i < length; ++i) *next++ = first(b, length) + i;
  }
  return positions;
}

const ConstTensorView& packed_keys(const AttentionOptions& options) {
  return options.cu_seqlens_k ? options.cu_seqlens_k : options.cu_seqlens_q;
}

}  // namespace

RowPositions query_positions(const ConstTensorView& q, const ConstTensorView& k,
                             const AttentionOptions& options, const Where& where) {
  const ConstTensorView& packed_k = packed_keys(options);
  const auto key_length = [&](std::int64_t b) {
    if (options.key_lengths) return integer(options.key_lengths, b);
    if (packed_k) return integer(packed_k, b + 1) - integer(packed_k, b);
    return k.size(2);
  };
  const QueryOffset& offset = options.query_offset;
  const auto first_query = [&](std::int64_t b, std::int64_t length) {
    if (offset.all()) return *offset.all();
    return offset.each() ? integer(offset.each(), b) : key_length(b) - length;
  };
  return count_rows(q, options.cu_seqlens_q, first_query, where);
}

RowPositions key_positions(const ConstTensorView& k, const AttentionOptions& options,
                           const Where& where) {
  const auto zero = [](std::int64_t, std::int64_t) { return 0; };
  return count_rows(k, packed_keys(options), zero, where);
}

void rotate(const Rotary& rotary, const RowPositions& positions, const TensorView& x, bool backward,
            const Where& where) {
  const std::int64_t pairs = rotary.dim / 2, rows = x.size(2);
  std::vector<double> frequency(static_cast<std::size_t>(pairs));
  for (std::int64_t c = 0; c < pairs; ++c)
    frequency[static_cast<std::size_t>(c)] =
        std::pow(rotary.base, -2.0 * static_cast<double>(c) / static_cast<double>(rotary.dim));
  const RotaryCall call{.heads = x.size(1),
                        .length = rows,
                        .pairs = pairs,
                        .x = {static_cast<std::byte*>(x.data()),
                              x.dtype(),
                              true,
                              {x.strides()[0], x.strides()[1], x.strides()[2], x.strides()[3]}},
                        .position = positions.data(),
                        .frequency = frequency.data(),
                        .back = backward};
  run_rows<RotaryForward>({.device = {}, .type = x.dtype(), .pairing = rotary.pairing}, call,
                          positions.count(), x.size(1) * rotary.dim, where);
}

}  // namespace attend
