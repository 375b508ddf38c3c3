// The language model: its gradients, its ways of reading a sequence, what it writes, its files.
#include "support/io_files.h"
#include "support/layer_gradients.h"

#include <attend/model.h>
#include <attend/train.h>

#include <gtest/gtest.h>

namespace attend::test {
namespace {

LanguageModelOptions tiny(DType type = DType::f32) {
  return {.vocabulary = 5,
          .length = 6,
          .layers = 2,
          .model_dim = 6,
          .heads = 2,
          .hidden_dim = 7,
          .type = type,
          .seed = 3};
}

Tensor some_tokens(std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
  Tensor tokens({batch, length}, DType::i64);
  for (std::int64_t n = 0; n < tokens.count(); ++n)
    tokens.data<std::int64_t>()[n] = (n * n + 3 * n + 1) % vocabulary;
  return tokens;
}

std::string bits_of(const ConstTensorView& view) {
  const Tensor copy = Tensor::copy_of(view);
  return {static_cast<const char*>(copy.view().data()),
          static_cast<std::size_t>(copy.count() * size_of(copy.dtype()))};
}

TEST(language_model, gradients_of_every_parameter_are_the_derivatives) {
  for (const NormPlacement placement :
       {NormPlacement::pre, NormPlacement::post, NormPlacement::none})
    for (const std::int64_t hidden_dim : {0, 7}) {
      LanguageModelOptions options = tiny(DType::f64);
      options.placement = placement;
      options.hidden_dim = hidden_dim;
      LanguageModel model(options);
      const Tensor tokens = some_tokens(2, 4, 5), targets = some_tokens(2, 4, 3);
      const auto [logits, saved] = model.forward_train(tokens);
      EXPECT_EQ(bits_of(logits), bits_of(model.forward(tokens)));
      const std::vector<NamedTensor> gradients =
          model.backward(cross_entropy(logits, targets).gradient, saved);
      const GradientCheck check =
          check_gradients([&] { return cross_entropy(model.forward(tokens), targets).value; },
                          paired(model.writable_parameters(), gradients));
      EXPECT_EQ(check.failures, "");
      EXPECT_EQ(check.differences, parameter_count(model.parameters()));
      EXPECT_GT(check.noticing, check.differences / 2);
    }
}

TEST(language_model, token_by_token_gives_the_bits_of_the_whole_sequence) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const LanguageModel model(tiny(type));
    const Tensor tokens = some_tokens(3, 6, 5);
    const Tensor whole = model.forward(tokens);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}, std::vector<std::int64_t>{0, 4, 6}}) {
      std::vector<KvCache> caches = model.make_caches(3);
      for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
        const Tensor part = model.forward(tokens.view().slice(1, cuts[n], cuts[n + 1]), caches);
        EXPECT_EQ(bits_of(part), bits_of(whole.view().slice(1, cuts[n], cuts[n + 1])))
            << name_of(type) << " from " << cuts[n];
      }
    }
  }
}

TEST(language_model, later_tokens_change_no_earlier_logit) {
  const LanguageModel model(tiny());
  Tensor tokens = some_tokens(1, 6, 5);
  const Tensor before = model.forward(tokens);
  tokens.at<std::int64_t>({0, 5}) = (tokens.at<std::int64_t>({0, 5}) + 1) % 5;
  const Tensor after = model.forward(tokens);
  EXPECT_EQ(bits_of(before.view().slice(1, 0, 5)), bits_of(after.view().slice(1, 0, 5)));
  EXPECT_NE(bits_of(before), bits_of(after));
}

TEST(language_model, a_refused_token_leaves_the_caches) {
  const LanguageModel model(tiny());
  const Tensor tokens = some_tokens(1, 6, 5);
  std::vector<KvCache> caches = model.make_caches(1);
  model.forward(tokens.view().slice(1, 0, 4), caches);
  EXPECT_THROW(model.forward(tokens.view().slice(1, 0, 3), caches), InvalidArgument);  // no room
  EXPECT_THROW(model.forward(Tensor({7}, {1, 1}), caches), InvalidArgument);
  for (const KvCache& cache : caches) EXPECT_EQ(cache.length(0), 4);
  EXPECT_EQ(bits_of(model.forward(tokens.view().slice(1, 4, 6), caches)),
            bits_of(model.forward(tokens).view().slice(1, 4, 6)));
}

