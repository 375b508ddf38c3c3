// Properties of scores and weights that follow from the formulas: P2, P9, P13, P14, P17. Sums in
// another order differ by rounding, so they hold within an error.
#include "support/property_compare.h"
#include "support/property_trial.h"

#include "cases/arena.h"

#include <algorithm>
#include <cmath>

namespace attend::test {
namespace {

using cases::Addressing;
using cases::Case;

// Outliers cancel, and then an error is large beside the result. Their truth is conformance_test's.
void without_outliers(Case& c) { c.values = cases::Values::gaussian; }

// What two runs may differ by: the usual error, and that of weights whose scores were rounded, by
// the textbook kernel to the tensors' type. lse is about as large as the largest score.
double error_of(const Trial& trial, const Written& results, const KernelUnderTest& kernel) {
  double largest = 0;
  for (const double lse : widen(results.lse))
    if (std::isfinite(lse)) largest = std::max(largest, std::abs(lse));
  const DType type = trial.q.dtype();
  const DType scores = kernel.yardstick || type == DType::f64 ? type : DType::f32;
  return usual_error(type) + 8 * unit_roundoff(scores) * largest;
}

TEST(Properties, p2_permuted_keys_give_the_same_output) {
  const auto adapt = [](Case& c) {
    without_outliers(c);
    c.causal = c.alibi = false;
    c.window_left = c.window_right = kUnlimited;
    c.addressing = Addressing::dense;
    c.key_lengths = cases::Lengths::none;
    c.dropout = 0;
    c.block_k = 1;
  };
  for_trials(every_kernel(), 2000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& before) {
               const std::int64_t keys = trial.k.size(2);
               const std::vector<std::int64_t> order = shuffled(keys, 2);
               Trial permuted = trial;
               permuted.k = take(trial.k, 2, order);
               permuted.v = take(trial.v, 2, order);
               permuted.blocks = take_of_repeated(trial.blocks, 3, order);
               permuted.mask = take_of_repeated(with_all_keys(trial.mask, keys), 3, order);
               permuted.bias = take_of_repeated(with_all_keys(trial.bias, keys), 3, order);
               const auto after = permuted.run(kernel);
               ASSERT_TRUE(after);
               const double error = error_of(trial, before, kernel);
               EXPECT_TRUE(close(before.out, after->out, error));
               EXPECT_TRUE(close(before.lse, after->lse, error, 1));
               if (!kernel.backward) return;
               EXPECT_TRUE(close(before.dq, after->dq, error, 1));
               EXPECT_TRUE(close(take(before.dk, 2, order), after->dk, error, 1));
               EXPECT_TRUE(close(take(before.dv, 2, order), after->dv, error, 1));
             });
}

// ---- P9 ----------------------------------------------------------------------------------------

TEST(Properties, p9_weights_times_v_is_the_output_and_rows_sum_to_one_or_zero) {
  const auto adapt = [](Case& c) { c.dropout = 0; };
  for_trials(every_forward_kernel(), 9000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& results) {
               const Arguments a = trial.arguments();
               const Extents e = extents_of(a);
               Tensor weights({e.batch, e.heads, e.queries, e.keys}, trial.out_type);
               fill(weights, NAN);
               AttentionOutputs outputs;
               outputs.lse = results.lse;
               outputs.weights = weights;
               Tensor out = results.out;
               run_forward(kernel, a.q, a.k, a.v, out, a.options, outputs);

               const double u = unit_roundoff(trial.q.dtype());
               const double error =
                   usual_error(trial.q.dtype()) + 4 * unit_roundoff(trial.out_type);
               Tensor product(out.shape(), DType::f64);
               for (const SeenRow& row : seen_rows(trial)) {
                 double sum = 0;
                 for (std::int64_t j = 0; j < e.keys; ++j)
                   sum += value_at(weights, {row.b, row.h, row.i, j});
                 if (row.keys.empty()) {
                   EXPECT_EQ(sum, 0) << "head " << row.h << " row " << row.i;
                 } else if (!trial.sinks) {
                   EXPECT_NEAR(sum, 1, 2 * u + error) << "head " << row.h << " row " << row.i;
                 }
                 for (std::size_t n = 0; n < row.keys.size(); ++n) {
                   const double p = value_at(weights, {row.b, row.h, row.i, row.numbers[n]});
                   for (std::int64_t x = 0; x < e.dv; ++x)
                     product.at<double>({row.query.b, row.h, row.query.t, x}) +=
                         p * value_at(trial.v, {row.keys[n].b, row.kv_head, row.keys[n].t, x});
                 }
               }
               EXPECT_TRUE(close(product, out, error, 1));
             });
}

// ---- Scores ------------------------------------------------------------------------------------

