// Traps that other libraries fell into: scores far from zero. Each test names its trap and where it
// was seen; every kernel is put to it.
#include "support/property_truth.h"

#include <cfloat>
#include <cmath>

namespace attend::test {
namespace {

// The smallest number of a type that is not -inf.
double lowest(DType type) {
  switch (type) {
    case DType::f64: return -DBL_MAX;
    case DType::f32: return -FLT_MAX;
    case DType::bf16: return -0x1.fep127;
    default: return -65504;
  }
}

// flashinfer #4267: every logit of a row below a finite sentinel, and the row came out as zeros.
TEST(Traps, logits_far_below_any_sentinel_still_weigh) {
  for (const double level : {-5e4, -1e5, -1e30, -3e38}) {
    Trial trial = make_trial({.heads = 2, .kv_heads = 1, .q_length = 3, .k_length = 6});
    fill(trial.q, 0);  // every score is the bias: the mean of v
    trial.bias = Tensor({1, 1, 1, 1});
    fill(trial.bias, level);
    for (const KernelUnderTest& kernel : all_kernels()) {
      const auto written = trial.run(kernel);
      if (!written && kernel.takes_few_options()) continue;
      ASSERT_TRUE(written);
      EXPECT_TRUE(close(truth_of(trial).out, written->out, 1e-6)) << kernel.name << " " << level;
      EXPECT_TRUE(close(truth_of(trial).lse, written->lse, 1e-6)) << kernel.name << " " << level;
      if (!kernel.backward) continue;
      EXPECT_TRUE(close(truth_of(trial).dq, written->dq, 1e-6, 1)) << kernel.name << " " << level;
      EXPECT_TRUE(close(truth_of(trial).dv, written->dv, 1e-6)) << kernel.name << " " << level;
    }
  }
}

// pytorch #196678, cudnn-frontend #1072: exp underflows, and only the last, half-filled tile shows
// it.
TEST(Traps, logits_near_minus_120_with_length_mod_128_eq_64) {
  for (const DType type : cases::kTypes)
    for (const std::int64_t keys : {64, 192, 320})
      for (const cases::Mask mask : {cases::Mask::none, cases::Mask::per_key, cases::Mask::rows}) {
        const Trial trial = make_trial({.type = type,
                                        .batch = 2,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .q_length = 5,
                                        .k_length = keys,
                                        .d = 16,
                                        .dv = 8,
                                        .values = cases::Values::cold,
                                        .mask = mask});
        for (const KernelUnderTest& kernel : all_kernels(type)) {
          SCOPED_TRACE(trial.line + " kernel " + kernel.name);
          const auto written = trial.run(kernel);
          if (!written && kernel.takes_few_options()) continue;
          ASSERT_TRUE(written);
          EXPECT_TRUE(all_finite(written->out));
          for (const auto member : {&Written::dq, &Written::dk, &Written::dv})
            EXPECT_TRUE(!kernel.backward || all_finite((*written).*member));
          if (kernel.yardstick) continue;  // stores scores of -120 in 8 or 11 bits
          EXPECT_TRUE(close_to_truth(trial, *written, 1e-4 + 16 * unit_roundoff(type)));
        }
      }
}

// pytorch #109517 #110213: a float mask of finite minima is not a hidden row.
TEST(Traps, minus_flt_max_is_not_minus_infinity) {
  for (const DType type : cases::kTypes) {
    Trial trial =
        make_trial({.type = type, .heads = 2, .kv_heads = 2, .q_length = 3, .k_length = 4});
    fill(trial.q, 0);
    trial.bias = Tensor({1, 1, 3, 4}, type);
    for (std::int64_t j = 0; j < 4; ++j) {
      set_value(trial.bias, {0, 0, 0, j}, lowest(type));              // the mean of all
      set_value(trial.bias, {0, 0, 1, j}, j < 2 ? lowest(type) : 0);  // of the last two
      set_value(trial.bias, {0, 0, 2, j}, j < 2 ? 0 : lowest(type));  // of the first two
    }
    for (const KernelUnderTest& kernel : all_kernels(type)) {
      SCOPED_TRACE(kernel.name + " " + std::string(name_of(type)));
      const auto written = trial.run(kernel);
      if (!written && kernel.takes_few_options()) continue;
      ASSERT_TRUE(written);
      EXPECT_TRUE(close(truth_of(trial).out, written->out, usual_error(type), 1));
      EXPECT_TRUE(all_finite(written->lse));
      if (!kernel.backward) continue;
      EXPECT_TRUE(close(truth_of(trial).dq, written->dq, usual_error(type), 1));
      EXPECT_TRUE(close(truth_of(trial).dv, written->dv, usual_error(type), 1));
    }
  }
}

// A score and a bias that are finite, and whose sum is not in the type of the sums: a row of
// nothing else is the mean of v, not a hidden one.
TEST(Traps, a_finite_score_and_a_finite_bias_hide_nothing) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    Trial trial = make_trial(
        {.type = type, .heads = 2, .kv_heads = 2, .q_length = 3, .k_length = 4, .scale = 1e37});
    fill(trial.q, 1);
    fill(trial.k, -1);  // every score is -8e37
    trial.bias = Tensor({1, 1, 1, 1});
    fill(trial.bias, lowest(DType::f32));
    for (const KernelUnderTest& kernel : all_kernels()) {
      if (kernel.yardstick) continue;  // stores scores in the type of q
      SCOPED_TRACE(kernel.name + " " + std::string(name_of(type)));
      const auto written = trial.run(kernel);
      if (!written && kernel.takes_few_options()) continue;
      ASSERT_TRUE(written);
      EXPECT_TRUE(close(truth_of(trial).out, written->out, usual_error(type), 1));
      if (kernel.backward) {
        EXPECT_TRUE(close(truth_of(trial).dv, written->dv, usual_error(type), 1));
      }
    }
  }
}

