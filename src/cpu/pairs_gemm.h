// Products of matrices of 16-bit numbers, c = a b + bias, of a unit that multiplies pairs of steps:
// the tiles of AMX (amx_unit.h) or VDPBF16PS (avx512_bf16_gemm.cpp). Here is what all share: sums
// of blocks, and c.
//
//                   b, 32 columns: pairs of steps side by side, packed before or brought so
//                   +-------+-------+
//        32 steps   |       |       |       For 32 x 32 elements of c the whole depth passes by,
//                   +-------+-------+       up to kBlock steps. A block of b for the columns of a
//        a          c                       task, at most 1 MB, stays in the L2 cache while rows
//     +------+      +-------+-------+       of a pass. All in tiles of 16 rows or columns, 16 x 32
//     |      |      |       |       |       numbers of an operand (pairs_operands.h).
//     +------+      +-------+-------+
//     |      |      |       |       |
//     +------+      +-------+-------+
//
// A sum over k is made in blocks of kBlock = 2048 steps at multiples of it. The blocks' sums are
// added in order in f32, the bias last, and the result is rounded once, to nearest. Subnormal bf16
// numbers of a, b and the result are 0. What is missing of a tile is 0 in both operands, so no bit
// depends on where a tile ends: nor on how many rows stand beside a row, on packing or on threads.
//
// f16 in two parts: of 32 steps four products are added, high high, low high, high low, low low
// (a's part first). Each product of parts is exact in f32, so that is what f16 numbers would give,
// with four times the roundings of the sum; kBlock is 1024. An infinity times a low part of 0 is
// NaN: sums that are not finite are those of the high parts alone, for nothing but an infinity or
// NaN of a or b makes them so.
//
// Rows of a are read as they lie where they are whole tiles along the depth, else they are brought
// together first. Weights that are not packed are rows along the depth themselves: where a unit has
// kTurns they take the place of a, as they lie, and c is turned when it is stored. The same bits
// come out: x y is y x.
//
// A unit has
//   Of                                   what it multiplies: AsTheyAre or HighAndLow
//   kTurns, configure()                  see above; before it is used again after an interrupt
//   InUse                                lives while it is in use
//   Tiles<kLeft, kRight>(block, sums)    32 x 32 sums, or half of them or a quarter: 0 at first
//     multiply(left, right, steps)       += left right; steps behind the last are 0, up to 32
//     finish()                           they stand in `sums`
#pragma once

#include "core/product.h"
#include "cpu/pairs_operands.h"

