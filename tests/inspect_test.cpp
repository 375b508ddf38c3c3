// What the statistics of the weights promise, besides being true (conformance_test): their
// properties, the bits of their rows, windows of exact weights, labels, and memory. What is asked
// of each kernel is asked of the GPU's, too, on a machine that has one.
#include <attend/attend.h>

#include "support/place.h"
#include "support/sanitized.h"
#include "support/thrown_by.h"
#include "support/widen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include <sys/resource.h>

namespace attend::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor gaussian(const Shape& shape, unsigned seed) {
  Tensor t(shape);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t n = 0; n < t.count(); ++n) t.data<float>()[n] = normal(generator);
  return t;
}

// Two batch elements, four heads on two, more than a chunk of keys, and everything asked for.
struct Asked {
  Tensor q = gaussian({2, 4, 37, 16}, 1), k = gaussian({2, 2, 300, 16}, 2);
  Tensor tokens = make_tokens();
  AttentionOptions options{.causal = true};
  InspectOptions all{.top_k = 6, .tokens = tokens, .tile_rows = 8, .tile_columns = 16};

  static Tensor make_tokens() {
    Tensor t({2, 300}, DType::i64);
    for (std::int64_t n = 0; n < t.count(); ++n) t.data<std::int64_t>()[n] = n * n % 11;
    return t;
  }
  Statistics run() const { return inspect(q, k, options, all); }
  Statistics run(Place& place) const { return place.inspect(q, k, options, all); }
};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.view().data(), b.view().data(),
                     static_cast<std::size_t>(a.count() * size_of(a.dtype()))) == 0;
}

void expect_same_bits(const Statistics& a, const Statistics& b, const std::string& why) {
  const std::pair<const char*, Tensor Statistics::*> tensors[] = {
      {"lse", &Statistics::lse},         {"maximum", &Statistics::maximum},
      {"entropy", &Statistics::entropy}, {"top_keys", &Statistics::top_keys},
      {"mass", &Statistics::key_mass},   {"top_weights", &Statistics::top_weights},
      {"mean", &Statistics::tile_mean},  {"tile_maximum", &Statistics::tile_maximum}};
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(same_bits(a.*tensor, b.*tensor)) << name << ": " << why;
  ASSERT_EQ(a.heads.size(), b.heads.size());
  for (std::size_t n = 0; n < a.heads.size(); ++n)
    EXPECT_EQ(std::memcmp(&a.heads[n], &b.heads[n], sizeof a.heads[n]), 0) << n << ": " << why;
}

std::vector<std::string> inspect_kernels() {
  std::vector<std::string> names;
  const Asked asked;
  for (const KernelInfo& kernel : Context::kernels()) {
    if (kernel.operation != "inspect") continue;
    Place place("inspect:" + kernel.name);
    if (place.gpu || thrown_by([&] { asked.run(place); }) == "nothing")
      names.push_back(kernel.name);
  }
  return names;
}

// Why what is on the GPU cannot be asked here.
std::string not_here(const Place& place) {
  return place.gpu ? cuda::why_unavailable() : std::string();
}