// Products that vanish below the smallest number leave a sum of -0. A query alone stores its result
// straight from the product; beside others that see more than 256 keys it is joined first, with
// nothing: the same sign.
TEST(Traps, a_sum_that_vanishes_has_one_sign) {
  const auto trial_of = [&](std::int64_t queries, std::int64_t keys) {
    Trial trial = make_trial(
        {.heads = 1, .q_length = queries, .k_length = keys, .d = 8, .dv = 8, .causal = true});
    fill(trial.q, 0);
    fill(trial.v, -static_cast<double>(FLT_TRUE_MIN));
    for (std::int64_t x = 0; x < 8; ++x) set_value(trial.v, {0, 0, 0, x}, 0);
    trial.bias = Tensor({1, 1, 1, keys});
    fill(trial.bias, -3);
    set_value(trial.bias, {0, 0, 0, 0}, 0);  // the largest weight is that of a zero
    return trial;
  };
  const Trial alone = trial_of(1, 255), among = trial_of(4, 258);
  for (const KernelUnderTest& kernel : forward_kernels()) {
    const auto one = alone.run(kernel), four = among.run(kernel);
    ASSERT_TRUE(one && four);
    for (std::int64_t x = 0; x < 8; ++x)
      EXPECT_EQ(std::signbit(value_at(four->out, {0, 0, 0, x})),
                std::signbit(value_at(one->out, {0, 0, 0, x})))
          << kernel.name << " " << x;
  }
}

// A sink of the lowest finite number takes no weight.
TEST(Traps, a_sink_of_minus_flt_max_is_as_good_as_none) {
  for (const DType type : cases::kTypes) {
    const Trial without = make_trial({.type = type, .heads = 2, .q_length = 3, .k_length = 4});
    Trial with = without;
    with.sinks = Tensor({2}, type == DType::f64 ? DType::f64 : DType::f32);
    fill(with.sinks, lowest(with.sinks.dtype()));
    for (const KernelUnderTest& kernel : forward_kernels(type)) {
      const auto expected = without.run(kernel), written = with.run(kernel);
      if (!written && kernel.takes_few_options()) continue;
      ASSERT_TRUE(expected && written);
      EXPECT_TRUE(close(expected->out, written->out, usual_error(type)))
          << kernel.name << " " << name_of(type);
    }
  }
}

