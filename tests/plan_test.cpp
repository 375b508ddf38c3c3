// The planner on tables of made-up kernels, plans described and run. Contexts: context_test.cpp.
#include "plan/plan.h"
#include "api/check.h"
#include "support/option_changes.h"

#include <attend/plan.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace attend {
namespace {

// ---- Made-up kernels ---------------------------------------------------------------------------

std::vector<std::string> asked;  // whose declines() was called, in order

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return std::string("InvalidArgument: ") + error.what();
  } catch (const Unsupported& error) {
    return std::string("Unsupported: ") + error.what();
  }
  return "nothing";
}

constexpr Kernel kPlain{
    .name = "plain",
    .operation = Operation::forward,
    .only_if_forced = false,
    .stages = 1,
    .declines = [](const Problem&, const Machine&) -> std::string {
      asked.push_back("plain");
      return {};
    },
    .tiles =
        [](const Problem&, const Machine& machine) {
          return Tiles{16, machine.processors};
        },
    .tasks = [](const Problem& p, const Tiles&, int) { return p.batch; },
    .workspace =
        [](const Problem&, const Tiles&) {
          return Workspace{128, 64};
        },
    .run = [](const Problem&, const Tiles&, const Call&, const Task&) noexcept {},
};

constexpr Kernel changed(Kernel kernel, void (*change)(Kernel&)) {
  change(kernel);
  return kernel;
}

const Kernel kWide = changed(kPlain, [](Kernel& k) {
  k.name = "wide";
  k.declines = [](const Problem& p, const Machine& machine) -> std::string {
    asked.push_back("wide");
    if (machine.architecture != "tall") return "needs a tall machine";
    return p.d % 8 == 0 ? "" : "needs d in eights";
  };
});
const Kernel kPicky = changed(kPlain, [](Kernel& k) {
  k.name = "picky";
  k.declines = [](const Problem&, const Machine&) -> std::string { return "takes nothing"; };
});
const Kernel kYardstick = changed(kPlain, [](Kernel& k) {
  k.name = "yardstick";
  k.only_if_forced = true;
});
const Kernel kBackward = changed(kPlain, [](Kernel& k) {
  k.name = "reverse";
  k.operation = Operation::backward;
  k.declines = [](const Problem&, const Machine&) -> std::string {
    asked.push_back("reverse");
    return {};
  };
});
const Kernel kStaged = changed(kPlain, [](Kernel& k) {
  k.name = "staged";
  k.stages = 3;
  k.tasks = [](const Problem& p, const Tiles& tiles, int stage) {
    return stage == 1 ? 0 : p.q_length / tiles.queries + stage;
  };
  k.workspace = [](const Problem& p, const Tiles& tiles) {
    return Workspace{static_cast<std::size_t>(64 * p.batch),
                     static_cast<std::size_t>(64 * tiles.keys)};
  };
});

using Table = std::vector<const Kernel*>;
const Machine kMachine{"tall", 3};

Problem small_problem() {
  Problem p;
  p.batch = 2, p.heads = 4, p.kv_heads = 2, p.q_length = 3, p.k_length = 5, p.d = 8, p.dv = 7;
  p.scale = 0.5;
  return p;
}

// Work for any number of threads.
Problem large_problem() {
  Problem p = small_problem();
  p.batch = 1000, p.q_length = p.k_length = 1000;
  return p;
}

// ---- Choosing ----------------------------------------------------------------------------------

TEST(Decide, the_first_row_that_takes_the_problem_is_chosen) {
  asked.clear();
  const Decision decision = decide(small_problem(), kMachine, 1, "", Table{&kWide, &kPlain});
  EXPECT_EQ(decision.kernel, &kWide);
  EXPECT_FALSE(decision.forced);
  EXPECT_TRUE(decision.declined.empty());
  EXPECT_EQ(asked, std::vector<std::string>{"wide"}) << "rows behind the chosen one are not asked";
  EXPECT_EQ(decision.problem, small_problem());
}