class EachKernel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = not_here(place); !reason.empty())
      GTEST_SKIP() << "this machine has no GPU for it: it " << reason;
  }
  Place place{"inspect:" + GetParam()};
};
INSTANTIATE_TEST_SUITE_P(All, EachKernel, testing::ValuesIn(inspect_kernels()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// ---- Properties --------------------------------------------------------------------------------

TEST_P(EachKernel, a_uniform_row_has_the_entropy_log_n) {
  const Tensor q({1, 1, 3, 8}), k = gaussian({1, 1, 700, 8}, 3);  // q = 0: all scores are 0
  const Statistics s = place.inspect(q, k, {.query_offset = -1, .key_lengths = {}}, {});
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(s.entropy.at<float>({0, 0, i}), std::log(700.0), 2e-6);
    EXPECT_NEAR(s.maximum.at<float>({0, 0, i}), 1 / 700.0, 1e-9);
    EXPECT_NEAR(s.lse.at<float>({0, 0, i}), std::log(700.0), 2e-6);
  }
  EXPECT_NEAR(s.heads[0].evenness, 1, 1e-6);
  EXPECT_EQ(label_of(s.heads[0]).name, "uniform");
  for (int j = 0; j < 700; ++j) EXPECT_NEAR(s.key_mass.at<float>({0, 0, j}), 3 / 700.0, 1e-8);
}

TEST_P(EachKernel, a_heads_lse_is_the_mean_of_its_rows_that_see_a_key) {
  Asked asked;
  asked.options.query_offset = -10;  // the first ten rows see nothing
  asked.options.causal = true;
  const Statistics s = asked.run(place);
  const std::int64_t heads = s.lse.size(1), queries = s.lse.size(2);
  for (std::int64_t n = 0; n < s.lse.size(0) * heads; ++n) {
    double sum = 0, rows = 0;
    for (std::int64_t i = 0; i < queries; ++i) {
      if (s.maximum.at<float>({n / heads, n % heads, i}) == 0) continue;
      sum += s.lse.at<float>({n / heads, n % heads, i});
      rows += 1;
    }
    const HeadStatistics& head = s.heads[static_cast<std::size_t>(n)];
    EXPECT_EQ(static_cast<double>(head.rows), rows);
    EXPECT_NEAR(head.lse, sum / rows, 1e-5);
  }
}

TEST_P(EachKernel, masses_add_up_to_the_rows_that_see_a_key) {
  Asked asked;
  asked.options.query_offset = -10;  // the first ten rows see nothing
  const Statistics s = asked.run(place);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < 300; ++j) sum += s.key_mass.at<float>({b, h, j});
      EXPECT_NEAR(sum, 27, 27e-6);
      EXPECT_EQ(s.heads[static_cast<std::size_t>(b * 4 + h)].rows, 27);
    }
}

TEST_P(EachKernel, a_sink_takes_its_share_of_the_mass) {
  Asked asked;
  const Tensor sinks({-1.F, 0.F, 2.F, -kInfinity}, {4});
  asked.options.sinks = sinks;
  const Statistics s = asked.run(place);
  for (std::int64_t h = 0; h < 4; ++h) {
    double mass = 0, left = 0;
    for (std::int64_t j = 0; j < 300; ++j) mass += s.key_mass.at<float>({0, h, j});
    for (std::int64_t i = 0; i < 37; ++i)
      left += 1 - std::exp(sinks.at<float>({h}) - s.lse.at<float>({0, h, i}));
    EXPECT_NEAR(mass, left, 37e-6) << h;
  }
}

TEST_P(EachKernel, a_row_that_sees_nothing_has_zeros_and_no_keys) {
  Asked asked;
  const Tensor mask({false}, {1}), sinks({0.5F, 1.F, 2.F, 3.F}, {4});
  asked.options.mask = mask;
  const Statistics s = asked.run(place);
  EXPECT_EQ(s.lse.at<float>({0, 1, 2}), -kInfinity);
  EXPECT_EQ(s.maximum.at<float>({0, 1, 2}), 0);
  EXPECT_EQ(s.entropy.at<float>({0, 1, 2}), 0);
  EXPECT_EQ(s.top_keys.at<std::int64_t>({0, 1, 2, 0}), -1);
  EXPECT_EQ(s.top_weights.at<float>({0, 1, 2, 0}), 0);
  EXPECT_EQ(s.key_mass.at<float>({0, 1, 2}), 0);
  EXPECT_EQ(s.tile_mean.at<float>({0, 1, 0, 0}), -1);
  EXPECT_EQ(s.tile_maximum.at<float>({1, 3, 4, 9}), -1);
  EXPECT_EQ(s.heads[0].rows, 0);
  EXPECT_EQ(label_of(s.heads[0]).name, "none");
  asked.options.sinks = sinks;
  EXPECT_EQ(asked.run(place).lse.at<float>({0, 1, 2}), 1.F) << "the sink is all there is";
}

TEST_P(EachKernel, top_keys_of_equal_scores_are_the_lowest) {
  const Tensor q({1, 1, 2, 4}), k = gaussian({1, 1, 600, 4}, 4);
  const Statistics s = place.inspect(q, k, {}, {.top_k = 40});
  for (int i = 0; i < 2; ++i)
    for (int n = 0; n < 40; ++n) EXPECT_EQ(s.top_keys.at<std::int64_t>({0, 0, i, n}), n);
}

