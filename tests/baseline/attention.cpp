// Attention by every kernel: forward with all that it writes, backward, statistics, windows of
// weights, and keys in parts.
#include "lines.h"

#include "cases/instance.h"
#include "cases/oracle/examination.h"
#include "cases/oracle/statistics.h"
#include "support/head_numbers.h"

namespace attend::baseline {
namespace {

using cases::Case;

// Of the sizes that users have: short rows of many heads, several chunks and tiles, a decoding step
// that is split over its keys, long keys for few queries.
std::vector<Case> large_cases() {
  return {
      {.batch = 8, .heads = 8, .kv_heads = 8, .q_length = 10, .k_length = 10, .d = 64, .dv = 64},
      {.batch = 8, .heads = 8, .kv_heads = 8, .q_length = 20, .k_length = 20, .d = 64, .dv = 64},
      {.heads = 4, .kv_heads = 4, .q_length = 600, .k_length = 600, .d = 64, .dv = 64},
      {.heads = 4,
       .kv_heads = 2,
       .q_length = 520,
       .k_length = 1030,
       .d = 128,
       .dv = 128,
       .causal = true},
      {.heads = 8, .kv_heads = 2, .q_length = 1, .k_length = 5000, .d = 128, .dv = 128},
      {.heads = 2, .kv_heads = 2, .q_length = 3, .k_length = 4097, .d = 80, .dv = 96},
  };
}

std::vector<Case> all_cases(const Settings& settings) {
  std::vector<Case> list = settings.reduced ? cases::reduced_table() : cases::table();
  if (!settings.reduced)
    for (const Case& problem : large_cases()) list.push_back(problem);
  return list;
}

Line named(const char* operation, const std::string& kernel, const Case& problem) {
  return Line(std::string(operation) + " " + kernel + " " + cases::name(problem) + " :");
}

// Calls print() for each kernel that takes the problem.
template <class Print>
void for_each_kernel(const Settings& settings, const char* operation, Print&& print) {
  for (const std::string& kernel : oracle::kernels_for(operation)) {
    if (!settings.takes(kernel)) continue;
    try {
      print(kernel);
    } catch (const Unsupported&) {  // so it has no line, before or after
    }
  }
}

void forward(const Settings& settings, cases::Instance& in, Context& context) {
  const AttentionOutputs outputs = in.outputs_with_lse();
  for_each_kernel(settings, "forward", [&](const std::string& kernel) {
    in.poison_outputs();
    Plan::attention(in.q, in.k, in.v, in.out, in.options, outputs, {kernel}, context)
        .run(in.q, in.k, in.v, in.out, in.options, outputs);
    Line line = named("forward", kernel, in.problem);
    line.add("out", in.out).add("lse", in.lse);
    line.add("weights", outputs.weights).add("scores", outputs.scores).print();
  });
}

void backward(const Settings& settings, cases::Instance& in, Context& context) {
  const AttentionGradients& g = in.gradients;
  if (!g.dq && !g.dk && !g.dv && !g.dbias && !g.dsinks && !g.dalibi) return;
  for_each_kernel(settings, "backward", [&](const std::string& kernel) {
    in.poison_outputs();
    const AttentionOutputs outputs = in.outputs_with_lse();
    Plan::attention(in.q, in.k, in.v, in.out, in.options, outputs, {"reference.forward"}, context)
        .run(in.q, in.k, in.v, in.out, in.options, outputs);
    Plan::attention_backward(in.backward_inputs(), in.options, g, {kernel}, context)
        .run_backward(in.backward_inputs(), in.options, g);
    Line line = named("backward", kernel, in.problem);
    line.add("dq", g.dq).add("dk", g.dk).add("dv", g.dv);
    line.add("dbias", g.dbias).add("dsinks", g.dsinks).add("dalibi", g.dalibi).print();
  });
}

void statistics(const Settings& settings, cases::Instance& in, Context& context) {
  const oracle::Reader reader({in.q, in.k, in.v, in.dout, in.dlse, in.options});
  const oracle::Inspection asked(reader);
  for_each_kernel(settings, "inspect", [&](const std::string& kernel) {
    const Statistics found = Plan::inspect(in.q, in.k, in.options, asked.options, {kernel}, context)
                                 .run_inspect(in.q, in.k, in.options, asked.options);
    std::vector<double> heads;
    for (const HeadStatistics& head : found.heads)
      for (const double x : test::numbers_of(head)) heads.push_back(x);
    Line line = named("inspect", kernel, in.problem);
    line.add("lse", found.lse).add("maximum", found.maximum).add("entropy", found.entropy);
    line.add("top_keys", found.top_keys).add("top_weights", found.top_weights);
    line.add("mass", found.key_mass).add("mean", found.tile_mean).add("most", found.tile_maximum);
    line.add("heads", heads).print();
  });
}

// Both halves of the keys, by the kernels that the planner chooses.
void parts(cases::Instance& in, Context& context) {
  const Case& c = in.problem;
  if (c.addressing != cases::Addressing::dense || c.k_length < 257) return;
  if (c.mask != cases::Mask::none || c.bias != cases::Bias::none || c.causal || c.alibi ||
      c.blocks != cases::BlockMask::none || c.key_lengths != cases::Lengths::none ||
      c.dropout != 0 || c.window_left != kUnlimited || c.window_right != kUnlimited)
    return;
  Tensor state(partial_state_shape(in.q, in.v), DType::f64);
  for (const auto& [begin, end] :
       {std::pair<std::int64_t, std::int64_t>{0, 256}, {256, c.k_length}}) {
    AttentionOptions options = in.options;
    if (options.k_scales) options.k_scales = options.k_scales.slice(2, begin, end);
    if (options.v_scales) options.v_scales = options.v_scales.slice(2, begin, end);
    attention_partial(in.q, in.k.slice(2, begin, end), in.v.slice(2, begin, end), state, options,
                      context);
  }
  in.poison_outputs();
  finish_partial({state}, in.out, in.lse, context);
  named("parts", "", c).add("state", state).add("out", in.out).add("lse", in.lse).print();
}

}  // namespace

void print_attention(const Settings& settings, Context& context) {
  for (Case problem : all_cases(settings))
    for (const DType type : cases::kTypes) {
      problem.type = type;
      cases::Instance in = cases::make(problem);
      forward(settings, in, context);
      backward(settings, in, context);
      statistics(settings, in, context);
      parts(in, context);
    }
}

}  // namespace attend::baseline
