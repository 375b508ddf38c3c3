// Losses, optimizers, learning rates, checkpoints: each against its formula, written out here.
#include "support/io_files.h"

#include <attend/linear.h>
#include <attend/train.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace attend::test {
namespace {

Tensor random_values(const Shape& shape, unsigned seed, DType type = DType::f64) {
  std::mt19937 bits(seed);
  Tensor values(shape, DType::f64);
  for (std::int64_t n = 0; n < values.count(); ++n)
    values.data<double>()[n] = static_cast<double>(bits()) / 2147483648.0 - 1;
  if (type == DType::f64) return values;
  Tensor other(shape, type);
  for (std::int64_t n = 0; n < values.count(); ++n) {
    if (type == DType::f32) other.data<float>()[n] = static_cast<float>(values.data<double>()[n]);
    else if (type == DType::f16) other.data<f16>()[n] = f16(values.data<double>()[n]);
    else other.data<bf16>()[n] = bf16(values.data<double>()[n]);
  }
  return other;
}

// (f(x + e) - f(x - e)) / 2e for each element of x must be the gradient's.
void expect_derivative(Tensor x, const Tensor& gradient, const std::function<double(Tensor&)>& f) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(gradient.shape(), x.shape());
  for (std::int64_t n = 0; n < x.count(); ++n) {
    double& value = x.data<double>()[n];
    const double middle = value;
    value = middle + kStep;
    const double above = f(x);
    value = middle - kStep;
    const double below = f(x);
    value = middle;
    EXPECT_NEAR(gradient.data<double>()[n], (above - below) / (2 * kStep), 1e-9) << "element " << n;
  }
}

std::vector<char> bits_of(const ConstTensorView& view) {
  const Tensor copy = Tensor::copy_of(view);
  const auto* data = static_cast<const char*>(copy.view().data());
  return {data, data + copy.count() * size_of(copy.dtype())};
}

std::vector<std::vector<char>> bits_of(const std::vector<NamedView>& list) {
  std::vector<std::vector<char>> bits;
  for (const NamedView& named : list) bits.push_back(bits_of(named.tensor));
  return bits;
}

// ---- losses ------------------------------------------------------------------------------------

TEST(cross_entropy, is_the_mean_of_minus_the_log_of_the_targets_probability) {
  const Tensor logits({0.0, std::log(3.0), std::log(4.0), 5.0, 5.0, 5.0}, {2, 3});
  const Tensor targets({std::int64_t{1}, std::int64_t{2}}, {2});
  const Loss loss = cross_entropy(logits, targets);
  EXPECT_NEAR(loss.value, -(std::log(3.0 / 8) + std::log(1.0 / 3)) / 2, 1e-15);
  EXPECT_EQ(loss.count, 2);
  EXPECT_NEAR(loss.gradient.at<double>({0, 1}), (3.0 / 8 - 1) / 2, 1e-15);
  EXPECT_NEAR(loss.gradient.at<double>({1, 0}), 1.0 / 6, 1e-15);
}

TEST(cross_entropy, gradient_is_the_derivative) {
  const Tensor logits = random_values({2, 3, 5}, 1);
  const Tensor targets({4, 0, -100, 1, 1, 3}, {2, 3});
  for (const double smoothing : {0.0, 0.1}) {
    const CrossEntropyOptions options{-100, smoothing};
    expect_derivative(logits, cross_entropy(logits, targets, options).gradient,
                      [&](Tensor& x) { return cross_entropy(x, targets, options).value; });
  }
}

TEST(cross_entropy, smoothing_is_a_mean_over_targets) {
  const Tensor logits = random_values({1, 4}, 2);
  double mean = 0;
  for (int c = 0; c < 4; ++c) mean += cross_entropy(logits, Tensor({c}, {1})).value / 4;
  const double plain = cross_entropy(logits, Tensor({2}, {1})).value;
  EXPECT_NEAR(cross_entropy(logits, Tensor({2}, {1}), {.label_smoothing = 0.3}).value,
              0.7 * plain + 0.3 * mean, 1e-14);
}

TEST(cross_entropy, ignored_rows_do_not_count) {
  const Tensor logits = random_values({3, 4}, 3);
  const Loss loss = cross_entropy(logits, Tensor({1, 7, 2}, {3}), {.ignore = 7});
  const Loss first = cross_entropy(logits.view().slice(0, 0, 1), Tensor({1}, {1}));
  const Loss last = cross_entropy(logits.view().slice(0, 2, 3), Tensor({2}, {1}));
  EXPECT_EQ(loss.count, 2);
  EXPECT_DOUBLE_EQ(loss.value, (first.value + last.value) / 2);
  for (int c = 0; c < 4; ++c) EXPECT_EQ(loss.gradient.at<double>({1, c}), 0);
}

