// Plan: made once, run often with other data of the same problem and with nothing else.
#include "plan/plan.h"
#include "api/check.h"
#include "support/option_changes.h"
#include "support/thrown_by.h"

#include <attend/plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace attend {
namespace {

using test::thrown_by;

struct PlanTest : testing::Test {
  Tensor q{Shape{2, 4, 3, 6}}, k{Shape{2, 2, 5, 6}}, v{Shape{2, 2, 5, 7}}, out{Shape{2, 4, 3, 7}};

  PlanTest() {
    for (Tensor* t : {&q, &k, &v})
      for (std::int64_t n = 0; n < t->count(); ++n)
        t->data<float>()[n] = static_cast<float>(std::sin(static_cast<double>(n)));
  }
  ForwardProblem problem(const AttentionOptions& options) {
    return check(ForwardArguments{q, k, v, out, options, {}}).problem;
  }
};

// The same problem in two texts, or two problems in one, would make messages that say nothing.
TEST_F(PlanTest, every_option_makes_another_problem_with_another_description) {
  std::set<std::string> descriptions{describe(problem(test::start_options()))};
  for (const auto& [name, apply] : test::option_changes()) {
    AttentionOptions options = test::start_options();
    apply(options);
    EXPECT_NE(problem(options), problem(test::start_options())) << name;
    EXPECT_TRUE(descriptions.insert(describe(problem(options))).second)
        << name << ": " << describe(problem(options)) << " has been seen before";
  }
}

TEST_F(PlanTest, every_changed_option_is_refused_and_both_problems_are_told) {
  const Plan plan = Plan::attention(q, k, v, out, test::start_options());
  const std::string made_for = describe(problem(test::start_options()));
  for (const auto& [name, apply] : test::option_changes()) {
    AttentionOptions options = test::start_options();
    apply(options);
    EXPECT_EQ(thrown_by([&] { plan.run(q, k, v, out, options); }),
              "InvalidArgument: plan: made for " + made_for + "; called with " +
                  describe(problem(options)))
        << name;
  }
  EXPECT_EQ(thrown_by([&] { plan.run(q, k, v, out, test::start_options()); }), "nothing");
}

// Training draws anew at every step; it must not need a new plan for that.
TEST_F(PlanTest, runs_with_other_draws_and_offsets_and_obeys_them) {
  AttentionOptions first = test::start_options();
  first.blocks = {};
  const Plan plan = Plan::attention(q, k, v, out, first);
  std::set<std::vector<float>> seen;
  for (const auto& [name, apply] : test::value_changes()) {
    AttentionOptions options = first;
    apply(options);
    EXPECT_EQ(problem(options), problem(first)) << name;
    plan.run(q, k, v, out, options);
    const Tensor alone = attention(q, k, v, options);
    const std::vector<float> planned(out.data<float>(), out.data<float>() + out.count());
    EXPECT_TRUE(std::equal(planned.begin(), planned.end(), alone.data<float>())) << name;
    EXPECT_TRUE(seen.insert(planned).second) << name << " changed nothing";
  }
  AttentionOptions causal{.causal = true, .query_offset = 2};
  const Plan shifted = Plan::attention(q, k, v, out, causal);
  causal.query_offset = 0;
  shifted.run(q, k, v, out, causal);
  EXPECT_EQ(out.at<float>({0, 0, 0, 0}), v.at<float>({0, 0, 0, 0}));  // sees key 0 alone
}

TEST_F(PlanTest, packed_and_paged_sequences_make_other_problems) {
  const Tensor zero({1, 1}, DType::i64), all_keys({std::int64_t{5}}, {1});
  const Tensor starts_q({std::int64_t{0}, std::int64_t{3}}, {2});
  const Tensor starts_k({std::int64_t{0}, std::int64_t{5}}, {2});
  const AttentionOptions layouts[] = {
      {},
      {.key_lengths = all_keys},
      {.cu_seqlens_q = starts_q, .cu_seqlens_k = starts_k},
      {.key_lengths = all_keys, .cu_seqlens_q = starts_q, .cu_seqlens_k = starts_k},
      {.key_lengths = all_keys, .block_table = zero},
      {.key_lengths = all_keys, .cu_seqlens_q = starts_q, .block_table = zero},
  };
  const auto first = [](Tensor& t) { return t.view().slice(0, 0, 1); };
  std::set<std::string> descriptions;
  for (const AttentionOptions& made : layouts) {
    const Plan plan = Plan::attention(first(q), first(k), first(v), first(out), made);
    EXPECT_TRUE(descriptions.insert(plan.describe()).second) << plan.describe();
    for (const AttentionOptions& run : layouts) {
      const std::string message =
          thrown_by([&] { plan.run(first(q), first(k), first(v), first(out), run); });
      EXPECT_EQ(message == "nothing", &run == &made) << plan.describe() << message;
    }
  }
}

TEST_F(PlanTest, other_outputs_and_types_are_refused) {
  const Plan plan = Plan::attention(q, k, v, out);
  Tensor lse({2, 4, 3}), square({2, 4, 3, 5}), wide({2, 4, 3, 7}, DType::f64);
  const std::string made_for =
      "InvalidArgument: plan: made for forward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, scale "
      "0.4082482904638631; called with forward f32";
  const std::string sizes = ", q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, scale 0.4082482904638631";
  const auto with = [&](const TensorView& to, const AttentionOutputs& outputs) {
    return thrown_by([&] { plan.run(q, k, v, to, {}, outputs); });
  };
  EXPECT_EQ(with(out, {.lse = lse}), made_for + sizes + ", lse");
  EXPECT_EQ(with(out, {.weights = square}), made_for + sizes + ", weights");
  EXPECT_EQ(with(out, {.scores = square, .stage = ScoreStage::raw}),
            made_for + sizes + ", raw scores");
  EXPECT_EQ(with(wide, {}), made_for + " to f64" + sizes);
}

TEST_F(PlanTest, strides_and_data_may_change) {
  const Plan plan = Plan::attention(q, k, v, out, {.causal = true});
  plan.run(q, k, v, out, {.causal = true});
  const Tensor q_last = Tensor::copy_of(q.view().permute({0, 2, 1, 3}));
  Tensor other({2, 3, 4, 7});
  plan.run(q_last.view().permute({0, 2, 1, 3}), k, v, other.view().permute({0, 2, 1, 3}),
           {.causal = true});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t x = 0; x < 7; ++x)
          ASSERT_EQ(other.at<float>({b, i, h, x}), out.at<float>({b, h, i, x})) << b << h << i << x;
  k.at<float>({0, 0, 0, 0}) += 1;
  Tensor direct({2, 4, 3, 7});
  plan.run(q, k, v, out, {.causal = true});
  attention(q, k, v, direct, {.causal = true});
  EXPECT_EQ(std::vector<float>(out.data<float>(), out.data<float>() + 168),
            std::vector<float>(direct.data<float>(), direct.data<float>() + 168));
}

