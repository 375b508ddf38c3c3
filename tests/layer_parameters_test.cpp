// First values that are the same on every machine, and lists of parameters.
#include "layer/initialise.h"

#include "support/io_files.h"
#include "support/layer_numbers.h"
#include "support/widen.h"

#include <attend/feed_forward.h>

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace attend::test {
namespace {

using Values = std::vector<double>;
constexpr std::uint64_t kSeed = 0x0123456789ABCDEF;

// The golden numbers come from a program of its own, in another language, from the definitions.
TEST(FirstValues, are_the_same_on_every_machine) {
  EXPECT_EQ(widen(xavier_uniform({2, 3}, DType::f64, kSeed, "weight")),
            (Values{-0x1.d8edcc06d23a1p-1, -0x1.0f2dab4773c92p+0, 0x1.36cab7b93eb09p-2,
                    0x1.1353c354878c0p-1, 0x1.f3ad42d6b9a33p-1, 0x1.6b8d4cf299b40p-3}));
  EXPECT_EQ(widen(normal({3}, 0.5, DType::f64, kSeed, "weight")),
            (Values{0x1.5e1bf8f800000p-3, 0x1.1c2748a980000p+0, -0x1.a25fbf8c00000p-1}));
  EXPECT_EQ(derived_seed(kSeed, "up"), 0x532cf23605a4fd17U);
  EXPECT_EQ(derived_seed(0, "up"), 0x694492d38b195615U);
  EXPECT_EQ(derived_seed(kSeed, ""), 0x7c189aa05dea85dcU);
  const Linear layer({.in = 3, .out = 2, .type = DType::f64, .seed = kSeed});
  EXPECT_EQ(difference(layer.weight(), xavier_uniform({2, 3}, DType::f64, kSeed, "weight")), "");
  EXPECT_EQ(widen(layer.bias()), (Values{0, 0}));
}

TEST(FirstValues, of_another_type_are_those_of_f64_rounded_once) {
  for (const DType type : kFloatTypes) {
    const Values exact = widen(xavier_uniform({30, 20}, DType::f64, 1, "w"));
    const Values found = widen(xavier_uniform({30, 20}, type, 1, "w"));
    for (std::size_t n = 0; n < exact.size(); ++n) ASSERT_EQ(found[n], round_to(type, exact[n]));
  }
}

struct Moments {
  double mean = 0, variance = 0, largest = 0;
  explicit Moments(const Values& values) {
    const auto count = static_cast<double>(values.size());
    for (const double v : values) mean += v / count;
    for (const double v : values) variance += (v - mean) * (v - mean) / count;
    for (const double v : values) largest = std::max(largest, std::abs(v));
  }
};

TEST(FirstValues, have_the_promised_spread) {
  const double bound = std::sqrt(6.0 / 700);
  const Moments uniform(widen(xavier_uniform({300, 400}, DType::f64, 5, "w")));
  EXPECT_NEAR(uniform.mean, 0, 0.01 * bound);
  EXPECT_NEAR(uniform.variance, bound * bound / 3, 0.01 * bound * bound);
  EXPECT_LE(uniform.largest, bound);
  EXPECT_GT(uniform.largest, 0.999 * bound);
  const Moments gaussian(widen(normal({300, 400}, 0.02, DType::f64, 5, "w")));
  EXPECT_NEAR(gaussian.mean, 0, 0.0003);
  EXPECT_NEAR(std::sqrt(gaussian.variance), 0.02, 0.0003);
  EXPECT_GT(gaussian.largest, 0.06) << "three deviations";
  EXPECT_LT(gaussian.largest, 0.12) << "six deviations";
}

TEST(FirstValues, differ_by_seed_and_by_name) {
  std::set<Values> all;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32})
    for (const char* name : {"weight", "bias", ""})
      all.insert(widen(xavier_uniform({2, 3}, DType::f64, seed, name)));
  EXPECT_EQ(all.size(), 9U);
  const FeedForward layer({.model_dim = 4, .hidden_dim = 4, .activation = Activation::swiglu});
  std::set<Values> maps;
  for (const NamedView& p : layer.parameters())
    if (p.name.ends_with("weight")) maps.insert(widen(p.tensor));
  EXPECT_EQ(maps.size(), 3U) << "up, gate and down share no numbers";
}