TEST(cross_entropy, without_rows_that_count_is_zero) {
  const Loss loss = cross_entropy(random_values({2, 3}, 4), Tensor({-100, -100}, {2}));
  EXPECT_EQ(loss.value, 0);
  EXPECT_EQ(loss.count, 0);
  for (int n = 0; n < 6; ++n) EXPECT_EQ(loss.gradient.data<double>()[n], 0);
}

TEST(cross_entropy, survives_logits_that_would_overflow) {
  const Tensor logits({1e4f, -1e4f, -std::numeric_limits<float>::infinity()}, {1, 3});
  EXPECT_EQ(cross_entropy(logits, Tensor({0}, {1})).value, 0);
  EXPECT_EQ(cross_entropy(logits, Tensor({1}, {1})).value, 2e4);
}

TEST(cross_entropy, takes_any_strides_and_threads_change_no_bit) {
  const Tensor logits = random_values({5, 4, 7}, 5, DType::f32);
  Tensor targets({5, 4}, DType::i32);
  for (int n = 0; n < 20; ++n) targets.data<std::int32_t>()[n] = n % 7;
  Context one({.threads = 1}), three({.threads = 3});
  const Loss a = cross_entropy(logits, targets, {}, one);
  const Loss b = cross_entropy(Tensor::copy_of(logits.view().permute({1, 0, 2})),
                               targets.view().permute({1, 0}), {}, three);
  const Loss c = cross_entropy(logits.view(), targets, {}, three);
  EXPECT_NEAR(a.value, b.value, 1e-14);
  EXPECT_EQ(bits_of(a.gradient.view().permute({1, 0, 2})), bits_of(b.gradient));
  EXPECT_EQ(a.value, c.value);
  EXPECT_EQ(bits_of(a.gradient), bits_of(c.gradient));
}

TEST(mse, is_the_mean_square_and_its_derivative) {
  const Tensor target = random_values({3, 5}, 6);
  const Tensor x = random_values({3, 5}, 7);
  const Loss loss = mse(x, target);
  double sum = 0;
  for (int n = 0; n < 15; ++n) sum += std::pow(x.data<double>()[n] - target.data<double>()[n], 2);
  EXPECT_DOUBLE_EQ(loss.value, sum / 15);
  EXPECT_EQ(loss.count, 15);
  expect_derivative(x, loss.gradient, [&](Tensor& y) { return mse(y, target).value; });
}

TEST(mse, of_nothing_is_zero) { EXPECT_EQ(mse(Tensor({0, 3}), Tensor({0, 3})).value, 0); }

// ---- gradients ---------------------------------------------------------------------------------

TEST(accumulate, adds_name_by_name) {
  std::vector<NamedTensor> sum;
  const std::vector<NamedTensor> more = {{"a", Tensor({1.0f, 2.0f}, {2})},
                                         {"b", Tensor({3.0f}, {1})}};
  accumulate(sum, more);
  accumulate(sum, more);
  EXPECT_EQ(sum[0].tensor.at<float>({1}), 4);
  EXPECT_EQ(sum[1].tensor.at<float>({0}), 6);
}

TEST(clip_gradients, scales_all_by_their_common_norm) {
  std::vector<NamedTensor> g = {{"a", Tensor({3.0, 0.0}, {2})}, {"b", Tensor({-4.0}, {1})}};
  EXPECT_EQ(clip_gradients(g, 6), 5);
  EXPECT_EQ(g[0].tensor.at<double>({0}), 3);  // small enough: no bit changes
  EXPECT_EQ(clip_gradients(g, 0.5), 5);
  EXPECT_DOUBLE_EQ(g[0].tensor.at<double>({0}), 0.3);
  EXPECT_DOUBLE_EQ(g[1].tensor.at<double>({0}), -0.4);
}

TEST(clip_gradients, squares_do_not_overflow) {
  std::vector<NamedTensor> g = {{"a", Tensor({3e200, 4e200}, {2})}};
  EXPECT_DOUBLE_EQ(clip_gradients(g, 1), 5e200);
  EXPECT_DOUBLE_EQ(g[0].tensor.at<double>({0}), 0.6);
}

