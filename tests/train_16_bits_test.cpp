// Training of bf16 and f16: f32 copies of the parameters, and loss scaling.
#include "support/io_files.h"
#include "support/layer_numbers.h"

#include <attend/linear.h>
#include <attend/model.h>
#include <attend/train.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace attend::test {
namespace {

constexpr DType k16Bits[] = {DType::bf16, DType::f16};

std::string bits_of(const ConstTensorView& view) {
  const Tensor copy = Tensor::copy_of(view);
  return {static_cast<const char*>(copy.view().data()),
          static_cast<std::size_t>(copy.count() * size_of(copy.dtype()))};
}

std::vector<std::string> bits_of(const std::vector<NamedView>& list) {
  std::vector<std::string> bits;
  for (const NamedView& named : list) bits.push_back(named.name + ": " + bits_of(named.tensor));
  return bits;
}

double value_of(const Tensor& tensor, std::int64_t n) {
  double value = 0;
  with_type(tensor.dtype(), [&]<class T>(T) { value = widened(tensor.data<T>()[n]); });
  return value;
}

// Of another type, each element rounded once.
Tensor in_type(const Tensor& tensor, DType type) {
  Tensor other(tensor.shape(), type);
  with_type(type, [&]<class T>(T) {
    for (std::int64_t n = 0; n < tensor.count(); ++n)
      other.data<T>()[n] = static_cast<T>(value_of(tensor, n));
  });
  return other;
}

Tensor state_of(const Optimizer& optimizer, const std::string& name) {
  for (const NamedView& named : optimizer.state())
    if (named.name == name) return Tensor::copy_of(named.tensor);
  throw std::out_of_range(name);
}

// ---- f32 copies --------------------------------------------------------------------------------

// The copy takes the steps that a parameter of f32 would, and the parameter is it, rounded once.
void expect_trajectory(const std::function<std::unique_ptr<Optimizer>()>& make,
                       const std::vector<std::string>& state) {
  constexpr std::int64_t kCount = 1500;  // more than one piece
  for (const DType type : k16Bits) {
    Tensor narrow = numbers({kCount}, type, 1), wide = in_type(narrow, DType::f32);
    const auto of_narrow = make(), of_wide = make();
    for (unsigned t = 0; t < 20; ++t) {
      const Tensor g = numbers({kCount}, type, 2 + t);
      of_narrow->step({{"x", narrow}}, {{"x", g}}, 1e-3);
      of_wide->step({{"x", wide}}, {{"x", g}}, 1e-3);
      ASSERT_EQ(bits_of(state_of(*of_narrow, "master.x")), bits_of(wide)) << "step " << t;
      ASSERT_EQ(bits_of(narrow), bits_of(in_type(wide, type))) << "step " << t;
      for (const std::string& name : state)
        ASSERT_EQ(bits_of(state_of(*of_narrow, name)), bits_of(state_of(*of_wide, name)))
            << name << " at step " << t;
    }
    EXPECT_NE(bits_of(narrow), bits_of(numbers({kCount}, type, 1)));
  }
}

TEST(master_weights, follow_the_trajectory_of_f32) {
  expect_trajectory([] { return std::make_unique<SGD>(); }, {});
  expect_trajectory(
      [] {
        return std::make_unique<SGD>(
            SGDOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
      },
      {"momentum.x"});
  expect_trajectory([] { return std::make_unique<AdamW>(); }, {"m.x", "v.x"});
}

TEST(accumulate, sums_gradients_of_16_bits_in_f32) {
  for (const DType type : k16Bits) {
    const Tensor one = in_type(Tensor({1.0f, 3.0f}, {2}), type),
                 small = in_type(Tensor({0x1p-12f, 0x1p-11f}, {2}), type);
    std::vector<NamedTensor> sum;
    accumulate(sum, {{"a", one}});
    EXPECT_EQ(sum[0].tensor.dtype(), DType::f32);
    for (int n = 0; n < 3; ++n) accumulate(sum, {{"a", small}});
    EXPECT_EQ(sum[0].tensor.at<float>({0}), 1 + 3 * 0x1p-12f);
    EXPECT_EQ(sum[0].tensor.at<float>({1}), 3 + 3 * 0x1p-11f);
  }
}

// ---- the scale ---------------------------------------------------------------------------------

TEST(loss_scale, halves_at_overflow_and_doubles_after_good_steps) {
  LossScale scale({.interval = 3});
  EXPECT_EQ(scale.value(), 65536);
  scale.update(false);
  scale.update(false);
  EXPECT_EQ(scale.value(), 16384);
  scale.update(true);
  scale.update(true);
  EXPECT_EQ(scale.value(), 16384);
  EXPECT_EQ(scale.good_steps(), 2);
  scale.update(true);
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_EQ(scale.good_steps(), 0);
  scale.update(true);
  scale.update(true);
  scale.update(false);  // they count from 0 again
  scale.update(true);
  scale.update(true);
  EXPECT_EQ(scale.value(), 16384);
  EXPECT_EQ(LossScale().options().interval, 2000);
}

TEST(loss_scale, stays_between_1_and_2_to_the_64) {
  LossScale scale({.initial = 0x1p63, .interval = 1});
  for (int n = 0; n < 3; ++n) scale.update(true);
  EXPECT_EQ(scale.value(), 0x1p64);
  LossScale small({.initial = 3});
  small.update(true);
  small.update(false);
  EXPECT_EQ(small.value(), 1.5);
  small.update(false);
  EXPECT_EQ(small.value(), 1);
  small.update(true);
  EXPECT_THROW(small.update(false), InvalidArgument);  // or it would go on without a word
  EXPECT_EQ(small.value(), 1);
  EXPECT_EQ(small.good_steps(), 1);
}

TEST(loss_scale, counts_on_from_any_restored_number_of_steps) {
  LossScale scale({.interval = 3});
  scale.restore(4, std::numeric_limits<std::int64_t>::max());
  scale.update(true);
  EXPECT_EQ(scale.value(), 8);
  EXPECT_EQ(scale.good_steps(), 0);
}

TEST(loss_scale, unscaled_gradients_are_those_of_an_unscaled_loss) {
  const LossScale scale({.initial = 1024});
  std::vector<NamedTensor> g = {{"f16", Tensor({f16(0x1p-14), f16(-3)}, {2})},
                                {"bf16", Tensor({bf16(1)}, {1})},
                                {"f32", Tensor({5.0f}, {1})},
                                {"f64", Tensor({0x1p-1074}, {1})}};
  const void* const kept = g[2].tensor.view().data();
  ASSERT_TRUE(scale.unscale(g));
  for (int n = 0; n < 3; ++n) EXPECT_EQ(g[n].tensor.dtype(), DType::f32);
  EXPECT_EQ(g[0].tensor.at<float>({0}), 0x1p-24f);
  EXPECT_EQ(g[0].tensor.at<float>({1}), -3 / 1024.0f);
  EXPECT_EQ(g[1].tensor.at<float>({0}), 1 / 1024.0f);
  EXPECT_EQ(g[2].tensor.at<float>({0}), 5 / 1024.0f);
  EXPECT_EQ(g[2].tensor.view().data(), kept);
  EXPECT_EQ(g[3].tensor.dtype(), DType::f64);
  std::vector<NamedTensor> none;
  EXPECT_TRUE(scale.unscale(none));
}

TEST(loss_scale, gradients_that_are_not_finite_stay_as_they_are) {
  const LossScale scale;
  for (const float bad : {HUGE_VALF, -HUGE_VALF, NAN})
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
      Tensor last(Shape{1500}, DType::f32);
      last.data<float>()[1400] = bad;  // of the second piece
      std::vector<NamedTensor> g = {{"a", numbers({3}, DType::f32, 1)},
                                    {"b", numbers({3}, DType::f16, 2)},
                                    {"c", in_type(last, type)}};
      const std::vector<NamedTensor> before = g;
      EXPECT_FALSE(scale.unscale(g));
      for (std::size_t n = 0; n < g.size(); ++n) {
        EXPECT_EQ(g[n].tensor.dtype(), before[n].tensor.dtype());
        EXPECT_EQ(bits_of(g[n].tensor), bits_of(before[n].tensor));
      }
    }
}

TEST(losses, scale_their_gradient_before_it_is_rounded) {
  const Tensor logits({f16(0), f16(20)}, {1, 2}), target({1}, {1});  // p = 2e-9, 1 - 2e-9
  EXPECT_EQ(value_of(cross_entropy(logits, target).gradient, 0), 0);
  const Loss loss = cross_entropy(logits, target, {.gradient_scale = 65536});
  EXPECT_NEAR(value_of(loss.gradient, 0), 65536 * 2.06e-9, 1e-6);
  EXPECT_EQ(loss.value, cross_entropy(logits, target).value);
  const Tensor x({f16(0x1p-24)}, {1}), y({f16(0)}, {1});
  EXPECT_EQ(value_of(mse(x, y, {.gradient_scale = 0x1p-2}).gradient, 0), 0);
  EXPECT_EQ(value_of(mse(x, y, {.gradient_scale = 1024}).gradient, 0), 0x1p-13f);
  EXPECT_EQ(mse(x, y, {.gradient_scale = 1024}).value, mse(x, y).value);
}

// ---- training with it --------------------------------------------------------------------------

// A linear map learns another one, in f16, as docs/layers/training.md shows it.
struct ScaledTraining {
  explicit ScaledTraining(const LossScaleOptions& options, double size = 1)
      : layer(LinearOptions{.in = 5, .out = 3, .type = DType::f16, .seed = 3}), scale(options),
        target_size(size) {}

