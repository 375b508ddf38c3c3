#include "core/features.h"

#include "core/members.h"
#include "core/product.h"
#include "core/row_operations.h"

namespace attend {
namespace {

constexpr const char* kFeatureNames[] = {
    "f64 tensors",
    "f32 tensors",
    "bf16 tensors",
    "f16 tensors",
    "memory of a device",
    "grouped heads",
    "dv other than d",
    "tensors of another type than q",
    "keys of another type than q",
    "values of another type than q",
    "packed queries",
    "runs of queries",
    "packed keys",
    "paged keys",
    "key lengths",
    "softcap",
    "bias before softcap",
    "causal",
    "window",
    "query offset",
    "query offset of each",
    "key offset",
    "mask",
    "masks of fewer keys",
    "masks of integers",
    "bias",
    "alibi",
    "sinks",
    "blocks",
    "dropout",
    "key scales",
    "value scales",
    "lse",
    "weights",
    "weights of chosen heads",
    "scores",
    "visited blocks",
    "partial states",
    "dlse",
    "dq",
    "dk",
    "dv",
    "dbias",
    "dsinks",
    "dalibi",
    "bias of columns",
    "weights of 8 bits",
    "an activation at the end",
    "a residual at the end",
    "LayerNorm",
    "RMSNorm",
    "relu",
    "gelu",
    "gelu_tanh",
    "swiglu",
    "rotary halves",
    "rotary neighbours",
    "top keys",
    "key mass",
    "metrics",
    "tokens",
    "map",
    "sums of rows",
};
static_assert(sizeof kFeatureNames / sizeof *kFeatureNames == kFeatures);

// Whoever changes one of these has looked at features_of(): a member that asks something of a
// kernel and is not there is an option that rows ignore.
static_assert(member_count<Problem>() == 47);
static_assert(member_count<ForwardProblem>() == 1 + 12);
static_assert(member_count<BackwardProblem>() == 1 + 14);
static_assert(member_count<MergeProblem>() == 10);
static_assert(member_count<InspectProblem>() == 1 + 8);
static_assert(member_count<WeightsProblem>() == 1 + 3);
static_assert(member_count<ProductProblem>() == 7);
static_assert(member_count<NormProblem>() == 3);
static_assert(member_count<ActivationProblem>() == 3);
static_assert(member_count<RotaryProblem>() == 3);
static_assert(member_count<ConvertProblem>() == 3);

Features tensors_of(const auto& problem) {
  Features f;
  f.add(Feature::f64, problem.type == DType::f64);
  f.add(Feature::f32, problem.type == DType::f32);
  f.add(Feature::bf16, problem.type == DType::bf16);
  f.add(Feature::f16, problem.type == DType::f16);
  f.add(Feature::device_memory, problem.device != Device{});
  return f;
}

Feature feature_of(Activation kind) {
  switch (kind) {
    case Activation::relu: return Feature::relu;
    case Activation::gelu: return Feature::gelu;
    case Activation::gelu_tanh: return Feature::gelu_tanh;
    default: return Feature::swiglu;
  }
}

Features common(const Problem& p) {
  Features f = tensors_of(p);
  f.add(Feature::grouped_heads, p.group() != 1);
  f.add(Feature::own_value_size, p.dv != 0 && p.dv != p.d);
  f.add(Feature::own_key_type, p.own_k_type);
  f.add(Feature::own_value_type, p.dv != 0 && p.own_v_type);
  f.add(Feature::packed_queries, p.packed_queries);
  f.add(Feature::query_runs, p.query_runs);
  f.add(Feature::packed_keys, p.keys == KeyAddressing::packed);
  f.add(Feature::paged_keys, p.keys == KeyAddressing::paged);
  f.add(Feature::key_lengths, p.key_lengths);
  f.add(Feature::softcap, p.softcap != 0);
  f.add(Feature::bias_before_softcap, p.bias_before_softcap);
  f.add(Feature::causal, p.causal);
  f.add(Feature::window, p.window_left != kUnlimited || p.window_right != kUnlimited);
  f.add(Feature::query_offset, p.offset_given);
  f.add(Feature::query_offset_each, p.offset_each);
  f.add(Feature::key_offset, p.key_offset);
  f.add(Feature::mask, p.mask);
  f.add(Feature::short_mask,
        (p.mask && p.mask_keys < p.k_length) || (p.bias && p.bias_keys < p.k_length));
  f.add(Feature::integer_mask,
        (p.mask && p.mask_type != DType::boolean) || (p.blocks && p.blocks_type != DType::boolean));
  f.add(Feature::bias, p.bias);
  f.add(Feature::other_types, p.bias && p.bias_type != p.type);
  f.add(Feature::alibi, p.alibi);
  f.add(Feature::sinks, p.sinks);
  f.add(Feature::blocks, p.blocks);
  f.add(Feature::dropout, p.drop_below != 0);
  f.add(Feature::key_scales, p.k_scales);
  f.add(Feature::value_scales, p.dv != 0 && p.v_scales);
  return f;
}

}  // namespace

Features features_of(const ForwardProblem& p) {
  Features f = common(p);
  f.add(Feature::other_types, p.out_type != p.type || (p.weights && p.weights_type != p.type) ||
                                  (p.scores && p.scores_type != p.type) ||
                                  (p.lse && p.lse_type != statistic_type(p.type)));
  f.add(Feature::lse, p.lse);
  f.add(Feature::weights, p.weights);
  f.add(Feature::weight_heads, p.weight_heads != 0);
  f.add(Feature::scores, p.scores);
  f.add(Feature::visited_blocks, p.visited_blocks);
  f.add(Feature::partial_states, p.state || p.parts != 0);
  return f;
}

Features features_of(const BackwardProblem& p) {
  Features f = common(p);
  f.add(Feature::other_types, p.out_type != p.type || p.dout_type != p.type ||
                                  p.lse_type != statistic_type(p.type) ||
                                  (p.dlse && p.dlse_type != statistic_type(p.type)));
  f.add(Feature::dlse, p.dlse);
  f.add(Feature::dq, p.dq);
  f.add(Feature::dk, p.dk);
  f.add(Feature::dv, p.dv_gradient);
  f.add(Feature::dbias, p.dbias);
  f.add(Feature::dsinks, p.dsinks);
  f.add(Feature::dalibi, p.dalibi);
  f.add(Feature::row_sums, p.sums_read || p.sums_written);
  return f;
}

Features features_of(const MergeProblem& p) {
  Features f = tensors_of(p);
  f.add(Feature::other_types,
        p.out_type != p.type || (p.lse && p.lse_type != statistic_type(p.type)));
  f.add(Feature::lse, p.lse);
  return f;
}

Features features_of(const InspectProblem& p) {
  Features f = common(p);
  f.add(Feature::top_keys, p.top_k != 0);
  f.add(Feature::key_mass, p.key_mass);
  f.add(Feature::metrics, p.metrics);
  f.add(Feature::tokens, p.tokens);
  f.add(Feature::map, p.tile_keys != 0);
  return f;
}

Features features_of(const WeightsProblem& p) {
  Features f = common(p);
  f.add(Feature::other_types, p.lse_type != statistic_type(p.type));
  return f;
}

Features features_of(const ProductProblem& p) {
  Features f = tensors_of(p);
  f.add(Feature::row_bias, p.bias);
  f.add(Feature::eight_bit_weights, p.eight_bit_weights);
  f.add(Feature::row_activation, p.activation);
  f.add(feature_of(p.kind), p.activation);
  f.add(Feature::row_residual, p.residual);
  return f;
}

Features features_of(const NormProblem& p) {
  Features f = tensors_of(p);
  f.add(p.kind == NormKind::layer_norm ? Feature::layer_norm : Feature::rms_norm);
  return f;
}

Features features_of(const ActivationProblem& p) {
  Features f = tensors_of(p);
  f.add(feature_of(p.kind));
  return f;
}

Features features_of(const RotaryProblem& p) {
  Features f = tensors_of(p);
  f.add(p.pairing == Rotary::Pairing::halves ? Feature::halves : Feature::neighbours);
  return f;
}

Features features_of(const AddProblem& p) { return tensors_of(p); }

Features features_of(const ConvertProblem& p) {
  return tensors_of(p) | tensors_of(ConvertProblem{.device = p.device, .type = p.to});
}

std::string names_of(Features features) {
  std::string names;
  for (int n = 0; n < 64; ++n)
    if (features.has(static_cast<Feature>(n)))
      names += (names.empty() ? "" : ", ") +
               std::string(n < kFeatures ? kFeatureNames[n] : "new options");
  return names;
}

}  // namespace attend