TEST_P(EachKernel, top_k_may_be_more_than_there_are_keys) {
  const Tensor q = gaussian({1, 1, 2, 4}, 5), k = gaussian({1, 1, 3, 4}, 6);
  const Statistics s = place.inspect(q, k, {.causal = true, .query_offset = 0}, {.top_k = 1024});
  EXPECT_EQ(s.top_keys.at<std::int64_t>({0, 0, 0, 0}), 0);
  EXPECT_EQ(s.top_weights.at<float>({0, 0, 0, 0}), 1);
  EXPECT_EQ(s.top_keys.at<std::int64_t>({0, 0, 0, 1}), -1);
  EXPECT_EQ(s.top_keys.at<std::int64_t>({0, 0, 1, 2}), -1);
}

TEST_P(EachKernel, a_shorter_list_of_top_keys_begins_a_longer_one) {
  Asked asked;
  const Statistics longer = asked.run(place);
  asked.all.top_k = 2;
  const Statistics shorter = asked.run(place);
  for (std::int64_t n = 0; n < 2 * 4 * 37; ++n)
    for (std::int64_t x = 0; x < 2; ++x)
      EXPECT_EQ(shorter.top_keys.data<std::int64_t>()[n * 2 + x],
                longer.top_keys.data<std::int64_t>()[n * 6 + x]);
}

// ---- Bits --------------------------------------------------------------------------------------

TEST_P(EachKernel, bits_do_not_depend_on_threads) {
  const Asked asked;
  Place one("inspect:" + GetParam(), 1), many("inspect:" + GetParam(), 7);
  expect_same_bits(asked.run(one), asked.run(many), "1 and 7 threads");
}

TEST_P(EachKernel, bits_do_not_depend_on_strides) {
  Asked asked;
  const Statistics plain = asked.run(place);
  Tensor wide({2, 37, 4, 33});
  const TensorView q(wide.data<float>() + 1, {2, 4, 37, 16}, {37 * 4 * 33, 33, 4 * 33, 2});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 37; ++i)
        for (std::int64_t x = 0; x < 16; ++x)
          q.at<float>({b, h, i, x}) = asked.q.at<float>({b, h, i, x});
  expect_same_bits(plain, place.inspect(q, asked.k, asked.options, asked.all), "strides");
}

TEST_P(EachKernel, a_batch_element_alone_has_the_same_bits) {
  Asked asked;
  const Statistics whole = asked.run(place);
  InspectOptions all = asked.all;
  const Tensor tokens = Tensor::copy_of(asked.tokens.view().slice(0, 1, 2));
  all.tokens = tokens;
  const Statistics part = place.inspect(asked.q.view().slice(0, 1, 2),
                                        asked.k.view().slice(0, 1, 2), asked.options, all);
  for (const auto& tensor : {&Statistics::lse, &Statistics::maximum, &Statistics::entropy,
                             &Statistics::top_keys, &Statistics::top_weights, &Statistics::key_mass,
                             &Statistics::tile_mean, &Statistics::tile_maximum})
    EXPECT_TRUE(same_bits(Tensor::copy_of((whole.*tensor).view().slice(0, 1, 2)), part.*tensor));
  for (std::size_t h = 0; h < 4; ++h)
    EXPECT_EQ(whole.heads[4 + h].distance, part.heads[h].distance);
}

TEST_P(EachKernel, some_of_the_rows_have_the_same_bits) {
  Asked asked;
  const Statistics whole = asked.run(place);
  asked.options.query_offset = 300 - 37 + 11;
  const Statistics part = place.inspect(asked.q.view().slice(2, 11, 30), asked.k, asked.options,
                                        {.top_k = 6, .key_mass = false, .metrics = false});
  for (const auto& tensor : {&Statistics::lse, &Statistics::maximum, &Statistics::entropy,
                             &Statistics::top_keys, &Statistics::top_weights})
    EXPECT_TRUE(same_bits(Tensor::copy_of((whole.*tensor).view().slice(2, 11, 30)), part.*tensor));
}

TEST_P(EachKernel, lse_has_the_bits_of_attention) {
  Asked asked;
  const Tensor sinks({-1.F, 0.F, 2.F, -kInfinity}, {4});
  asked.options.sinks = sinks;
  std::string forward = GetParam();
  forward.replace(forward.rfind("inspect"), 7, "forward");
  Place other("forward:" + forward);
  EXPECT_TRUE(same_bits(asked.run(place).lse, other.lse(asked.q, asked.k, asked.options)));
}

