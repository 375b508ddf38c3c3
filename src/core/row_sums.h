// What a query row sums over all its keys on the way backward, as one f64 tensor [batch, heads,
// queries, 5], packed as q is:
//
//   maximum   the largest score, the sink's included
//   sum       of the weights in the unit of the maximum; 0: the row saw nothing
//   shift     sum of p dp, less dlse: what is subtracted from every dp
//   alibi     minus the sum of ds |distance|: the row's part of dalibi
//   bias      the sum of ds at the bias: the row's part of a dbias that all keys share
//
// With them a call over some of the keys has the P and dS of the undivided call: dk and dv of these
// keys over all rows have its bits, and so have sums over rows (dsinks, dalibi, dbias).
#pragma once

#include "core/call.h"

namespace attend {

inline constexpr std::int64_t kRowSums = 5;
inline constexpr std::int64_t kSumsOfKeys = 3;  // of them, those that P and dS of a key need

struct RowSums {
  double top = 0, l = 0, shift = 0, alibi = 0, bias = 0;
};

// Always inlined: no copy compiled for an instruction set is left for others. `at`: the row's
// first.
[[gnu::always_inline]] inline RowSums load_row_sums(const Strided& t, std::int64_t at) noexcept {
  const double* from = reinterpret_cast<const double*>(t.data) + at;
  const std::int64_t s = t.stride[3];
  return {from[0], from[s], from[2 * s], from[3 * s], from[4 * s]};
}

// Of a tensor that has the first three alone: those that P and dS of a key need.
[[gnu::always_inline]] inline RowSums load_sums_of_keys(const Strided& t,
                                                        std::int64_t at) noexcept {
  const double* from = reinterpret_cast<const double*>(t.data) + at;
  const std::int64_t s = t.stride[3];
  return {.top = from[0], .l = from[s], .shift = from[2 * s]};
}

[[gnu::always_inline]] inline void store_row_sums(const Strided& t, std::int64_t at,
                                                  const RowSums& row) noexcept {
  double* to = reinterpret_cast<double*>(t.data) + at;
  const std::int64_t s = t.stride[3];
  to[0] = row.top, to[s] = row.l, to[2 * s] = row.shift, to[3 * s] = row.alibi,
  to[4 * s] = row.bias;
}

}  // namespace attend