TEST(Decide, who_declined_before_is_kept_with_the_reason) {
  Problem p = small_problem();
  p.d = 9;
  const Decision decision = decide(p, kMachine, 1, "", Table{&kPicky, &kWide, &kPlain});
  EXPECT_EQ(decision.kernel, &kPlain);
  const std::vector<std::pair<std::string_view, std::string>> reasons{
      {"picky", "takes nothing"}, {"wide", "needs d in eights"}};
  EXPECT_EQ(decision.declined, reasons);
}

TEST(Decide, rows_of_another_operation_are_not_asked) {
  asked.clear();
  EXPECT_EQ(decide(small_problem(), kMachine, 1, "", Table{&kBackward, &kPlain}).kernel, &kPlain);
  EXPECT_EQ(asked, std::vector<std::string>{"plain"});
}

TEST(Decide, when_all_decline_every_reason_is_told) {
  const auto all = [] {
    decide(small_problem(), {"flat", 1}, 1, "", Table{&kPicky, &kYardstick, &kBackward, &kWide});
  };
  EXPECT_EQ(message_of(all),
            "Unsupported: plan: no kernel takes forward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, "
            "scale 0.5: picky takes nothing; wide needs a tall machine");
}

TEST(Decide, a_yardstick_is_used_when_forced_and_never_else) {
  EXPECT_EQ(decide(small_problem(), kMachine, 1, "", Table{&kYardstick, &kPlain}).kernel, &kPlain);
  const auto alone = [] { decide(small_problem(), kMachine, 1, "", Table{&kYardstick}); };
  EXPECT_EQ(message_of(alone),
            "Unsupported: plan: no kernel takes forward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, "
            "scale 0.5:");
  const Decision decision =
      decide(small_problem(), kMachine, 1, "yardstick", Table{&kPlain, &kYardstick});
  EXPECT_EQ(decision.kernel, &kYardstick);
  EXPECT_TRUE(decision.forced);
}

TEST(Decide, only_the_forced_row_is_asked) {
  asked.clear();
  const Decision decision =
      decide(small_problem(), kMachine, 1, "plain", Table{&kWide, &kBackward, &kPlain});
  EXPECT_EQ(decision.kernel, &kPlain);
  EXPECT_TRUE(decision.declined.empty());
  EXPECT_EQ(asked, std::vector<std::string>{"plain"});
}

TEST(Decide, a_forced_row_that_declines_is_not_replaced) {
  const auto refused = [] {
    decide(small_problem(), {"flat", 1}, 1, "wide", Table{&kWide, &kPlain});
  };
  EXPECT_EQ(message_of(refused),
            "Unsupported: plan: wide was forced and declines forward f32, q [2, 4, 3, 8], k [2, 2, "
            "5, 8], dv 7, scale 0.5: it needs a tall machine");
}

TEST(Decide, a_forced_row_must_be_one_of_the_operation) {
  for (const char* name : {"reverse", "fast", "plai", "plain "}) {
    EXPECT_EQ(message_of([&] {
                decide(small_problem(), kMachine, 1, name, Table{&kPlain, &kBackward, &kYardstick});
              }),
              std::string("InvalidArgument: plan: there is no forward kernel ") + name +
                  "; there are plain, yardstick");
  }
}

// ---- Stages, threads, workspace ----------------------------------------------------------------

TEST(Decide, tasks_are_counted_for_each_stage_with_the_kernels_own_tiles) {
  const Decision decision = decide(large_problem(), kMachine, 1, "", Table{&kStaged});
  EXPECT_EQ(decision.tiles.queries, 16);
  EXPECT_EQ(decision.tiles.keys, 3) << "as many as the machine has processors";
  EXPECT_EQ(decision.tasks, (std::vector<std::int64_t>{62, 0, 64}));
  EXPECT_EQ(decision.workspace.shared, 64000U);
  EXPECT_EQ(decision.workspace.per_strand, 192U);
}