TEST(clip_gradients, leaves_gradients_alone_that_are_not_finite) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    std::vector<NamedTensor> g = {{"a", Tensor({3.0, bad, 7.0}, {3})}};
    EXPECT_THROW(clip_gradients(g, 1), InvalidArgument);
    EXPECT_EQ(g[0].tensor.at<double>({0}), 3);
    g = {{"a", Tensor({bad}, {1})}};
    EXPECT_THROW(clip_gradients(g, 1), InvalidArgument);
  }
}

// ---- learning rates ----------------------------------------------------------------------------

TEST(learning_rate, rises_to_the_peak_and_stays) {
  const LearningRate rate{.peak = 0.8, .warmup = 4};
  EXPECT_DOUBLE_EQ(rate.at(0), 0.2);
  EXPECT_DOUBLE_EQ(rate.at(2), 0.6);
  EXPECT_DOUBLE_EQ(rate.at(3), 0.8);
  EXPECT_DOUBLE_EQ(rate.at(1000), 0.8);
}

TEST(learning_rate, falls_to_the_minimum_at_the_last_step) {
  using Decay = LearningRate::Decay;
  for (const Decay decay : {Decay::linear, Decay::cosine}) {
    const LearningRate rate{.peak = 1, .warmup = 10, .total = 110, .decay = decay, .minimum = 0.2};
    EXPECT_DOUBLE_EQ(rate.at(10), 1);
    EXPECT_DOUBLE_EQ(rate.at(60), 0.6);
    EXPECT_DOUBLE_EQ(rate.at(35), decay == Decay::linear ? 0.8 : 0.6 + 0.4 * std::sqrt(0.5));
    EXPECT_DOUBLE_EQ(rate.at(110), 0.2);
    EXPECT_DOUBLE_EQ(rate.at(1000), 0.2);
  }
}

// ---- optimizers --------------------------------------------------------------------------------

// Five steps of one parameter in f64, beside `formula`, which is called for each element.
void expect_steps(Optimizer& optimizer,
                  const std::function<double(double x, double g, int t, double* memory)>& formula) {
  constexpr int kCount = 2500;  // more than one piece
  Tensor x = random_values({kCount}, 8), expected = x;
  std::vector<double> memory(2 * kCount);
  for (int t = 1; t <= 5; ++t) {
    const std::vector<NamedTensor> g = {{"x", random_values({kCount}, 8 + t)}};
    optimizer.step({{"x", x}}, g, 0.1);
    for (int n = 0; n < kCount; ++n) {
      double& e = expected.data<double>()[n];
      e = formula(e, g[0].tensor.data<double>()[n], t, &memory[2 * n]);
      ASSERT_NEAR(x.data<double>()[n], e, 1e-14) << "step " << t << ", element " << n;
    }
  }
  EXPECT_EQ(optimizer.steps(), 5);
}

TEST(sgd, follows_its_formula) {
  SGD plain;
  expect_steps(plain, [](double x, double g, int, double*) { return x - 0.1 * g; });
  SGD momentum({.momentum = 0.9, .weight_decay = 0.2});
  expect_steps(momentum, [](double x, double g, int, double* m) {
    m[0] = 0.9 * m[0] + g;
    return x - 0.1 * m[0] - 0.1 * 0.2 * x;
  });
  SGD nesterov({.momentum = 0.8, .nesterov = true});
  expect_steps(nesterov, [](double x, double g, int, double* m) {
    m[0] = 0.8 * m[0] + g;
    return x - 0.1 * (g + 0.8 * m[0]);
  });
}

TEST(adamw, follows_its_formula) {
  AdamW adamw({.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1});
  expect_steps(adamw, [](double x, double g, int t, double* m) {
    m[0] = 0.8 * m[0] + 0.2 * g;
    m[1] = 0.95 * m[1] + 0.05 * g * g;
    const double mean = m[0] / (1 - std::pow(0.8, t)), square = m[1] / (1 - std::pow(0.95, t));
    return x - 0.1 * 0.1 * x - 0.1 * mean / (std::sqrt(square) + 1e-3);
  });
}

