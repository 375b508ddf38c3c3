// The running softmax: what makes the bits of a row independent of how its keys are cut.
#include "core/softmax_state.h"

#include <attend/attention.h>
#include <attend/plan.h>

#include <gtest/gtest.h>

#include <vector>

namespace attend {
namespace {

double score(int j) { return 3 * std::sin(1.7 * j) + 0.01 * j; }

TEST(SoftmaxState, every_rescale_is_a_power_of_two) {
  SoftmaxState state;
  for (int j = 0; j < 1000; ++j) {
    const double rescale = state.add(score(j)).rescale;
    ASSERT_TRUE(rescale == 0 || std::exp2(std::ilogb(rescale)) == rescale) << j;
    ASSERT_GE(state.top, score(j)) << j;
  }
}

TEST(SoftmaxState, digits_of_a_weight_come_from_its_score_alone) {
  for (int j = 0; j < 1000; ++j) {
    const double s = score(j), alone = weight(s, s);
    for (const double above : {0.7, 5.0, 70.0, 600.0}) {
      const double octaves_above = -octaves(s, s + above);
      ASSERT_EQ(octaves_above, std::floor(octaves_above));
      ASSERT_EQ(weight(s, s + above), std::ldexp(alone, -static_cast<int>(octaves_above))) << j;
    }
  }
}

TEST(SoftmaxState, finite_scores_stay_finite_and_infinite_ones_do_not) {
  constexpr double kMost = std::numeric_limits<double>::max();
  EXPECT_EQ(log2_units(-kMost), -kMost);
  EXPECT_EQ(log2_units(kMost), kMost);
  EXPECT_EQ(log2_units(kMinusInfinity), kMinusInfinity);
  EXPECT_TRUE(std::isnan(log2_units(std::nan(""))));
}

// Far from 0 log2 units would round: what counts is the difference to the largest score.
TEST(SoftmaxState, far_scores_weigh_as_their_differences_do) {
  constexpr double kMost = std::numeric_limits<double>::max();
  for (const double top : {kFar, 1e17, 1e30, kMost, -kFar, -1e17, -1e30, -0.9 * kMost}) {
    const double below = std::nextafter(top, -kMost), expected = std::exp(below - top);
    for (const bool ascending : {false, true}) {
      SoftmaxState state, one, other;
      state.add(ascending ? below : top);
      state.add(ascending ? top : below);
      EXPECT_NEAR(state.l / weight(top, state.top), 1 + expected, 1e-9) << top;
      EXPECT_EQ(state.lse(), top + std::log(state.l)) << top;
      one.add(ascending ? below : top);
      other.add(ascending ? top : below);
      one.join(other);
      EXPECT_NEAR(one.l, state.l, 1e-9) << top;
    }
  }
  SoftmaxState across;  // from one unit to the other
  across.add(kFar - 0.5);
  across.add(kFar + 0.5);
  EXPECT_NEAR(across.l, 1 + std::exp(-1), 1e-15);
  across = {};
  across.add(-kFar - 0.5);
  across.add(-kFar + 0.5);
  EXPECT_NEAR(across.l / weight(across.top, across.top), 1 + std::exp(-1), 1e-15);
}

TEST(SoftmaxState, weights_have_all_their_digits_however_far_from_0) {
  for (const double top : {1.0, 100.0, 1000.0, 1e6, -100.0, -1000.0, -1e6})
    for (const double below : {0.25, 1.0, 3.5, 20.0}) {
      const double found = weight(top - below, top) / weight(top, top);
      EXPECT_NEAR(found / std::exp(-below), 1, 1e-15) << top << " " << below;
    }
  EXPECT_EQ(weight(-1e300, 0), 0);
  EXPECT_EQ(weight(std::numeric_limits<double>::lowest(), 0), 0);
  EXPECT_EQ(weight(kMinusInfinity, 0), 0);
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
        const auto [rescale, p] = part.add(k[static_cast<std::size_t>(j)]);
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
