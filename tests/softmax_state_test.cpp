// The running softmax: what makes the bits of a row independent of how its keys are cut.
#include "core/softmax_state.h"

#include <attend/attention.h>
#include <attend/plan.h>

#include <gtest/gtest.h>

#include <vector>

namespace attend {
namespace {

double score(int j) { return 3 * std::sin(1.7 * j) + 0.01 * j; }

TEST(SoftmaxState, the_maximum_is_an_integer_and_not_below_any_score) {
  SoftmaxState state;
  for (int j = 0; j < 1000; ++j) {
    const double t = log2_units(score(j));
    state.add(t);
    ASSERT_EQ(state.m, std::floor(state.m)) << j;
    ASSERT_GE(state.m, t) << j;
  }
}

TEST(SoftmaxState, digits_of_a_weight_come_from_its_score_alone) {
  for (int j = 0; j < 1000; ++j) {
    const double t = log2_units(score(j)), alone = weight(t, std::ceil(t));
    for (const int above : {1, 7, 100, 900})
      ASSERT_EQ(weight(t, std::ceil(t) + above), std::ldexp(alone, -above)) << j << " " << above;
  }
}

TEST(SoftmaxState, finite_scores_stay_finite_and_infinite_ones_do_not) {
  constexpr double kMost = std::numeric_limits<double>::max();
  EXPECT_EQ(log2_units(-kMost), -kMost);
  EXPECT_EQ(log2_units(kMost), kMost);
  EXPECT_EQ(log2_units(kMinusInfinity), kMinusInfinity);
  EXPECT_TRUE(std::isnan(log2_units(std::nan(""))));
}

// Sums in chunks of 256 keys at multiples of 256, joined in ascending order: in f64, where nothing
// is rounded away, other chunks have other bits.
TEST(SoftmaxState, attention_sums_in_chunks_of_256_at_multiples_of_256) {
  constexpr int kKeys = 1000, kFirst = 100;  // a window begins inside the first chunk
  std::vector<double> q{1}, k(kKeys), v(kKeys), out(1);
  for (int j = 0; j < kKeys; ++j) {
    k[static_cast<std::size_t>(j)] = score(j);
    v[static_cast<std::size_t>(j)] = std::cos(0.3 * j);
  }
  const TensorView query(q.data(), {1, 1, 1, 1}), keys(k.data(), {1, 1, kKeys, 1});
  const TensorView values(v.data(), {1, 1, kKeys, 1}), result(out.data(), {1, 1, 1, 1});
  const AttentionOptions options{.window = {.left = kKeys - 1 - kFirst}};
  // The reference alone keeps its sums in f64 within a chunk as well.
  Plan::attention(query, keys, values, result, options, {}, {"reference.forward"})
      .run(query, keys, values, result, options, {});

  const auto in_chunks = [&](int offset) {
    SoftmaxState total;
    double o = 0;
    for (int chunk = 0; chunk < kKeys + 256; chunk += 256) {
      SoftmaxState part;
      double part_o = 0;
      for (int j = std::max(chunk - offset, kFirst); j < std::min(chunk - offset + 256, kKeys);
           ++j) {
        const auto [rescale, p] = part.add(log2_units(k[static_cast<std::size_t>(j)]));
        part_o = part_o * rescale + p * v[static_cast<std::size_t>(j)];
      }
      const auto [mine, other] = total.join(part);
      o = o * mine + part_o * other;
    }
    return o / total.l;
  };
  EXPECT_EQ(out[0], in_chunks(0));
  int others = 0;
  for (const int offset : {1, 17, 100, 128, 255}) others += in_chunks(offset) != out[0];
  EXPECT_GT(others, 0) << "the test cannot tell chunks apart";
}

}  // namespace
}  // namespace attend
