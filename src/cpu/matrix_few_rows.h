// Few rows of queries (decode) against a chunk of keys, by a matrix instruction. A group of 32 keys
// is brought when it is multiplied, so that what is converted or paired stays in the nearest cache;
// and a vector holds scores of several keys, not of one key and lanes that nobody asks for.
//
//   scores     group by group                   k as it lies, or 8 bits   asks for v of the group
//   softmax    the whole chunk
//   values     64 features, group by group      v in pairs of keys        asks for the next k
//
// Its bits are those of matrix_weights.h: any of the two may take a chunk.
#pragma once

#include "cpu/matrix_weights.h"

namespace attend {
namespace {

template <class V>
class MatrixFewRows {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  using Few = FewRowsMatrix<V>;
  static constexpr int kGroup = kKeyGroup<V>;

 public:
  MatrixFewRows(ForwardScores<V>& scores, const Chunk<V>& chunk, MatrixStep<V>* steps)
      : p(scores.p), call_(scores.call), scores_(scores), chunk_(chunk), s_(steps[1].s),
        p_(reinterpret_cast<Operand*>(steps[0].s)) {}

  // Whether it takes the keys [from, to) of a tile: where nothing of them is hidden, and nothing
  // added to a score.
  static bool takes(const ForwardScores<V>& scores, const Tile<V>& tile, std::int64_t from,
                    std::int64_t to) noexcept {
    const ForwardProblem& p = scores.p;
    return tile.rows <= Few::kMost && scores.mask.plain && !p.blocks && p.drop_below == 0 &&
           p.d % kGroup == 0 && p.dv % kGroup == 0 && scores.call.k.stride[3] == 1 &&
           scores.call.v.stride[3] == 1 && from < to && tile.all.begin <= from / kGroup * kGroup &&
           tile.all.end >= to;
  }

  // Steps 1 to 4. Gives the chunk's maximum, sum and O.
  void weigh(const Sums<V>& tile, const Place<Sum>& to, Sum* top, Sum* sum) noexcept {
    if (tile.rows == 1) weigh_rows<1>(tile, to, top, sum);
    else if (tile.rows == 2) weigh_rows<2>(tile, to, top, sum);
    else if (tile.rows <= 4) weigh_rows<4>(tile, to, top, sum);
    else weigh_rows<8>(tile, to, top, sum);
  }

 private:
  // Of a group, in two halves: pages of 16 keys lie where they like.
  static constexpr int kHalf = kGroup / 2;
  template <class E>
  struct Rows {
    const E *first, *second;
    std::int64_t stride;
    ATTEND_INLINE const E* at(int n) const noexcept {
      return (n < kHalf ? first : second) + n % kHalf * stride;
    }
  };

  template <int kRows>
  void weigh_rows(const Sums<V>& tile, const Place<Sum>& to, Sum* top, Sum* sum) noexcept {
    keys_ = (chunk_.to < tile.end ? chunk_.to : tile.end) - chunk_.from;
    const int groups = static_cast<int>((keys_ + kGroup - 1) / kGroup);
    // Sums are compared as well as scores are: as in matrix_weights.h.
    const bool as_sums = !p.k_scales && scores_.scale > 0 && scores_.scale <= 1;
    V most = V::set(kHiddenScore<V>);
    scores<kRows>(tile, groups);
    for (int g = 0; g < groups; ++g)
      Few::template finish<kRows>(s_ + g * kGroup * kRows, keys_of(g), as_sums ? 1 : scores_.scale,
                                  chunk_.scales_from(g * kGroup), most);
    most = Few::template largest<kRows>(most);
    most.store(top);
    const V base = base_of<V>(top);
    const Sum scale = as_sums ? scores_.scale : 1;
    const V unit = V::set(Exp2<Sum>::kLog2E * scale);
    for (int g = 0; g < groups; ++g)  // 3 softmax
      Few::template weights<kRows>(
          s_ + g * kGroup * kRows, base, unit,
          chunk_.v_scales == nullptr ? nullptr : chunk_.v_scales + g * kGroup, weights_of(g));
    (most * V::set(scale)).store(top);
    V total = V::set(0);
    if (call_.v.type == DType::i8) values<kRows, std::int8_t>(tile, groups, to, total);
    else values<kRows, Operand>(tile, groups, to, total);
    Few::template even_and_odd<kRows>(total).store(sum);
  }