TEST(Traps, the_largest_finite_bias_takes_all_the_weight) {
  for (const DType type : cases::kTypes) {
    Trial trial = make_trial({.type = type, .q_length = 1, .k_length = 3});
    trial.bias = Tensor({1, 1, 1, 3}, type);
    set_value(trial.bias, {0, 0, 0, 1}, -lowest(type));
    for (const KernelUnderTest& kernel : forward_kernels(type)) {
      const auto written = trial.run(kernel);
      if (!written && kernel.takes_few_options()) continue;
      ASSERT_TRUE(written);
      EXPECT_TRUE(same_bits(written->out, take(trial.v, 2, {1})))
          << kernel.name << " " << name_of(type);
    }
  }
}

// TransformerEngine #3216: a wrong dq that Gaussian tests do not see.
TEST(Traps, outlier_rich_activations_give_the_right_dq) {
  for (const DType type : cases::kTypes) {
    Trial trial = make_trial({.type = type,
                              .batch = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .q_length = 33,
                              .k_length = 70,
                              .d = 24,
                              .dv = on_gpu() ? 24 : 20,  // for its matrix units, too
                              .values = cases::Values::outliers,
                              .causal = true,
                              .scale = 0.05});
    for (const KernelUnderTest& kernel : all_kernels(type)) {
      if (!kernel.backward || kernel.yardstick) continue;
      const auto written = trial.run(kernel);
      if (!written && kernel.takes_few_options()) continue;
      ASSERT_TRUE(written);
      const std::vector<double> found = widen(written->dq), truth = widen(truth_of(trial).dq);
      double square_error = 0, square = 0;
      for (std::size_t n = 0; n < truth.size(); ++n) {
        square_error += (found[n] - truth[n]) * (found[n] - truth[n]);
        square += truth[n] * truth[n];
      }
      const double error = std::sqrt(square_error / square);
      EXPECT_LT(error, 4 * unit_roundoff(type) + (type == DType::f64 ? 1e-13 : 1e-5))
          << kernel.name << " " << name_of(type);
    }
  }
}

// Where dropout drops the large weights, all that is left may be below the smallest normal number.
TEST(Traps, dropout_leaves_a_subnormal_weight) {
  Tensor q({1, 1, 1, 1}), k({1, 1, 2, 1}), v({1, 1, 2, 1}), out({1, 1, 1, 1});
  fill(q, 1);
  k.data<float>()[1] = -92;  // weighs 1e-40
  v.data<float>()[0] = 1;
  v.data<float>()[1] = 1e30F;
  int left = 0;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    AttentionOptions options;
    options.scale = 1;
    options.dropout = {.p = 0.5, .seed = seed};
    const auto result = [&](const std::string& kernel) {
      run_forward({kernel}, q, k, v, out, options);
      return out.data<float>()[0];
    };
    const float expected = result("reference.forward");
    if (expected == 0 || expected > 1e-5F) continue;  // of both keys, or of the other one
    ++left;
    for (const KernelInfo& kernel : Context::kernels()) {
      if (kernel.operation != "forward" || !is_under_test(kernel.name) ||
          !kernel.name.starts_with(on_gpu() ? "cuda." : "cpu."))
        continue;
      try {
        EXPECT_NEAR(result(kernel.name) / expected, 1, 1e-3) << kernel.name;
      } catch (const Unsupported&) {  // the machine has it not
      }
    }
  }
  EXPECT_GT(left, 0);
}

}  // namespace
}  // namespace attend::test
