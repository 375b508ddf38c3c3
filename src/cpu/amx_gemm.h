// Products of matrices of 16-bit numbers, c = a b + bias, by the tiles of AMX.
//
//                   b, 32 columns: pairs of steps side by side, packed before or brought so
//                   +-------+-------+
//        32 steps   | tmm6  | tmm7  |       For 32 x 32 elements of c the whole depth passes by,
//                   +-------+-------+       up to kBlock steps. Four tiles are loaded (32 cycles of
//        a          c                       the load ports, from L1) for four multiplications (64
//     +------+      +-------+-------+       cycles). A block of b for the columns of a task, at
//     | tmm4 |      | tmm0  | tmm1  |       most 1 MB, stays in the L2 cache while rows of a pass.
//     +------+      +-------+-------+
//     | tmm5 |      | tmm2  | tmm3  |
//     +------+      +-------+-------+
//
// A sum over k is made in blocks of kBlock = 2048 steps at multiples of it: each begins with 0 and
// adds 32 steps at a time, in ascending order, as amx.h says (the even and the odd ones are each a
// chain of 16 fused multiply-adds; their sum is added). The blocks' sums are added in order in f32,
// the bias last, and the result is rounded once, to nearest. In a block that is 16 + 1 + 64
// roundings one after another, where the chains of the other rows have 256. Subnormal bf16 numbers
// of a, b and the result are 0. What is missing of a tile is 0 in both operands, so no bit depends
// on where a tile ends: nor on how many rows stand beside a row, on packing or on threads.
//
// f16 in two parts (amx_operands.h): of 32 steps four products are added, high high, low high, high
// low, low low (a's part first). Each product of parts is exact in f32, so that is what f16 numbers
// would give, with four times the roundings of the sum (kBlock is 1024), and twelve loads for
// sixteen multiplications. An infinity times a low part of 0 is NaN: sums that are not finite are
// those of the high parts alone, for nothing but an infinity or NaN of a or b makes them so.
//
// Rows of a are loaded as they lie where they are whole tiles along the depth, else they are
// brought together first. Weights that are not packed are rows along the depth themselves: they
// take the place of a, as they lie, and c is turned when it is stored. The same bits come out: x y
// is y x.
#pragma once

#include "core/product.h"
#include "cpu/amx_operands.h"

namespace attend {
namespace {

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <class Of>
class AmxGemm {
  using E = typename Of::Element;
  using Part = typename Of::Part;
  using Source = TileSource<Part>;
  static constexpr std::int64_t kBlock = 2048 / Of::kParts;
  static constexpr std::int64_t kPiece = 256;  // steps of what is brought for 32 lines alone
  static_assert(kBlock % kPiece == 0 && kSumBlock % kTileSteps == 0);

 public:
  static constexpr MatrixFunctions<E> functions() {
    return {.columns = kSide,
            .rows = kSide,
            .pack = pack,
            .run = run,
            .steps = kTileSteps,
            .parts = Of::kParts,
            .longest_sum = kBlock};
  }

 private:
  // ---- Sums ------------------------------------------------------------------------------------

  // tmm0 ... tmm3 += left right.
  template <int kLeft, int kRight>
  ATTEND_INLINE static void multiply(Source left, Source right, std::int64_t steps) {
    for (; steps > 0; steps -= kTileSteps) {
      tile_load<4>(left.at, left.row_bytes);
      tile_load<6>(right.at, kLineBytes);
      tile_multiply<0, 4, 6, Part>();
      if constexpr (kRight == 2) {
        tile_load<7>(right.at + kTile, kLineBytes);
        tile_multiply<1, 4, 7, Part>();
      }
      if constexpr (kLeft == 2) {
        tile_load<5>(left.at + left.second, left.row_bytes);
        tile_multiply<2, 5, 6, Part>();
        if constexpr (kRight == 2) tile_multiply<3, 5, 7, Part>();
      }
      left.at += left.step;
      right.at += right.step;
    }
  }

  // The same of numbers in two parts, or of the first `parts` of them: those of a pass by for each
  // of b, whichever side that is.
  template <int kLeft, int kRight>
  ATTEND_INLINE static void multiply_parts(Source left, Source right, std::int64_t steps,
                                           bool turned, int parts) {
    for (; steps > 0; steps -= kTileSteps, left.at += left.step, right.at += right.step) {
      const Part *const l = left.at, *const r = right.at;
      for (int b = 0; b < parts && !turned; ++b) {
        tile_load<6>(r + b * kPair, kLineBytes);
        if constexpr (kRight == 2) tile_load<7>(r + b * kPair + kTile, kLineBytes);
        for (int a = 0; a < parts; ++a) {
          tile_load<4>(l + a * kPair, kLineBytes);
          tile_multiply<0, 4, 6, Part>();
          if constexpr (kRight == 2) tile_multiply<1, 4, 7, Part>();
          if constexpr (kLeft == 2) {
            tile_load<5>(l + a * kPair + kTile, kLineBytes);
            tile_multiply<2, 5, 6, Part>();
            if constexpr (kRight == 2) tile_multiply<3, 5, 7, Part>();
          }
        }
      }
      for (int b = 0; b < parts && turned; ++b) {
        tile_load<4>(l + b * kPair, kLineBytes);
        if constexpr (kLeft == 2) tile_load<5>(l + b * kPair + kTile, kLineBytes);
        for (int a = 0; a < parts; ++a) {
          tile_load<6>(r + a * kPair, kLineBytes);
          tile_multiply<0, 4, 6, Part>();
          if constexpr (kLeft == 2) tile_multiply<2, 5, 6, Part>();
          if constexpr (kRight == 2) {
            tile_load<7>(r + a * kPair + kTile, kLineBytes);
            tile_multiply<1, 4, 7, Part>();
            if constexpr (kLeft == 2) tile_multiply<3, 5, 7, Part>();
          }
        }
      }
    }
  }

