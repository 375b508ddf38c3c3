// Products of matrices of bf16 numbers, c = a b + bias, of a unit that multiplies pairs of steps:
// the tiles of AMX (amx_gemm.cpp) or VDPBF16PS (avx512_bf16_gemm.cpp). Here is what both share:
// operands in the order in which they are read, sums of blocks, and c.
//
//                   b, 32 columns: pairs of steps side by side, packed before or brought so
//                   +-------+-------+
//        32 steps   |       |       |       For 32 x 32 elements of c the whole depth passes by,
//                   +-------+-------+       up to kBlock steps. A block of b for the columns of a
//        a          c                       task, at most 1 MB, stays in the L2 cache while rows
//     +------+      +-------+-------+       of a pass. All in tiles of 16 rows or columns, 16 x 32
//     |      |      |       |       |       numbers of an operand.
//     +------+      +-------+-------+
//     |      |      |       |       |
//     +------+      +-------+-------+
//
// A sum over k is made in blocks of kBlock = 2048 steps at multiples of it. The blocks' sums are
// added in order in f32, the bias last, and the result is rounded once to bf16, to nearest.
// Subnormal numbers of a, b and the result are 0. What is missing of a tile is 0 in both operands,
// so no bit depends on where a tile ends: nor on how many rows stand beside a row, on packing or on
// threads.
//
// Rows of a are read as they lie where they are whole tiles along the depth, else they are brought
// together first. Weights that are not packed are rows along the depth themselves: where a unit has
// kTurns they take the place of a, as they lie, and c is turned when it is stored. The same bits
// come out: x y is y x.
//
// A unit has
//   kTurns, configure()                  see above; before it is used again after an interrupt
//   InUse                                lives while it is in use
//   Tiles<kLeft, kRight>(sums, rows)     32 x 32 sums, or half of them or a quarter: 0 at first, of
//                                        which so many rows are wanted
//     multiply(left, right, steps)       += left right; steps behind the last are 0, up to 32
//     finish()                           they stand in `sums`
#pragma once

#include "core/product.h"
#include "cpu/avx512.h"

namespace attend {
namespace {

constexpr std::int64_t kLines = 16, kSteps = 32;  // of a tile
constexpr std::int64_t kSide = 2 * kLines;        // of c, rows and columns that are made together
constexpr std::int64_t kTile = kLines * kSteps, kPair = 2 * kTile;  // numbers of tiles
constexpr std::int64_t kBlock = 2048;
constexpr std::int64_t kPiece = 256;  // steps of what is brought for 32 rows or columns alone
static_assert(kBlock % kPiece == 0 && kSumBlock % kSteps == 0);

std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t whole_steps(std::int64_t k) { return (k + kSteps - 1) / kSteps * kSteps; }

// ---- Operands ----------------------------------------------------------------------------------

// Up to 32 rows of a, or columns of b.
struct Lines {
  const bf16* at;
  std::int64_t next, depth;  // strides from one to the next, and along the depth: one of them is 1
  std::int64_t count;