TEST(language_model, trace_names_every_step) {
  const LanguageModel model(tiny());
  const Tensor tokens = some_tokens(2, 4, 5);
  const Trace trace = model.trace(tokens);
  EXPECT_EQ(trace.at("blocks.1.attention.weights").shape(), (Shape{2, 2, 4, 4}));
  EXPECT_EQ(bits_of(trace.at("logits")), bits_of(model.forward(tokens)));
  EXPECT_EQ(trace.steps.front().name, "tokens");
}

TEST(language_model, the_seed_is_all_that_first_weights_depend_on) {
  LanguageModelOptions options = tiny();
  const Tensor tokens = some_tokens(1, 6, 5);
  const std::string logits = bits_of(LanguageModel(options).forward(tokens));
  EXPECT_EQ(bits_of(LanguageModel(options).forward(tokens)), logits);
  options.seed = 4;
  EXPECT_NE(bits_of(LanguageModel(options).forward(tokens)), logits);
  const LanguageModel model(options);  // blocks that share nothing
  EXPECT_NE(bits_of(model.blocks()[0].attention().q().weight()),
            bits_of(model.blocks()[1].attention().q().weight()));
}

// ---- generation --------------------------------------------------------------------------------

TEST(generate, without_temperature_takes_the_likeliest) {
  const LanguageModel model(tiny());
  std::vector<std::int64_t> all = {1, 4};
  const std::vector<std::int64_t> found = model.generate(all, 4);
  for (const std::int64_t token : found) {
    const auto size = static_cast<std::int64_t>(all.size());
    const Tensor logits = model.forward(ConstTensorView(all.data(), {1, size}));
    const float* last = &logits.at<float>({0, size - 1, 0});
    EXPECT_EQ(token, std::max_element(last, last + 5) - last);
    all.push_back(token);
  }
}

TEST(generate, goes_on_when_the_sequence_is_full) {
  for (const std::int64_t length : {1, 2, 6}) {
    LanguageModelOptions options = tiny();
    options.length = length;
    const LanguageModel model(options);
    const std::vector<std::int64_t> prompt = {1, 4, 2, 0, 3, 3, 1, 2};  // itself too long
    std::vector<std::int64_t> all = model.generate(prompt, 40, 1, 5);
    EXPECT_EQ(all.size(), 40u);
    for (const std::int64_t token : all) EXPECT_TRUE(token >= 0 && token < 5);
  }
}

TEST(generate, forgets_the_older_half) {
  const LanguageModel model(tiny());  // room for 6
  const std::vector<std::int64_t> prompt = {1, 4, 2, 0, 3, 1};
  const std::vector<std::int64_t> two = model.generate(prompt, 2);
  // The second comes from the last three tokens, at the places 0 to 2.
  EXPECT_EQ(two[0], model.generate(prompt, 1)[0]);
  EXPECT_EQ(two[1], model.generate({3, 1, two[0]}, 1)[0]);
}

TEST(generate, is_decided_by_the_seed_and_draws_by_probability) {
  const LanguageModel model(tiny());
  EXPECT_EQ(model.generate({2}, 30, 0.8, 9), model.generate({2}, 30, 0.8, 9));
  EXPECT_NE(model.generate({2}, 30, 0.8, 9), model.generate({2}, 30, 0.8, 10));
  EXPECT_EQ(model.generate({2}, 30, 1e-4, 9), model.generate({2}, 30));

  const Tensor logits = model.forward(Tensor({2}, {1, 1}));
  double sum = 0;
  std::vector<double> expected(5), found(5);
  for (int c = 0; c < 5; ++c) sum += expected[c] = std::exp(logits.at<float>({0, 0, c}) / 1.5);
  constexpr int kDraws = 2000;
  for (int seed = 0; seed < kDraws; ++seed) found[model.generate({2}, 1, 1.5, seed)[0]] += 1;
  for (int c = 0; c < 5; ++c)  // five standard deviations
    EXPECT_NEAR(found[c] / kDraws, expected[c] / sum, 5 * 0.5 / std::sqrt(kDraws)) << c;
}

