// cpu.neon_bf16.product: products of matrices of bf16 numbers, c = a b + bias, by BFMMLA.
//
//                   b, 12 columns: 6 operands of 2 columns and 4 steps (neon_bf16.h)
//                   +---+---+---+---+---+---+
//                   |   |   |   |   |   |   |     For 8 x 12 elements of c the depth passes by:
//        a          c                             10 loads for 24 multiplications, which a
//     +-----+       +---+---+---+---+---+---+     Neoverse V1 does in 6 cycles. Rows of a are
//     |     |       |   |   |   |   |   |   |     brought together first, up to kBlock steps of
//     +-----+       +---+---+---+---+---+---+     them, and b, where it is not packed, in pieces.
//     |     |       |   |   |   |   |   |   |
//      4 of 2 rows
//
// A sum over k is made of chains of 128 steps at multiples of 128: each begins with 0 and is one
// chain of pairs, as neon_bf16.h says. They are added in order in f32, the bias last, and the
// result is rounded once to bf16, to nearest. An addition that rounds to odd loses twice as much as
// one to nearest, so chains are half as long as those of the other rows. What is missing of a tile
// is 0 in both operands, so no bit depends on where a tile ends: nor on how many rows stand beside
// a row, on packing or on threads.
#include "cpu/neon_bf16.h"

#include "core/product.h"
#include "cpu/declines.h"
#include "cpu/elements.h"

namespace attend {
namespace {

constexpr std::int64_t kRows = 8, kColumns = 12;  // of c that are made together
constexpr std::int64_t kChain = 128;
constexpr std::int64_t kBlock = 2048;  // steps of rows of a that are brought together
constexpr std::int64_t kPiece = 256;   // of columns of b, for few rows of a
constexpr std::int64_t kSteps = 8;     // of two operands
static_assert(kBlock % kPiece == 0 && kPiece % kChain == 0 && kSumBlock % kSteps == 0);

std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t whole_steps(std::int64_t k) { return (k + kSteps - 1) / kSteps * kSteps; }

// ---- Operands ----------------------------------------------------------------------------------

// Rows of a, or columns of b.
struct Lines {
  const bf16* at;
  std::int64_t next, depth;  // strides from one to the next, and along the depth: one of them is 1
  std::int64_t count;

  Lines from(std::int64_t k) const { return {at + k * depth, next, depth, count}; }
};

// to[4 steps][2 lines][line][step] of kLines; 0 where there is nothing.
template <int kLines>
[[gnu::noinline]] void bring(const Lines& lines, std::int64_t steps, bf16* to) noexcept {
  constexpr int kApart = 4 * kLines;  // from 4 steps to the next
  if (lines.depth == 1) {
    for (int n = 0; n < kLines; n += 2) {
      const auto line = [&](int r, std::int64_t k) {
        return load_bf16(lines.at + r * lines.next + k, r < lines.count ? steps - k : 0);
      };
      bf16* pair = to + n * 4;
      for (std::int64_t k = 0; k < steps; k += kSteps, pair += 2 * kApart) {
        const Bf16x8 a = line(n, k), b = line(n + 1, k);
        store_bf16(lower(a, b), pair);
        store_bf16(upper(a, b), pair + kApart);
      }
    }
    return;
  }
  for (std::int64_t k = 0; k < whole_steps(steps); k += 4, to += kApart)
    for (int n = 0; n < kLines; n += 4) {
      const std::int64_t left = lines.count - n < 0 ? 0 : least(lines.count - n, 4);
      const auto step = [&](std::int64_t x) {
        const bf16* const from = lines.at + x * lines.depth + n;
        if (x < steps && left == 4) return load_halves(from, from);
        return load_bf16(from, x < steps ? left : 0);
      };
      const Bf16x8 first = paired<0>(step(k), step(k + 1)),
                   second = paired<0>(step(k + 2), step(k + 3));
      store_bf16(fours<0>(first, second), to + n * 4);
      store_bf16(fours<1>(first, second), to + n * 4 + 8);
    }
}

// Memory for what is brought. An array of bf16 would be filled with 0 first.
template <std::int64_t kCount>
struct Room {
  alignas(64) std::byte bytes[kCount * sizeof(bf16)];
  bf16* numbers() { return reinterpret_cast<bf16*>(bytes); }
};

// ---- Sums --------------------------------------------------------------------------------------

// Of kPairs pairs of rows, as the instruction leaves them.
template <int kPairs>
struct TileOfSums {
  static constexpr int kOf = kColumns / 2;
  alignas(64) float sums[kPairs][kOf][4];

