// Traps that other libraries fell into: reproducibility, threads, plans.
#include "support/property_truth.h"

#include "cases/arena.h"

#include <atomic>
#include <cmath>
#include <thread>

namespace attend::test {
namespace {

using cases::Case;

Trial busy_trial(DType type = DType::f32) {
  return make_trial({.type = type,
                     .batch = 2,
                     .heads = 4,
                     .kv_heads = 2,
                     .q_length = 37,
                     .k_length = 53,
                     .d = 12,
                     .dv = 10,
                     .causal = true,
                     .bias = cases::Bias::full,
                     .alibi = true,
                     .sinks = true,
                     .dropout = 0.25,
                     .width = cases::Width::f64,
                     .dlse = true});
}

ContextOptions with_threads(int threads) {
  ContextOptions options;
  options.threads = threads;
  return options;
}

// flash-attention #2244, pytorch #34060: "deterministic" backward was not.
TEST(Traps, repeated_backward_gives_the_same_bits) {
  const Trial trial = busy_trial();
  Context context(with_threads(8));
  for (const KernelUnderTest& kernel : all_kernels()) {
    const auto first = trial.run(kernel, context);
    ASSERT_TRUE(first);
    for (int repeat = 0; repeat < 20; ++repeat)
      ASSERT_TRUE(same_bits(*first, *trial.run(kernel, context))) << kernel.name << " " << repeat;
  }
}

// ggml: the split of the keys depended on the number of threads.
TEST(Traps, same_bits_for_any_thread_count) {
  if (on_gpu()) GTEST_SKIP() << "a call on a GPU has no threads of the host";
  for (const DType type : cases::kTypes) {
    const Trial trial = busy_trial(type);
    for (const KernelUnderTest& kernel : all_kernels(type)) {
      Context one(with_threads(1));
      const auto expected = trial.run(kernel, one);
      ASSERT_TRUE(expected);
      for (const int threads : {2, 3, 7, 16}) {
        Context many(with_threads(threads));
        EXPECT_TRUE(same_bits(*expected, *trial.run(kernel, many)))
            << kernel.name << " " << name_of(type) << ", " << threads << " threads";
      }
    }
  }
}

// TabPFN #800: a row in a batch came out otherwise than the same row alone.
TEST(Traps, a_row_of_a_large_batch_has_the_bits_of_the_row_alone) {
  const Trial trial = make_trial({.batch = 64,
                                  .heads = 3,
                                  .kv_heads = 3,
                                  .q_length = 2,
                                  .k_length = 9,
                                  .d = 5,
                                  .dv = 4,
                                  .width = cases::Width::f64});
  for (const KernelUnderTest& kernel : all_kernels()) {
    const auto whole = trial.run(kernel);
    for (std::int64_t b = 0; b < 64; b += 7) {
      const auto alone = element_of(trial, b).run(kernel);
      for (const auto member : {&Written::out, &Written::lse, &Written::dq, &Written::dk})
        EXPECT_TRUE(same_bits(take((*whole).*member, 0, {b}), (*alone).*member)) << kernel.name;
    }
  }
}

// oneDNN #4381 #5393
TEST(Traps, one_plan_from_many_threads) {
  if (on_gpu())
    GTEST_SKIP() << "a GPU's memory is lent to one call: cuda_errors_test asks it there";
  constexpr int kThreads = 8, kRepeats = 12;
  Context context(with_threads(3));
  for (const KernelUnderTest& kernel : all_kernels()) {
    std::vector<Trial> trials;  // the same problem with other data
    for (std::uint64_t seed = 1; seed <= kThreads; ++seed)
      trials.push_back(make_trial({.batch = 2,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .q_length = 24,
                                   .k_length = 30,
                                   .seed = seed,
                                   .causal = true}));
    const Arguments a = trials[0].arguments();
    Written room = trials[0].empty_results(true);
    AttentionOutputs with_lse;
    with_lse.lse = room.lse;
    const Plan plan =
        kernel.backward
            ? Plan::attention_backward(
                  {.q = a.q, .k = a.k, .v = a.v, .out = room.out, .lse = room.lse, .dout = a.dout},
                  a.options, room.views().gradients, {kernel.name}, context)
            : Plan::attention(a.q, a.k, a.v, room.out, a.options, with_lse, {kernel.name}, context);
    std::vector<Written> expected;
    for (const Trial& trial : trials) expected.push_back(*trial.run(kernel));

    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::size_t n = 0; n < kThreads; ++n)
      threads.emplace_back([&, n] {
        const Arguments own = trials[n].arguments();
        for (int repeat = 0; repeat < kRepeats; ++repeat) {
          Written written = trials[n].empty_results(kernel.backward);
          AttentionOutputs outputs;
          outputs.lse = written.lse;
          if (kernel.backward) {
            written.out = expected[n].out;
            written.lse = expected[n].lse;
            plan.run_backward({.q = own.q,
                               .k = own.k,
                               .v = own.v,
                               .out = written.out,
                               .lse = written.lse,
                               .dout = own.dout},
                              own.options, written.views().gradients);
          } else {
            plan.run(own.q, own.k, own.v, written.out, own.options, outputs);
          }
          wrong += !same_bits(expected[n], written);
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << kernel.name;
  }
}

// pytorch PR #184122: the same shapes with another scale came from the cache with the old one.
// Every option that is not a tensor, one after the other through one Context, and again.
TEST(Traps, scale_is_part_of_the_plan_cache_key) {
  const Trial plain = make_trial({.batch = 2,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .q_length = 5,
                                  .k_length = 9,
                                  .bias = cases::Bias::full});
  const std::pair<const char*, std::function<void(Trial&)>> changes[] = {
      {"nothing", [](Trial&) {}},
      {"scale", [](Trial& t) { t.plain.scale = 0.7; }},
      {"another scale", [](Trial& t) { t.plain.scale = 1.3; }},
      {"softcap", [](Trial& t) { t.plain.softcap = 2; }},
      {"another softcap", [](Trial& t) { t.plain.softcap = 3; }},
      {"bias before softcap",
       [](Trial& t) { t.plain.softcap = 3, t.plain.bias_before_softcap = true; }},
      {"causal", [](Trial& t) { t.plain.causal = true; }},
      {"window left", [](Trial& t) { t.plain.window.left = 2; }},
      {"window right", [](Trial& t) { t.plain.window.right = 2; }},
      {"offset", [](Trial& t) { t.plain.causal = true, t.plain.query_offset = 1; }},
      {"offset of each",
       [](Trial& t) {
         t.plain.causal = true, t.query_offset = integers_of({0, 3});
       }},
      {"key offset",
       [](Trial& t) { t.plain.causal = true, t.plain.query_offset = 3, t.plain.key_offset = 2; }},
      {"another key offset",
       [](Trial& t) { t.plain.causal = true, t.plain.query_offset = 3, t.plain.key_offset = 1; }},
      {"dropout", [](Trial& t) { t.plain.dropout.p = 0.5; }},
      {"more dropout", [](Trial& t) { t.plain.dropout.p = 0.6; }},
      {"dropout seed", [](Trial& t) { t.plain.dropout = {.p = 0.5, .seed = 9}; }},
      {"dropout offset", [](Trial& t) { t.plain.dropout = {.p = 0.5, .seed = 9, .offset = 1}; }},
      {"dropout origin b", [](Trial& t) { t.plain.dropout = {.p = 0.5, .origin = {.b = 1}}; }},
      {"dropout origin h",
       [](Trial& t) { t.plain.dropout = {.p = 0.5, .origin = {.h = 1, .heads = 4}}; }},
      {"dropout origin i", [](Trial& t) { t.plain.dropout = {.p = 0.5, .origin = {.i = 1}}; }},
      {"dropout origin j", [](Trial& t) { t.plain.dropout = {.p = 0.5, .origin = {.j = 1}}; }},
      {"dropout heads", [](Trial& t) { t.plain.dropout = {.p = 0.5, .origin = {.heads = 5}}; }},
      {"short bias", [](Trial& t) { t.bias = take(t.bias, 3, range(0, 6)); }},
      {"repeated bias", [](Trial& t) { t.bias = take(t.bias, 1, {0}); }},
      {"wide out", [](Trial& t) { t.out_type = DType::f64; }}};
  Context shared;
  for (int round = 0; round < 2; ++round)
    for (const auto& [what, change] : changes) {
      Trial trial = plain;
      change(trial);
      const Arguments a = trial.arguments();
      Context fresh;
      Written expected = trial.empty_results(true), written = expected;
      const auto run_in = [&](Written& to, Context& context) {
        AttentionOutputs outputs;
        outputs.lse = to.lse;
        run_forward({}, a.q, a.k, a.v, to.out, a.options, outputs, context);
        run_backward({},
                     {.q = a.q, .k = a.k, .v = a.v, .out = to.out, .lse = to.lse, .dout = a.dout},
                     a.options, to.views().gradients, context);
      };
      run_in(expected, fresh);
      run_in(written, shared);
      EXPECT_TRUE(same_bits(expected, written)) << what;
      EXPECT_TRUE(close_to_truth(trial, written, 1e-5)) << what;
    }
}

// diffusers #14265: ring attention goes over the keys part by part, and its backward used stale
// ones. The gradient of merge() gives each part its own dout and dlse, with w = exp(lse_part -
// lse):
//   dout_part = w dout        dlse_part = w dout . (o_part - o)
// With these every part gives dk and dv of its keys, and the dq add up.
TEST(Traps, backward_over_parts_of_the_keys_needs_no_other_part) {
  const Trial trial = make_trial({.batch = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .q_length = 6,
                                  .k_length = 20,
                                  .lse_f64 = true,
                                  .width = cases::Width::f64});
  const Written truth = truth_of(trial);
  const std::pair<std::int64_t, std::int64_t> parts[] = {{0, 7}, {7, 8}, {8, 20}};
  for (const KernelUnderTest& kernel : all_kernels()) {
    if (!kernel.backward) continue;
    const auto whole = trial.run(kernel);
    ASSERT_TRUE(whole);
    Tensor dq(trial.q.shape(), DType::f64);
    for (const auto& [begin, end] : parts) {
      Trial part = trial;
      part.k = take(trial.k, 2, range(begin, end));
      part.v = take(trial.v, 2, range(begin, end));
      const auto forward = part.run(forward_kernels().front());
      ASSERT_TRUE(forward);
      part.dout = Tensor(trial.dout.shape(), DType::f64);
      part.dlse = Tensor(whole->lse.shape(), DType::f64);
      cases::for_each_index(part.dout.shape(), [&](const Shape& at) {
        const Shape row = {at[0], at[1], at[2]};
        const double w = std::exp(value_at(forward->lse, row) - value_at(whole->lse, row));
        const double dout = w * value_at(trial.dout, at);
        part.dout.at<double>(at) = dout;
        part.dlse.at<double>(row) += dout * (value_at(forward->out, at) - value_at(whole->out, at));
      });
      const auto backward = part.run(kernel);
      ASSERT_TRUE(backward);
      EXPECT_TRUE(close(take(truth.dk, 2, range(begin, end)), backward->dk, 1e-5)) << kernel.name;
      EXPECT_TRUE(close(take(truth.dv, 2, range(begin, end)), backward->dv, 1e-5)) << kernel.name;
      cases::for_each_index(
          dq.shape(), [&](const Shape& at) { dq.at<double>(at) += value_at(backward->dq, at); });
    }
    EXPECT_TRUE(close(truth.dq, dq, 1e-5)) << kernel.name;
  }
}

}  // namespace
}  // namespace attend::test
