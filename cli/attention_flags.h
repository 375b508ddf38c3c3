// AttentionOptions as flags: one for each of its fields.
#pragma once

#include "tensors.h"

#include <attend/options.h>

namespace attend::cli {

struct AttentionFlags {
  std::optional<double> scale;
  double softcap = 0;
  bool bias_before_softcap = false, causal = false;
  std::int64_t window_left = kUnlimited, window_right = kUnlimited;
  std::string query_offset, mask, bias, alibi, sinks, key_lengths;
  std::optional<std::int64_t> key_offset;
  std::string blocks, cu_seqlens_q, cu_seqlens_k, block_table;
  std::int64_t block_query_size = 0, block_key_size = 0;
  double dropout = 0;
  std::int64_t dropout_offset = 0;
  std::string dropout_origin;
};

inline constexpr const char* kAttentionGroup = "Options of attention";
void add_attention_flags(CLI::App& app, AttentionFlags& flags);

// The options with the tensors that they show. Bias, alibi and sinks are turned into what a call of
// `type` takes if `convert`; lists of numbers always are.
struct LoadedOptions {
  AttentionOptions options{};
  std::vector<Tensor> tensors{};
};
LoadedOptions load_options(const AttentionFlags& flags, DType type, bool convert,
                           std::uint64_t seed);

// The type of lse, sinks and alibi: f32, of f64 tensors f64.
DType statistics_type(DType type);

}  // namespace attend::cli
