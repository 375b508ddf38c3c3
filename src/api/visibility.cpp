#include "api/visibility.h"

#include "api/check.h"
#include "core/mask.h"

namespace attend {

struct Visibility::State : Request<Forward> {
  // The sequence that a row belongs to; the row's number inside it.
  std::pair<Sequence, std::int64_t> find(std::int64_t b, std::int64_t row,
                                         bool of_keys) const noexcept {
    const bool packed = of_keys ? problem.keys == KeyAddressing::packed : problem.packed_queries;
    if (!packed) return {sequence_of(problem, call, b), row};
    Sequence s;
    for (b = 0; b < problem.batch; ++b) {
      s = sequence_of(problem, call, b);
      const std::int64_t inside = row - (of_keys ? s.k_begin : s.q_begin);
      if (inside < (of_keys ? s.k_stored : s.q_length)) return {s, inside};
    }
    return {s, row};
  }

  bool sees(const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t j) const noexcept {
    return block_visible(problem, call, s.b, h, i, j) && !masked_out(problem, call, s.b, h, i, j);
  }
};

Visibility::Visibility(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const AttentionOptions& options)
    : state_(std::make_unique<const State>(State{check_inputs(q, k, v, options)})) {}
Visibility::~Visibility() = default;

bool Visibility::query_sees_a_key(std::int64_t b, std::int64_t row) const noexcept {
  const auto [s, i] = state_->find(b, row, false);
  const KeyRange keys = positions(state_->problem, s, i);
  for (std::int64_t h = 0; h < state_->problem.heads; ++h)
    for (std::int64_t j = keys.begin; j < keys.end; ++j)
      if (state_->sees(s, h, i, j)) return true;
  return false;
}

// The last queries first: causal, they see the most keys.
bool Visibility::key_is_seen(std::int64_t b, std::int64_t row) const noexcept {
  const auto [s, j] = state_->find(b, row, true);
  for (std::int64_t i = s.q_length; i-- > 0;) {
    const KeyRange keys = positions(state_->problem, s, i);
    if (j < keys.begin || j >= keys.end) continue;
    for (std::int64_t h = 0; h < state_->problem.heads; ++h)
      if (state_->sees(s, h, i, j)) return true;
  }
  return false;
}

}  // namespace attend