TEST_P(EachKernel, what_is_not_asked_for_changes_no_bit_of_the_rest) {
  Asked asked;
  const Statistics all = asked.run(place);
  const Statistics rows =
      place.inspect(asked.q, asked.k, asked.options, {.key_mass = false, .metrics = false});
  EXPECT_TRUE(same_bits(all.lse, rows.lse));
  EXPECT_TRUE(same_bits(all.entropy, rows.entropy));
  EXPECT_EQ(all.heads[3].entropy, rows.heads[3].entropy);
  EXPECT_TRUE(std::isnan(rows.heads[3].distance));
  EXPECT_FALSE(rows.key_mass);
  EXPECT_FALSE(rows.top_keys);
  EXPECT_FALSE(rows.tile_mean);
  const Statistics mass = place.inspect(asked.q, asked.k, asked.options, {});
  EXPECT_TRUE(same_bits(all.key_mass, mass.key_mass));
  EXPECT_EQ(all.heads[3].distance, mass.heads[3].distance);
  EXPECT_TRUE(std::isnan(mass.heads[3].duplicate)) << "without tokens";
}

// ---- NaN ---------------------------------------------------------------------------------------

TEST_P(EachKernel, hidden_nan_changes_no_bit) {
  Asked asked;
  const Tensor lengths({std::int64_t{280}, std::int64_t{270}}, {2});
  asked.options.key_lengths = lengths;
  const Statistics before = asked.run(place);
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t x = 0; x < 16; ++x)
      for (std::int64_t j = 280; j < 300; ++j) asked.k.at<float>({0, h, j, x}) = kInfinity;
  asked.k.at<float>({1, 1, 270, 3}) = static_cast<float>(kNan);
  expect_same_bits(before, asked.run(place), "keys past the lengths");
}

TEST_P(EachKernel, a_row_with_nan_leaves_the_others_alone) {
  Asked asked;  // row 5 of head 2 becomes NaN; key 269 and later is hidden from it
  const Statistics before = asked.run(place);
  asked.q.at<float>({0, 2, 5, 7}) = static_cast<float>(kNan);
  const Statistics after = asked.run(place);
  EXPECT_TRUE(std::isnan(after.lse.at<float>({0, 2, 5})));
  EXPECT_TRUE(std::isnan(after.maximum.at<float>({0, 2, 5})));
  EXPECT_TRUE(std::isnan(after.entropy.at<float>({0, 2, 5})));
  EXPECT_EQ(after.top_keys.at<std::int64_t>({0, 2, 5, 0}), -1);
  EXPECT_TRUE(std::isnan(after.top_weights.at<float>({0, 2, 5, 0})));
  EXPECT_TRUE(std::isnan(after.key_mass.at<float>({0, 2, 0})));
  EXPECT_TRUE(std::isnan(after.tile_mean.at<float>({0, 2, 0, 0})));
  EXPECT_TRUE(std::isnan(after.tile_maximum.at<float>({0, 2, 0, 0})));
  EXPECT_TRUE(std::isnan(after.heads[2].entropy));
  EXPECT_EQ(after.lse.at<float>({0, 2, 4}), before.lse.at<float>({0, 2, 4}));
  EXPECT_EQ(after.key_mass.at<float>({0, 2, 299}), before.key_mass.at<float>({0, 2, 299}))
      << "a key that the row does not see";
  EXPECT_EQ(after.key_mass.at<float>({0, 3, 0}), before.key_mass.at<float>({0, 3, 0}));
}

// ---- Windows of weights ------------------------------------------------------------------------