namespace attend {
namespace {

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// A block of the depth for 32 x 32 sums. What is null of the two is brought, a piece at a time.
template <class Of>
struct BlockOfSums {
  TileSource<typename Of::Part> left, right;
  Lines<typename Of::Element> left_lines, right_lines;
  std::int64_t steps;
  bool turned;             // the left one is b
  int parts = Of::kParts;  // that are multiplied
};

// To nearest, as the instructions add, whatever the caller's rounding mode is.
ATTEND_INLINE __m512 nearest_sum(__m512 a, __m512 b) {
  return _mm512_add_round_ps(a, b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <class Unit>
class PairsGemm {
  using Of = typename Unit::Of;
  using E = typename Of::Element;
  using Block = BlockOfSums<Of>;
  using Source = TileSource<typename Of::Part>;
  static constexpr std::int64_t kBlock = 2048 / Of::kParts;
  static constexpr std::int64_t kPiece = 256;  // steps of what is brought for 32 lines alone
  static_assert(kBlock % kPiece == 0 && kSumBlock % kSteps == 0);

 public:
  static constexpr MatrixFunctions<E> functions() {
    return {.columns = kSide,
            .rows = kSide,
            .pack = pack,
            .run = run,
            .steps = kSteps,
            .parts = Of::kParts,
            .longest_sum = kBlock};
  }

 private:
  // ---- Sums ------------------------------------------------------------------------------------

  template <int kLeft, int kRight>
  [[gnu::noinline]] static void add_up(const Block& x, float (&sums)[kSide][kSide]) noexcept {
    typename Unit::template Tiles<kLeft, kRight> tiles(x, sums);
    if (x.left.at != nullptr && x.right.at != nullptr) {
      tiles.multiply(x.left, x.right, x.steps);
    } else {
      Room<Of, kPiece> piece;
      for (std::int64_t k = 0; k < x.steps; k += kPiece) {
        const std::int64_t steps = least(x.steps - k, kPiece);
        Source left = x.left, right = x.right;
        if (left.at == nullptr) {
          bring<Of, Form::along>(x.left_lines.from(k), steps, piece.bytes);
          left = brought<Of>(piece.bytes);
          right.at += k / kSteps * right.step;
        } else {
          bring<Of, Form::pairs>(x.right_lines.from(k), steps, piece.bytes);
          right = brought<Of>(piece.bytes);
          left.at += k / kSteps * left.step;
        }
        tiles.multiply(left, right, steps);
      }
    }
    tiles.finish();
  }

  static void add_up_all(const Block& x, float (&sums)[kSide][kSide]) noexcept {
    const bool two_left = x.left_lines.count > 16, two_right = x.right_lines.count > 16;
    if (two_left && two_right) add_up<2, 2>(x, sums);
    else if (two_left) add_up<2, 1>(x, sums);
    else if (two_right) add_up<1, 2>(x, sums);
    else add_up<1, 1>(x, sums);
  }

  // Calls use(row, first of 16 columns) for all sums that are made.
  template <class Use>
  ATTEND_INLINE static void for_sums(const Block& x, Use use) {
    for (std::int64_t r = 0; r < x.left_lines.count; ++r)
      for (std::int64_t c = 0; c < x.right_lines.count; c += 16) use(r, c);
  }

  static void add_up(Block x, float (&sums)[kSide][kSide]) noexcept {
    add_up_all(x, sums);
    if constexpr (Of::kParts == 1) return;
    __m512 check = _mm512_setzero_ps();
    for_sums(x, [&](std::int64_t r, std::int64_t c) {
      const __m512 v = _mm512_load_ps(sums[r] + c);
      check = _mm512_or_ps(check, _mm512_sub_ps(v, v));  // NaN of what is not finite
    });
    if (_mm512_cmp_ps_mask(check, check, _CMP_UNORD_Q) == 0) return;
    alignas(64) float of_high[kSide][kSide];
    x.parts = 1;
    add_up_all(x, of_high);
    for_sums(x, [&](std::int64_t r, std::int64_t c) {
      const __m512 v = _mm512_load_ps(sums[r] + c), rest = _mm512_sub_ps(v, v);
      _mm512_mask_store_ps(sums[r] + c, _mm512_cmp_ps_mask(rest, rest, _CMP_UNORD_Q),
                           _mm512_load_ps(of_high[r] + c));
    });
  }

  static void turn_sums(float (&sums)[kSide][kSide]) noexcept {
    F32 squares[2][2][16];
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c) {
        F32(&square)[16] = squares[r][c];
        unrolled<16>(ATTEND_EACH(x) { square[x] = F32::load(sums[r * 16 + x] + c * 16); });
        transpose(square);
      }
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c)
        unrolled<16>(ATTEND_EACH(x) { squares[c][r][x].store(sums[r * 16 + x] + c * 16); });
  }

  // ---- Results ---------------------------------------------------------------------------------

  ATTEND_INLINE static __m512 widened(__m256i numbers) {
    if constexpr (std::is_same_v<E, f16>) return _mm512_cvtph_ps(numbers);
    else return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
  }
  ATTEND_INLINE static __m512i rounded(__m512 first, __m512 second) {
    if constexpr (std::is_same_v<E, f16>) {
      constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
      return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(first, kNearest)),
                                _mm512_cvtps_ph(second, kNearest), 1);
    } else {
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    }
  }

  // The sums of a block go to p.sums or, of the last one, to c.
  static void finish(const Matrices<E>& p, const MatrixRange& tile, std::int64_t k,
                     const float (&sums)[kSide][kSide]) noexcept {
    const std::int64_t columns = tile.column_end - tile.column_begin;
    const auto some = static_cast<__mmask32>((std::uint64_t{1} << columns) - 1);
    const auto low = static_cast<__mmask16>(some), high = static_cast<__mmask16>(some >> 16);
    const bool first = k == 0, last = p.k - k <= kBlock;
    __m512 bias[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (last && p.bias != nullptr) {
      const __m512i b = _mm512_maskz_loadu_epi16(some, p.bias + tile.column_begin);
      bias[0] = widened(_mm512_castsi512_si256(b));
      bias[1] = widened(_mm512_extracti64x4_epi64(b, 1));
    }
    for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
      const float* const from = sums[r - tile.row_begin];
      __m512 v[2] = {_mm512_maskz_load_ps(low, from), _mm512_maskz_load_ps(high, from + 16)};
      float* const before = first && last ? nullptr : p.sums + r * p.n + tile.column_begin;
      if (!first) {
        v[0] = nearest_sum(_mm512_maskz_loadu_ps(low, before), v[0]);
        v[1] = nearest_sum(_mm512_maskz_loadu_ps(high, before + 16), v[1]);
      }
      if (!last) {
        _mm512_mask_storeu_ps(before, low, v[0]);
        _mm512_mask_storeu_ps(before + 16, high, v[1]);
        continue;
      }
      _mm512_mask_storeu_epi16(p.c + r * p.c_row + tile.column_begin, some,
                               rounded(nearest_sum(v[0], bias[0]), nearest_sum(v[1], bias[1])));
    }
  }

