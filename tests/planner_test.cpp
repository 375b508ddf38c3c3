// The planner on tables of made-up kernels, and what it says.
#include "plan/plan.h"
#include "reference/row.h"
#include "support/thrown_by.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace attend {
namespace {

using test::thrown_by;

// ---- Made-up kernels ---------------------------------------------------------------------------

std::vector<std::string> asked;  // whose declines() was called, in order

constexpr Kernel<Forward> kPlain{
    .name = "plain",
    .only_if_forced = false,
    .takes = kHostTypes | kLayouts | Features{Feature::lse},
    .stages = 1,
    .declines = [](const ForwardProblem&, const Machine&) -> std::string {
      asked.push_back("plain");
      return {};
    },
    .tiles =
        [](const ForwardProblem&, const Machine& machine) {
          return Tiles{16, machine.processors};
        },
    .tasks = [](const ForwardProblem& p, const Tiles&, int) { return p.batch; },
    .workspace =
        [](const ForwardProblem&, const Tiles&) {
          return Workspace{128, 64};
        },
    .run = [](const ForwardProblem&, const Tiles&, const ForwardCall&, const Task&) noexcept {},
};

using ForwardKernel = Kernel<Forward>;
constexpr ForwardKernel changed(ForwardKernel kernel, void (*change)(ForwardKernel&)) {
  change(kernel);
  return kernel;
}

const ForwardKernel kWide = changed(kPlain, [](ForwardKernel& k) {
  k.name = "wide";
  k.declines = [](const ForwardProblem& p, const Machine& machine) -> std::string {
    asked.push_back("wide");
    if (machine.architecture != "tall") return "needs a tall machine";
    return p.d % 8 == 0 ? "" : "needs d in eights";
  };
});
const ForwardKernel kPicky = changed(kPlain, [](ForwardKernel& k) {
  k.name = "picky";
  k.declines = [](const ForwardProblem&, const Machine&) -> std::string { return "takes nothing"; };
});
const ForwardKernel kYardstick = changed(kPlain, [](ForwardKernel& k) {
  k.name = "yardstick";
  k.only_if_forced = true;
});
const ForwardKernel kLaunched = changed(kPlain, [](ForwardKernel& k) {
  k.name = "launched";
  k.launch = [](const ForwardProblem&, const ForwardCall&, Queue&) noexcept { return Status{}; };
});
const ForwardKernel kStaged = changed(kPlain, [](ForwardKernel& k) {
  k.name = "staged";
  k.stages = 3;
  k.tasks = [](const ForwardProblem& p, const Tiles& tiles, int stage) {
    return stage == 1 ? 0 : p.q_length / tiles.queries + stage;
  };
  k.workspace = [](const ForwardProblem& p, const Tiles& tiles) {
    return Workspace{static_cast<std::size_t>(64 * p.batch),
                     static_cast<std::size_t>(64 * tiles.keys)};
  };
});

using KernelRows = std::vector<const ForwardKernel*>;
const Machine kMachine{"tall", 3};

ForwardProblem small_problem() {
  ForwardProblem p;
  p.batch = 2, p.heads = 4, p.kv_heads = 2, p.q_length = 3, p.k_length = 5, p.d = 8, p.dv = 7;
  p.scale = 0.5;
  return p;
}

// Work for any number of threads.
ForwardProblem large_problem() {
  ForwardProblem p = small_problem();
  p.batch = 1000, p.q_length = p.k_length = 1000;
  return p;
}

// ---- Choosing ----------------------------------------------------------------------------------

TEST(Decide, the_first_row_that_takes_the_problem_is_chosen) {
  asked.clear();
  const Decision<Forward> decision =
      decide<Forward>(small_problem(), kMachine, 1, "", KernelRows{&kWide, &kPlain});
  EXPECT_EQ(decision.kernel, &kWide);
  EXPECT_FALSE(decision.forced);
  EXPECT_TRUE(decision.declined.empty());
  EXPECT_EQ(asked, std::vector<std::string>{"wide"}) << "rows behind the chosen one are not asked";
  EXPECT_EQ(decision.problem, small_problem());
}

TEST(Decide, who_declined_before_is_kept_with_the_reason) {
  ForwardProblem p = small_problem();
  p.d = 9;
  const Decision<Forward> decision =
      decide<Forward>(p, kMachine, 1, "", KernelRows{&kPicky, &kWide, &kPlain});
  EXPECT_EQ(decision.kernel, &kPlain);
  const std::vector<std::pair<std::string_view, std::string>> reasons{
      {"picky", "takes nothing"}, {"wide", "needs d in eights"}};
  EXPECT_EQ(decision.declined, reasons);
}

TEST(Decide, when_all_decline_every_reason_is_told) {
  const auto all = [] {
    decide<Forward>(small_problem(), {"flat", 1}, 1, "", KernelRows{&kPicky, &kYardstick, &kWide});
  };
  EXPECT_EQ(thrown_by(all),
            "Unsupported: plan: no kernel takes forward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, "
            "scale 0.5: picky takes nothing; wide needs a tall machine");
}

TEST(Decide, a_yardstick_is_used_when_forced_and_never_else) {
  EXPECT_EQ(
      decide<Forward>(small_problem(), kMachine, 1, "", KernelRows{&kYardstick, &kPlain}).kernel,
      &kPlain);
  const auto alone = [] {
    decide<Forward>(small_problem(), kMachine, 1, "", KernelRows{&kYardstick});
  };
  EXPECT_EQ(thrown_by(alone),
            "Unsupported: plan: no kernel takes forward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, "
            "scale 0.5:");
  const Decision<Forward> decision =
      decide<Forward>(small_problem(), kMachine, 1, "yardstick", KernelRows{&kPlain, &kYardstick});
  EXPECT_EQ(decision.kernel, &kYardstick);
  EXPECT_TRUE(decision.forced);
}

TEST(Decide, only_the_forced_row_is_asked) {
  asked.clear();
  const Decision<Forward> decision =
      decide<Forward>(small_problem(), kMachine, 1, "plain", KernelRows{&kWide, &kPlain});
  EXPECT_EQ(decision.kernel, &kPlain);
  EXPECT_TRUE(decision.declined.empty());
  EXPECT_EQ(asked, std::vector<std::string>{"plain"});
}

TEST(Decide, a_forced_row_that_declines_is_not_replaced) {
  const auto refused = [] {
    decide<Forward>(small_problem(), {"flat", 1}, 1, "wide", KernelRows{&kWide, &kPlain});
  };
  EXPECT_EQ(thrown_by(refused),
            "Unsupported: plan: wide was forced and declines forward f32, q [2, 4, 3, 8], k [2, 2, "
            "5, 8], dv 7, scale 0.5: it needs a tall machine");
}

TEST(Decide, a_forced_row_must_be_one_of_the_operation) {
  for (const char* name : {"reverse", "fast", "plai", "plain "}) {
    EXPECT_EQ(
        thrown_by([&] {
          decide<Forward>(small_problem(), kMachine, 1, name, KernelRows{&kPlain, &kYardstick});
        }),
        std::string("InvalidArgument: plan: there is no forward kernel ") + name +
            "; there are plain, yardstick");
  }
}

// ---- Stages, threads, workspace ----------------------------------------------------------------

TEST(Decide, tasks_are_counted_for_each_stage_with_the_kernels_own_tiles) {
  const Decision<Forward> decision =
      decide<Forward>(large_problem(), kMachine, 1, "", KernelRows{&kStaged});
  EXPECT_EQ(decision.tiles.queries, 16);
  EXPECT_EQ(decision.tiles.keys, 3) << "as many as the machine has processors";
  EXPECT_EQ(decision.tasks, (std::vector<std::int64_t>{62, 0, 64}));
  EXPECT_EQ(decision.workspace.shared, 64000U);
  EXPECT_EQ(decision.workspace.per_strand, 192U);
}

TEST(Decide, strands_are_as_many_as_threads_tasks_and_work_allow) {
  const auto strands = [](const ForwardProblem& p, int threads) {
    const Decision<Forward> decision =
        decide<Forward>(p, kMachine, threads, "", KernelRows{&kPlain});
    EXPECT_EQ(decision.workspace_bytes, 128 + 64 * static_cast<std::size_t>(decision.strands));
    return decision.strands;
  };
  EXPECT_EQ(strands(large_problem(), 8), 8);
  EXPECT_EQ(strands(large_problem(), 1), 1);
  ForwardProblem few_tasks = large_problem();
  few_tasks.batch = 3;
  EXPECT_EQ(strands(few_tasks, 8), 3);
  EXPECT_EQ(strands(small_problem(), 8), 1) << "too little work for a second thread";
  ForwardProblem nothing = large_problem();
  nothing.batch = 0;
  EXPECT_EQ(strands(nothing, 8), 1);
}

TEST(Decide, a_workspace_that_overflows_is_the_largest_number) {
  const ForwardKernel huge = changed(kPlain, [](ForwardKernel& k) {
    k.workspace = [](const ForwardProblem&, const Tiles&) {
      return Workspace{64, std::size_t{1} << 61};
    };
  });
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(decide<Forward>(large_problem(), kMachine, 8, "", KernelRows{&huge}).workspace_bytes,
            most);
  EXPECT_EQ(decide<Forward>(large_problem(), kMachine, 7, "", KernelRows{&huge}).workspace_bytes,
            64 + 7 * (std::size_t{1} << 61));
  const ForwardKernel full = changed(kPlain, [](ForwardKernel& k) {
    k.workspace = [](const ForwardProblem&, const Tiles&) {
      return Workspace{64, std::numeric_limits<std::size_t>::max() - 63};
    };
  });
  EXPECT_EQ(decide<Forward>(small_problem(), kMachine, 1, "", KernelRows{&full}).workspace_bytes,
            most);
}

// A row is a launch on a device, or tasks; of products, functions for every type that it takes (one
// that takes f32 takes 16-bit numbers as these); of rows of features, one function.
TEST(Decide, the_table_is_sound) {
  std::set<std::string_view> names;
  for_each_operation([&]<class Operation>(Operation) {
    for (const Kernel<Operation>* kernel : kernel_table<Operation>()) {
      SCOPED_TRACE(kernel->name);
      EXPECT_TRUE(names.insert(kernel->name).second) << "is there twice";
      EXPECT_TRUE(kernel->name.ends_with(Operation::kName));
      EXPECT_NE(kernel->declines, nullptr);
      const bool launched = kernel->launch != nullptr;
      EXPECT_EQ(kernel->takes.has(Feature::device_memory), launched);
      if constexpr (std::is_same_v<Operation, Product>) {
        const auto whole = [&](Feature type, const auto& functions) {
          if (!kernel->takes.has(type)) return;
          EXPECT_EQ(functions.pack && functions.run, !launched);
          EXPECT_EQ(functions.columns > 0 && functions.rows > 0, !launched);
        };
        whole(Feature::f32, kernel->f32);
        whole(Feature::f64, kernel->f64);
        if (!kernel->takes.has(Feature::f32)) whole(Feature::bf16, kernel->bf16);
      } else if constexpr (!requires { kernel->stages; }) {
        EXPECT_EQ(kernel->run == nullptr, launched);
      } else {
        EXPECT_EQ(kernel->stages > 0, !launched);
        EXPECT_EQ(kernel->tiles && kernel->tasks && kernel->workspace && kernel->run, !launched);
      }
    }
  });
}

// ---- Features ----------------------------------------------------------------------------------

TEST(Features, what_a_row_does_not_list_it_declines_by_name) {
  ForwardProblem p = small_problem();
  p.causal = p.sinks = true;
  p.softcap = 3;
  EXPECT_EQ(thrown_by([&] { decide<Forward>(p, kMachine, 1, "plain", KernelRows{&kPlain}); }),
            "Unsupported: plan: plain was forced and declines " + describe(p) +
                ": it takes no softcap, causal, sinks");
  asked.clear();
  EXPECT_EQ(why_not(kPlain, p, features_of(p), kMachine), "takes no softcap, causal, sinks");
  EXPECT_TRUE(asked.empty()) << "asked about a problem that it does not take";
  p.device = {Device::Kind::cuda, 1};
  EXPECT_EQ(why_not(kPlain, p, features_of(p), kMachine),
            "reads host memory, the tensors are on cuda:1");
}

// One that is forced is asked wherever the tensors are.
TEST(Features, a_row_that_launches_declines_host_memory) {
  EXPECT_EQ(thrown_by([] {
              decide<Forward>(small_problem(), kMachine, 1, "launched", KernelRows{&kLaunched});
            }),
            "Unsupported: plan: launched was forced and declines " + describe(small_problem()) +
                ": it launches on a device, the tensors are in host memory");
}

// Keys past the end of a mask or a bias are hidden: a row that takes masks may not know that.
TEST(Features, a_mask_or_bias_of_fewer_keys_is_a_short_one) {
  ForwardProblem mask = small_problem(), bias = small_problem();
  mask.mask = bias.bias = true;
  for (const std::int64_t keys : {4, 5}) {
    mask.mask_keys = bias.bias_keys = keys;
    EXPECT_EQ(features_of(mask).has(Feature::short_mask), keys < 5);
    EXPECT_EQ(features_of(bias).has(Feature::short_mask), keys < 5);
  }
}

// An option that somebody adds, and that no kernel knows yet.
TEST(Features, a_new_one_is_declined_by_every_row) {
  int rows = 0;
  for_each_operation([&]<class Operation>(Operation) {
    typename Operation::Problem problem;
    Features features = features_of(problem) - kHostTypes;  // some rows are of one type
    features.add(static_cast<Feature>(kFeatures));
    for (const Kernel<Operation>* kernel : kernel_table<Operation>()) {
      problem.device = {kernel->launch == nullptr ? Device::Kind::cpu : Device::Kind::cuda, 0};
      EXPECT_EQ(why_not(*kernel, problem, features, kMachine), "takes no new options")
          << kernel->name;
      ++rows;
    }
  });
  EXPECT_GE(rows, 10);
}

// What the reference does not take nobody else does, but memory of devices; and it takes all.
TEST(Features, the_reference_takes_what_any_row_takes) {
  const Features both = kTakenByRows;
  const std::map<std::string_view, Features> wanted = {
      {"forward", both | Features{Feature::dropout, Feature::lse, Feature::weights,
                                  Feature::weight_heads, Feature::scores, Feature::visited_blocks,
                                  Feature::partial_states, Feature::query_runs}},
      {"backward", both | Features{Feature::dropout, Feature::dlse, Feature::dq, Feature::dk,
                                   Feature::dv, Feature::dbias, Feature::dsinks, Feature::dalibi,
                                   Feature::row_sums, Feature::query_runs}},
      {"merge", kHostTypes | Features{Feature::other_types, Feature::lse}},
      {"inspect", both | Features{Feature::top_keys, Feature::key_mass, Feature::metrics,
                                  Feature::tokens, Feature::map}},
      {"weights", both},
      {"product", kTakenByProducts},
      {"norm", kTakenByNorms},
      {"norm_backward", kTakenByNorms},
      {"activation", kTakenByActivations},
      {"activation_backward", kTakenByActivations},
      {"rotary", kTakenByRotary},
      {"convert", kHostTypes},
      {"add", kHostTypes}};
  // Ends are asked of products on devices alone.
  Features all{Feature::device_memory, Feature::row_activation, Feature::row_residual};
  for_each_operation([&]<class Operation>(Operation) {
    const Features expected = wanted.at(Operation::kName);
    all = all | expected;
    for (const Kernel<Operation>* kernel : kernel_table<Operation>()) {
      const Features more =
          kernel->takes - expected -
          (kernel->launch != nullptr
               ? kTakenByActivations | Features{Feature::device_memory, Feature::row_activation,
                                                Feature::row_residual}
               : Features());
      EXPECT_EQ(names_of(more), "") << kernel->name;
      if (kernel->name.starts_with("reference.")) {
        EXPECT_EQ(names_of(expected - kernel->takes), "") << kernel->name;
      }
    }
  });
  for (int n = 0; n < kFeatures; ++n)
    EXPECT_TRUE(all.has(static_cast<Feature>(n))) << names_of({static_cast<Feature>(n)});
}

// ---- Words -------------------------------------------------------------------------------------

TEST(Describe, a_decision_in_a_few_lines) {
  ForwardProblem p = large_problem();
  p.d = 9;
  EXPECT_EQ(describe(decide<Forward>(p, kMachine, 4, "", KernelRows{&kPicky, &kWide, &kStaged})),
            "problem    forward f32, q [1000, 4, 1000, 9], k [1000, 2, 1000, 9], dv 7, scale 0.5\n"
            "kernel     staged\n"
            "declined   picky: takes nothing\n"
            "declined   wide: needs d in eights\n"
            "tiles      16 queries x 3 keys\n"
            "tasks      62 then 0 then 64 on up to 4 threads\n"
            "workspace  64768 bytes\n");
  EXPECT_EQ(
      describe(decide<Forward>(small_problem(), kMachine, 4, "yardstick", KernelRows{&kYardstick})),
      "problem    forward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, scale 0.5\n"
      "kernel     yardstick (forced)\n"
      "tiles      16 queries x 3 keys\n"
      "tasks      2 on up to 1 thread\n"
      "workspace  192 bytes\n");
}

TEST(Describe, everything_that_can_be_asked_of_a_problem) {
  ForwardProblem p = small_problem();
  p.type = DType::bf16, p.out_type = DType::f64;
  p.device = {Device::Kind::cuda, 1};
  p.packed_queries = true;
  p.keys = KeyAddressing::paged;
  p.pages = 9, p.page_size = 16;
  p.softcap = 20, p.bias_before_softcap = p.causal = true;
  p.window_left = 7, p.window_right = 0;
  p.offset_given = true;
  p.key_lengths = p.mask = p.bias = p.alibi = p.sinks = p.blocks = true;
  p.mask_keys = 4;
  p.dbias_batch = 1, p.dbias_heads = 4, p.dbias_queries = 3, p.dbias_keys = 5;
  p.block_queries = 2, p.block_keys = 64;
  p.drop_below = 6554;
  p.lse_type = p.scores_type = DType::f64, p.weights_type = DType::bf16;
  p.mask_type = DType::i64, p.blocks_type = DType::boolean;
  p.lse = p.weights = p.scores = p.visited_blocks = true;
  EXPECT_EQ(
      describe(p),
      "forward bf16 to f64, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, scale 0.5, on cuda:1, packed "
      "queries, 9 pages of 16 keys, softcap 20, bias before softcap, causal, window left 7, window "
      "right 0, query offset, key lengths, mask i64 of 4 keys, bias f32 [1, 4, 3, 5], alibi, "
      "sinks, "
      "blocks of 2 x 64, dropout 0.100006103515625, lse f64, weights, masked scores f64, visited "
      "blocks");
  BackwardProblem backward;
  static_cast<Problem&>(backward) = small_problem();
  backward.keys = KeyAddressing::packed;
  backward.scale = 1 / std::sqrt(3.0);
  backward.offset_each = true;
  backward.lse_type = backward.dout_type = DType::f64;
  backward.dlse = backward.dq = backward.dk = backward.dv_gradient = true;
  backward.dbias = backward.dsinks = backward.dalibi = true;
  EXPECT_EQ(
      describe(backward),
      "backward f32, q [2, 4, 3, 8], k [2, 2, 5, 8], dv 7, scale 0.5773502691896258, packed "
      "keys, query offset of each, lse f64, dout f64, dlse, dq, dk, dv, dbias, dsinks, dalibi");
  MergeProblem merge;
  merge.batch = 2, merge.heads = 4, merge.q_length = 3, merge.dv = 7;
  merge.parts = 6;
  EXPECT_EQ(describe(merge), "merge f32, 6 parts of [2, 4, 3, 7]");
}

}  // namespace
}  // namespace attend
