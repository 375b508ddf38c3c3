// Mistakes with partial states.
#include "arguments.h"

namespace attend::test {
namespace {

// A state of zeros for the arguments' queries, and three of them to join.
struct States : Arguments {
  Tensor state{{2, 4, 3, 11}, DType::f64}, other{{2, 4, 3, 11}, DType::f64};
  TensorView to = state, joined = other;
  std::vector<ConstTensorView> parts = {input({2, 4, 3, 11}, DType::f64),
                                        input({2, 4, 3, 11}, DType::f64)};
};

using BreakStates = std::function<void(States&)>;

ErrorCase case_of(const std::string& function, const std::string& mistake, BreakStates break_it,
                  std::function<void(States&)> call, const std::string& message) {
  const auto make = [break_it = std::move(break_it), call = std::move(call)] {
    States s;
    break_it(s);
    call(s);
  };
  return {function + "_" + mistake, make, function + ": " + message};
}

ErrorCase partial(const std::string& mistake, BreakStates break_it, const std::string& message) {
  const auto call = [](States& s) { attention_partial(s.q, s.k, s.v, s.to, s.options); };
  return case_of("attention_partial", mistake, std::move(break_it), call, message);
}
ErrorCase merging(const std::string& mistake, BreakStates break_it, const std::string& message) {
  const auto call = [](States& s) { merge_partial(s.parts, s.joined); };
  return case_of("merge_partial", mistake, std::move(break_it), call, message);
}
ErrorCase finishing(const std::string& mistake, BreakStates break_it, const std::string& message) {
  const auto call = [](States& s) { finish_partial(s.parts, s.merged, s.merged_lse); };
  return case_of("finish_partial", mistake, std::move(break_it), call, message);
}

std::vector<ErrorCase> of_attention_partial() {
  return {
      partial(
          "without_a_state", [](States& s) { s.to = {}; }, "state is missing"),
      partial(
          "state_of_another_shape",
          [](States& s) {
            s.to = s.output({2, 4, 3, 10}, DType::f64);
          },
          "state is [2, 4, 3, 10]; it must be [2, 4, 3, 11]"),
      partial(
          "state_of_f32",
          [](States& s) {
            s.to = s.output({2, 4, 3, 11});
          },
          "state is f32; it must be f64"),
      partial(
          "state_that_is_none",
          [](States& s) {
            s.state.at<double>({1, 2, 0, 10}) = 8;
          },
          "state ends with 8 at [1, 2, 0]; it is no partial state (zeros are an empty one)"),
      partial(
          "state_in_the_memory_of_q",
          [](States& s) {
            s.to = {const_cast<void*>(s.q.data()), DType::f64, {2, 4, 3, 11}};
          },
          "state overlaps q in memory; outputs must not"),
      partial(
          "sinks_that_come_late",
          [](States& s) {
            attention_partial(s.q, s.k, s.v, s.to, s.options);
            s.options.sinks = s.input({4});
          },
          "sinks are given, and state has summed keys without them at [0, 0, 0]; sinks are counted "
          "with the first keys"),
      partial(
          "keys_of_another_d",
          [](States& s) {
            s.k = s.input({2, 2, 5, 5});
          },
          "k has d 5, q has 6; they must be equal"),
  };
}

std::vector<ErrorCase> of_states() {
  const auto with_sink = [](States& s) {
    AttentionOptions options = s.options;
    options.sinks = s.input({4});
    attention_partial(s.q, s.k, s.v, s.state, options);
    s.parts = {s.parts[0], s.state, s.parts[1], s.state};
  };
  return {
      merging(
          "nothing", [](States& s) { s.parts.clear(); },
          "there are no states; at least one is needed"),
      merging(
          "into_nothing", [](States& s) { s.joined = {}; }, "state is missing"),
      merging(
          "state_of_three_dimensions",
          [](States& s) {
            s.parts[0] = s.input({4, 3, 11}, DType::f64);
          },
          "states[0] has 3 dimensions [4, 3, 11]; it must be [batch, heads, queries, dv + 4]"),
      merging(
          "states_without_values",
          [](States& s) {
            s.parts = {s.input({2, 4, 3, 4}, DType::f64)};
          },
          "states[0] is [2, 4, 3, 4]; its last dimension is dv + 4, at least 5"),
      merging(
          "states_of_two_shapes",
          [](States& s) {
            s.parts[1] = s.input({2, 4, 3, 12}, DType::f64);
          },
          "states[1] is [2, 4, 3, 12]; it must be [2, 4, 3, 11]"),
      merging(
          "states_of_f32",
          [](States& s) {
            s.parts[1] = s.input({2, 4, 3, 11});
          },
          "states[1] is f32; it must be f64"),
      merging(
          "into_a_part", [](States& s) { s.parts[1] = s.other; },
          "state overlaps states[1] in memory; outputs must not"),
      merging(
          "what_is_no_state",
          [](States& s) {
            s.parts[1] = s.numbers({2, 4, 3, 11}, -1, DType::f64);
          },
          "states[1] ends with -1 at [0, 0, 0]; it is no partial state (zeros are an empty one)"),
      merging(
          "two_sinks", with_sink,
          "states[1] and states[3] both count the sink at [0, 0, 0]; give sinks to one part alone"),
      finishing(
          "states_of_two_types",
          [](States& s) {
            attention_partial(s.q, s.k, s.v, s.state);
            attention_partial(s.input({2, 4, 3, 6}, DType::f64), s.input({2, 2, 5, 6}, DType::f64),
                              s.input({2, 2, 5, 7}, DType::f64), s.other);
            s.parts = {s.parts[0], s.other, s.state};
          },
          "states[2] is of f32 at [0, 0, 0] and states[1] of f64 at [0, 0, 0]; states that are "
          "joined are of one type"),
      finishing(
          "without_out", [](States& s) { s.merged = {}; }, "out is missing"),
      finishing(
          "out_of_another_shape",
          [](States& s) {
            s.merged = s.output({2, 4, 3, 11});
          },
          "out is [2, 4, 3, 11]; it must be [2, 4, 3, 7]"),
      finishing(
          "lse_of_16_bits",
          [](States& s) {
            s.merged_lse = s.output({2, 4, 3}, DType::f16);
          },
          "lse is f16; it must be f32 or f64"),
      {"partial_state_shape_of_three_dimensions",
       [] {
         const Tensor q({4, 3, 6}), v({2, 2, 5, 7});
         partial_state_shape(q, v);
       },
       "partial_state_shape: q is [4, 3, 6] and v [2, 2, 5, 7]; both must have 4 dimensions"},
      {"partial_state_shape_of_the_widest_values",
       [] {
         const ConstTensorView v(nullptr, DType::f32, {1, 1, 1, kUnlimited});
         partial_state_shape(v, v);
       },
       "partial_state_shape: dv is 9223372036854775807, too large: a state has dv + 4 columns"},
  };
}

}  // namespace

std::vector<ErrorCase> partial_errors() {
  std::vector<ErrorCase> cases = of_attention_partial();
  for (const ErrorCase& more : of_states()) cases.push_back(more);
  return cases;
}

}  // namespace attend::test