// ---- Lists -------------------------------------------------------------------------------------

TEST(ParameterList, takes_a_prefix_and_counts) {
  Linear layer({.in = 3, .out = 2});
  const std::vector<Parameter> list = with_prefix("q.", layer.writable_parameters());
  EXPECT_EQ(list[0].name, "q.weight");
  EXPECT_EQ(list[1].name, "q.bias");
  const Linear& fixed = layer;
  EXPECT_EQ(with_prefix("a.", fixed.parameters())[1].name, "a.bias");
  EXPECT_EQ(with_prefix("d", std::vector<NamedTensor>{{"x", Tensor()}})[0].name, "dx");
  EXPECT_EQ(parameter_count(fixed.parameters()), 8);
  EXPECT_EQ(parameter_count({{"none", {}}}), 0);
}

TEST(ParameterList, opens_the_layer_s_own_memory) {
  Linear layer({.in = 1, .out = 1});
  const std::vector<Parameter> list = layer.writable_parameters();
  list[0].value.at<float>({0, 0}) = 3;
  list[1].value.at<float>({0}) = 4;
  EXPECT_EQ(layer.forward(Tensor({5.0F}, {1})).at<float>({0}), 19);
}

TEST(LoadParameters, what_was_saved_comes_back) {
  const TemporaryFolder folder;
  const FeedForward saved({.model_dim = 3, .seed = 1});
  save_safetensors(folder / "x", with_prefix("ffn.", saved.parameters()));
  FeedForward loaded({.model_dim = 3, .seed = 2});
  load_parameters(load_safetensors(folder / "x"), loaded.writable_parameters(), "ffn.");
  const auto a = saved.parameters(), b = loaded.parameters();
  for (std::size_t n = 0; n < a.size(); ++n)
    EXPECT_EQ(difference(a[n].tensor, b[n].tensor), "") << a[n].name;
}

TEST(LoadParameters, types_are_converted_and_strides_obeyed) {
  for (const DType from : kFloatTypes)
    for (const DType to : kFloatTypes) {
      const Tensor source = numbers({3, 4}, from, 1);
      Scattered target(Tensor({3, 4}, to));
      load_parameters({{{"w", source}}, {}, {}}, {{"w", target.view()}});
      for (std::int64_t n = 0; n < 12; ++n)
        EXPECT_EQ(value(target.view(), {n / 4, n % 4}),
                  round_to(to, value(source, {n / 4, n % 4})));
    }
}

TEST(LoadParameters, other_tensors_are_a_question_of_prefix_and_permission) {
  Tensor w({2});
  const TensorFile file{{{"a.w", Tensor({1.0F, 2.0F}, {2})}, {"a.v", w}, {"b.w", w}}, {}, {}};
  EXPECT_EQ(error_of([&] {
              load_parameters(file, {{"w", w}}, "a.");
            }),
            "FileError: load_parameters: no parameter takes 'a.v'");
  EXPECT_EQ(widen(w), (Values{0, 0}));
  load_parameters(file, {{"w", w}}, "a.", true);
  EXPECT_EQ(widen(w), (Values{1, 2}));
}

TEST(LoadParameters, a_failure_changes_nothing) {
  Linear layer({.in = 3, .out = 2});
  const Linear before = layer;
  const Tensor weight = numbers({2, 3}, DType::f32, 1);
  for (const Tensor& bias : {Tensor({3}), Tensor({2}, DType::i64), Tensor()})
    EXPECT_NE(error_of([&] {
                load_parameters({{{"weight", weight}, {"bias", bias}}, {}, {}},
                                layer.writable_parameters());
              }),
              "nothing");
  EXPECT_EQ(difference(layer.weight(), before.weight()), "");
  EXPECT_EQ(difference(layer.bias(), before.bias()), "");
}

}  // namespace
}  // namespace attend::test