TEST(Decide, strands_are_as_many_as_threads_tasks_and_work_allow) {
  const auto strands = [](const Problem& p, int threads) {
    const Decision decision = decide(p, kMachine, threads, "", Table{&kPlain});
    EXPECT_EQ(decision.workspace_bytes, 128 + 64 * static_cast<std::size_t>(decision.strands));
    return decision.strands;
  };
  EXPECT_EQ(strands(large_problem(), 8), 8);
  EXPECT_EQ(strands(large_problem(), 1), 1);
  Problem few_tasks = large_problem();
  few_tasks.batch = 3;
  EXPECT_EQ(strands(few_tasks, 8), 3);
  EXPECT_EQ(strands(small_problem(), 8), 1) << "too little work for a second thread";
  Problem nothing = large_problem();
  nothing.batch = 0;
  EXPECT_EQ(strands(nothing, 8), 1);
}

TEST(Decide, a_workspace_that_overflows_is_the_largest_number) {
  const Kernel huge = changed(kPlain, [](Kernel& k) {
    k.workspace = [](const Problem&, const Tiles&) { return Workspace{64, std::size_t{1} << 61}; };
  });
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(decide(large_problem(), kMachine, 8, "", Table{&huge}).workspace_bytes, most);
  EXPECT_EQ(decide(large_problem(), kMachine, 7, "", Table{&huge}).workspace_bytes,
            64 + 7 * (std::size_t{1} << 61));
  const Kernel full = changed(kPlain, [](Kernel& k) {
    k.workspace = [](const Problem&, const Tiles&) {
      return Workspace{64, std::numeric_limits<std::size_t>::max() - 63};
    };
  });
  EXPECT_EQ(decide(small_problem(), kMachine, 1, "", Table{&full}).workspace_bytes, most);
}

TEST(Decide, the_table_is_sound) {
  std::set<std::string_view> names;
  for (const Kernel* kernel : kernel_table()) {
    EXPECT_TRUE(names.insert(kernel->name).second) << kernel->name << " is there twice";
    EXPECT_TRUE(kernel->name.ends_with(name_of(kernel->operation))) << kernel->name;
    EXPECT_GE(kernel->stages, 1) << kernel->name;
    for (const auto function : {reinterpret_cast<const void*>(kernel->declines),
                                reinterpret_cast<const void*>(kernel->tiles),
                                reinterpret_cast<const void*>(kernel->tasks),
                                reinterpret_cast<const void*>(kernel->workspace),
                                reinterpret_cast<const void*>(kernel->run)})
      EXPECT_NE(function, nullptr) << kernel->name;
  }
}

// ---- Words -------------------------------------------------------------------------------------

TEST(Describe, a_decision_in_a_few_lines) {
  Problem p = large_problem();
  p.d = 9;
  EXPECT_EQ(describe(decide(p, kMachine, 4, "", Table{&kPicky, &kWide, &kStaged})),
            "problem    forward f32, q [1000, 4, 1000, 9], k [1000, 2, 1000, 9], dv 7, scale 0.5\n"
            "kernel     staged\n"
            "declined   picky: takes nothing\n"
            "declined   wide: needs d in eights\n"
            "tiles      16 queries x 3 keys\n"
            "tasks      62 then 0 then 64 on up to 4 threads\n"
            "workspace  64768 bytes\n");
  EXPECT_EQ(describe(decide(small_problem(), kMachine, 4, "yardstick", Table{&kYardstick})),
            "problem    forward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, scale 0.5\n"
            "kernel     yardstick (forced)\n"
            "tiles      16 queries x 3 keys\n"
            "tasks      2 on up to 1 thread\n"
            "workspace  192 bytes\n");
}