  bool paged() const noexcept { return p.keys == KeyAddressing::paged; }
  int keys_of(int g) const noexcept {
    const std::int64_t left = keys_ - std::int64_t{g} * kGroup;
    return left < kGroup ? static_cast<int>(left) : kGroup;
  }
  Operand* weights_of(int g) const noexcept { return p_ + g * kGroup * V::kLanes; }

  // 1 scores: the unit multiplies a group while the next is brought, a block of features with a
  // part of its rows.
  template <int kRows>
  void scores(const Tile<V>& tile, int groups) noexcept {
    constexpr std::int64_t kDepth = TilesOf<V>::kDepth;
    const std::int64_t blocks = p.d / kDepth;
    const bool bytes = call_.k.type == DType::i8, resident = blocks <= Few::kBlocks;
    if (resident) Few::queries(tile.q, blocks);
    Rows<Operand> k{}, next{};
    for (int g = 0; g <= groups; ++g, k = next) {
      Operand* const room = chunk_.packed_k + g % 2 * kGroup * p.d;
      Rows<std::int8_t> numbers{};
      if (g < groups && bytes) {
        numbers = rows<std::int8_t>(call_.k, p.d, g, chunk_.packed_k + 2 * kGroup * p.d);
        next = {room, room + kHalf * p.d, p.d};
      } else if (g < groups) {
        const bool apart = !resident && paged() && p.page_size % kGroup != 0;
        next = rows<Operand>(call_.k, p.d, g, room, keys_of(g) < kGroup || apart);
      }
      const Asked v = asked(call_.v, p.dv, g);
      const int keys = g < groups ? keys_of(g) : 0;
      const auto bring = [&](std::int64_t x) __attribute__((always_inline)) {
        const int end = g < groups ? static_cast<int>(kGroup * (x + 1) / blocks) : 0;
        for (int n = static_cast<int>(kGroup * x / blocks); n < end; ++n) {
          v.row(n);
          if (bytes && n < keys) Few::keys(numbers.at(n), p.d, room + n * p.d);
        }
      };
      Sum* const s = s_ + (g == 0 ? 0 : g - 1) * kGroup * kRows;
      if (resident) {
        Few::template clear<2>();
        unrolled<Few::kBlocks>(ATTEND_EACH(x) {
          if (x >= blocks) return;
          if (g > 0) Few::template block<x>(k.first, k.second, k.stride);
          bring(x);
        });
        if (g > 0) Few::template store_scores<kRows>(s);
      } else {
        for (std::int64_t x = 0; x < blocks; ++x) {
          if (g > 0)
            Matrix<V>::scores(k.first, k.stride, tile.q, tile.rows, V::kLanes, x * kDepth,
                              (x + 1) * kDepth, p.d, s, kRows, 0);
          bring(x);
        }
      }
    }
  }

  // 4 values, and the sum of the weights.
  template <int kRows, class E>
  void values(const Sums<V>& tile, int groups, const Place<Sum>& to, V& total) noexcept {
    constexpr std::int64_t kMost = Few::kWide * V::kLanes;
    for (std::int64_t x = 0; x < p.dv; x += kMost) {
      if (p.dv - x >= kMost) columns<kRows, Few::kWide, E>(tile, groups, x, to, total);
      else columns<kRows, 2, E>(tile, groups, x, to, total);
    }
  }