  // ---- Products --------------------------------------------------------------------------------

  // Calls use(tile) for every 32 columns.
  template <class Use>
  static void for_columns(const MatrixRange& range, Use use) {
    for (std::int64_t column = range.column_begin; column < range.column_end; column += kSide)
      use(MatrixRange{range.row_begin, range.row_end, column,
                      least(column + kSide, range.column_end)});
  }

  static Lines<E> rows_of(const Matrices<E>& p, const MatrixRange& tile, std::int64_t k) {
    return {p.a + tile.row_begin * p.a_row + k * p.a_depth, p.a_row, p.a_depth,
            tile.row_end - tile.row_begin};
  }
  static Lines<E> columns_of(const Matrices<E>& p, const MatrixRange& tile, std::int64_t k) {
    return {p.b + k * p.b_depth + tile.column_begin * p.b_column, p.b_column, p.b_depth,
            tile.column_end - tile.column_begin};
  }
  // Where the columns of a tile of b, from k on, stand in what pack() makes.
  static std::int64_t packed_at(const Matrices<E>& p, std::int64_t column, std::int64_t k) {
    const std::int64_t steps = (p.k + kSteps - 1) / kSteps * kSteps;
    return (column * steps + k * kSide) * Of::kParts;
  }
  static Source loaded(const Lines<E>& lines, std::int64_t steps) {
    if constexpr (Of::kParts == 1)
      if (may_be_loaded(lines, steps)) return as_they_lie(lines);
    return {};
  }

  // A block of the depth for up to 32 rows and any columns. `room`: for a block of these rows.
  static void run_rows(const Matrices<E>& p, const MatrixRange& range, std::int64_t k,
                       std::byte* room) {
    alignas(64) float sums[kSide][kSide];
    const std::int64_t steps = least(p.k - k, kBlock);
    const Lines<E> rows = rows_of(p, range, k);
    const bool turned = Unit::kTurns && p.packed == nullptr && p.b_depth == 1;
    Source a = turned ? Source{} : loaded(rows, steps);
    if (a.at == nullptr) {
      if (turned) bring<Of, Form::pairs>(rows, steps, room);
      else bring<Of, Form::along>(rows, steps, room);
      a = brought<Of>(room);
    }
    for_columns(range, [&](const MatrixRange& tile) {
      Lines<E> columns{nullptr, 0, 0, tile.column_end - tile.column_begin};
      Source b{};
      if (p.packed != nullptr) b = brought<Of>(p.packed + packed_at(p, tile.column_begin, k));
      else columns = columns_of(p, tile, k);
      if (turned) b = loaded(columns, steps);
      if (turned) add_up({b, a, columns, rows, steps, true}, sums), turn_sums(sums);
      else add_up({a, b, rows, columns, steps, false}, sums);
      finish(p, tile, k, sums);
    });
  }

  static void run(const Matrices<E>& p, const MatrixRange& range) noexcept {
    [[maybe_unused]] const typename Unit::InUse in_use;
    Room<Of, kBlock> room;
    std::int64_t k = 0;
    do {  // at least once: an empty sum is 0
      for (std::int64_t row = range.row_begin; row < range.row_end; row += kSide) {
        if (k != 0 && range.interrupt != nullptr) {
          if (must_stop(range.interrupt)) return;
          Unit::configure();  // who was asked may have used tiles himself
        }
        run_rows(p, {row, least(row + kSide, range.row_end), range.column_begin, range.column_end},
                 k, room.bytes);
      }
      k += kBlock;
    } while (k < p.k);
  }

  static void pack(const Matrices<E>& p, const RangeOfB& range, E* packed) noexcept {
    for_columns({0, 0, range.column_begin, range.column_end}, [&](const MatrixRange& tile) {
      bring<Of, Form::pairs>(columns_of(p, tile, range.k_begin), range.k_end - range.k_begin,
                             packed + packed_at(p, tile.column_begin, range.k_begin));
    });
  }
};

}  // namespace
}  // namespace attend