  Lines from(std::int64_t k) const { return {at + k * depth, next, depth, count}; }
};

// How a tile has them: along the depth (the left operand), or in lanes, in pairs of steps (the
// right one).
enum class Form { along, pairs };

ATTEND_INLINE __m512i first_of(const bf16* p, std::int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi16(count <= 0 ? 0 : static_cast<__mmask32>((1U << count) - 1), p);
}

void turn(bf16* tile) {
  F32 rows[16];
  auto* const from = reinterpret_cast<float*>(tile);
  unrolled<16>(ATTEND_EACH(r) { rows[r] = F32::load(from + r * 16); });
  transpose(rows);
  unrolled<16>(ATTEND_EACH(r) { rows[r].store(from + r * 16); });
}

// 32 steps of 16 lines that go along the depth.
template <Form kForm>
void bring_rows(const Lines& lines, std::int64_t steps, bf16* tile) {
  F32 rows[16];
  if (steps >= kSteps && lines.count >= 16) {
    unrolled<16>(ATTEND_EACH(r) {
      rows[r].v = _mm512_castsi512_ps(_mm512_loadu_si512(lines.at + r * lines.next));
    });
  } else {
    for (int r = 0; r < 16; ++r)
      rows[r].v = _mm512_castsi512_ps(r < lines.count ? first_of(lines.at + r * lines.next, steps)
                                                      : _mm512_setzero_si512());
  }
  if constexpr (kForm == Form::pairs) transpose(rows);
  auto* const to = reinterpret_cast<float*>(tile);
  unrolled<16>(ATTEND_EACH(r) { rows[r].store(to + r * 16); });
}

// 32 steps of 32 lines that lie side by side.
template <Form kForm>
void bring_across(const Lines& lines, std::int64_t steps, bf16* tiles) {
  alignas(64) static constexpr std::uint16_t kLow[] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                       37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                       11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (std::int64_t pair = 0; pair < kLines; ++pair) {
    const auto step = [&](std::int64_t k) {
      return k < steps ? first_of(lines.at + k * lines.depth, lines.count) : _mm512_setzero_si512();
    };
    const __m512i even = step(2 * pair), odd = step(2 * pair + 1);
    bf16* const to = tiles + pair * kSteps;
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(to + kTile, _mm512_permutex2var_epi16(even, high, odd));
  }
  if constexpr (kForm == Form::along) turn(tiles), turn(tiles + kTile);
}

// Memory for what is brought, of so many steps. An array of bf16 would be filled with 0 first.
template <std::int64_t kDepth>
struct Room {
  alignas(64) std::byte bytes[kDepth * kSide * sizeof(bf16)];
  bf16* numbers() { return reinterpret_cast<bf16*>(bytes); }
};

// Two tiles for every 32 steps; 0 where there is nothing.
template <Form kForm>
[[gnu::noinline]] void bring(const Lines& lines, std::int64_t steps, bf16* to) noexcept {
  for (std::int64_t k = 0; k < steps; k += kSteps, to += kPair) {
    const Lines here = lines.from(k);
    if (lines.depth == 1) {
      bring_rows<kForm>(here, steps - k, to);
      const Lines second{here.at + 16 * here.next, here.next, 1, here.count - 16};
      bring_rows<kForm>(second, steps - k, to + kTile);
    } else {
      bring_across<kForm>(here, steps - k, to);
    }
  }
}

// Where tiles are loaded from: two of 16 lines at `at` and `second` behind it, the next 32 steps
// `step` behind these.
struct TileSource {
  const bf16* at;
  std::int64_t row_bytes, second, step;
};
constexpr std::int64_t kLineBytes = 64;
TileSource brought(const bf16* at) { return {at, kLineBytes, kTile, kPair}; }
// Whole tiles, of whole lines of the cache: a row that lies in two takes twice the time.
bool may_be_loaded(const Lines& lines, std::int64_t steps) {
  return lines.depth == 1 && lines.count == kSide && steps % kSteps == 0 &&
         lines.next % kSteps == 0 && reinterpret_cast<std::uintptr_t>(lines.at) % 64 == 0;
}
TileSource as_they_lie(const Lines& lines) {
  return {lines.at, lines.next * 2, 16 * lines.next, kSteps};
}

// ---- Sums --------------------------------------------------------------------------------------

// A block of the depth for 32 x 32 sums. What is null of the two is brought, a piece at a time.
struct BlockOfSums {
  TileSource left, right;
  Lines left_lines, right_lines;
  std::int64_t steps;
};

template <class Unit, int kLeft, int kRight>
[[gnu::noinline]] void add_up(const BlockOfSums& x, float (&sums)[kSide][kSide]) noexcept {
  using Tiles = typename Unit::template Tiles<kLeft, kRight>;
  Tiles tiles(sums, x.left_lines.count);
  if (x.left.at != nullptr && x.right.at != nullptr) {
    tiles.multiply(x.left, x.right, x.steps);
  } else {
    Room<kPiece> piece;
    for (std::int64_t k = 0; k < x.steps; k += kPiece) {
      const std::int64_t steps = least(x.steps - k, kPiece);
      TileSource left = x.left, right = x.right;
      if (left.at == nullptr) {
        bring<Form::along>(x.left_lines.from(k), steps, piece.numbers());
        left = brought(piece.numbers());
        right.at += k / kSteps * right.step;
      } else {
        bring<Form::pairs>(x.right_lines.from(k), steps, piece.numbers());
        right = brought(piece.numbers());
        left.at += k / kSteps * left.step;
      }
      tiles.multiply(left, right, steps);
    }
  }
  tiles.finish();
}

template <class Unit>
void add_up(const BlockOfSums& x, float (&sums)[kSide][kSide]) noexcept {
  const bool two_left = x.left_lines.count > 16, two_right = x.right_lines.count > 16;
  if (two_left && two_right) add_up<Unit, 2, 2>(x, sums);
  else if (two_left) add_up<Unit, 2, 1>(x, sums);
  else if (two_right) add_up<Unit, 1, 2>(x, sums);
  else add_up<Unit, 1, 1>(x, sums);
}

void turn(float (&sums)[kSide][kSide]) noexcept {
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

// To nearest, as the instructions add, whatever the caller's rounding mode is.
ATTEND_INLINE __m512 sum_of(__m512 a, __m512 b) {
  return _mm512_add_round_ps(a, b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// The sums of a block go to p.sums or, of the last one, to c.
void finish(const Matrices<bf16>& p, const MatrixRange& tile, std::int64_t k,
            const float (&sums)[kSide][kSide]) noexcept {
  const std::int64_t columns = tile.column_end - tile.column_begin;
  const auto some = static_cast<__mmask32>((std::uint64_t{1} << columns) - 1);
  const auto low = static_cast<__mmask16>(some), high = static_cast<__mmask16>(some >> 16);
  const bool first = k == 0, last = p.k - k <= kBlock;
  __m512 bias[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  if (last && p.bias != nullptr) {
    const __m512i b = _mm512_maskz_loadu_epi16(some, p.bias + tile.column_begin);
    const auto widened = [](__m256i half) {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    };
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
    v[0] = sum_of(v[0], bias[0]);
    v[1] = sum_of(v[1], bias[1]);
    _mm512_mask_storeu_epi16(p.c + r * p.c_row + tile.column_begin, some,
                             reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(v[1], v[0])));
  }
}

// ---- Products ----------------------------------------------------------------------------------

// Calls use(tile) for every 32 columns.
template <class Use>
void for_columns(const MatrixRange& range, Use use) {
  for (std::int64_t column = range.column_begin; column < range.column_end; column += kSide)
    use(MatrixRange{range.row_begin, range.row_end, column,
                    least(column + kSide, range.column_end)});
}

Lines rows_of(const Matrices<bf16>& p, const MatrixRange& tile, std::int64_t k) {
  return {p.a + tile.row_begin * p.a_row + k * p.a_depth, p.a_row, p.a_depth,
          tile.row_end - tile.row_begin};
}
Lines columns_of(const Matrices<bf16>& p, const MatrixRange& tile, std::int64_t k) {
  return {p.b + k * p.b_depth + tile.column_begin * p.b_column, p.b_column, p.b_depth,
          tile.column_end - tile.column_begin};
}

// A block of the depth for up to 32 rows and any columns. `room`: for a block of these rows.
template <class Unit>
void run_rows(const Matrices<bf16>& p, const MatrixRange& range, std::int64_t k, bf16* room) {
  alignas(64) float sums[kSide][kSide];
  const std::int64_t steps = least(p.k - k, kBlock);
  const Lines rows = rows_of(p, range, k);
  const bool turned = Unit::kTurns && p.packed == nullptr && p.b_depth == 1;
  TileSource a = as_they_lie(rows);
  if (turned || !may_be_loaded(rows, steps)) {
    if (turned) bring<Form::pairs>(rows, steps, room);
    else bring<Form::along>(rows, steps, room);
    a = brought(room);
  }
  for_columns(range, [&](const MatrixRange& tile) {
    Lines columns{nullptr, 0, 0, tile.column_end - tile.column_begin};
    TileSource b{};
    if (p.packed != nullptr)
      b = brought(p.packed + tile.column_begin * whole_steps(p.k) + k * kSide);
    else columns = columns_of(p, tile, k);
    if (turned && may_be_loaded(columns, steps)) b = as_they_lie(columns);
    if (turned) add_up<Unit>({b, a, columns, rows, steps}, sums), turn(sums);
    else add_up<Unit>({a, b, rows, columns, steps}, sums);
    finish(p, tile, k, sums);
  });
}

template <class Unit>
void run(const Matrices<bf16>& p, const MatrixRange& range) noexcept {
  [[maybe_unused]] const typename Unit::InUse in_use;
  Room<kBlock> room;
  std::int64_t k = 0;
  do {  // at least once: an empty sum is 0
    for (std::int64_t row = range.row_begin; row < range.row_end; row += kSide) {
      if (k != 0 && range.interrupt != nullptr) {
        if (must_stop(range.interrupt)) return;
        Unit::configure();  // who was asked may have used tiles himself
      }
      run_rows<Unit>(p,
                     {row, least(row + kSide, range.row_end), range.column_begin, range.column_end},
                     k, room.numbers());
    }
    k += kBlock;
  } while (k < p.k);
}

void pack(const Matrices<bf16>& p, const RangeOfB& range, bf16* packed) noexcept {
  for_columns({0, 0, range.column_begin, range.column_end}, [&](const MatrixRange& tile) {
    bring<Form::pairs>(columns_of(p, tile, range.k_begin), range.k_end - range.k_begin,
                       packed + tile.column_begin * whole_steps(p.k) + range.k_begin * kSide);
  });
}

}  // namespace
}  // namespace attend