TEST(optimizer, steps_too_small_for_16_bits_add_up_in_the_copy) {
  for (const DType type : {DType::bf16, DType::f16}) {
    Tensor narrow({1}, type);
    if (type == DType::bf16) narrow.at<bf16>({0}) = bf16(1);
    else narrow.at<f16>({0}) = f16(1);
    SGD sgd;
    const std::vector<NamedTensor> g = {{"x", Tensor({1.0f}, {1})}};
    for (int step = 0; step < 1000; ++step) sgd.step({{"x", narrow}}, g, 1.0 / 2048);
    const float value = type == DType::bf16 ? static_cast<float>(narrow.at<bf16>({0}))
                                            : static_cast<float>(narrow.at<f16>({0}));
    EXPECT_NEAR(value, 1 - 1000.0 / 2048, 0.002);  // without the copy, bf16 would stay at 1
    EXPECT_EQ(sgd.state().at(0).name, "master.x");
    EXPECT_EQ(sgd.state().at(0).tensor.dtype(), DType::f32);
  }
}

TEST(optimizer, every_parameter_of_16_bits_has_a_copy_of_its_own) {
  Tensor one({1}, DType::bf16), two({1}, DType::bf16);
  one.at<bf16>({0}) = bf16(1);
  two.at<bf16>({0}) = bf16(2);
  SGD sgd;
  sgd.step({{"one", one}, {"two", two}}, {{"one", Tensor({1})}, {"two", Tensor({1})}}, 0.5);
  EXPECT_EQ(static_cast<float>(one.at<bf16>({0})), 1);
  EXPECT_EQ(static_cast<float>(two.at<bf16>({0})), 2);
}

TEST(optimizer, a_refused_step_changes_nothing) {
  Tensor a = random_values({2, 2}, 1), b = random_values({3}, 2);
  const Tensor a_before = a, b_before = b;
  const std::vector<NamedTensor> good = {{"a", random_values({2, 2}, 3)},
                                         {"b", random_values({3}, 4)}};
  std::vector<NamedTensor> bad = good;
  bad[1].tensor = random_values({4}, 4);
  AdamW adamw;
  EXPECT_THROW(adamw.step({{"a", a}, {"b", b}}, bad, 0.1), InvalidArgument);
  EXPECT_EQ(bits_of(a), bits_of(a_before));
  EXPECT_EQ(bits_of(b), bits_of(b_before));
  EXPECT_EQ(adamw.steps(), 0);
  EXPECT_TRUE(adamw.state().empty());

  adamw.step({{"a", a}, {"b", b}}, good, 0.1);
  const auto state = bits_of(adamw.state());
  EXPECT_THROW(adamw.step({{"a", a}}, {good[0]}, 0.1), InvalidArgument);  // one has gone
  EXPECT_EQ(bits_of(adamw.state()), state);
  EXPECT_EQ(adamw.steps(), 1);
}

// ---- checkpoints -------------------------------------------------------------------------------

// A linear map learns another one.
struct Training {
  explicit Training(DType type, std::unique_ptr<Optimizer> how = std::make_unique<AdamW>())
      : layer(LinearOptions{.in = 5, .out = 3, .type = type, .seed = 3}),
        optimizer(std::move(how)) {}

  double steps(int count) {
    double value = 0;
    for (int n = 0; n < count; ++n) {
      const auto at = static_cast<unsigned>(optimizer->steps());
      const Tensor x = random_values({8, 5}, 100 + at, layer.dtype());
      const Tensor target = random_values({8, 3}, 200, layer.dtype());
      const auto [y, saved] = layer.forward_train(x);
      const Loss loss = mse(y, target);
      optimizer->step(layer.writable_parameters(), layer.backward(loss.gradient, saved).parameters,
                      0.01);
      value = loss.value;
    }
    return value;
  }
  std::vector<NamedView> parameters() const { return layer.parameters(); }

  Linear layer;
  std::unique_ptr<Optimizer> optimizer;
};

TEST(checkpoint, resumes_to_the_bits_of_training_that_was_never_interrupted) {
  const TemporaryFolder folder;
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Training whole(type);
    const double loss = whole.steps(20);
    Training first(type);
    first.steps(9);
    save_checkpoint(folder / "c", first.parameters(), *first.optimizer, {{"epoch", "3"}});
    Training second(type);
    second.steps(2);  // forgotten by the load
    EXPECT_EQ(load_checkpoint(folder / "c", second.layer.writable_parameters(), *second.optimizer),
              (Metadata{{"epoch", "3"}}));
    EXPECT_EQ(second.optimizer->steps(), 9);
    EXPECT_EQ(second.steps(11), loss);
    EXPECT_EQ(bits_of(second.parameters()), bits_of(whole.parameters())) << name_of(type);
    EXPECT_EQ(bits_of(second.optimizer->state()), bits_of(whole.optimizer->state()));
  }
}

