// attend train: a small model learns a task, or a text.
#include "files/outputs.h"
#include "files/tensors.h"
#include "frame/machine.h"
#include "frame/program.h"
#include "frame/signals.h"
#include "frame/terminal.h"
#include "plot.h"
#include "task.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is not in <csignal>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>

namespace attend::cli {
namespace {

constexpr double kLayerBytes = 2048;  // of a layer, however small
constexpr std::int64_t kWatch = 25;   // steps between looks at whether the task is learned

struct TrainOptions {
  std::string text, checkpoint, resume, plot, save, type = "f32", weights = "model";
  std::int64_t steps = 0;  // 0: the task's own
  std::int64_t batch = 32, layers = 2, heads = 4, model_dim = 64, length = 32;
  std::int64_t every = 100;
  double learning_rate = 4e-3;
  Sample sample{.count = 200, .prompt = "", .temperature = 0.7};
};

// ---- Ctrl-C ------------------------------------------------------------------------------------

volatile std::sig_atomic_t interrupted = 0;

// The first Ctrl-C asks the loop to end after its step. It also takes the handler away, so that a
// second one ends the process at once, but for a file that is being written.
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &before_);
  }
  ~Interrupts() { ::sigaction(SIGINT, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  struct sigaction before_ {};
};

// ---- training ----------------------------------------------------------------------------------

// A training under way: what is learned, by whom, and what to remember of it.
class Training {
 public:
  Training(const TrainOptions& options, const Common& common)
      : options_(options), context_(common.context()) {
    if (options.resume.empty()) begin(common);
    else resume(common);
    rate_ = task_->learning_rate(settings_);
    rate_.at(0);  // refuses what is out of range
    curve_ = {.title = "loss (nats)", .first = optimizer_.steps() + 1, .values = {}};
  }

  // Until all steps are made, the task is learned, or somebody wants it to end.
  void run() {
    Progress progress("training", settings_.steps);
    while (!interrupted && optimizer_.steps() < settings_.steps && !reached()) {
      const std::int64_t before = optimizer_.steps();
      const double loss = step();
      if (optimizer_.steps() == before) {  // the same batch again, at a smaller scale
        ++skipped_;
        continue;
      }
      curve_.values.push_back(loss);
      char note[32];
      std::snprintf(note, sizeof note, "loss %.3f", loss);
      progress.show(optimizer_.steps(), note);
      if (optimizer_.steps() % options_.every == 0) save_checkpoint();
    }
    save_checkpoint();
  }

  void save_checkpoint() const {
    if (options_.checkpoint.empty()) return;
    const HeldSignals signals;
    Metadata more = all_metadata();
    more.merge(model_->metadata());
    attend::save_checkpoint(options_.checkpoint, model_->parameters(), optimizer_, more, scale());
  }
  void save_model(const std::filesystem::path& path) const { result().save(path, all_metadata()); }
  Verdict judge() const { return task_->judge(settings_, result(), *context_); }

  const TrainSettings& settings() const noexcept { return settings_; }
  const Curve& curve() const noexcept { return curve_; }
  const LanguageModel& model() const noexcept { return *model_; }
  std::int64_t steps() const noexcept { return optimizer_.steps(); }
  std::int64_t skipped() const noexcept { return skipped_; }
  const LossScale* scale() const noexcept { return scale_ ? &*scale_ : nullptr; }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  // The model as it is judged and saved.
  LanguageModel result() const { return options_.weights == "i8" ? model_->quantize() : *model_; }

  void begin(const Common& common) {
    const bool text = !options_.text.empty();
    settings_ = {.task = text ? "text" : "induction",
                 .steps = options_.steps != 0 ? options_.steps
                          : text              ? 600
                                              : 1000,
                 .batch = options_.batch,
                 .learning_rate = options_.learning_rate,
                 .seed = common.seed};
    task_ = make_task(options_.length);
    LanguageModelOptions form = text ? text_model(*task_) : induction_model();
    if (text) {
      form.length = options_.length;
      form.hidden_dim = 4 * options_.model_dim;
    }
    form.layers = options_.layers;
    form.heads = options_.heads;
    form.model_dim = options_.model_dim;
    form.seed = common.seed;
    form.type = type_named(options_.type);
    make_model(form);
  }

  void resume(const Common& common) {
    const TensorFile file = load_file(options_.resume, "--resume takes what --checkpoint wrote");
    settings_ = TrainSettings::from(file);
    if (options_.steps != 0) settings_.steps = options_.steps;
    if (common.seed_given && common.seed != settings_.seed)
      throw UsageError("--seed is " + std::to_string(common.seed) + ", that of " + options_.resume +
                       " is " + std::to_string(settings_.seed));
    if ((settings_.task == "text") == options_.text.empty())
      throw UsageError(options_.resume + " is of the task " + settings_.task +
                       (options_.text.empty() ? "; it needs --text" : "; it takes no --text"));
    const LanguageModelOptions form = LanguageModel::options_of(file);
    task_ = make_task(form.length);
    for (const auto& [key, value] : task_->metadata())
      if (const auto found = file.metadata.find(key);
          found == file.metadata.end() || found->second != value)
        throw UsageError("--text: " + options_.text + " is not the text that " + options_.resume +
                         " was trained on");
    make_model(form);
    load_checkpoint(options_.resume, model_->writable_parameters(), optimizer_,
                    scale_ ? &*scale_ : nullptr);
  }

  void make_model(const LanguageModelOptions& form) {
    check_size(form);
    model_.emplace(form);
    if (form.type == DType::f16) scale_.emplace();  // of the others no gradient is too small
  }

  // The least that training takes: each parameter with its gradient and two moments, of 16 bits its
  // copy in f32, of f16 its gradient in f32 too; what a batch leaves for the backward pass; and
  // some KiB of every layer.
  void check_size(const LanguageModelOptions& form) const {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double width = number(form.model_dim),
                 tokens = number(settings_.batch) * number(form.length);
    const double layer = 4 * width * width + 2 * width * number(form.hidden_dim);
    const double parameters = number(form.layers) * layer + number(form.vocabulary) * width;
    const double kept = tokens * (number(form.layers) * 5 * width + number(form.vocabulary));
    const double bytes = form.type == DType::f64 ? 32 : form.type == DType::f16 ? 20 : 16;
    check_memory(
        bytes * parameters + number(size_of(form.type)) * kept + kLayerBytes * number(form.layers),
        "training of " + std::to_string(form.layers) + " layers of width " +
            std::to_string(form.model_dim) + " on batches of " + std::to_string(settings_.batch));
  }

  std::unique_ptr<Task> make_task(std::int64_t length) const {
    return settings_.task == "text" ? text_task(options_.text, length, options_.sample)
                                    : induction_task();
  }

  double step() {
    const std::int64_t number = optimizer_.steps();
    return train_step(*model_, optimizer_, task_->batch(settings_, number), rate_.at(number),
                      *context_, scale_ ? &*scale_ : nullptr);
  }

  bool reached() const {
    return optimizer_.steps() > 0 && optimizer_.steps() % kWatch == 0 &&
           task_->reached(settings_, *model_, *context_);
  }

  Metadata all_metadata() const {
    Metadata all = settings_.metadata();
    all.merge(task_->metadata());
    return all;
  }

  const TrainOptions& options_;
  std::unique_ptr<Context> context_;
  TrainSettings settings_;
  std::unique_ptr<Task> task_;
  std::optional<LanguageModel> model_;
  AdamW optimizer_;
  std::optional<LossScale> scale_;
  std::int64_t skipped_ = 0;
  LearningRate rate_;
  Curve curve_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

void print_result(const Training& training, const Verdict& verdict, bool json) {
  const std::vector<double>& losses = training.curve().values;
  if (json) {
    Json object = json_object("attend.train/1");
    object["task"] = training.settings().task;
    object["type"] = name_of(training.model().options().type);
    object["seed"] = training.settings().seed;
    object["steps"] = training.steps();
    object["skipped_steps"] = training.skipped();
    object["loss_scale"] = training.scale() != nullptr ? Json(training.scale()->value()) : Json();
    object["seconds"] = training.seconds();
    object["parameters"] = parameter_count(training.model().parameters());
    object["loss"] = losses.empty() ? Json() : Json(losses.back());
    object.update(verdict.fields);
    print(object);
    return;
  }
  if (const int columns = columns_of_stdout(); columns > 0)
    std::cout << terminal_plot(training.curve(), columns, colour_on_stdout(), unicode_terminal());
  std::printf("%s: %lld steps in %.1f s\n", training.settings().task.c_str(),
              static_cast<long long>(training.steps()), training.seconds());
  std::fflush(stdout);
  std::cout << verdict.text;
}

int train(const Flags& flags, const TrainOptions& options, const Common& common) {
  Outputs outputs(flags, {"--checkpoint", "--plot", "--save"});
  outputs.reserve_file(options.checkpoint, "--resume");  // it is written on the way
  outputs.reserve_file(options.plot);
  outputs.reserve_file(options.save, "--resume");
  Training training(options, common);
  {
    const Interrupts interrupts;
    training.run();
  }
  outputs.put_file(options.plot,
                   [&](const auto& path) { save_bytes(path, svg_plot(training.curve())); });
  if (interrupted) {
    outputs.write();
    std::cerr << "attend train: interrupted after step " << training.steps()
              << (options.checkpoint.empty() ? "" : "; the checkpoint is " + options.checkpoint)
              << '\n';
    return kInterrupted;
  }
  const Verdict verdict = training.judge();  // or it could fail when the files are written
  outputs.put_file(options.save, [&](const auto& path) { training.save_model(path); });
  outputs.write();
  print_result(training, verdict, common.json);
  return kOk;
}

void check_flags(const Flags& given, const TrainOptions& options) {
  if (!options.resume.empty())
    for (const char* flag :
         {"--batch", "--layers", "--heads", "--model-dim", "--length", "--learning-rate", "--type"})
      if (given.given(flag))
        throw UsageError(std::string(flag) + " comes from the checkpoint with --resume");
  if (options.text.empty())
    for (const char* flag : {"--length", "--generate", "--prompt", "--temperature", "--cache"})
      if (given.given(flag)) throw UsageError(std::string(flag) + " needs --text");
  if (given.given("--checkpoint-every") && options.checkpoint.empty())
    throw UsageError("--checkpoint-every needs --checkpoint");
}

}  // namespace

void add_train(Program& program) {
  auto options = std::make_shared<TrainOptions>();
  Flags& flags = program.add(
      "train", "Trains a small model: to continue repeated sequences, or on a text.",
      "  attend train\n"
      "  attend train --text book.txt --checkpoint book.ckpt --prompt 'Once' --generate 500\n"
      "  attend train --text book.txt --resume book.ckpt --plot loss.svg",
      [options](const Common& common, const Flags& given) {
        check_flags(given, *options);
        return train(given, *options, common);
      });
  const auto count = [&](const char* flag, std::int64_t& value, std::int64_t least,
                         const char* description) {
    flags.add_whole(flag, value, {least, std::int64_t{1} << 30}, description);
  };
  flags.add_file("--text", options->text,
                 "Text to learn, by characters (UTF-8); without it, induction");
  flags.add_file("--checkpoint", options->checkpoint,
                 "Write checkpoints here; the last one also at Ctrl-C");
  count("--checkpoint-every", options->every, 1, "Steps between checkpoints [100]");
  flags.add_file("--resume", options->resume, "Continue from a checkpoint");
  flags.add_file("--save", options->save, "Write the model here (safetensors)");
  flags.add_file("--plot", options->plot, "Write the curve of the loss here (SVG)");
  count("--steps", options->steps, 1, "Steps at most [induction: 1000, text: 600]");
  count("--batch", options->batch, 1, "Sequences per step [32]");
  count("--layers", options->layers, 1, "Layers [2]");
  count("--heads", options->heads, 1, "Heads of a layer [4]");
  count("--model-dim", options->model_dim, 1, "Features of a token [64]");
  flags.add_word("--type", options->type, "Type of the model's numbers [f32]", type_names());
  count("--length", options->length, 1, "Characters of a sequence [32]");
  flags.add_real("--learning-rate", options->learning_rate, {.least = 0, .open = true},
                 "Learning rate [0.004]");
  count("--generate", options->sample.count, 0, "Characters to generate at the end [200]");
  flags.add_text("--prompt", options->sample.prompt, "Text that they continue");
  flags.add_real("--temperature", options->sample.temperature, {0, 100},
                 "0: always the most likely; 1: as the model predicts [0.7]");
  flags.add_word("--cache", options->sample.cache,
                 "KV caches of the model's type, or of 8 bits [model]", {"model", "i8"});
  flags.add_word("--weights", options->weights,
                 "The result's weights: of the model's type, or of 8 bits [model]",
                 {"model", "i8"});
}

}  // namespace attend::cli