TEST_F(PlanTest, a_forced_kernel_runs_and_says_so) {
  const Plan plan = Plan::attention(q, k, v, out, {}, {}, {.kernel = "textbook.forward"});
  EXPECT_EQ(plan.kernel(), "textbook.forward");
  EXPECT_EQ(plan.describe(),
            "problem    forward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, scale "
            "0.4082482904638631\n"
            "kernel     textbook.forward (forced)\n"
            "tiles      3 queries x 5 keys\n"
            "tasks      8 on up to 1 thread\n"
            // q 72, k 120, v 140, two squares of 60 and lse 12 bytes, each rounded up to 64
            "workspace  640 bytes\n");
  EXPECT_EQ(plan.workspace_bytes(), 640U);
  plan.run(q, k, v, out);
  EXPECT_NE(out.at<float>({0, 0, 0, 0}), 0);
}

// Nothing but addresses differs from the Plan's arguments: the rules about addresses still hold.
TEST_F(PlanTest, a_run_refuses_addresses_that_the_check_would_refuse) {
  Tensor same_size({2, 4, 3, 6}), values({2, 2, 5, 6});
  const Plan plan = Plan::attention(q, k, values, same_size);
  const auto run = [&](const ConstTensorView& query, const TensorView& to) {
    const std::string by_plan = thrown_by([&] { plan.run(query, k, values, to); });
    EXPECT_EQ(by_plan, thrown_by([&] { attend::attention(query, k, values, to); }));
    return by_plan;
  };
  const float* const data = q.data<float>();
  const auto* const bytes = reinterpret_cast<const char*>(data);
  EXPECT_EQ(run(q, same_size), "nothing");
  EXPECT_NE(run(q, q.view()).find("out overlaps q in memory"), std::string::npos)
      << run(q, q.view());
  EXPECT_NE(run({static_cast<const float*>(nullptr), q.shape()}, same_size).find("null address"),
            std::string::npos);
  EXPECT_NE(run({bytes + 1, DType::f32, q.shape()}, same_size).find("not a multiple of 4"),
            std::string::npos);
  EXPECT_NE(run({data, DType::f32, q.shape(), {Device::Kind::cuda, 0}}, same_size), "nothing");
  // Interleaved: the bytes of one lie between those of the other, and none is shared.
  Tensor both({2, 4, 3, 12});
  const TensorView left = both.view().slice(3, 0, 6), right = both.view().slice(3, 6, 12);
  const Plan apart = Plan::attention(left, k, values, same_size);
  const Plan woven = Plan::attention(left, k, values, right);
  EXPECT_EQ(thrown_by([&] { woven.run(left, k, values, right); }), "nothing");
  EXPECT_EQ(thrown_by([&] { apart.run(left, k, values, same_size); }), "nothing");
}