  // Row r, column by column.
  void row(std::int64_t r, F32 (&columns)[kColumns / 4]) const noexcept {
    unrolled<kColumns / 4>(ATTEND_EACH(n) {
      const F32 a = F32::load(sums[r / 2][2 * n]), b = F32::load(sums[r / 2][2 * n + 1]);
      columns[n] = r % 2 == 0 ? lower(a, b) : upper(a, b);
    });
  }
  void set_row(std::int64_t r, const float* columns) noexcept {
    for (int n = 0; n < kColumns; ++n) sums[r / 2][n / 2][r % 2 * 2 + n % 2] = columns[n];
  }
};

// sums = a b, or sums + a b: chain by chain.
template <int kPairs>
[[gnu::noinline]] void product_tile(const bf16* a, const bf16* b, std::int64_t steps, bool first,
                                    TileOfSums<kPairs>& to) noexcept {
  constexpr int kOf = TileOfSums<kPairs>::kOf;
  do {  // at least once: an empty sum is 0
    F32 chain[kPairs][kOf];
    unrolled<kPairs>(ATTEND_EACH(r) { set_zero(chain[r]); });
    multiply(a, b, least(steps, kChain), chain);
    unrolled<kPairs>(ATTEND_EACH(r) {
      unrolled<kOf>(ATTEND_EACH(c) {
        if (!first) chain[r][c] = F32::load(to.sums[r][c]) + chain[r][c];
        chain[r][c].store(to.sums[r][c]);
      });
    });
    first = false;
    steps -= kChain;
  } while (steps > 0);
}

// What the sums of earlier blocks were, from p.sums, or where they go.
template <int kPairs>
void load_sums(const Matrices<bf16>& p, const MatrixRange& tile, TileOfSums<kPairs>& to) noexcept {
  const std::int64_t columns = tile.column_end - tile.column_begin;
  for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    float row[kColumns] = {};
    const float* const from = p.sums + r * p.n + tile.column_begin;
    for (std::int64_t n = 0; n < columns; ++n) row[n] = from[n];
    to.set_row(r - tile.row_begin, row);
  }
}

template <int kPairs>
void finish(const Matrices<bf16>& p, const MatrixRange& tile, bool last,
            const TileOfSums<kPairs>& from) noexcept {
  const std::int64_t columns = tile.column_end - tile.column_begin;
  F32 bias[kColumns / 4];
  unrolled<kColumns / 4>(ATTEND_EACH(n) {
    bias[n] = F32::set(0);
    if (p.bias != nullptr && n * 4 < columns)
      bias[n] = load_elements<F32>(p.bias + tile.column_begin + n * 4, columns - n * 4);
  });
  for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    F32 row[kColumns / 4];
    from.row(r - tile.row_begin, row);
    unrolled<kColumns / 4>(ATTEND_EACH(n) {
      const std::int64_t column = tile.column_begin + n * 4, left = columns - n * 4;
      if (left <= 0) return;
      if (!last) store_elements(row[n], p.sums + r * p.n + column, left);
      else store_elements(row[n] + bias[n], p.c + r * p.c_row + column, left);
    });
  }
}

// ---- Products ----------------------------------------------------------------------------------

// Calls use(tile) for every 12 columns.
template <class Use>
void for_columns(const MatrixRange& range, Use use) {
  for (std::int64_t column = range.column_begin; column < range.column_end; column += kColumns)
    use(MatrixRange{range.row_begin, range.row_end, column,
                    least(column + kColumns, range.column_end)});
}

Lines columns_of(const Matrices<bf16>& p, const MatrixRange& tile, std::int64_t k) {
  return {p.b + k * p.b_depth + tile.column_begin * p.b_column, p.b_column, p.b_depth,
          tile.column_end - tile.column_begin};
}

// A block of the depth for up to 2 kPairs rows and any columns.
template <int kPairs>
[[gnu::noinline]] void run_rows(const Matrices<bf16>& p, const MatrixRange& range, std::int64_t k,
                                bf16* room) noexcept {
  const std::int64_t steps = least(p.k - k, kBlock);
  bring<2 * kPairs>({p.a + range.row_begin * p.a_row + k * p.a_depth, p.a_row, p.a_depth,
                     range.row_end - range.row_begin},
                    steps, room);
  for_columns(range, [&](const MatrixRange& tile) {
    TileOfSums<kPairs> sums;
    if (k != 0) load_sums(p, tile, sums);
    if (p.packed != nullptr) {
      product_tile(room, p.packed + tile.column_begin * whole_steps(p.k) + k * kColumns, steps,
                   k == 0, sums);
    } else {
      Room<kPiece * kColumns> piece;
      std::int64_t x = 0;
      do {
        const std::int64_t some = least(steps - x, kPiece);
        bring<kColumns>(columns_of(p, tile, k + x), some, piece.numbers());
        product_tile(room + x * 2 * kPairs, piece.numbers(), some, k + x == 0, sums);
        x += kPiece;
      } while (x < steps);
    }
    finish(p, tile, p.k - k <= kBlock, sums);
  });
}

void run(const Matrices<bf16>& p, const MatrixRange& range) noexcept {
  Room<kBlock * kRows> room;
  std::int64_t k = 0;
  do {  // at least once: an empty sum is 0
    for (std::int64_t row = range.row_begin; row < range.row_end; row += kRows) {
      if (k != 0 && range.interrupt != nullptr && must_stop(range.interrupt)) return;
      const MatrixRange some{row, least(row + kRows, range.row_end), range.column_begin,
                             range.column_end};
      const std::int64_t rows = some.row_end - row;
      if (rows <= 2) run_rows<1>(p, some, k, room.numbers());
      else if (rows <= 4) run_rows<2>(p, some, k, room.numbers());
      else run_rows<4>(p, some, k, room.numbers());
    }
    k += kBlock;
  } while (k < p.k);
}

void pack(const Matrices<bf16>& p, const RangeOfB& range, bf16* packed) noexcept {
  for_columns({0, 0, range.column_begin, range.column_end}, [&](const MatrixRange& tile) {
    bring<kColumns>(columns_of(p, tile, range.k_begin), range.k_end - range.k_begin,
                    packed + tile.column_begin * whole_steps(p.k) + range.k_begin * kColumns);
  });
}

}  // namespace

extern constinit const Kernel<Product> kNeonBf16Product{
    .name = "cpu.neon_bf16.product",
    .only_if_forced = false,
    .takes = Features{Feature::bf16, Feature::row_bias},
    .declines = declines_neon_bf16<ProductProblem>,
    .bf16 = {.columns = kColumns,
             .rows = kRows,
             .pack = pack,
             .run = run,
             .steps = kSteps,
             .longest_sum = kBlock},
};

}  // namespace attend