class Windows : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = not_here(place); !reason.empty())
      GTEST_SKIP() << "this machine has no GPU for it: it " << reason;
  }
  Place place{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(All, Windows, testing::Values("", "weights:cuda.portable.weights"),
                         [](const auto& test) { return test.param.empty() ? "host" : "gpu"; });

TEST_P(Windows, a_window_is_a_slice_of_the_weights) {
  Asked asked;
  Tensor weights({2, 4, 37, 300}), out({2, 4, 37, 16}), lse({2, 4, 37});
  const Tensor mask({true, false, true, true}, {4, 1, 1});
  asked.options.mask = mask;
  asked.options.softcap = 3;
  attention(asked.q, asked.k, asked.k, out, asked.options, {.lse = lse, .weights = weights});
  const WeightsWindow window{
      .batch = 1, .head = 2, .query = 4, .queries = 20, .key = 250, .keys = 50};
  const Tensor part = place.weights_of(asked.q, asked.k, lse, window, asked.options);
  ASSERT_EQ(part.shape(), (Shape{20, 50}));
  for (std::int64_t i = 0; i < 20; ++i)
    for (std::int64_t j = 0; j < 50; ++j)
      ASSERT_NEAR(part.at<float>({i, j}), weights.at<float>({1, 2, 4 + i, 250 + j}), 2e-6);
  const Tensor hidden =
      place.weights_of(asked.q, asked.k, lse, {.head = 1, .queries = 2, .keys = 9}, asked.options);
  EXPECT_EQ(hidden.at<float>({1, 8}), 0) << "a head that the mask hides";
}

TEST_P(Windows, rows_of_a_packed_sequence_add_up_to_one) {
  const Tensor q = gaussian({1, 2, 9, 8}, 7), k = gaussian({1, 2, 9, 8}, 8);
  const Tensor starts({std::int64_t{0}, std::int64_t{4}, std::int64_t{9}}, {3});
  const AttentionOptions options{.causal = true, .cu_seqlens_q = starts};
  const Statistics s = place.inspect(q, k, options, {.tile_rows = 2, .tile_columns = 2});
  EXPECT_EQ(s.batch, 2);
  EXPECT_EQ(s.lse.shape(), (Shape{1, 2, 9}));
  EXPECT_EQ(s.key_mass.shape(), (Shape{1, 2, 9}));
  EXPECT_EQ(s.tile_mean.shape(), (Shape{2, 2, 2, 2}));
  EXPECT_EQ(s.heads.size(), 4U);
  const Tensor p =
      place.weights_of(q, k, s.lse, {.batch = 1, .head = 1, .queries = 5, .keys = 5}, options);
  for (std::int64_t i = 0; i < 5; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < 5; ++j) sum += p.at<float>({i, j});
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

TEST_P(Windows, tiles_are_means_of_the_weights) {
  const Asked asked;
  const Statistics s = asked.run(place);
  ASSERT_EQ(s.tile_queries, 8);
  ASSERT_EQ(s.tile_keys, 32);
  const Tensor p = place.weights_of(asked.q, asked.k, s.lse,
                                    {.head = 3, .query = 8, .queries = 8, .key = 256, .keys = 32},
                                    asked.options);
  double sum = 0, visible = 0, most = 0;
  for (std::int64_t i = 0; i < 8; ++i)
    for (std::int64_t j = 0; j < 32; ++j) {
      if (256 + j > 8 + i + 263) continue;
      sum += p.at<float>({i, j});
      most = std::max<double>(most, p.at<float>({i, j}));
      visible += 1;
    }
  EXPECT_NEAR(s.tile_mean.at<float>({0, 3, 1, 8}), sum / visible, 1e-7);
  EXPECT_NEAR(s.tile_maximum.at<float>({0, 3, 1, 8}), most, 1e-6);
}

// ---- Labels ------------------------------------------------------------------------------------

// q and k that put nearly all weight of row i on key target(i).
Statistics pointing(std::int64_t length, std::int64_t (*target)(std::int64_t),
                    const ConstTensorView& tokens = {}) {
  Tensor q({1, 1, length, length}), k({1, 1, length, length});
  for (std::int64_t i = 0; i < length; ++i) {
    k.at<float>({0, 0, i, i}) = 1;
    q.at<float>({0, 0, i, std::max<std::int64_t>(0, target(i))}) = 30;
  }
  return inspect(q, k, {.scale = 1, .causal = true}, {.tokens = tokens});
}

TEST(label_of, names_what_a_head_does) {
  const auto label = [](const Statistics& s) { return label_of(s.heads[0]).name; };
  EXPECT_EQ(label(pointing(40, [](std::int64_t i) { return i - 1; })), "previous token");
  EXPECT_EQ(label(pointing(40, [](std::int64_t) { return std::int64_t{0}; })), "first token");
  EXPECT_EQ(label(pointing(40, [](std::int64_t i) { return i; })), "current token");
  EXPECT_EQ(label(pointing(99, [](std::int64_t i) { return i - 3; })), "local");
  Tensor tokens({40}, DType::i32);
  for (std::int64_t j = 0; j < 40; ++j) tokens.at<std::int32_t>({j}) = static_cast<int>(j % 20);
  EXPECT_EQ(label(pointing(
                40, [](std::int64_t i) { return i - 20; }, tokens)),
            "duplicate token");
  EXPECT_EQ(label(pointing(
                40, [](std::int64_t i) { return i - 19; }, tokens)),
            "induction");
  const Statistics mixed =
      inspect(gaussian({1, 1, 40, 4}, 1), gaussian({1, 1, 40, 4}, 2), {.scale = 3});
  EXPECT_EQ(label(mixed), "mixed");
  Tensor nan = gaussian({1, 1, 40, 4}, 1);
  nan.at<float>({0, 0, 7, 2}) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(label(inspect(nan, gaussian({1, 1, 40, 4}, 2))), "not finite");
  const HeadLabel previous = label_of(pointing(40, [](std::int64_t i) { return i - 1; }).heads[0]);
  EXPECT_GT(previous.score, 0.97);
  EXPECT_EQ(previous.definition, "mean weight on the key before the query");
}

// A head that finds nothing in most rows rests on key 0 there. That is not what it does.
TEST(label_of, a_head_that_rests_on_the_first_token_is_not_named_after_it) {
  const auto label = [](const Statistics& s) { return label_of(s.heads[0]).name; };
  const auto once = [](std::int64_t i) { return std::int64_t{i == 3 ? 2 : 0}; };
  EXPECT_EQ(label(pointing(6, once)), "selective");
  EXPECT_NEAR(label_of(pointing(6, once).heads[0]).score, 5.0 / 6, 1e-6);
  EXPECT_EQ(label(pointing(40, [](std::int64_t i) { return i % 3 == 2 ? i - 1 : 0; })),
            "selective");
  // One row of forty does not change what the head does.
  EXPECT_EQ(label(pointing(40, [](std::int64_t i) { return std::int64_t{i == 3 ? 2 : 0}; })),
            "first token");
  // Wherever it can, it looks right after the earlier copy; the first half has none.
  Tensor tokens({40}, DType::i32);
  for (std::int64_t j = 0; j < 40; ++j) tokens.at<std::int32_t>({j}) = static_cast<int>(j % 32);
  EXPECT_EQ(label(pointing(
                40, [](std::int64_t i) { return i - 31; }, tokens)),
            "induction");
}

// ---- Planning ----------------------------------------------------------------------------------

TEST(plan, says_what_is_inspected) {
  const Asked asked;
  const Plan plan = Plan::inspect(asked.q, asked.k, asked.options, asked.all);
  EXPECT_NE(
      plan.describe().find("inspect f32, q [2, 4, 37, 16], k [2, 2, 300, 16], scale 0.25, "
                           "causal, top 6, key mass, metrics, local 8, tokens, tiles of 8 x 32"),
      std::string::npos)
      << plan.describe();
  expect_same_bits(plan.run_inspect(asked.q, asked.k, asked.options, asked.all), asked.run(), "");
}

TEST(plan, dropout_has_no_part_in_the_weights) {
  Asked asked;
  const Statistics before = asked.run();
  asked.options.dropout = {.p = 0.5, .seed = 3};
  expect_same_bits(before, asked.run(), "dropout");
}

// ---- Size --------------------------------------------------------------------------------------

// 131072 x 131072 weights would be 64 GiB.
TEST(memory, grows_with_the_length_alone) {
  constexpr std::int64_t kLength = 131072;
  const Tensor q = gaussian({1, 1, kLength, 4}, 9), k = gaussian({1, 1, kLength, 4}, 10);
  Tensor tokens({kLength}, DType::i32);
  for (std::int64_t j = 0; j < kLength; ++j)
    tokens.data<std::int32_t>()[j] = static_cast<std::int32_t>(j % 1000);
  const InspectOptions all{.top_k = 8, .tokens = tokens, .tile_rows = 128, .tile_columns = 128};
  // Every row and every key takes part; the window keeps it short.
  const AttentionOptions options{.causal = true, .window = {.left = 1023}};
  Context context({.threads = 2});
  EXPECT_LT(Plan::inspect(q, k, options, all, {}, context).workspace_bytes(), 8U << 20);
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const Statistics s = inspect(q, k, options, all, context);
  getrusage(RUSAGE_SELF, &after);
  if (!kSanitized) {  // a sanitizer's own memory would be counted
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
  }
  const float* mass = s.key_mass.data<float>();
  EXPECT_NEAR(std::accumulate(mass, mass + kLength, 0.0), static_cast<double>(kLength), 1);
  EXPECT_EQ(s.tile_mean.shape(), (Shape{1, 1, 128, 128}));
  EXPECT_EQ(s.tile_mean.at<float>({0, 0, 100, 98}), -1) << "outside the window";
  EXPECT_GT(s.tile_mean.at<float>({0, 0, 100, 99}), 0);
}

}  // namespace
}  // namespace attend::test
