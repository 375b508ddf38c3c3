// Options of scores and weights that the fast kernels of Hopper are compiled without: mask, blocks,
// bias, softcap, ALiBi, dropout. They are asked for at run time, an option at a time for the
// thread's part of a tile, by the definitions of src/core in f32.
#pragma once

#include "careful.cuh"
#include "forward_work.cuh"

#include "core/philox.h"

namespace attend::cuda {

// A thread's part of a tile of scores: two rows, and in each two columns of every eight.
template <int kColumns>
struct ScoreOptions {
  using Tile = RegisterTile<kColumns>;
  static constexpr int kGroups = kColumns / 8;
  static_assert(Tile::kCount <= 64);

  const GeneralParameters& p;
  const Item& item;
  const int row;     // the thread's first; the other is 8 below
  const int column;  // its first

  // Of each score whether no key is there for it; bit n is that of x[n]. Positions say so, the
  // mask, blocks and a bias of -inf.
  std::uint64_t hidden = 0;

  __device__ __forceinline__ ScoreOptions(const GeneralParameters& parameters, const Item& of,
                                          int first_row, int first_column)
      : p(parameters), item(of), row(first_row + own_row()), column(first_column + own_column()) {}

  // Scores from products: steps 1 and 2.
  __device__ __forceinline__ void apply(Tile& s) {
    hide_by_position();
    if (p.mask.given) hide_by_mask();
    if (p.blocks.given) hide_by_blocks();
#pragma unroll
    for (int n = 0; n < Tile::kCount; ++n) s.x[n] *= p.scale;
    if (p.bias_before_softcap != 0) add(s);
    if (p.softcap != 0) {
#pragma unroll
      for (int n = 0; n < Tile::kCount; ++n) s.x[n] = p.softcap * tanhf(s.x[n] * p.part_of_softcap);
    }
    if (p.bias_before_softcap == 0) add(s);
#pragma unroll
    for (int n = 0; n < Tile::kCount; ++n)  // selects, so that a NaN of a hidden key is gone
      if (is_hidden(n)) s.x[n] = kMinusInfinity;
  }

  __device__ __forceinline__ bool is_hidden(int n) const { return (hidden >> n & 1) != 0; }

  // Dropout: weights that are not kept become 0, but for those that tell of no pair. What the
  // others are multiplied by comes last.
  __device__ __forceinline__ void drop(Tile& weights) const {
    if (p.drop_below == 0) return;
    const std::uint64_t dropped = dropped_ones();
#pragma unroll
    for (int n = 0; n < Tile::kCount; ++n)
      if ((dropped >> n & 1) != 0 && !is_nothing(weights.x[n])) weights.x[n] = 0;
  }

 private:
  __device__ __forceinline__ static std::uint64_t bit(int group, int r, int x, bool is) {
    return static_cast<std::uint64_t>(is) << (4 * group + 2 * r + x);
  }
  __device__ __forceinline__ long long row_of(const Strided& t, int r) const {
    return t.offset(item.batch, item.head, row + 8 * r, column);
  }

  __device__ __forceinline__ void hide_by_position() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + 8 * r;
      KeyRange keys = item.seen_by(p, i);
      if (i < 0 || i >= item.q_length) keys = {0, 0};
      const int begin = keys.begin - column, end = keys.end - column;
#pragma unroll 4
      for (int g = 0; g < kGroups; ++g)
        for (int x = 0; x < 2; ++x) hidden |= bit(g, r, x, 8 * g + x < begin || 8 * g + x >= end);
    }
  }

  __device__ __forceinline__ void hide_by_mask() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto* const from =
          reinterpret_cast<const unsigned char*>(p.mask.data) + row_of(p.mask, r);
#pragma unroll 4
      for (int g = 0; g < kGroups; ++g)
        for (int x = 0; x < 2; ++x)
          if (!is_hidden(4 * g + 2 * r + x))
            hidden |= bit(g, r, x, from[(8 * g + x) * p.mask.stride[3]] == 0);
    }
  }

  __device__ __forceinline__ void hide_by_blocks() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto* const from =
          reinterpret_cast<const unsigned char*>(p.blocks.data) +
          p.blocks.offset(item.batch, item.head, max(0, row + 8 * r) / p.block_queries);
#pragma unroll 4
      for (int g = 0; g < kGroups; ++g)
        for (int x = 0; x < 2; ++x)
          if (!is_hidden(4 * g + 2 * r + x))
            hidden |=
                bit(g, r, x, from[(column + 8 * g + x) / p.block_keys * p.blocks.stride[3]] == 0);
    }
  }

  // Bias and ALiBi.
  __device__ __forceinline__ void add(Tile& s) {
    if (p.bias.given) {
      switch (p.bias.type) {
        case DType::f32: add_bias<float>(s); break;
        case DType::bf16: add_bias<__nv_bfloat16>(s); break;
        default: add_bias<__half>(s);
      }
    }
    if (p.alibi.given) add_alibi(s);
  }

  template <class Bias>
  __device__ __forceinline__ void add_bias(Tile& s) {
    const Bias* const from[2] = {reinterpret_cast<const Bias*>(p.bias.data) + row_of(p.bias, 0),
                                 reinterpret_cast<const Bias*>(p.bias.data) + row_of(p.bias, 1)};
#pragma unroll
    for (int n = 0; n < Tile::kCount; ++n) {
      float bias = 0;
      if (!is_hidden(n)) bias = static_cast<float>(from[s.row(n)][s.column(n) * p.bias.stride[3]]);
      hidden |= static_cast<std::uint64_t>(bias == kMinusInfinity) << n;
      s.x[n] += bias;
    }
  }

  __device__ __forceinline__ void add_alibi(Tile& s) {
    const auto slope = static_cast<float>(load(p.alibi, p.alibi.offset(0, item.head, 0)));
    const double offset = p.offset_given != 0 ? p.positions_begin : item.offset;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto distance = static_cast<float>(offset + (row + 8 * r - column));
#pragma unroll
      for (int n = 0; n < Tile::kCount; ++n)
        if (s.row(n) == r)
          s.x[n] = fmaf(-slope, fabsf(distance - static_cast<float>(s.column(n))), s.x[n]);
    }
  }

  __device__ __forceinline__ std::uint64_t dropped_ones() const {
    const Draws& draws = p.draws;
    const auto head =
        static_cast<std::uint32_t>((item.batch + draws.b) * draws.heads + item.head + draws.h);
    std::uint64_t found = 0;
#pragma unroll 1
    for (int both = 0; both < 2 * kGroups; ++both) {
      const int g = both / 2, r = both % 2;
      const auto query = static_cast<std::uint32_t>(row + 8 * r + draws.i);
      const std::int64_t j = column + 8 * g + draws.j;
      std::array<std::uint32_t, 4> words;
      for (int x = 0; x < 2; ++x) {
        if (x == 0 || (j + x) % 8 == 0)
          words = philox({static_cast<std::uint32_t>((j + x) / 8), query, head, draws.offset},
                         draws.seed);
        const int of = static_cast<int>((j + x) % 8);
        const std::uint32_t low = of / 2 % 2 == 0 ? words[0] : words[1];
        const std::uint32_t high = of / 2 % 2 == 0 ? words[2] : words[3];
        const std::uint32_t draw = ((of < 4 ? low : high) >> (of % 2 * 16)) & 0xFFFF;
        found |= bit(g, r, x, draw < p.drop_below);
      }
    }
    return found;
  }
};

}  // namespace attend::cuda
