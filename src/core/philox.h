// Dropout's random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011). A draw is a pure function of its position, so every kernel on every device,
// whole problem or part, forward or backward, drops the same weights.
#pragma once

#include "core/call.h"
#include "core/problem.h"

#include <array>
#include <cstdint>

namespace attend {

ATTEND_HOST_DEVICE inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                              std::uint64_t key) noexcept {
  constexpr std::uint64_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, key0 += kWeyl0, key1 += kWeyl1) {
    const std::uint64_t a = kMultiply0 * counter[0], b = kMultiply1 * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
  }
  return counter;
}

// What dropout multiplies the weights with that it keeps: 1 / (1 - p). If it keeps none, 0.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double kept_factor(
    const Problem& problem) noexcept {
  return problem.drop_below < 65536 ? 65536.0 / (65536.0 - problem.drop_below) : 0;
}

// What dropout multiplies the weight of (b, h, i, j) with: that, or 0.
ATTEND_HOST_DEVICE inline double dropout_factor(const Problem& problem, const Call& call,
                                                std::int64_t b, std::int64_t h, std::int64_t i,
                                                std::int64_t j) noexcept {
  if (problem.drop_below == 0) return 1;
  const Draws& draws = call.draws;
  j += draws.j;
  const std::int64_t row = (b + draws.b) * draws.heads + h + draws.h;
  const auto words =
      philox({static_cast<std::uint32_t>(j / 8), static_cast<std::uint32_t>(i + draws.i),
              static_cast<std::uint32_t>(row), draws.offset},
             draws.seed);
  const std::uint32_t draw = (words[j % 8 / 2] >> (j % 2 * 16)) & 0xFFFF;
  return draw < problem.drop_below ? 0 : kept_factor(problem);
}

}  // namespace attend
