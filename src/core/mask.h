// Step 2, what hides a key: positions (causal, window, lengths) as one range of keys per query,
// blocks, the mask, and a bias of -inf.
#pragma once

#include "core/sequence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attend {

inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct KeyRange {
  std::int64_t begin = 0, end = 0;  // empty if begin >= end
};

// The keys that query i may see by position: causal, window, lengths and short masks.
//   j <= i + offset;   i + offset - left <= j <= i + offset + right;   j < k_length
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline KeyRange positions(const Problem& problem,
                                                                    const Sequence& s,
                                                                    std::int64_t i) noexcept {
  const std::int64_t position = i + s.offset;  // |offset| < 2^62 + 2^60 is checked: no overflow
  KeyRange keys{0, s.k_length};
  if (problem.causal) keys.end = std::min(keys.end, position + 1);
  // left and right may be as large as 2^63 - 1: no sum of them is made that could overflow. (Made
  // under a condition, nvcc 13.0 makes it always, and takes a maximum.)
  keys.end = position + std::min(problem.window_right, keys.end - 1 - position) + 1;
  keys.begin = position - std::min(problem.window_left, position);
  if (problem.mask) keys.end = std::min(keys.end, problem.mask_keys);
  if (problem.bias) keys.end = std::min(keys.end, problem.bias_keys);
  return keys;
}

// Whether key j of query i in head h lies in a visible block.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline bool block_visible(const Problem& problem,
                                                                    const Call& call,
                                                                    std::int64_t b, std::int64_t h,
                                                                    std::int64_t i,
                                                                    std::int64_t j) noexcept {
  return !problem.blocks ||
         load_integer(call.blocks, call.blocks.offset(b, h, i / problem.block_queries,
                                                      j / problem.block_keys)) != 0;
}

// What is added to the score: bias and ALiBi.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline double added(const Problem& problem,
                                                              const Call& call, const Sequence& s,
                                                              std::int64_t h, std::int64_t i,
                                                              std::int64_t j) noexcept {
  double sum = 0;
  if (problem.bias && j < problem.bias_keys) sum += load(call.bias, call.bias.offset(s.b, h, i, j));
  if (problem.alibi) {
    const double slope = load(call.alibi, call.alibi.offset(0, h, 0));
    sum -= slope * std::abs(static_cast<double>(i + s.offset - j));
  }
  return sum;
}

// Whether the mask or a bias of -inf hides key j, which lies within positions().
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline bool masked_out(const Problem& problem,
                                                                 const Call& call, std::int64_t b,
                                                                 std::int64_t h, std::int64_t i,
                                                                 std::int64_t j) noexcept {
  if (problem.mask && load_integer(call.mask, call.mask.offset(b, h, i, j)) == 0) return true;
  return problem.bias && load(call.bias, call.bias.offset(b, h, i, j)) == kMinusInfinity;
}

}  // namespace attend
