#include "task.h"

#include "frame/usage_error.h"
#include "text_model.h"

#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>

namespace attend::cli {
namespace {

template <class... Values>
std::string format(const char* form, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, form, values...);
  return line;
}

const std::string& entry(const TensorFile& file, const std::string& key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end())
    throw UsageError(file.path.string() + " is not a checkpoint of attend train: no " + key);
  return found->second;
}

// The whole entry as a number.
template <class Number>
Number number(const TensorFile& file, const std::string& key) {
  const std::string& digits = entry(file, key);
  Number value{};
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || stop != end)
    throw UsageError(file.path.string() + ": " + key + " is '" + digits + "', not a number");
  return value;
}

std::string digits(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// ---- induction ---------------------------------------------------------------------------------

constexpr double kAccuracy = 0.99, kScore = 0.8;            // what is to be shown
constexpr double kSafeAccuracy = 0.998, kSafeScore = 0.85;  // where training may end

// Streams of batches that share no sequence but by chance.
enum Stream : std::uint64_t { kLearned, kWatched, kJudged };

class InductionTask final : public Task {
 public:
  Batch batch(const TrainSettings& settings, std::int64_t step) const override {
    return induction_batch({}, settings.seed, kLearned, step, settings.batch);
  }
  LearningRate learning_rate(const TrainSettings& settings) const override {
    return {.peak = settings.learning_rate, .warmup = 20};
  }
  bool reached(const TrainSettings& settings, const LanguageModel& model,
               Context& context) const override {
    const InductionScores now = scores(settings, kWatched, 128, model, context);
    return now.accuracy >= kSafeAccuracy && now.score() >= kSafeScore;
  }
  Verdict judge(const TrainSettings& settings, const LanguageModel& model,
                Context& context) const override {
    const InductionScores now = scores(settings, kJudged, 256, model, context);
    const bool shown = now.accuracy >= kAccuracy && now.score() >= kScore;
    const auto layer = now.scores.size() - 1;
    return {format("accuracy %.4f on the repeated part (wanted: %.2f)\n", now.accuracy, kAccuracy) +
                format("induction score %.3f, layer %zu head %zu (wanted: %.1f)\n", now.score(),
                       layer, now.head(), kScore),
            {{"held_out_loss", now.loss},
             {"accuracy", now.accuracy},
             {"induction_score", now.score()},
             {"induction_layer", layer},
             {"induction_head", now.head()},
             {"scores", now.scores},
             {"reached", shown}}};
  }

 private:
  static InductionScores scores(const TrainSettings& settings, Stream stream, std::int64_t size,
                                const LanguageModel& model, Context& context) {
    return induction_scores(model, induction_batch({}, settings.seed, stream, 0, size), context);
  }
};

// ---- text --------------------------------------------------------------------------------------

class TextTask final : public Task {
 public:
  TextTask(const std::string& path, std::int64_t length, const Sample& sample)
      : data_(path, length), sample_(sample), prompt_(prompt()) {}

  const Characters& characters() const noexcept { return data_.characters(); }

  Batch batch(const TrainSettings& settings, std::int64_t step) const override {
    return data_.batch(settings.seed, step, settings.batch);
  }
  LearningRate learning_rate(const TrainSettings& settings) const override {
    return {.peak = settings.learning_rate,
            .warmup = std::min<std::int64_t>(20, settings.steps - 1),
            .total = settings.steps,
            .decay = LearningRate::Decay::cosine,
            .minimum = settings.learning_rate / 20};
  }
  Verdict judge(const TrainSettings& settings, const LanguageModel& model,
                Context& context) const override {
    const std::optional<DType> cache =
        sample_.cache == "i8" ? std::optional(DType::i8) : std::nullopt;
    const double loss = data_.held_out_loss(model, 64, cache, context);
    const double plain = data_.unigram_loss();
    const std::string sample = characters().decode(
        model.generate(prompt_, sample_.count, sample_.temperature, settings.seed,
                       cache.value_or(model.options().type), context));
    Verdict verdict{
        format("held-out loss %.3f nats a character (by frequencies alone: %.3f)\n", loss, plain),
        {{"held_out_loss", loss},
         {"unigram_loss", plain},
         {"characters", characters().count()},
         {"prompt", characters().decode(prompt_)},
         {"sample", sample}}};
    if (sample_.count > 0) verdict.text += "\n" + characters().decode(prompt_) + sample + "\n\n";
    return verdict;
  }
  Metadata metadata() const override {
    return {{"text.characters", characters().utf8()},
            {"text.fingerprint", format("%016" PRIx64, data_.fingerprint())}};
  }

 private:
  std::vector<std::int64_t> prompt() const {
    if (!sample_.prompt.empty()) return characters().encode(sample_.prompt, "--prompt");
    const std::string all = characters().utf8();
    if (all.find('\n') != all.npos) return characters().encode("\n", "the text");
    return {0};
  }

  TextData data_;
  Sample sample_;
  std::vector<std::int64_t> prompt_;
};

}  // namespace

Metadata TrainSettings::metadata() const {
  return {{"train.task", task},
          {"train.steps", std::to_string(steps)},
          {"train.batch", std::to_string(batch)},
          {"train.learning_rate", digits(learning_rate)},
          {"train.seed", std::to_string(seed)}};
}

TrainSettings TrainSettings::from(const TensorFile& checkpoint) {
  TrainSettings settings{.task = entry(checkpoint, "train.task"),
                         .steps = number<std::int64_t>(checkpoint, "train.steps"),
                         .batch = number<std::int64_t>(checkpoint, "train.batch"),
                         .learning_rate = number<double>(checkpoint, "train.learning_rate"),
                         .seed = number<std::uint64_t>(checkpoint, "train.seed")};
  if ((settings.task != "induction" && settings.task != "text") || settings.steps < 1 ||
      settings.batch < 1)
    throw UsageError(checkpoint.path.string() + " is not a checkpoint of attend train");
  return settings;
}

double train_step(LanguageModel& model, AdamW& optimizer, const Batch& batch, double rate,
                  Context& context, LossScale* scale) {
  const auto [logits, saved] = model.forward_train(batch.tokens, context);
  const Loss loss = cross_entropy(
      logits, batch.targets,
      {.ignore = kIgnore, .gradient_scale = scale != nullptr ? scale->value() : 1}, context);
  if (!std::isfinite(loss.value))
    throw UsageError("the loss is not finite at step " + std::to_string(optimizer.steps()) +
                     "; a smaller --learning-rate may help");
  std::vector<NamedTensor> gradients = model.backward(loss.gradient, saved, context);
  const bool finite = scale == nullptr || scale->unscale(gradients);
  if (finite) {
    clip_gradients(gradients, 1);
    optimizer.step(model.writable_parameters(), gradients, rate);
  }
  if (scale != nullptr) scale->update(finite);
  return loss.value;
}

std::unique_ptr<Task> induction_task() { return std::make_unique<InductionTask>(); }

std::unique_ptr<Task> text_task(const std::string& path, std::int64_t length,
                                const Sample& sample) {
  return std::make_unique<TextTask>(path, length, sample);
}

LanguageModelOptions induction_model() {
  const InductionOptions task;
  return {.vocabulary = task.vocabulary, .length = 2 * task.longest};
}

LanguageModelOptions text_model(const Task& task) {
  return {.vocabulary = dynamic_cast<const TextTask&>(task).characters().count()};
}

}  // namespace attend::cli
