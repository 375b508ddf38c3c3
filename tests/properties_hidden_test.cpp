// Properties of what is hidden: P1, P6, P7. Hidden means hidden, forward and backward: whatever
// lies there changes no bit. The textbook kernel is held to all of them as well.
#include "support/property_compare.h"
#include "support/property_trial.h"

#include "cases/arena.h"

#include <cmath>

namespace attend::test {
namespace {

using cases::Case;

// What is put where nobody should look.
double poison(std::int64_t n) {
  constexpr double kPoisons[] = {NAN, INFINITY, -INFINITY, 6e4};
  return kPoisons[n % 4];
}

void poison_row(Tensor& tensor, std::int64_t b, std::int64_t h, std::int64_t t, double value) {
  for (std::int64_t x = 0; x < tensor.size(3); ++x) set_value(tensor, {b, h, t, x}, value);
}

TEST(Properties, p1_boolean_mask_equals_bias_of_minus_infinity) {
  const auto adapt = [](Case& c) {
    using cases::Mask;
    constexpr Mask kMasks[] = {Mask::full, Mask::per_key,  Mask::rows,   Mask::short_full,
                               Mask::key,  Mask::per_head, Mask::nothing};
    c.mask = kMasks[c.seed % 7];
    c.bias = cases::Bias::none;
  };
  for_trials(every_kernel(), 1000, 150, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& masked) {
               Trial other = trial;
               other.bias = Tensor(trial.mask.shape(), trial.q.dtype());
               cases::for_each_index(trial.mask.shape(), [&](const Shape& index) {
                 set_value(other.bias, index, value_at(trial.mask, index) == 0 ? -INFINITY : 0);
               });
               other.mask = {};
               auto biased = other.run(kernel);
               ASSERT_TRUE(biased);
               biased->dbias = {};
               EXPECT_TRUE(same_bits(masked, *biased));
             });
}

// ---- P6 ----------------------------------------------------------------------------------------

// Which rows of k, elements of the bias and queries nobody looks at.
struct Unseen {
  explicit Unseen(const Trial& trial);
  std::vector<bool> key;   // [first index, key head, third index] of k
  std::vector<bool> bias;  // every element
  std::vector<SeenRow> rows_without_keys;
};

Unseen::Unseen(const Trial& trial)
    : key(static_cast<std::size_t>(trial.k.size(0) * trial.k.size(1) * trial.k.size(2)), true),
      bias(static_cast<std::size_t>(trial.bias ? trial.bias.count() : 0), true) {
  const Reader reader(trial.arguments());
  for (SeenRow& row : seen_rows(trial)) {
    for (const RowAddress& at : row.keys)
      key[static_cast<std::size_t>((at.b * trial.k.size(1) + row.kv_head) * trial.k.size(2) +
                                   at.t)] = false;
    if (trial.bias)
      for (const std::int64_t j : row.numbers)
        bias[static_cast<std::size_t>(reader.bias_index(row.b, row.h, row.i, j))] = false;
    if (row.keys.empty()) rows_without_keys.push_back(std::move(row));
  }
}

// NaN, infinities and large numbers wherever nobody looks. How many places that were.
std::int64_t poison_unseen(Trial& trial, const Unseen& unseen) {
  std::int64_t count = 0;
  std::size_t n = 0;
  for (std::int64_t b = 0; b < trial.k.size(0); ++b)
    for (std::int64_t h = 0; h < trial.k.size(1); ++h)
      for (std::int64_t t = 0; t < trial.k.size(2); ++t) {
        if (!unseen.key[n++]) continue;
        ++count;
        poison_row(trial.k, b, h, t, poison(count));
        poison_row(trial.v, b, h, t, poison(count + 1));
      }
  n = 0;
  if (trial.bias)
    cases::for_each_index(trial.bias.shape(), [&](const Shape& index) {
      if (!unseen.bias[n++] || value_at(trial.bias, index) == -INFINITY) return;
      ++count;  // an element that is -inf may be all that hides its pair
      set_value(trial.bias, index, count % 2 == 0 ? NAN : INFINITY);
    });
  for (const SeenRow& row : unseen.rows_without_keys) {
    ++count;
    poison_row(trial.q, row.query.b, row.h, row.query.t, NAN);
    poison_row(trial.dout, row.query.b, row.h, row.query.t, NAN);
    // With a sink, lse is the sink's, and its gradient counts.
    if (trial.dlse && !trial.sinks) set_value(trial.dlse, {row.query.b, row.h, row.query.t}, NAN);
  }
  return count;
}

TEST(Properties, p6_hidden_nan_changes_no_bit) {
  std::int64_t poisoned = 0;
  for_trials(
      every_kernel(), 6000, 200, [](Case&) {},
      [&](const Trial& trial, const KernelUnderTest& kernel, Written& clean) {
        Trial dirty = trial;
        poisoned += poison_unseen(dirty, Unseen(trial));
        const auto results = dirty.run(kernel);
        ASSERT_TRUE(results);
        EXPECT_TRUE(same_bits(clean, *results));
      });
  EXPECT_GT(poisoned, 1000);
}

// A key that some queries see and others do not, as in a tile that is partly hidden.
void expect_nan_reaches_only_who_sees_it(const Trial& trial, const KernelUnderTest& kernel,
                                         Written& clean) {
  const Reader reader(trial.arguments());
  const Extents e = reader.extents();
  const SequenceRows rows = rows_of(trial.arguments(), 0);
  if (rows.keys.empty()) return;
  const auto keys = static_cast<std::int64_t>(rows.keys.size());
  for (const bool in_key : {true, false}) {
    const std::int64_t j = static_cast<std::int64_t>(trial.line.size()) * 5 % keys;
    Trial dirty = trial;
    const RowAddress at = rows.keys[static_cast<std::size_t>(j)];
    for (std::int64_t h = 0; h < e.kv_heads; ++h)
      poison_row(in_key ? dirty.k : dirty.v, at.b, h, at.t, NAN);
    const auto results = dirty.run(kernel);
    ASSERT_TRUE(results);
    for (std::int64_t h = 0; h < e.heads; ++h)
      for (std::size_t i = 0; i < rows.queries.size(); ++i) {
        const auto row = [&](const Tensor& t) {
          return take(gather_rows(t, {rows.queries[i]}), 1, {h});
        };
        const bool sees = reader.pair_visible(rows, 0, h, static_cast<std::int64_t>(i), j);
        if (!sees) {
          EXPECT_TRUE(same_bits(row(clean.out), row(results->out))) << "head " << h << " row " << i;
          EXPECT_TRUE(same_bits(row(clean.lse), row(results->lse))) << "head " << h << " row " << i;
          EXPECT_TRUE(same_bits(row(clean.dq), row(results->dq))) << "head " << h << " row " << i;
        } else if (in_key || !kernel.yardstick) {  // textbook rounds small weights to 0
          for (const double o : widen(row(results->out)))
            EXPECT_TRUE(std::isnan(o)) << "key " << j << ", head " << h << " row " << i;
        }
      }
  }
}

TEST(Properties, p6_visible_nan_reaches_who_sees_it_and_nobody_else) {
  const auto adapt = [](Case& c) {
    c.dropout = 0;
    c.values = cases::Values::gaussian;
  };
  for_trials(every_kernel(), 6500, 150, adapt, expect_nan_reaches_only_who_sees_it);
}

TEST(Properties, p7_future_tokens_change_no_past_bit) {
  const auto adapt = [](Case& c) { c.causal = true; };
  for_trials(every_kernel(), 7000, 150, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written& clean) {
               for (std::int64_t b = 0; b < extents_of(trial.arguments()).batch; ++b) {
                 const SequenceRows rows = rows_of(trial.arguments(), b);
                 if (rows.keys.empty() || rows.queries.empty()) continue;
                 const auto keys = static_cast<std::int64_t>(rows.keys.size());
                 const std::int64_t present = static_cast<std::int64_t>(trial.line.size()) % keys;
                 Trial changed = trial;
                 for (std::int64_t j = present + 1; j < keys; ++j) {
                   const RowAddress at = rows.keys[static_cast<std::size_t>(j)];
                   for (std::int64_t h = 0; h < trial.k.size(1); ++h) {
                     poison_row(changed.k, at.b, h, at.t, poison(j));
                     poison_row(changed.v, at.b, h, at.t, poison(j + 1));
                   }
                 }
                 const auto results = changed.run(kernel);
                 ASSERT_TRUE(results);
                 std::vector<RowAddress> past;
                 for (std::size_t i = 0; i < rows.queries.size(); ++i)
                   if (static_cast<std::int64_t>(i) + rows.offset <= present)
                     past.push_back(rows.queries[i]);
                 for (const auto member : {&Written::out, &Written::lse, &Written::dq})
                   EXPECT_TRUE(same_bits(gather_rows(clean.*member, past),
                                         gather_rows((*results).*member, past)));
               }
             });
}

}  // namespace
}  // namespace attend::test
