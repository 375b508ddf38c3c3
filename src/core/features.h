// Features: what a problem asks for beyond softmax(q . k^T) v, each with a name. A row of the
// kernel table lists those that it takes, and the planner declines for it whatever it does not
// list: a new option is in no row's list until somebody has written it there.
#pragma once

#include "core/problem.h"

#include <cstdint>
#include <initializer_list>
#include <string>

namespace attend {

enum class Feature : std::uint8_t {
  // The tensors
  f64,
  f32,
  bf16,
  f16,
  device_memory,
  grouped_heads,   // several heads share a key head
  own_value_size,  // dv is not d
  other_types,     // bias, or what is written, of another type than q; lse of an unusual one
  own_key_type,    // k is not of q's type
  own_value_type,
  packed_queries,
  query_runs,  // of a longer sequence
  packed_keys,
  paged_keys,
  key_lengths,
  // The scores
  softcap,
  bias_before_softcap,
  causal,
  window,
  query_offset,
  query_offset_each,
  key_offset,
  mask,
  short_mask,    // of mask or bias: fewer keys, which hide the rest
  integer_mask,  // of mask or blocks, instead of bool
  bias,
  alibi,
  sinks,
  blocks,
  dropout,
  key_scales,
  value_scales,
  // What forward writes and begins with
  lse,
  weights,
  weight_heads,
  scores,
  visited_blocks,
  partial_states,
  // What backward reads and writes
  dlse,
  dq,
  dk,
  dv,
  dbias,
  dsinks,
  dalibi,
  // What products add, and the operations on rows of features
  row_bias,
  eight_bit_weights,
  row_activation,
  row_residual,
  layer_norm,
  rms_norm,
  relu,
  gelu,
  gelu_tanh,
  swiglu,
  halves,
  neighbours,
  // What inspect writes
  top_keys,
  key_mass,
  metrics,
  tokens,
  map,
  // What backward over parts of the keys reads and writes
  row_sums,
};
inline constexpr int kFeatures = static_cast<int>(Feature::row_sums) + 1;

class Features {
 public:
  constexpr Features() = default;
  constexpr Features(std::initializer_list<Feature> list) {
    for (const Feature feature : list) add(feature);
  }
  constexpr void add(Feature feature, bool given = true) {
    bits_ |= (given ? std::uint64_t{1} : 0) << static_cast<int>(feature);
  }
  constexpr bool has(Feature feature) const {
    return (bits_ >> static_cast<int>(feature) & 1) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr Features operator|(Features a, Features b) {
    return Features(a.bits_ | b.bits_);
  }
  friend constexpr Features operator-(Features a, Features b) {
    return Features(a.bits_ & ~b.bits_);
  }
  friend bool operator==(Features, Features) = default;

 private:
  explicit constexpr Features(std::uint64_t bits) : bits_(bits) {}
  std::uint64_t bits_ = 0;
};
static_assert(kFeatures < 64);  // one bit is left for tests

Features features_of(const ForwardProblem& problem);
Features features_of(const BackwardProblem& problem);
Features features_of(const MergeProblem& problem);
Features features_of(const InspectProblem& problem);
Features features_of(const WeightsProblem& problem);

std::string names_of(Features features);  // "softcap, paged keys"

// ---- Lists for rows ----------------------------------------------------------------------------

inline constexpr Features kHostTypes{Feature::f64, Feature::f32, Feature::bf16, Feature::f16};
// Every way in which q, k and v may lie.
inline constexpr Features kLayouts{
    Feature::grouped_heads, Feature::own_value_size, Feature::other_types, Feature::packed_queries,
    Feature::packed_keys,   Feature::paged_keys,     Feature::key_lengths};
// Every way from q . k to a weight.
inline constexpr Features kScoreOptions{
    Feature::short_mask, Feature::integer_mask, Feature::softcap,      Feature::bias_before_softcap,
    Feature::causal,     Feature::window,       Feature::query_offset, Feature::query_offset_each,
    Feature::key_offset, Feature::mask,         Feature::bias,         Feature::alibi,
    Feature::sinks,      Feature::blocks};

}  // namespace attend
