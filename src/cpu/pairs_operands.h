// What products of 16-bit matrices multiply: 32 rows of a, or columns of b, in tiles of 16 lines
// and 32 steps, brought together and turned as pairs_gemm.h wants them.
//
// Numbers are multiplied as they are (AsTheyAre) or, f16 numbers by units of bf16, in two parts
// (HighAndLow): x = high + low exactly, for 11 bits are 8 and 3. Then a tile of the high parts is
// followed by one of the low parts.
#pragma once

#include "cpu/avx512.h"

namespace attend {
namespace {

inline constexpr std::int64_t kLines = 16, kSteps = 32;  // of a tile
inline constexpr std::int64_t kSide = 2 * kLines;  // of c, rows and columns that are made together
inline constexpr std::int64_t kTile = kLines * kSteps, kPair = 2 * kTile;  // numbers of tiles
inline constexpr std::int64_t kLineBytes = kSteps * 2;                     // of what is brought

template <class E>
struct AsTheyAre {
  using Element = E;  // in memory
  using Part = E;     // in tiles
  static constexpr int kParts = 1;
};
struct HighAndLow {
  using Element = f16;
  using Part = bf16;
  static constexpr int kParts = 2;
};

// Up to 32 rows of a, or columns of b.
template <class E>
struct Lines {
  const E* at;
  std::int64_t next, depth;  // strides from one to the next, and along the depth: one of them is 1
  std::int64_t count;

  Lines from(std::int64_t k) const { return {at + k * depth, next, depth, count}; }
};

// How a tile has them: along the depth (the left operand), or in lanes, in pairs of steps.
enum class Form { along, pairs };

ATTEND_INLINE __m512i first_of(const void* p, std::int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi16(count <= 0 ? 0 : static_cast<__mmask32>((1U << count) - 1), p);
}

inline void turn(void* tile) {
  F32 rows[16];
  auto* const from = static_cast<float*>(tile);
  unrolled<16>(ATTEND_EACH(r) { rows[r] = F32::load(from + r * 16); });
  transpose(rows);
  unrolled<16>(ATTEND_EACH(r) { rows[r].store(from + r * 16); });
}

// 32 steps of 16 lines that go along the depth.
template <Form kForm, class E>
void bring_rows(const Lines<E>& lines, std::int64_t steps, void* tile) {
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
  auto* const to = static_cast<float*>(tile);
  unrolled<16>(ATTEND_EACH(r) { rows[r].store(to + r * 16); });
}

// 32 steps of 32 lines that lie side by side.
template <Form kForm, class E>
void bring_across(const Lines<E>& lines, std::int64_t steps, std::byte* tiles) {
  alignas(64) static constexpr std::uint16_t kLow[] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                       37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                       11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (std::int64_t pair = 0; pair < kLines; ++pair) {
    const auto step = [&](std::int64_t k) {
      return k < steps ? first_of(lines.at + k * lines.depth, lines.count) : _mm512_setzero_si512();
    };
    const __m512i even = step(2 * pair), odd = step(2 * pair + 1);
    std::byte* const to = tiles + pair * kLineBytes;
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(to + 2 * kTile, _mm512_permutex2var_epi16(even, high, odd));
  }
  if constexpr (kForm == Form::along) turn(tiles), turn(tiles + 2 * kTile);
}

// Two tiles of f16 numbers become two of their high parts, and two of their low parts behind them.
// What is not finite has the low part 0.
inline void split(std::byte* tiles) {
  for (std::int64_t at = 0; at < 2 * kPair; at += kLineBytes) {
    const __m512i all = _mm512_loadu_si512(tiles + at);
    const __m512 x[] = {_mm512_cvtph_ps(_mm512_castsi512_si256(all)),
                        _mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1))};
    const auto high = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x[1], x[0]));
    const auto rest = [&](__m512 number, __m256i of_high) __attribute__((always_inline)) {
      const __m512 y = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(of_high), 16));
      const __m512 low = _mm512_sub_ps(number, y);
      return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(low, low, _CMP_ORD_Q), low);
    };
    const __m512 low[] = {rest(x[0], _mm512_castsi512_si256(high)),
                          rest(x[1], _mm512_extracti64x4_epi64(high, 1))};
    _mm512_storeu_si512(tiles + at, high);
    _mm512_storeu_si512(tiles + 2 * kPair + at,
                        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(low[1], low[0])));
  }
}

// Two tiles for every 32 steps, or twice two; 0 where there is nothing.
template <class Of, Form kForm>
[[gnu::noinline]] void bring(const Lines<typename Of::Element>& lines, std::int64_t steps,
                             void* memory) noexcept {
  auto* to = static_cast<std::byte*>(memory);
  for (std::int64_t k = 0; k < steps; k += kSteps, to += 2 * kPair * Of::kParts) {
    const auto here = lines.from(k);
    if (lines.depth == 1) {
      bring_rows<kForm>(here, steps - k, to);
      const decltype(here) second{here.at + 16 * here.next, here.next, 1, here.count - 16};
      bring_rows<kForm>(second, steps - k, to + 2 * kTile);
    } else {
      bring_across<kForm>(here, steps - k, to);
    }
    if constexpr (Of::kParts == 2) split(to);
  }
}

// Memory for what is brought, of so many steps. An array of numbers would be filled with 0 first.
template <class Of, std::int64_t kDepth>
struct Room {
  alignas(64) std::byte bytes[kDepth * kSide * Of::kParts * 2];
};

// Where tiles are loaded from: two of 16 lines at `at` and `second` behind it, the low parts kPair
// behind these, the next 32 steps `step` behind.
template <class Part>
struct TileSource {
  const Part* at;
  std::int64_t row_bytes, second, step;
};
template <class Of>
TileSource<typename Of::Part> brought(const void* at) {
  return {static_cast<const typename Of::Part*>(at), kLineBytes, kTile, kPair * Of::kParts};
}
// Whole tiles, of whole lines of the cache: a row that lies in two takes twice the time.
template <class E>
bool may_be_loaded(const Lines<E>& lines, std::int64_t steps) {
  return lines.depth == 1 && lines.count == kSide && steps % kSteps == 0 &&
         lines.next % kSteps == 0 && reinterpret_cast<std::uintptr_t>(lines.at) % 64 == 0;
}
template <class E>
TileSource<E> as_they_lie(const Lines<E>& lines) {
  return {lines.at, lines.next * 2, 16 * lines.next, kSteps};
}

}  // namespace
}  // namespace attend