TEST(Describe, everything_that_can_be_asked_of_a_problem) {
  Problem p = small_problem();
  p.type = DType::bf16, p.out_type = DType::f64;
  p.device = {Device::Kind::cuda, 1};
  p.packed_queries = true;
  p.keys = KeyAddressing::paged;
  p.pages = 9, p.page_size = 16;
  p.softcap = 20, p.bias_before_softcap = p.causal = true;
  p.window_left = 7, p.window_right = 0;
  p.offset_given = true, p.offset = -3;
  p.key_lengths = p.mask = p.bias = p.alibi = p.sinks = p.blocks = true;
  p.mask_keys = 4;
  p.dbias_batch = 1, p.dbias_heads = 4, p.dbias_queries = 3, p.dbias_keys = 5;
  p.block_queries = 2, p.block_keys = 64;
  p.drop_below = 6554, p.dropout_seed = 77, p.dropout_offset = 5;
  p.origin_b = 1, p.origin_j = 8, p.origin_heads = 4;
  p.lse = p.weights = p.scores = p.visited_blocks = true;
  EXPECT_EQ(
      describe(p),
      "forward bf16 to f64, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, scale 0.5, on cuda:1, packed "
      "queries, 9 pages of 16 keys, softcap 20, bias before softcap, causal, window left 7, window "
      "right 0, query offset -3, key lengths, mask of 4 keys, bias f32 [1, 4, 3, 5], alibi, sinks, "
      "blocks of 2 x 64, dropout 0.100006103515625 seed 77 offset 5, dropout origin [1, 0, 0, 8] "
      "of "
      "4 heads, lse, weights, masked scores, visited blocks");
  Problem backward = small_problem();
  backward.operation = Operation::backward;
  backward.keys = KeyAddressing::packed;
  backward.scale = 1 / std::sqrt(3.0);
  backward.offset_each = true;
  backward.dlse = backward.dq = backward.dk = backward.dv_gradient = true;
  backward.dbias = backward.dsinks = backward.dalibi = true;
  EXPECT_EQ(describe(backward),
            "backward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, scale 0.5773502691896258, packed "
            "keys, query offset of each, dlse, dq, dk, dv, dbias, dsinks, dalibi");
  Problem merge = small_problem();
  merge.operation = Operation::merge;
  merge.parts = 6;
  EXPECT_EQ(describe(merge), "merge f32, 6 parts of [2, 4, 3, 7]");
}

// ---- Plan --------------------------------------------------------------------------------------

struct PlanTest : testing::Test {
  Tensor q{Shape{2, 4, 3, 6}}, k{Shape{2, 2, 5, 6}}, v{Shape{2, 2, 5, 7}}, out{Shape{2, 4, 3, 7}};

  PlanTest() {
    for (Tensor* t : {&q, &k, &v})
      for (std::int64_t n = 0; n < t->count(); ++n)
        t->data<float>()[n] = static_cast<float>(std::sin(static_cast<double>(n)));
  }
  Problem problem(const AttentionOptions& options) {
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
    EXPECT_EQ(message_of([&] { plan.run(q, k, v, out, options); }),
              "InvalidArgument: plan: made for " + made_for + "; called with " +
                  describe(problem(options)))
        << name;
  }
  EXPECT_EQ(message_of([&] { plan.run(q, k, v, out, test::start_options()); }), "nothing");
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
          message_of([&] { plan.run(first(q), first(k), first(v), first(out), run); });
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
    return message_of([&] { plan.run(q, k, v, to, {}, outputs); });
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

TEST_F(PlanTest, backward_is_planned_and_run) {
  const Tensor lse({2, 4, 3});
  Tensor dq({2, 4, 3, 6});
  const AttentionGradients gradients{.dq = dq};
  const Plan plan = Plan::attention_backward(q, k, v, out, lse, out, gradients, {}, {},
                                             {.kernel = "reference.backward"});
  EXPECT_EQ(plan.kernel(), "reference.backward");
  dq.at<float>({1, 3, 2, 5}) = 9;
  plan.run_backward(q, k, v, out, lse, out, gradients);
  EXPECT_NE(dq.at<float>({1, 3, 2, 5}), 9);
  EXPECT_EQ(message_of([&] { plan.run_backward(q, k, v, out, lse, out, gradients, {}, lse); }),
            "InvalidArgument: plan: made for backward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, "
            "scale 0.4082482904638631, dq; called with backward f32, q [2, 4, 3, 6], k [2, 2, 5, "
            "6], dv 7, scale 0.4082482904638631, dlse, dq");
}

}  // namespace
}  // namespace attend
