// What `attend train` can train: the data, the form of the model, and how it is judged.
#pragma once

#include "frame/json.h"
#include "induction.h"

#include <attend/train.h>

#include <memory>
#include <optional>
#include <string>

namespace attend::cli {

// All that the course of a training depends on. It is kept in checkpoints, so that one that is
// resumed goes on as it would have gone.
struct TrainSettings {
  std::string task = "induction";  // or "text"
  std::int64_t steps = 0;          // at most
  std::int64_t batch = 0;
  double learning_rate = 0;
  std::uint64_t seed = 0;

  Metadata metadata() const;
  static TrainSettings from(const TensorFile& checkpoint);
};

// The result, for people and as fields of an object.
struct Verdict {
  std::string text;
  Json fields;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual Batch batch(const TrainSettings& settings, std::int64_t step) const = 0;
  virtual LearningRate learning_rate(const TrainSettings& settings) const = 0;
  // Whether nothing is left to learn.
  virtual bool reached(const TrainSettings&, const LanguageModel&, Context&) const { return false; }
  virtual Verdict judge(const TrainSettings& settings, const LanguageModel& model,
                        Context& context) const = 0;
  // What a file of the model must hold besides it.
  virtual Metadata metadata() const { return {}; }
};

// One step: forward, loss, backward, clipped to a norm of 1, AdamW at `rate`. Returns the loss
// before it; throws if that is not finite. With a loss scale that is too large for the gradients
// there is no step, as optimizer.steps() tells, and the scale is smaller.
double train_step(LanguageModel& model, AdamW& optimizer, const Batch& batch, double rate,
                  Context& context, LossScale* scale = nullptr);

std::unique_ptr<Task> induction_task();

struct Sample {
  std::int64_t count = 0;  // characters to generate
  std::string prompt;      // empty: a line's end, if the text has one, else its first character
  double temperature = 0;
  std::string cache = "f32";  // the type of the KV caches
};
// `length` is that of the sequences.
std::unique_ptr<Task> text_task(const std::string& path, std::int64_t length, const Sample& sample);

// The model that a task trains if nothing else is said. Vocabulary and length are the task's.
LanguageModelOptions induction_model();
LanguageModelOptions text_model(const Task& task);

}  // namespace attend::cli