TEST(Properties, p13_the_scale_is_close_to_a_scaled_query) {
  const auto adapt = [](Case& c) {
    c.scale = 0.25;  // exact in every type; others round q
    if (c.type == DType::f64 || c.type == DType::f32) c.scale = 0.3;
    without_outliers(c);
  };
  for_trials(every_kernel(), 13000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& by_option) {
               const double scale = *trial.plain.scale;
               Trial scaled = trial;
               scaled.plain.scale = 1;
               cases::for_each_index(trial.q.shape(), [&](const Shape& index) {
                 set_value(scaled.q, index, scale * value_at(trial.q, index));
               });
               auto by_query = scaled.run(kernel);
               ASSERT_TRUE(by_query);
               const double error = error_of(trial, by_option, kernel);
               EXPECT_TRUE(close(by_option.out, by_query->out, error, 1));
               EXPECT_TRUE(close(by_option.lse, by_query->lse, error, 1));
               if (!kernel.backward) return;
               EXPECT_TRUE(close(by_option.dk, by_query->dk, error, 1));
               EXPECT_TRUE(close(by_option.dv, by_query->dv, error, 1));
               Tensor dq(trial.q.shape(), DType::f64);  // d/dq of f(scale q)
               cases::for_each_index(dq.shape(), [&](const Shape& index) {
                 set_value(dq, index, scale * value_at(by_query->dq, index));
               });
               EXPECT_TRUE(close(by_option.dq, dq, error, 1));
             });
}

TEST(Properties, p14_a_constant_added_to_a_bias_row_moves_only_lse) {
  const auto adapt = [](Case& c) {
    without_outliers(c);
    c.bias = c.seed % 2 == 0 ? cases::Bias::full : cases::Bias::infinite;
    c.bias_f32 = c.type != DType::f64;
    c.bias_before_softcap = c.sinks = false;
    c.lse_f64 = true;
  };
  for_trials(
      every_kernel(), 14000, 120, adapt,
      [](const Trial& trial, const KernelUnderTest& kernel, Written& before) {
        // One constant for each row.
        const auto constant = [](const Shape& i) {
          return 3.25 - 0.5 * double(i[2]) + double(i[1]);
        };
        Trial moved = trial;
        cases::for_each_index(trial.bias.shape(), [&](const Shape& index) {
          set_value(moved.bias, index, value_at(trial.bias, index) + constant(index));
        });
        auto after = moved.run(kernel);
        ASSERT_TRUE(after);
        const double error =
            2 * error_of(trial, before, kernel) + 2 * error_of(trial, *after, kernel);
        EXPECT_TRUE(close(before.out, after->out, error, 1));
        for (const SeenRow& row : seen_rows(trial)) {
          const Shape at = {row.query.b, row.h, row.query.t};
          set_value(after->lse, at, value_at(after->lse, at) - constant({row.b, row.h, row.i}));
        }
        EXPECT_TRUE(close(before.lse, after->lse, error, 10));
        if (!kernel.backward) return;
        EXPECT_TRUE(close(before.dq, after->dq, error, 1));
        EXPECT_TRUE(close(before.dk, after->dk, error, 1));
        EXPECT_TRUE(close(before.dv, after->dv, error, 1));
      });
}

TEST(Properties, p17_the_gradient_at_the_scores_sums_to_dlse) {
  const auto adapt = [](Case& c) {
    without_outliers(c);
    c.bias = cases::Bias::full;  // its gradient is that of the scores
    c.bias_f32 = c.type != DType::f64;
    c.bias_before_softcap = c.sinks = false;
  };
  for_trials(every_kernel(), 17000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& results) {
               if (!kernel.backward || kernel.yardstick) return;
               const double error = error_of(trial, results, kernel) +
                                    4 * unit_roundoff(trial.out_type);  // delta = dout . out
               for (const SeenRow& row : seen_rows(trial)) {
                 double sum = 0, size = 1;
                 for (const std::int64_t j : row.numbers) {
                   const double ds = value_at(results.dbias, {row.b, row.h, row.i, j});
                   sum += ds;
                   size += std::abs(ds);
                 }
                 for (std::int64_t x = 0; x < trial.v.size(3); ++x) {
                   const Shape at = {row.query.b, row.h, row.query.t, x};
                   size += std::abs(value_at(trial.dout, at) * value_at(results.out, at));
                 }
                 const double dlse =
                     trial.dlse ? value_at(trial.dlse, {row.query.b, row.h, row.query.t}) : 0;
                 EXPECT_NEAR(sum, row.keys.empty() ? 0 : dlse, error * (size + std::abs(dlse)))
                     << "batch " << row.b << " head " << row.h << " row " << row.i;
               }
             });
}

}  // namespace
}  // namespace attend::test
