// Weights of chosen heads alone (weight_heads), for the cases of the table in every type, by every
// kernel: the bits that they have among those of all heads, and nothing else changes.
#include "cases/arena.h"
#include "cases/instance.h"
#include "support/widen.h"

#include <attend/plan.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

namespace attend::test {
namespace {

struct Given {
  std::vector<double> out, lse, weights, scores;
};

// What a kernel writes; nothing if it declines the problem.
std::optional<Given> run(cases::Instance& in, const std::string& kernel,
                         const std::vector<std::int64_t>& heads, Context& context) {
  Shape shape = weights_shape(in.q, in.k, in.v, in.options);
  if (!heads.empty()) shape[1] = static_cast<std::int64_t>(heads.size());
  Tensor weights(shape, in.q.dtype());
  AttentionOutputs outputs = in.outputs_with_lse();
  outputs.weights = weights;
  outputs.weight_heads = heads;
  in.poison_outputs();
  cases::for_each_index(shape, [&](const Shape& index) { cases::store(weights, index, NAN); });
  try {
    const Plan plan =
        Plan::attention(in.q, in.k, in.v, in.out, in.options, outputs, {kernel}, context);
    plan.run(in.q, in.k, in.v, in.out, in.options, outputs);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
  return Given{widen(in.out), widen(in.lse), widen(weights),
               outputs.scores ? widen(outputs.scores) : std::vector<double>()};
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// The chosen heads of the weights of all.
std::vector<double> chosen(const std::vector<double>& all, const Shape& shape,
                           const std::vector<std::int64_t>& heads) {
  const auto head = static_cast<std::size_t>(shape[2] * shape[3]);
  std::vector<double> some;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (const std::int64_t h : heads) {
      const double* from = all.data() + static_cast<std::size_t>(b * shape[1] + h) * head;
      some.insert(some.end(), from, from + head);
    }
  return some;
}

// The last head alone, and all but the last, from behind: of a group some, and whole groups.
std::vector<std::vector<std::int64_t>> choices(std::int64_t heads) {
  std::vector<std::vector<std::int64_t>> lists = {{heads - 1}};
  if (heads == 1) return lists;
  lists.emplace_back();
  for (std::int64_t h = heads - 2; h >= 0; --h) lists.back().push_back(h);
  return lists;
}

TEST(WeightHeads, have_the_bits_that_they_have_among_all) {
  Context context({.threads = 2});
  int compared = 0;
  for (cases::Case c : cases::reduced_table()) {
    for (const DType type : cases::kTypes) {
      c.type = type;
      cases::Instance in = cases::make(c);
      const Shape shape = weights_shape(in.q, in.k, in.v, in.options);
      if (c.heads == 0) continue;
      for (const KernelInfo& kernel : Context::kernels()) {
        if (kernel.operation != "forward") continue;
        const auto all = run(in, kernel.name, {}, context);
        if (!all) continue;
        for (const std::vector<std::int64_t>& heads : choices(c.heads)) {
          const std::string where =
              kernel.name + ", " + std::to_string(heads.size()) + " heads, " + name(c);
          const auto some = run(in, kernel.name, heads, context);
          ASSERT_TRUE(some) << where;
          EXPECT_TRUE(same_bits(some->weights, chosen(all->weights, shape, heads))) << where;
          EXPECT_TRUE(same_bits(some->out, all->out)) << where;
          EXPECT_TRUE(same_bits(some->lse, all->lse)) << where;
          EXPECT_TRUE(same_bits(some->scores, all->scores)) << where;
          EXPECT_TRUE(in.guards_intact()) << where;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(WeightHeads, a_plan_says_how_many_and_runs_with_others) {
  const Tensor q({1, 4, 5, 8}, DType::f32);
  Tensor out({1, 4, 5, 8}, DType::f32), weights({1, 1, 5, 5}, DType::f32);
  const Plan plan =
      Plan::attention(q, q, q, out, {.causal = true}, {.weights = weights, .weight_heads = {2}});
  EXPECT_NE(plan.describe().find("weights of 1 head"), std::string::npos) << plan.describe();
  plan.run(q, q, q, out, {.causal = true}, {.weights = weights, .weight_heads = {3}});
  EXPECT_EQ(widen(weights)[5], 0.5);  // the second query sees two keys
  EXPECT_THROW(plan.run(q, q, q, out, {.causal = true}, {.weights = weights, .weight_heads = {4}}),
               InvalidArgument);
}

}  // namespace
}  // namespace attend::test
