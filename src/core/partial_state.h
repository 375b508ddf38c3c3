// A partial state: the sums of a call over some of the keys, before the division, as one f64 tensor
// [batch, heads, queries, dv + 4]. A row holds
//
//   o[0] ... o[dv - 1]   sum of the weights times the values
//   maximum              the largest score
//   sum                  of the weights
//   scale                o and sum are to be multiplied by it; they count in the unit that belongs
//                        to the largest score (softmax_state.h)
//   kind                 what has been summed: below
//
// Kernels join chunks of 256 keys in ascending order. Their sums travel in a row as they are, so a
// call that goes on from a state has the bits of the undivided call. That is why one chunk alone is
// a kind of its own: its sums stay relative to its own maximum (the scale says how far that lies
// below the unit) and are divided in the type they were summed in. Zeros are an empty state.
#pragma once

#include "core/call.h"

namespace attend {

inline constexpr std::int64_t kStateColumns = 4;  // behind the dv of o

enum class StateKind : std::uint8_t {
  empty,      // nothing was seen; the other columns are not read
  joined,     // two chunks or more, or a sink: scale is 1
  chunk_f32,  // one chunk, summed in f32
  chunk_f64,  // the same in f64
};
inline constexpr int kStateKinds = 4;
inline constexpr int kSinkCounted = 4;  // added to a kind: the sink is in the sums, even if -inf

struct StateRow {
  double top = 0, l = 0, scale = 1;
  StateKind kind = StateKind::empty;
  bool sink = false;
};

// Always inlined: no copy compiled for an instruction set is left for others. `at`: the row's o[0].
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline StateRow load_state(const Strided& t,
                                                                     std::int64_t at,
                                                                     std::int64_t dv) noexcept {
  const double* from = reinterpret_cast<const double*>(t.data) + at + dv * t.stride[3];
  const auto kind = static_cast<int>(from[3 * t.stride[3]]);  // checked: 0 to 7
  return {from[0], from[t.stride[3]], from[2 * t.stride[3]],
          static_cast<StateKind>(kind % kStateKinds), kind >= kSinkCounted};
}

[[gnu::always_inline]] ATTEND_HOST_DEVICE inline void store_state(const Strided& t, std::int64_t at,
                                                                  std::int64_t dv,
                                                                  const StateRow& row) noexcept {
  double* to = reinterpret_cast<double*>(t.data) + at + dv * t.stride[3];
  const bool empty = row.kind == StateKind::empty;
  to[0] = empty ? 0 : row.top;
  to[t.stride[3]] = empty ? 0 : row.l;
  to[2 * t.stride[3]] = empty ? 0 : row.scale;
  to[3 * t.stride[3]] = static_cast<int>(row.kind) + (row.sink ? kSinkCounted : 0);
}

}  // namespace attend