  // Of 16 kTiles features. A group is multiplied when the next has been brought: what was just
  // written is not yet in the cache, from where tiles are loaded.
  template <int kRows, int kTiles, class E>
  void columns(const Sums<V>& tile, int groups, std::int64_t x, const Place<Sum>& to,
               V& total) noexcept {
    constexpr std::int64_t kSize = kGroup * Few::kWide * V::kLanes;
    const auto pairs = [&](int g) { return chunk_.packed_v + g % 2 * kSize; };
    const bool first = x == 0, last = x + kTiles * V::kLanes == p.dv;
    Few::template clear<kTiles>();
    for (int g = 0; g <= groups; ++g) {
      if (g < groups) {
        const auto v = rows<E>(call_.v, p.dv, g, chunk_.packed_v + 2 * kSize);
        const Asked k = asked(call_.k, p.d, g + kChunk / kGroup);
        Few::template values<kTiles>(
            [&](int n) __attribute__((always_inline)) { return v.at(n) + x; }, v.stride, keys_of(g),
            pairs(g),
            [&](int pair) __attribute__((always_inline)) {
              if (first) k.row(2 * pair);
              if (last) k.row(2 * pair + 1);
            });
        if (first) Few::template add_up<kRows>(s_ + g * kGroup * kRows, total);
      }
      if (g > 0) Few::template multiply<kRows, kTiles>(weights_of(g - 1), pairs(g - 1));
    }
    Few::template store<kTiles>(tile.rows, std::is_same_v<E, Operand>, to.o + x, to.stride);
  }

  // The rows of a group of keys or values, as they lie or, where they do not lie one behind the
  // other or `copied` is asked for, in `room`.
  template <class E>
  ATTEND_INLINE Rows<E> rows(const Strided& t, std::int64_t count, int g, Operand* room,
                             bool copied = false) const noexcept {
    const auto row = [&](std::int64_t n) {
      return reinterpret_cast<const E*>(t.data) +
             key_row(p, call_, t, scores_.sequence, scores_.kv_head, chunk_.from + n);
    };
    const std::int64_t first = std::int64_t{g} * kGroup, stride = t.stride[2];
    if (!copied && !paged()) return {row(first), row(first) + kHalf * stride, stride};
    if (!copied && p.page_size % kHalf == 0) {
      const E* const begin = row(first);
      return {begin, first + kHalf < keys_ ? row(first + kHalf) : begin, stride};
    }
    E* const to = reinterpret_cast<E*>(room);
    for (int n = 0; n < keys_of(g); ++n)
      std::memcpy(to + n * count, row(first + n), static_cast<std::size_t>(count) * sizeof(E));
    return {to, to + kHalf * count, count};
  }

  // The rows of a group, perhaps of the next chunk, that are needed soon; of pages of whole halves,
  // as far as there are keys. Inlined: g++ 12 takes a function that only prefetches for one without
  // effects.
  struct Asked {
    const std::byte *first, *second;
    std::int64_t stride, bytes;
    ATTEND_INLINE void row(std::int64_t n) const noexcept {
      const std::byte* const at = (n < kHalf ? first : second) + n % kHalf * stride;
      for (std::int64_t x = 0; x < bytes; x += 64) __builtin_prefetch(at + x, 0, 2);
    }
  };
  ATTEND_INLINE Asked asked(const Strided& t, std::int64_t count, std::int64_t g) const noexcept {
    const std::int64_t size = t.type == DType::i8 ? 1 : sizeof(Operand);
    const std::int64_t stride = t.stride[2] * size, first = chunk_.from + g * kGroup;
    const auto at = [&](std::int64_t j) {
      return t.data + key_row(p, call_, t, scores_.sequence, scores_.kv_head, j) * size;
    };
    if (!paged()) {
      const std::byte* const begin = at(chunk_.from) + g * kGroup * stride;
      return {begin, begin + kHalf * stride, stride, count * size};
    }
    const std::int64_t last = scores_.sequence.k_length - 1;
    if (p.page_size % kHalf != 0 || first > last) return {t.data, t.data, 0, 0};
    return {at(first), at(first + kHalf <= last ? first + kHalf : first), stride, count * size};
  }

  const ForwardProblem& p;
  const ForwardCall& call_;
  ForwardScores<V>& scores_;
  const Chunk<V>& chunk_;
  Sum* s_;      // [256][rows], with the tile that is stored last behind it
  Operand* p_;  // [group][16 rows][32 keys]
  std::int64_t keys_ = 0;
};

}  // namespace
}  // namespace attend
