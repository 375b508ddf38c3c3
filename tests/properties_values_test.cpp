// Properties of values and projections that follow from the formulas: P10, P15, P16, P21, P22, each
// within an error.
#include "support/property_compare.h"
#include "support/property_trial.h"

#include "cases/arena.h"

#include <algorithm>
#include <cmath>

namespace attend::test {
namespace {

using cases::Case;

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

// attention(), causal, on the host or on the GPU.
Tensor attended(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) {
  Tensor out({q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype());
  run_forward({}, q, k, v, out, {.causal = true});
  return out;
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
    const Tensor fused = attended(as_heads(q, kHeads), as_heads(k, kHeads), as_heads(v, kHeads));
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::vector<std::int64_t> columns = range(h * kD, (h + 1) * kD);
      Tensor q_h = project(x, take(w_q, 1, columns)), k_h = project(x, take(w_k, 1, columns));
      Tensor v_h = project(x, take(w_v, 1, range(h * kDv, (h + 1) * kDv)));
      const Tensor alone = attended(as_heads(q_h, 1), as_heads(k_h, 1), as_heads(v_h, 1));
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
    run_forward({}, q, k, v, as_heads(concat, kHeads), {.causal = true});
    const Tensor output = project(concat, w_o);

    Tensor sum({kBatch, kLength, kModel}, DType::f64);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      Tensor head({kBatch, kLength, kDv}, type);
      run_forward({}, take(q, 1, {h}), take(k, 1, {h}), take(v, 1, {h}), as_heads(head, 1),
                  {.causal = true});
      const Tensor contribution = project(head, take(w_o, 0, range(h * kDv, (h + 1) * kDv)));
      for (std::int64_t n = 0; n < sum.count(); ++n)
        sum.data<double>()[n] += widen(contribution)[static_cast<std::size_t>(n)];
    }
    EXPECT_TRUE(close(output, sum, usual_error(type))) << name_of(type);
  }
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
  for_trials(every_forward_kernel(), 15000, 120, without_sinks_and_dropout,
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
  for_trials(every_forward_kernel(), 16000, 120, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written&) {
               Trial zero = trial;
               fill(zero.q, 0);
               const auto results = zero.run(kernel);
               ASSERT_TRUE(results);
               expect_rows(zero, *results, 5 * usual_error(trial.q.dtype()),
                           [&](const SeenRow& row, std::int64_t x) {
                             double sum = 0;
                             for (const RowAddress& key : row.keys)
                               sum += value_at(trial.v, {key.b, row.kv_head, key.t, x});
                             return sum / static_cast<double>(row.keys.size());
                           });
             });
}

TEST(Properties, p21_every_output_lies_between_the_least_and_the_largest_visible_value) {
  for_trials(every_forward_kernel(), 21000, 120, without_sinks_and_dropout,
             [](const Trial& trial, const KernelUnderTest&, Written& results) {
               const double error = usual_error(trial.q.dtype());
               for (const SeenRow& row : seen_rows(trial))
                 for (std::int64_t x = 0; x < trial.v.size(3) && !row.keys.empty(); ++x) {
                   double least = INFINITY, most = -INFINITY;
                   for (const RowAddress& key : row.keys) {
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