TEST_F(PlanTest, other_memory_and_other_strides_give_the_bits_of_a_plain_call) {
  const AttentionOptions options{.causal = true, .dropout = {.p = 0.3, .seed = 5}};
  const Plan plan = Plan::attention(q, k, v, out, options);
  Tensor moved = Tensor::copy_of(q), wide({2, 4, 3, 12});
  for (std::int64_t n = 0; n < moved.count(); ++n) moved.data<float>()[n] += 1;
  const TensorView strided = wide.view().slice(3, 0, 12, 2);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t x = 0; x < 6; ++x)
          strided.at<float>({b, h, i, x}) = moved.at<float>({b, h, i, x});
  AttentionOptions other = options;
  other.dropout.seed = 6;
  for (const AttentionOptions& draws : {options, other})
    for (const ConstTensorView& query : {ConstTensorView(moved), ConstTensorView(strided)}) {
      Tensor to({2, 4, 3, 7});
      plan.run(query, k, v, to, draws);
      const Tensor expected = attend::attention(query, k, v, draws);
      EXPECT_TRUE(
          std::equal(to.data<float>(), to.data<float>() + to.count(), expected.data<float>()));
    }
}

TEST_F(PlanTest, backward_is_planned_and_run) {
  const Tensor lse({2, 4, 3});
  Tensor dq({2, 4, 3, 6});
  const AttentionGradients gradients{.dq = dq};
  const Plan plan =
      Plan::attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = out}, {},
                               gradients, {.kernel = "reference.backward"});
  EXPECT_EQ(plan.kernel(), "reference.backward");
  dq.at<float>({1, 3, 2, 5}) = 9;
  plan.run_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = out}, {}, gradients);
  EXPECT_NE(dq.at<float>({1, 3, 2, 5}), 9);
  EXPECT_EQ(thrown_by([&] {
              plan.run_backward(
                  {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = out, .dlse = lse}, {},
                  gradients);
            }),
            "InvalidArgument: plan: made for backward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, "
            "scale 0.4082482904638631, dq; called with backward f32, q [2, 4, 3, 6], k [2, 2, 5, "
            "6], dv 7, scale 0.4082482904638631, dlse, dq");
}

}  // namespace
}  // namespace attend
