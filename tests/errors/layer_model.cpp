// Mistakes with the language model.
#include "errors/layer_mistakes.h"
#include "support/io_files.h"

#include <attend/model.h>

#include <cmath>

namespace attend::test {
namespace {

LanguageModelOptions tiny() {
  return {.vocabulary = 5, .length = 6, .layers = 2, .model_dim = 4, .heads = 2, .hidden_dim = 3};
}

const LanguageModel& model() {
  static const LanguageModel made(tiny());
  return made;
}

TensorFile file_of_the_model() {
  static const TemporaryFolder folder;
  model().save(folder / "m");
  TensorFile file = load_safetensors(folder / "m");
  file.path = "F";
  return file;
}

void load_with(const std::string& key, const std::string& value) {
  TensorFile file = file_of_the_model();
  file.metadata[key] = value;
  LanguageModel::load(file);
}

void make_with(void (*change)(LanguageModelOptions&)) {
  LanguageModelOptions options = tiny();
  change(options);
  LanguageModel{options};
}

Tensor tokens(std::int64_t batch, std::int64_t length) {
  return Tensor({batch, length}, DType::i64);
}

}  // namespace

std::vector<LayerMistake> model_mistakes() {
  const auto make = [](void (*change)(LanguageModelOptions&)) {
    return [change] { make_with(change); };
  };
  const auto load = [](const char* key, const char* value) {
    return [key, value] { load_with(key, value); };
  };
  return {
      {"model_without_words", make([](auto& o) { o.vocabulary = 0; }),
       "InvalidArgument: language_model: vocabulary is 0; it must be at least 1"},
      {"model_without_length", make([](auto& o) { o.length = 0; }),
       "InvalidArgument: language_model: length is 0; it must be at least 1"},
      {"model_without_layers", make([](auto& o) { o.layers = 0; }),
       "InvalidArgument: language_model: layers is 0; it must be at least 1"},
      {"model_without_width", make([](auto& o) { o.model_dim = 0; }),
       "InvalidArgument: language_model: model_dim is 0; it must be at least 1"},
      {"model_without_tokens", [] { model().forward(ConstTensorView()); },
       "InvalidArgument: language_model: tokens is missing"},
      {"tokens_without_a_batch", [] { model().forward(Tensor({3}, DType::i64)); },
       "InvalidArgument: language_model: tokens is [3]; it must be [batch, T]"},
      {"a_cache_too_few",
       [] {
         std::vector<KvCache> caches = model().make_caches(1);
         caches.pop_back();
         model().forward(tokens(1, 2), caches);
       },
       "InvalidArgument: language_model: there are 1 caches for 2 blocks"},
      {"caches_of_another_batch",
       [] {
         std::vector<KvCache> caches = model().make_caches(2);
         model().forward(tokens(1, 2), caches);
       },
       "InvalidArgument: language_model: tokens has batch 1, a cache 2"},
      {"caches_of_different_lengths",
       [] {
         std::vector<KvCache> caches = model().make_caches(1);
         model().forward(tokens(1, 3), caches);
         caches[1].truncate(0, 2);
         model().forward(tokens(1, 2), caches);
       },
       "InvalidArgument: language_model: the caches hold 3 and 2 tokens; all must hold as many"},
      {"saved_by_nobody",
       [] {
         model().backward(Tensor({1, 2, 5}), {});
       },
       "InvalidArgument: language_model: saved is of 0 blocks, the model has 2"},
      {"file_of_other_words", load("vocabulary", "7"),
       "FileError: language_model: F: tensor 'tokens.weight' is [5, 4]; by the metadata it must be "
       "[7, 4]"},
      {"file_of_other_positions", load("length", "7"),
       "FileError: language_model: F: tensor 'positions.weight' is [6, 4]; by the metadata it must "
       "be [7, 4]"},
      {"file_of_another_width", load("model_dim", "2"),
       "FileError: language_model: F: tensor 'tokens.weight' is [5, 4]; by the metadata it must be "
       "[5, 2]"},
      {"file_of_a_narrower_head",
       [] {
         TensorFile file = file_of_the_model();
         for (auto& [name, tensor] : file.tensors)
           if (name == "blocks.1.attention.q.weight") tensor = Tensor({2, 4});
         LanguageModel::load(file);
       },
       "FileError: language_model: F: tensor 'blocks.1.attention.q.weight' is [2, 4]; by the "
       "metadata it must be [4, 4]"},
      {"file_of_a_wider_network", load("hidden_dim", "8"),
       "FileError: language_model: F: tensor 'blocks.0.feed_forward.up.weight' is [3, 4]; by the "
       "metadata it must be [8, 4]"},
      {"file_of_heads_that_do_not_divide_the_width", load("heads", "3"),
       "FileError: language_model: F: multi_head_attention: model_dim 4 is not divisible by heads "
       "3; give d_k, or one of 1 2 4"},
      {"file_of_fewer_than_no_layers", load("layers", "-1"),
       "FileError: language_model: F: language_model: layers is -1; it must be at least 1"},
      {"metadata_of_the_model",
       [] {
         model().save("F", {{"heads", "3"}});
       },
       "InvalidArgument: language_model: the metadata key 'heads' is reserved for the model"},
      {"no_prompt", [] { model().generate({}, 3); },
       "InvalidArgument: generate: the prompt is empty"},
      {"generated_below_zero", [] { model().generate({1}, -3); },
       "InvalidArgument: generate: count is -3, less than 0"},
      {"temperature_below_zero", [] { model().generate({1}, 3, -0.5); },
       "InvalidArgument: generate: temperature is -0.5; it must be finite and not negative"},
      {"weights_that_are_not_numbers",
       [] {
         LanguageModel broken(tiny());
         *static_cast<float*>(broken.writable_parameters().back().value.data()) = NAN;
         broken.generate({1}, 3);
       },
       "InvalidArgument: generate: a logit is not finite; are the weights?"},
  };
}

}  // namespace attend::test