TEST(checkpoint, before_the_first_step_is_the_beginning) {
  const TemporaryFolder folder;
  Training fresh(DType::bf16), other(DType::bf16);
  save_checkpoint(folder / "c", fresh.parameters(), *fresh.optimizer);
  other.steps(3);
  load_checkpoint(folder / "c", other.layer.writable_parameters(), *other.optimizer);
  other.steps(2);
  fresh.steps(2);
  EXPECT_EQ(bits_of(other.parameters()), bits_of(fresh.parameters()));
}

// A file of another training, changed by `change`, must be refused with these words and change
// nothing.
void expect_refused(const std::function<void(TensorFile&)>& change, const std::string& words) {
  const TemporaryFolder folder;
  Training source(DType::bf16), target(DType::bf16);
  source.steps(5);
  target.steps(3);
  save_checkpoint(folder / "c", source.parameters(), *source.optimizer);
  TensorFile file = load_safetensors(folder / "c");
  change(file);
  std::vector<NamedView> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.push_back({name, tensor});
  save_safetensors(folder / "c", tensors, file.metadata);

  const auto parameters = bits_of(target.parameters()), state = bits_of(target.optimizer->state());
  try {
    load_checkpoint(folder / "c", target.layer.writable_parameters(), *target.optimizer);
    ADD_FAILURE() << "taken, without: " << words;
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find((folder / "c").string()), std::string::npos);
  }
  EXPECT_EQ(bits_of(target.parameters()), parameters) << words;
  EXPECT_EQ(bits_of(target.optimizer->state()), state) << words;
  EXPECT_EQ(target.optimizer->steps(), 3);
}

// The tensor of a name in a file that may be changed.
Tensor& tensor_of(TensorFile& file, const std::string& name) {
  return const_cast<Tensor&>(file.at(name));
}

TEST(checkpoint, that_does_not_fit_changes_nothing) {
  expect_refused([](TensorFile& f) { f.metadata.erase("checkpoint.version"); },
                 "is not a checkpoint");
  expect_refused([](TensorFile& f) { f.metadata["checkpoint.version"] = "2"; }, "of version 2");
  expect_refused([](TensorFile& f) { f.metadata["checkpoint.optimizer"] = "sgd"; },
                 "the optimizer is 'sgd' in the file and 'adamw' here");
  for (const char* steps : {"", "5x", " 5", "5.0", "0x5", "99999999999999999999", "+5"})
    expect_refused([&](TensorFile& f) { f.metadata["checkpoint.steps"] = steps; },
                   "it must be a whole number");
  expect_refused([](TensorFile& f) { f.metadata["checkpoint.steps"] = "-1"; }, "less than 0");
  expect_refused([](TensorFile& f) { f.metadata["checkpoint.steps"] = "0"; }, "nothing takes");
  expect_refused([](TensorFile& f) { f.tensors.erase(f.tensors.begin()); },
                 "there is no tensor 'weight'");
  expect_refused([](TensorFile& f) { f.tensors.pop_back(); }, "there is no tensor 'master.bias'");
  expect_refused(
      [](TensorFile& f) {
        f.tensors.push_back({"more", Tensor({1})});
      },
      "nothing takes the tensors 'more'");
  expect_refused(
      [](TensorFile& f) {
        tensor_of(f, "weight") = Tensor({5, 3}, DType::bf16);
      },
      "tensor 'weight' is [5, 3] of bf16; it must be [3, 5] of bf16");
  expect_refused([](TensorFile& f) { tensor_of(f, "bias") = Tensor({3}); },
                 "tensor 'bias' is [3] of f32; it must be [3] of bf16");
  expect_refused([](TensorFile& f) { tensor_of(f, "optimizer.v.bias") = Tensor({4}); },
                 "tensor 'v.bias' is [4] of f32; it must be [3] of f32");
}

TEST(checkpoint, that_fails_leaves_the_last_one) {
  const TemporaryFolder folder;
  Training training(DType::f32);
  save_checkpoint(folder / "c", training.parameters(), *training.optimizer);
  const std::string before = bytes_of(folder / "c");
  EXPECT_THROW(save_checkpoint(folder / "c", training.parameters(), *training.optimizer,
                               {{"checkpoint.steps", "7"}}),
               InvalidArgument);
  EXPECT_THROW(save_checkpoint(folder / "c", {{"optimizer.x", Tensor({1})}}, *training.optimizer),
               InvalidArgument);
  EXPECT_EQ(bytes_of(folder / "c"), before);
  EXPECT_EQ(folder.listing(), "c");
}

}  // namespace
}  // namespace attend::test
