// One query row of one head, widened to f64, and steps 1 and 2 on it: what the kernels of this
// folder share.
#pragma once

#include "core/kernel.h"
#include "core/scratch.h"
#include "core/softmax_state.h"

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

// What rows take that are made of the steps below. A new option stands here once they do it.
inline constexpr Features kTakenByRows = kHostTypes | kLayouts | kScoreOptions |
                                         Features{Feature::own_key_type, Feature::own_value_type,
                                                  Feature::key_scales, Feature::value_scales};

// A row of k or v, which may be whole numbers.
inline void load_numbers(const Strided& t, std::int64_t offset, std::int64_t count,
                         double* row) noexcept {
  if (t.type != DType::i8) return load_row(t, offset, count, row);
  const auto* from = reinterpret_cast<const std::int8_t*>(t.data) + offset;
  for (std::int64_t x = 0; x < count; ++x) row[x] = from[x * t.stride[3]];
}

inline void add_scaled(double* sum, double factor, const double* row, std::int64_t n) noexcept {
  for (std::int64_t x = 0; x < n; ++x) sum[x] += factor * row[x];
}

// One query row of one head, and room for the rows it meets, widened to f64.
template <class Operation>
struct Row {
  const typename Operation::Problem& problem;
  const typename Operation::Call& call;
  Sequence sequence;
  std::int64_t h = 0, i = 0;
  bool sees = false;                // any key
  double* q;                        // [d]
  double* k;                        // [d]   the key at hand
  double* v;                        // [dv]  its value
  double k_scale = 1, v_scale = 1;  // of the key at hand

  Row(const typename Operation::Problem& p, const typename Operation::Call& c, Scratch& scratch)
      : problem(p), call(c), q(scratch.take<double>(p.d)), k(scratch.take<double>(p.d)),
        v(scratch.take<double>(p.dv)) {}

  void move_to(std::int64_t head, std::int64_t query) noexcept {
    h = head;
    i = query;
    load_row(call.q, query_row(problem, call.q, sequence, h, i), problem.d, q);
  }
  void load_key(std::int64_t j) noexcept {
    load_numbers(call.k, at_key(call.k, j), problem.d, k);
    if (!problem.k_scales) return;
    k_scale = load(call.k_scales, at_key(call.k_scales, j));
    for (std::int64_t x = 0; x < problem.d; ++x) k[x] *= k_scale;
  }
  void load_value(std::int64_t j) noexcept {
    load_numbers(call.v, at_key(call.v, j), problem.dv, v);
    if (!problem.v_scales) return;
    v_scale = load(call.v_scales, at_key(call.v_scales, j));
    for (std::int64_t x = 0; x < problem.dv; ++x) v[x] *= v_scale;
  }

  std::int64_t at_key(const Strided& t, std::int64_t j) const noexcept {
    return key_row(problem, call, t, sequence, h / problem.group(), j);
  }

  // And their reverse, for the key at hand: a gradient at the key or the value, times `factor`, to
  // the sum of those at what is stored.
  void add_to_dk(double* sum, double factor, const double* gradient) const noexcept {
    add_scaled(sum, factor * k_scale, gradient, problem.d);
  }
  void add_to_dv(double* sum, double factor, const double* gradient) const noexcept {
    add_scaled(sum, factor * v_scale, gradient, problem.dv);
  }
};

// Ascending chains of 256, added. Products of f32 and narrower numbers are exact in f64.
inline double dot(const double* a, const double* b, std::int64_t n) noexcept {
  constexpr std::int64_t kChain = 256;
  double sum = 0, chain = 0;
  for (std::int64_t x = 0; x < n; ++x) {
    if (x % kChain == 0) sum += chain, chain = 0;
    chain += a[x] * b[x];
  }
  return sum + chain;
}

// Steps 1 and 2 for the key at hand: its score after each stage.
struct Score {
  double raw, capped, masked;
};
template <class Operation>
Score score(const Row<Operation>& row, std::int64_t j) noexcept {
  const Problem& p = row.problem;
  const double bias = added(p, row.call, row.sequence, row.h, row.i, j);
  Score s{};
  s.raw = p.scale * dot(row.q, row.k, p.d);                 // 1 scores
  s.capped = p.bias_before_softcap ? s.raw + bias : s.raw;  // 2 mask
  if (p.softcap != 0) s.capped = p.softcap * std::tanh(s.capped / p.softcap);
  s.masked = p.bias_before_softcap ? s.capped : s.capped + bias;
  return s;
}

// Calls use(j) for every visible key j, in ascending order; returns how many key blocks were
// entered.
template <class Operation, class Use>
std::int64_t for_visible_keys(const Row<Operation>& row, Use use) noexcept {
  const Problem& p = row.problem;
  const std::int64_t b = row.sequence.b;
  const KeyRange keys = positions(p, row.sequence, row.i);
  std::int64_t entered = 0;
  for (std::int64_t j = keys.begin; j < keys.end;) {
    const std::int64_t left = p.blocks ? p.block_keys - j % p.block_keys : keys.end - j;
    const std::int64_t block_end = left < keys.end - j ? j + left : keys.end;
    if (block_visible(p, row.call, b, row.h, row.i, j)) {
      ++entered;
      for (std::int64_t x = j; x < block_end; ++x)
        if (!masked_out(p, row.call, b, row.h, row.i, x)) use(x);
    }
    j = block_end;
  }
  return entered;
}

}  // namespace
}  // namespace attend
