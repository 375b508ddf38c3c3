#include "layer/rotary.h"

#include "layer/run_rows.h"
#include "layer/scratch.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace attend {
namespace {

Strided list_of(const ConstTensorView& view) {
  if (!view) return {};
  return {static_cast<std::byte*>(const_cast<void*>(view.data())),
          view.dtype(),
          true,
          {view.strides()[0], 0, 0, 0}};
}

// Rows of a batch element count from 0, rows of packed sequences from 0 in each of them.
RowPlaces places_in(const ConstTensorView& x, const ConstTensorView& cu_seqlens) {
  RowPlaces places{.length = x.size(2)};
  if (!cu_seqlens) return places;
  places.sequences = cu_seqlens.size(0) - 1;
  places.starts = list_of(cu_seqlens);
  return places;
}

// Each sequence's rows count on from its first.
void list_places(const RowPlaces& places, std::int64_t rows, std::int64_t* to) {
  const auto start = [&](std::int64_t b) {
    return places.starts ? load_integer(places.starts, places.starts.offset(b, 0, 0))
                         : b * places.length;
  };
  for (std::int64_t b = 0, n = 0; n < rows; n = start(++b))
    if (const std::int64_t end = start(b + 1); n < end)
      std::iota(to + n, to + end, place_of(places, n));
}

const ConstTensorView& packed_keys(const AttentionOptions& options) {
  return options.cu_seqlens_k ? options.cu_seqlens_k : options.cu_seqlens_q;
}

}  // namespace

RowPlaces query_places(const ConstTensorView& q, const ConstTensorView& k,
                       const AttentionOptions& options) {
  RowPlaces places = places_in(q, options.cu_seqlens_q);
  const QueryOffset& offset = options.query_offset;
  if (offset.all()) {
    places.first = *offset.all();
  } else if (offset.each()) {
    places.first_of_each = list_of(offset.each());
  } else {
    places.ends_with_keys = true;
    places.keys = k.size(2);
    places.key_lengths = list_of(options.key_lengths);
    places.key_starts = list_of(packed_keys(options));
  }
  return places;
}

RowPlaces key_places(const ConstTensorView& k, const AttentionOptions& options) {
  return places_in(k, packed_keys(options));
}

RowPlaces places_after(const ConstTensorView& x, const ConstTensorView& lengths) {
  RowPlaces places = places_in(x, {});
  places.first_of_each = list_of(lengths);
  return places;
}

void rotate(const Rotary& rotary, const RowPlaces& places, const TensorView& x, bool backward,
            const Where& where) {
  const std::int64_t pairs = rotary.dim / 2, length = x.size(2), rows = x.size(0) * length;
  const bool there = x.device() != Device{};
  const Scratch scratch(where, {{{there ? 0 : rows}, DType::i64}});
  auto* const positions = static_cast<std::int64_t*>(scratch.tensors[0].data());
  if (!there) list_places(places, rows, positions);
  std::vector<double> frequency(static_cast<std::size_t>(pairs));
  for (std::int64_t c = 0; c < pairs; ++c)
    frequency[static_cast<std::size_t>(c)] =
        std::pow(rotary.base, -2.0 * static_cast<double>(c) / static_cast<double>(rotary.dim));
  const RotaryCall call{.heads = x.size(1),
                        .length = length,
                        .pairs = pairs,
                        .x = {static_cast<std::byte*>(x.data()),
                              x.dtype(),
                              true,
                              {x.strides()[0], x.strides()[1], x.strides()[2], x.strides()[3]}},
                        .position = positions,
                        .frequency = frequency.data(),
                        .back = backward,
                        .places = places};
  run_rows<RotaryForward>({.device = x.device(), .type = x.dtype(), .pairing = rotary.pairing},
                          call, rows, x.size(1) * rotary.dim, where);
}

}  // namespace attend