  bool step() {
    const auto at = static_cast<unsigned>(optimizer.steps());
    const Tensor x = numbers({8, 5}, DType::f16, 100 + at);
    Tensor target = numbers({8, 3}, DType::f32, 200);
    for (std::int64_t n = 0; n < target.count(); ++n)
      target.data<float>()[n] *= static_cast<float>(target_size);
    const auto [y, saved] = layer.forward_train(x);
    const Loss loss = mse(y, target, {.gradient_scale = scale.value()});
    std::vector<NamedTensor> gradients = layer.backward(loss.gradient, saved).parameters;
    const bool finite = scale.unscale(gradients);
    if (finite) {
      clip_gradients(gradients, 1);
      optimizer.step(layer.writable_parameters(), gradients, 0.01);
    }
    scale.update(finite);
    return finite;
  }
  int run(std::int64_t steps) {
    int skipped = 0;
    while (optimizer.steps() < steps) skipped += step() ? 0 : 1;
    return skipped;
  }
  std::vector<std::string> bits() const {
    std::vector<std::string> all = bits_of(layer.parameters());
    for (std::string& more : bits_of(optimizer.state())) all.push_back(std::move(more));
    return all;
  }

  Linear layer;
  AdamW optimizer;
  LossScale scale;
  double target_size;
};

TEST(loss_scale, a_skipped_step_changes_nothing_but_the_scale) {
  ScaledTraining training({.initial = 0x1p40});
  const auto fresh = training.bits();
  EXPECT_FALSE(training.step());
  EXPECT_EQ(training.bits(), fresh);
  EXPECT_EQ(training.optimizer.steps(), 0);
  EXPECT_EQ(training.scale.value(), 0x1p39);

  training.run(3);
  const auto before = training.bits();
  training.scale.restore(0x1p40, 7);
  EXPECT_FALSE(training.step());
  EXPECT_EQ(training.bits(), before);
  EXPECT_EQ(training.optimizer.steps(), 3);
  EXPECT_EQ(training.scale.good_steps(), 0);
}

// Powers of two change no bit of what neither overflows nor becomes subnormal.
TEST(loss_scale, of_any_size_gives_the_same_parameters) {
  ScaledTraining small({.initial = 256}), large({.initial = 0x1p30});
  EXPECT_EQ(small.run(10), 0);
  EXPECT_GT(large.run(10), 5);
  EXPECT_EQ(small.bits(), large.bits());
}

TEST(loss_scale, keeps_gradients_that_f16_has_no_numbers_for) {
  ScaledTraining scaled({}, 0x1p-24), plain({.initial = 1}, 0x1p-24);
  for (ScaledTraining* training : {&scaled, &plain})
    for (Parameter& p : training->layer.writable_parameters())
      std::fill_n(static_cast<f16*>(p.value.data()), p.value.count(), f16(0));
  scaled.run(1);
  plain.run(1);
  const auto largest = [](const ScaledTraining& training) {
    const Tensor m = state_of(training.optimizer, "m.weight");
    double most = 0;
    for (std::int64_t n = 0; n < m.count(); ++n) most = std::fmax(most, std::fabs(value_of(m, n)));
    return most;
  };
  EXPECT_GT(largest(scaled), 0);
  EXPECT_EQ(largest(plain), 0);
}

// ---- checkpoints -------------------------------------------------------------------------------

TEST(checkpoint, with_a_loss_scale_resumes_to_the_same_bits) {
  const TemporaryFolder folder;
  const LossScaleOptions options{.initial = 0x1p30, .interval = 4};  // it falls, and grows
  ScaledTraining whole(options);
  whole.run(20);
  for (const int steps : {0, 1, 7}) {
    ScaledTraining first(options);
    first.run(steps);
    save_checkpoint(folder / "c", first.layer.parameters(), first.optimizer, {{"epoch", "3"}},
                    &first.scale);
    ScaledTraining second({.initial = 8, .interval = 4});
    second.run(2);  // forgotten by the load
    EXPECT_EQ(load_checkpoint(folder / "c", second.layer.writable_parameters(), second.optimizer,
                              &second.scale),
              (Metadata{{"epoch", "3"}}));
    EXPECT_EQ(second.scale.value(), first.scale.value());
    EXPECT_EQ(second.scale.good_steps(), first.scale.good_steps());
    second.run(20);
    EXPECT_EQ(second.bits(), whole.bits());
    EXPECT_EQ(second.scale.value(), whole.scale.value());
  }
}

TEST(checkpoint, whose_loss_scale_does_not_fit_changes_nothing) {
  const TemporaryFolder folder;
  ScaledTraining source({}), target({.initial = 512});
  source.run(5);
  target.run(2);
  const auto before = target.bits();
  const auto refused = [&](const Metadata& more, LossScale* scale) {
    save_safetensors(
        folder / "d",
        [&] {
          std::vector<NamedView> all = source.layer.parameters();
          for (NamedView& view : with_prefix("optimizer.", source.optimizer.state()))
            all.push_back(std::move(view));
          return all;
        }(),
        [&] {
          Metadata metadata = {{"checkpoint.version", "1"},
                               {"checkpoint.optimizer", "adamw"},
                               {"checkpoint.steps", "5"}};
          metadata.insert(more.begin(), more.end());
          return metadata;
        }());
    EXPECT_THROW(
        load_checkpoint(folder / "d", target.layer.writable_parameters(), target.optimizer, scale),
        FileError);
    EXPECT_EQ(target.bits(), before);
    EXPECT_EQ(target.optimizer.steps(), 2);
    EXPECT_EQ(target.scale.value(), 512);
    EXPECT_EQ(target.scale.good_steps(), 2);
  };
  const std::string key = "checkpoint.loss_scale", good = "checkpoint.loss_scale_good_steps";
  refused({}, &target.scale);
  refused({{key, "8"}, {good, "0"}}, nullptr);
  refused({{key, "8"}}, &target.scale);
  for (const char* value : {"", "0.5", "inf", "nan", "8x", "1e300"})
    refused({{key, value}, {good, "0"}}, &target.scale);
  refused({{key, "8"}, {good, "-1"}}, &target.scale);
}

// ---- threads -----------------------------------------------------------------------------------

TEST(training_of_16_bits, has_the_same_bits_with_any_number_of_threads) {
  for (const DType type : k16Bits) {
    std::vector<std::string> alone;
    for (const int threads : {1, 2, 5}) {
      Context context({.threads = threads});
      LanguageModel model({.vocabulary = 11,
                           .length = 40,
                           .layers = 2,
                           .model_dim = 24,
                           .heads = 3,
                           .hidden_dim = 40,
                           .type = type,
                           .seed = 3});
      Tensor tokens({5, 40}, DType::i64), targets({5, 40}, DType::i64);
      for (std::int64_t n = 0; n < tokens.count(); ++n) {
        tokens.data<std::int64_t>()[n] = (n * n + 3 * n) % 11;
        targets.data<std::int64_t>()[n] = (n * n + 5 * n + 4) % 11;
      }
      AdamW optimizer;
      LossScale scale;
      for (int step = 0; step < 4; ++step) {
        const auto [logits, saved] = model.forward_train(tokens, context);
        const Loss loss =
            cross_entropy(logits, targets, {.gradient_scale = scale.value()}, context);
        std::vector<NamedTensor> gradients = model.backward(loss.gradient, saved, context);
        ASSERT_TRUE(scale.unscale(gradients));
        optimizer.step(model.writable_parameters(), gradients, 0.01);
      }
      const std::vector<std::string> bits = bits_of(model.parameters());
      if (threads == 1) alone = bits;
      EXPECT_EQ(bits, alone) << name_of(type) << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace attend::test