// ---- files -------------------------------------------------------------------------------------

TEST(language_model, comes_back_from_a_file_with_the_same_bits) {
  const TemporaryFolder folder;
  const Tensor tokens = some_tokens(2, 6, 5);
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    LanguageModelOptions options = tiny(type);
    options.placement = type == DType::f16 ? NormPlacement::post : NormPlacement::pre;
    options.norm = type == DType::f64 ? NormKind::rms_norm : NormKind::layer_norm;
    options.activation = type == DType::bf16 ? Activation::swiglu : Activation::relu;
    options.hidden_dim = type == DType::f32 ? 0 : 7;
    const LanguageModel model(options);
    model.save(folder / "m", {{"made by", "a test"}});
    const LanguageModel loaded = LanguageModel::load(folder / "m");
    EXPECT_EQ(bits_of(loaded.forward(tokens)), bits_of(model.forward(tokens)));
    EXPECT_EQ(loaded.metadata(), model.metadata());
    loaded.save(folder / "again", {{"made by", "a test"}});
    EXPECT_EQ(bytes_of(folder / "again"), bytes_of(folder / "m"));
  }
}

TEST(language_model, sizes_that_the_tensors_do_not_have_are_refused_before_they_are_allocated) {
  const TemporaryFolder folder;
  LanguageModel(tiny()).save(folder / "m");
  const TensorFile file = load_safetensors(folder / "m");
  for (const char* key : {"vocabulary", "length", "layers", "model_dim", "heads", "hidden_dim"})
    for (const char* value : {"1099511627776", "-1", "0", "6.0", "", "x"}) {
      if (std::string(key) == "hidden_dim" && std::string(value) == "0") continue;
      TensorFile changed = file;
      changed.metadata[key] = value;
      EXPECT_THROW(LanguageModel::load(changed), Error) << key << " " << value;
      changed.metadata.erase(key);
      EXPECT_THROW(LanguageModel::load(changed), FileError) << key;
    }
  TensorFile without = file;
  without.metadata["hidden_dim"] = "0";  // then nothing takes the feed-forward network's tensors
  EXPECT_THROW(LanguageModel::load(without), FileError);
}

TEST(language_model, a_checkpoint_of_it_resumes_to_the_same_bits) {
  const TemporaryFolder folder;
  const Tensor tokens = some_tokens(2, 6, 5), targets = some_tokens(2, 6, 4);
  const auto train = [&](LanguageModel& model, AdamW& adamw, int steps) {
    for (int n = 0; n < steps; ++n) {
      const auto [logits, saved] = model.forward_train(tokens);
      const Loss loss = cross_entropy(logits, targets);
      adamw.step(model.writable_parameters(), model.backward(loss.gradient, saved), 0.01);
    }
  };
  LanguageModel whole(tiny()), half(tiny());
  AdamW whole_adamw, half_adamw, other_adamw;
  train(whole, whole_adamw, 6);
  train(half, half_adamw, 3);
  save_checkpoint(folder / "c", half.parameters(), half_adamw, half.metadata());
  LanguageModel other(LanguageModel::options_of(load_safetensors(folder / "c")));
  EXPECT_EQ(load_checkpoint(folder / "c", other.writable_parameters(), other_adamw),
            half.metadata());
  train(other, other_adamw, 3);
  EXPECT_EQ(bits_of(other.forward(tokens)), bits_of(whole.forward(tokens)));
}

}  // namespace
}  // namespace attend::test