  // A block of the depth for 32 x 32 sums. What is null of the two is brought, a piece at a time.
  struct BlockOfSums {
    Source left, right;
    Lines<E> left_lines, right_lines;
    std::int64_t steps;
    bool turned;  // the left one is b
    int parts = Of::kParts;
  };

  template <int kLeft, int kRight>
  ATTEND_INLINE static void multiply(const BlockOfSums& x, Source left, Source right,
                                     std::int64_t steps) {
    if constexpr (Of::kParts == 1) multiply<kLeft, kRight>(left, right, steps);
    else multiply_parts<kLeft, kRight>(left, right, steps, x.turned, x.parts);
  }

  template <int kLeft, int kRight>
  [[gnu::noinline]] static void add_up(const BlockOfSums& x, float (&sums)[kSide][kSide]) noexcept {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    if (x.left.at != nullptr && x.right.at != nullptr) {
      multiply<kLeft, kRight>(x, x.left, x.right, x.steps);
    } else {
      Room<Of, kPiece> piece;
      for (std::int64_t k = 0; k < x.steps; k += kPiece) {
        const std::int64_t steps = least(x.steps - k, kPiece);
        Source left = x.left, right = x.right;
        if (left.at == nullptr) {
          bring<Of, Form::along>(x.left_lines.from(k), steps, piece.bytes);
          left = brought<Of>(piece.bytes);
          right.at += k / kTileSteps * right.step;
        } else {
          bring<Of, Form::pairs>(x.right_lines.from(k), steps, piece.bytes);
          right = brought<Of>(piece.bytes);
          left.at += k / kTileSteps * left.step;
        }
        multiply<kLeft, kRight>(x, left, right, steps);
      }
    }
    constexpr std::int64_t kRow = kSide * sizeof(float);
    tile_store<0>(sums[0], kRow);
    if constexpr (kRight == 2) tile_store<1>(sums[0] + 16, kRow);
    if constexpr (kLeft == 2) tile_store<2>(sums[16], kRow);
    if constexpr (kLeft == 2 && kRight == 2) tile_store<3>(sums[16] + 16, kRow);
  }

  static void add_up_all(const BlockOfSums& x, float (&sums)[kSide][kSide]) noexcept {
    const bool two_left = x.left_lines.count > 16, two_right = x.right_lines.count > 16;
    if (two_left && two_right) add_up<2, 2>(x, sums);
    else if (two_left) add_up<2, 1>(x, sums);
    else if (two_right) add_up<1, 2>(x, sums);
    else add_up<1, 1>(x, sums);
  }

  // Calls use(row, first of 16 columns) for all sums that are made.
  template <class Use>
  ATTEND_INLINE static void for_sums(const BlockOfSums& x, Use use) {
    for (std::int64_t r = 0; r < x.left_lines.count; ++r)
      for (std::int64_t c = 0; c < x.right_lines.count; c += 16) use(r, c);
  }

  static void add_up(BlockOfSums x, float (&sums)[kSide][kSide]) noexcept {
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

  // To nearest, as the tiles add, whatever the caller's rounding mode is.
  ATTEND_INLINE static __m512 sum_of(__m512 a, __m512 b) {
    return _mm512_add_round_ps(a, b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
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
        v[0] = sum_of(_mm512_maskz_loadu_ps(low, before), v[0]);
        v[1] = sum_of(_mm512_maskz_loadu_ps(high, before + 16), v[1]);
      }
      if (!last) {
        _mm512_mask_storeu_ps(before, low, v[0]);
        _mm512_mask_storeu_ps(before + 16, high, v[1]);
        continue;
      }
      _mm512_mask_storeu_epi16(p.c + r * p.c_row + tile.column_begin, some,
                               rounded(sum_of(v[0], bias[0]), sum_of(v[1], bias[1])));
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
    const std::int64_t steps = (p.k + kTileSteps - 1) / kTileSteps * kTileSteps;
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
    const bool turned = p.packed == nullptr && p.b_depth == 1;
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
    const TilesInUse tiles;
    Room<Of, kBlock> room;
    std::int64_t k = 0;
    do {  // at least once: an empty sum is 0
      for (std::int64_t row = range.row_begin; row < range.row_end; row += kSide) {
        if (k != 0 && range.interrupt != nullptr) {
          if (must_stop(range.interrupt)) return;
          configure_tiles();  // who was asked may have used tiles himself
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
