// Properties that follow from the formulas: P2, P9, P10, P13 to P17, P21, P22. Those with a sum in
// another order hold within an error.
#include "support/property_compare.h"
#include "support/property_trial.h"

#include "cases/arena.h"

#include <algorithm>
#include <cmath>

namespace attend::test {
namespace {

using cases::Addressing;
using cases::Case;

// What two runs may differ by: the usual error, and in backward that of weights exp(s - lse), whose
// lse was rounded.
double error_of(const Trial& trial, const Written& results) {
  double largest = 0;
  for (const double lse : widen(results.lse))
    if (std::isfinite(lse)) largest = std::max(largest, std::abs(lse));
  return usual_error(trial.q.dtype()) + 4 * unit_roundoff(trial.lse_type) * largest;
}

// One query of one head, and the keys it sees.
struct SeenRow {
  std::int64_t b = 0, h = 0, i = 0, kv_head = 0;
  Row query;
  std::vector<Row> keys;
  std::vector<std::int64_t> numbers;  // j of each
};

std::vector<SeenRow> seen_rows(const Trial& trial) {
  const Reader reader(trial.arguments());
  const Extents e = reader.extents();
  std::vector<SeenRow> list;
  for (std::int64_t b = 0; b < e.batch; ++b) {
    const SequenceRows rows = rows_of(trial.arguments(), b);
    for (std::int64_t h = 0; h < e.heads; ++h)
      for (std::size_t i = 0; i < rows.queries.size(); ++i) {
        SeenRow row{
            b,  h, static_cast<std::int64_t>(i), h / (e.heads / e.kv_heads), rows.queries[i],
            {}, {}};
        for (std::size_t j = 0; j < rows.keys.size(); ++j)
          if (reader.pair_visible(rows, b, h, row.i, static_cast<std::int64_t>(j))) {
            row.keys.push_back(rows.keys[j]);
            row.numbers.push_back(static_cast<std::int64_t>(j));
          }
        list.push_back(std::move(row));
      }
  }
  return list;
}

TEST(Properties, p2_permuted_keys_give_the_same_output) {
  const auto adapt = [](Case& c) {
    c.causal = c.alibi = false;
    c.window_left = c.window_right = kUnlimited;
    c.addressing = Addressing::dense;
    c.key_lengths = cases::Lengths::none;
    c.dropout = 0;
    c.block_k = 1;
  };
  for_trials(all_kernels(), 2000, 120, adapt,
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
               const double error = error_of(trial, before);
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
  for_trials(forward_kernels(), 9000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& results) {
               const Arguments a = trial.arguments();
               const Extents e = extents_of(a);
               Tensor weights({e.batch, e.heads, e.queries, e.keys}, trial.out_type);
               fill(weights, NAN);
               AttentionOutputs outputs;
               outputs.lse = results.lse;
               outputs.weights = weights;
               Tensor out = results.out;
               Plan::attention(a.q, a.k, a.v, out, a.options, outputs, {kernel.name})
                   .run(a.q, a.k, a.v, out, a.options, outputs);

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

// ---- Projections -------------------------------------------------------------------------------

// x [batch, length, n] times w [n, m], rounded to x's type.
Tensor project(const Tensor& x, const Tensor& w) {
  Tensor y({x.size(0), x.size(1), w.size(1)}, x.dtype());
  cases::for_each_index(y.shape(), [&](const Shape& index) {
    double sum = 0;
    for (std::int64_t n = 0; n < w.size(0); ++n)
      sum += value_at(x, {index[0], index[1], n}) * value_at(w, {n, index[2]});
    set_value(y, index, sum);
  });
  return y;
}

// [batch, length, heads * d] seen as [batch, heads, length, d].
TensorView as_heads(Tensor& t, std::int64_t heads) {
  const std::int64_t d = t.size(2) / heads;
  void* const data = t.view().data();
  return TensorView(data, t.dtype(), {t.size(0), t.size(1), heads, d}).permute({0, 2, 1, 3});
}

// A layer's sizes, of which no two are equal: a square matrix would hide a transposed one.
constexpr std::int64_t kBatch = 2, kLength = 7, kModel = 20, kHeads = 3, kD = 4, kDv = 5;

TEST(Properties, p10_a_fused_projection_equals_separate_ones) {
  for (const DType type : cases::kTypes) {
    const Tensor x = gaussian({kBatch, kLength, kModel}, type, 10);
    const Tensor w_q = gaussian({kModel, kHeads * kD}, type, 11, 0.3);
    const Tensor w_k = gaussian({kModel, kHeads * kD}, type, 12, 0.3);
    const Tensor w_v = gaussian({kModel, kHeads * kDv}, type, 13, 0.3);
    Tensor q = project(x, w_q), k = project(x, w_k), v = project(x, w_v);
    const Tensor fused =
        attention(as_heads(q, kHeads), as_heads(k, kHeads), as_heads(v, kHeads), {.causal = true});
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::vector<std::int64_t> columns = range(h * kD, (h + 1) * kD);
      Tensor q_h = project(x, take(w_q, 1, columns)), k_h = project(x, take(w_k, 1, columns));
      Tensor v_h = project(x, take(w_v, 1, range(h * kDv, (h + 1) * kDv)));
      const Tensor alone =
          attention(as_heads(q_h, 1), as_heads(k_h, 1), as_heads(v_h, 1), {.causal = true});
      EXPECT_TRUE(close(take(fused, 1, {h}), alone, usual_error(type)))
          << name_of(type) << ", head " << h;
    }
  }
}

TEST(Properties, p22_concat_times_w_o_is_the_sum_of_the_heads_contributions) {
  for (const DType type : cases::kTypes) {
    const Tensor q = gaussian({kBatch, kHeads, kLength, kD}, type, 21);
    const Tensor k = gaussian({kBatch, kHeads, kLength, kD}, type, 22);
    const Tensor v = gaussian({kBatch, kHeads, kLength, kDv}, type, 23);
    const Tensor w_o = gaussian({kHeads * kDv, kModel}, type, 24);
    Tensor concat({kBatch, kLength, kHeads * kDv}, type);
    attention(q, k, v, as_heads(concat, kHeads), {.causal = true});
    const Tensor output = project(concat, w_o);

    Tensor sum({kBatch, kLength, kModel}, DType::f64);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      Tensor head({kBatch, kLength, kDv}, type);
      attention(take(q, 1, {h}), take(k, 1, {h}), take(v, 1, {h}), as_heads(head, 1),
                {.causal = true});
      const Tensor contribution = project(head, take(w_o, 0, range(h * kDv, (h + 1) * kDv)));
      for (std::int64_t n = 0; n < sum.count(); ++n)
        sum.data<double>()[n] += widen(contribution)[static_cast<std::size_t>(n)];
    }
    EXPECT_TRUE(close(output, sum, usual_error(type))) << name_of(type);
  }
}

// ---- Scores ------------------------------------------------------------------------------------

TEST(Properties, p13_the_scale_is_close_to_a_scaled_query) {
  const auto adapt = [](Case& c) {
    c.scale = 0.25;  // exact in every type; others round q
    if (c.type == DType::f64 || c.type == DType::f32) c.scale = 0.3;
    if (c.values == cases::Values::outliers) c.values = cases::Values::gaussian;
  };
  for_trials(all_kernels(), 13000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& by_option) {
               const double scale = *trial.plain.scale;
               Trial scaled = trial;
               scaled.plain.scale = 1;
               cases::for_each_index(trial.q.shape(), [&](const Shape& index) {
                 set_value(scaled.q, index, scale * value_at(trial.q, index));
               });
               auto by_query = scaled.run(kernel);
               ASSERT_TRUE(by_query);
               const double error = error_of(trial, by_option);
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
    c.bias = c.seed % 2 == 0 ? cases::Bias::full : cases::Bias::infinite;
    c.bias_f32 = c.type != DType::f64;
    c.bias_before_softcap = c.sinks = false;
    c.lse_f64 = true;
  };
  for_trials(
      all_kernels(), 14000, 120, adapt,
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
        const double error = 2 * error_of(trial, before) + 2 * error_of(trial, *after);
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
    c.bias = cases::Bias::full;  // its gradient is that of the scores
    c.bias_f32 = c.type != DType::f64;
    c.bias_before_softcap = c.sinks = false;
  };
  for_trials(all_kernels(), 17000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& results) {
               if (!kernel.backward || kernel.yardstick) return;
               const double error = error_of(trial, results) +
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

// ---- Values ------------------------------------------------------------------------------------

void without_sinks_and_dropout(Case& c) {
  c.sinks = false;
  c.dropout = 0;
}

// Compares a row's output with value(row, x).
template <class Value>
void expect_rows(const Trial& trial, const Written& results, double error, Value&& value) {
  for (const SeenRow& row : seen_rows(trial))
    for (std::int64_t x = 0; x < trial.v.size(3); ++x)
      EXPECT_NEAR(value_at(results.out, {row.query.b, row.h, row.query.t, x}),
                  row.keys.empty() ? 0 : value(row, x), error)
          << "batch " << row.b << " head " << row.h << " row " << row.i;
}

TEST(Properties, p15_constant_values_give_constant_output) {
  for_trials(forward_kernels(), 15000, 120, without_sinks_and_dropout,
             [](const Trial& trial, const KernelUnderTest& kernel, Written&) {
               Trial constant = trial;
               fill(constant.v, 0.75);
               const auto results = constant.run(kernel);
               ASSERT_TRUE(results);
               expect_rows(constant, *results, usual_error(trial.q.dtype()),
                           [](const SeenRow&, std::int64_t) { return 0.75; });
             });
}

TEST(Properties, p16_a_query_of_zero_gives_the_mean_of_the_visible_values) {
  const auto adapt = [](Case& c) {
    without_sinks_and_dropout(c);
    c.bias = cases::Bias::none;
    c.alibi = false;
    c.values = cases::Values::gaussian;
  };
  for_trials(forward_kernels(), 16000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written&) {
               Trial zero = trial;
               fill(zero.q, 0);
               const auto results = zero.run(kernel);
               ASSERT_TRUE(results);
               expect_rows(zero, *results, 5 * usual_error(trial.q.dtype()),
                           [&](const SeenRow& row, std::int64_t x) {
                             double sum = 0;
                             for (const Row& key : row.keys)
                               sum += value_at(trial.v, {key.b, row.kv_head, key.t, x});
                             return sum / static_cast<double>(row.keys.size());
                           });
             });
}

TEST(Properties, p21_every_output_lies_between_the_least_and_the_largest_visible_value) {
  for_trials(forward_kernels(), 21000, 120, without_sinks_and_dropout,
             [](const Trial& trial, const KernelUnderTest&, Written& results) {
               const double error = usual_error(trial.q.dtype());
               for (const SeenRow& row : seen_rows(trial))
                 for (std::int64_t x = 0; x < trial.v.size(3) && !row.keys.empty(); ++x) {
                   double least = INFINITY, most = -INFINITY;
                   for (const Row& key : row.keys) {
                     const double v = value_at(trial.v, {key.b, row.kv_head, key.t, x});
                     least = std::min(least, v);
                     most = std::max(most, v);
                   }
                   const double o = value_at(results.out, {row.query.b, row.h, row.query.t, x});
                   const double slack = error * std::max(std::abs(least), std::abs(most));
                   EXPECT_TRUE(o >= least - slack && o <= most + slack)
                       << o << " outside " << least << " to " << most << ", head " << row.h
                       << " row " << row.i;
                 }
             });
}

}  // namespace
}  // namespace attend::test
