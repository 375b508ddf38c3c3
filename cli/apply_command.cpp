// attend apply: bare attention, a layer, or a block, on files or on numbers drawn from a seed.
#include "apply.h"

#include "mistakes.h"

#include <algorithm>
#include <cstdio>
#include <iostream>

namespace attend::cli {
namespace {

const char* const kBare = "Bare attention: inputs [batch, heads, length, d], or [length, d]";
const char* const kRows = "A layer or a block: inputs [batch, length, width], or [length, width]";
const char* const kLayer = "A layer or a block: weights";
const char* const kBlock = "A block";
const char* const kSizes = "Sizes of what is not read from a file";
const char* const kOutputs = "Outputs: FILE.npy, or FILE.safetensors:NAME; all are written or none";

// The first flag of a group that was given, or nothing.
const CLI::Option* given_of(const CLI::App& app, const std::string& group) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_group() == group && option->count() > 0) return option;
  return nullptr;
}

void refuse(const CLI::App& app, const std::string& group, const std::string& why) {
  if (const CLI::Option* option = given_of(app, group))
    throw UsageError(option->get_name() + " " + why);
}

Mode mode_of(const CLI::App& app, const ApplyOptions& options) {
  const bool rows =
      given_of(app, kRows) != nullptr || app.count("--model-dim") > 0 || app.count("--weights") > 0;
  if (options.block) {
    refuse(app, kBare, "is for bare attention; a block takes --input");
    return Mode::block;
  }
  refuse(app, kBlock, "is for a block; give --block");
  if (rows) {
    refuse(app, kBare, "is for bare attention; a layer takes --input, or --query and --memory");
    return Mode::layer;
  }
  refuse(app, kLayer, "is for a layer; give --input, --weights or --model-dim");
  return Mode::attention;
}

using Flags = std::initializer_list<const char*>;

void refuse(const CLI::App& app, Flags flags, const std::string& why) {
  for (const char* flag : flags)
    if (app.count(flag) > 0) throw UsageError(std::string(flag) + " " + why);
}

// Flags that say nothing without another one.
void check_needs(const CLI::App& app) {
  const std::pair<const char*, const char*> needs[] = {
      {"--prefix", "--weights"},          {"--orientation", "--weights"},
      {"--rotary-base", "--rotary"},      {"--rotary-dim", "--rotary"},
      {"--score-stage", "--save-scores"}, {"--bias-before-softcap", "--softcap"},
      {"--dropout-offset", "--dropout"},  {"--dropout-origin", "--dropout"}};
  for (const auto& [flag, needed] : needs)
    if (app.count(needed) == 0) refuse(app, {flag}, std::string("needs ") + needed);
  if (app.count("--hidden-dim") == 0 && app.count("--weights") == 0)
    refuse(app, {"--activation"}, "needs --hidden-dim");
}

// Sizes that the weights already have.
void check_weights(const CLI::App& app) {
  if (app.count("--weights") == 0) return;
  refuse(app,
         {"--model-dim", "--d-k", "--d-v", "--key-dim", "--value-dim", "--no-projection-bias",
          "--cross", "--memory-dim", "--hidden-dim", "--activation", "--placement", "--norm",
          "--epsilon"},
         "is given by the weights");
  if (app.count("--block") > 0)
    refuse(app,
           {"--heads", "--key-heads", "--rotary", "--prefix", "--orientation",
            "--no-output-projection"},
           "is given by the block's file");
}

// Sizes that the inputs already have, and those that bare attention does not have.
void check_sizes(const CLI::App& app, Mode mode) {
  if (given_of(app, kBare) != nullptr) refuse(app, kSizes, "is given by the inputs");
  if (given_of(app, kRows) != nullptr)
    refuse(app, {"--batch", "--length", "--key-length"}, "is for inputs that are drawn");
  if (mode == Mode::attention)
    refuse(app, {"--key-dim", "--value-dim"}, "is for a layer; give --input or --model-dim");
}

const char* name_of(Mode mode) {
  return mode == Mode::attention ? "attention" : mode == Mode::layer ? "layer" : "block";
}

Json shape_of(const Tensor& tensor) {
  return std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end());
}

void print_json(const Applied& done, const Outputs& outputs, int threads) {
  Json object = json_object("attend.apply/1");
  object["mode"] = name_of(done.mode);
  if (!done.kernel.empty()) object["kernel"] = done.kernel;
  object["threads"] = threads;
  object["seconds"] = done.seconds;
  if (done.mode != Mode::attention) object["parameters"] = done.parameters;
  for (const auto& [name, tensor] : done.inputs)
    object["inputs"][name] = {{"shape", shape_of(tensor)}, {"type", name_of(tensor.dtype())}};
  object["output"] = json_of(done.output, summary_of(done.output));
  for (const auto& [name, tensor] :
       {std::pair{"weights", &done.weights}, {"lse", &done.lse}, {"scores", &done.scores}})
    if (*tensor) object[name] = json_of(*tensor, summary_of(*tensor));
  for (const TraceStep& step : done.trace.steps)
    object["trace"].push_back({{"name", step.name},
                               {"shape", shape_of(step.value)},
                               {"axes", step.axes},
                               {"formula", step.formula}});
  object["files"] = outputs.paths();
  print(object);
}

void print_text(const Applied& done, const Outputs& outputs, int threads) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", done.seconds);
  std::cout << name_of(done.mode) << (done.kernel.empty() ? "" : " by " + done.kernel) << ", "
            << threads << (threads == 1 ? " thread, " : " threads, ") << seconds << " s";
  if (done.mode != Mode::attention) std::cout << ", " << done.parameters << " parameters";
  std::cout << '\n';
  const auto line = [](const std::string& name, const std::string& text) {
    std::cout << name << std::string(name.size() < 9 ? 9 - name.size() : 1, ' ') << text << '\n';
  };
  for (const auto& [name, tensor] : done.inputs)
    line(name, std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape()));
  line("output", text_of(done.output, summary_of(done.output)));
  if (is_small(done.output) && outputs.paths().empty()) print_values(done.output);
  for (const auto& [name, tensor] :
       {std::pair{"weights", &done.weights}, {"lse", &done.lse}, {"scores", &done.scores}})
    if (*tensor) line(name, text_of(*tensor, summary_of(*tensor)));
  if (!done.trace.steps.empty())
    std::printf("\n%-30s %-20s %-30s %s\n", "step", "shape", "axes", "formula");
  for (const TraceStep& step : done.trace.steps)
    std::printf("%-30s %-20s %-30s %s\n", step.name.c_str(), to_string(step.value.shape()).c_str(),
                step.axes.c_str(), step.formula.c_str());
  for (const std::string& path : outputs.paths()) std::cout << "wrote " << path << '\n';
}

void check_kernel(const std::string& name) {
  std::vector<std::string> known;
  for (const KernelInfo& kernel : Context::kernels())
    if (kernel.operation == "forward") known.push_back(kernel.name);
  if (!name.empty() && std::count(known.begin(), known.end(), name) == 0)
    throw UsageError("--kernel: there is no forward kernel '" + name + "'" +
                     suggestion(name, known, "attend info lists all"));
}

int run(const CLI::App& app, const ApplyOptions& options, const std::string& kernel,
        const Common& common) {
  const Mode mode = mode_of(app, options);
  check_needs(app);
  check_weights(app);
  check_sizes(app, mode);
  check_kernel(kernel);
  const auto context = common.context(kernel.empty() ? "" : "forward:" + kernel);
  Outputs outputs(app, {"--output", "--save-weights", "--save-lse", "--save-scores", "--trace",
                        "--save-layer"});
  const Applied done = apply(options, mode, common.seed, *context, outputs);
  if (common.json) print_json(done, outputs, context->threads());
  else print_text(done, outputs, context->threads());
  return kOk;
}

// Adds options of one kind to one group after the other.
struct Adder {
  CLI::App& app;
  const char* group;
  void file(const char* name, std::string& value, const char* text) {
    app.add_option(name, value, text)->type_name("FILE")->group(group);
  }
  void size(const char* name, std::int64_t& value, const char* text) {
    add_size(app, name, value, text)->group(group);
  }
  void list(const char* name, std::string& value, const char* text) {
    add_list(app, name, value, false, text)->group(group);
  }
  void flag(const char* name, bool& value, const char* text) {
    app.add_flag(name, value, text)->group(group);
  }
  void word(const char* name, std::string& value, const char* text,
            const std::vector<std::string>& words) {
    one_of(app.add_option(name, value, text), words)->group(group);
  }
};

void add_flags(CLI::App& app, ApplyOptions& o) {
  Adder bare{app, kBare};
  bare.file("--q", o.q, "Queries");
  bare.file("--k", o.k, "Keys");
  bare.file("--v", o.v, "Values");

  Adder rows{app, kRows};
  rows.file("--input", o.input, "Input of self-attention");
  rows.file("--query", o.query, "Query input of cross-attention");
  rows.file("--memory", o.memory, "Key and value input of cross-attention");
  rows.file("--key", o.key, "Key input");
  rows.file("--value", o.value, "Value input");

  Adder layer{app, kLayer};
  layer.file("--weights", o.file.weights,
             "Weights in safetensors; random, by --seed, if not given");
  add_layer_file_flags(app, o.file, kLayer);
  layer.flag("--no-projection-bias", o.no_bias, "Projections without bias");
  layer.file("--save-layer", o.save_layer, "Writes the weights that were used");

  app.add_flag("--block", o.block, "A block: attention, residual, norm, feed-forward");
  Adder block{app, kBlock};
  block.flag("--cross", o.sizes.cross, "A second attention, over a memory");
  block.size("--memory-dim", o.sizes.memory_dim, "Width of the memory; model_dim if not given");
  block.size("--hidden-dim", o.sizes.hidden_dim,
             "Width of the feed-forward network; none if not given");
  block.word("--activation", o.activation, "Activation of the feed-forward network",
             {"relu", "gelu", "gelu_tanh", "swiglu"});
  block.word("--placement", o.placement, "norm(x + f(x)), x + f(norm(x)), or x + f(x)",
             {"post", "pre", "none"});
  block.word("--norm", o.norm, "Kind of the norms", {"layer_norm", "rms_norm"});
  add_real(app, "--epsilon", o.sizes.epsilon, {.least = 0, .open = true},
           "Added to the variance in the norms")
      ->group(kBlock);
  block.file("--cross-mask", o.cross_mask, "Mask of the second attention");
  block.list("--cross-key-lengths", o.cross_key_lengths, "Key lengths of the second attention");

  Adder sizes{app, kSizes};
  MultiHeadAttentionOptions& s = o.sizes.attention;
  sizes.size("--model-dim", s.model_dim, "Width of a layer; that of the input if not given");
  sizes.size("--heads", s.heads, "Heads; those of the weights' file, or 1, if not given");
  sizes.size("--key-heads", s.key_heads, "Heads of keys and values; as many as heads if not given");
  sizes.size("--d-k", s.d_k, "Size of a head's queries and keys; model_dim / heads if not given");
  sizes.size("--d-v", s.d_v, "Size of a head's values; d_k if not given");
  sizes.size("--key-dim", s.key_dim, "Width of the key input; model_dim if not given");
  sizes.size("--value-dim", s.value_dim, "Width of the value input; key_dim if not given");
  sizes.size("--batch", o.batch, "Random sequences");
  sizes.size("--length", o.length, "Queries of each random sequence");
  sizes.size("--key-length", o.key_length, "Keys of each; as many as queries if not given");
}

}  // namespace

void add_apply(Program& program) {
  auto options = std::make_shared<ApplyOptions>();
  auto kernel = std::make_shared<std::string>();
  auto self = std::make_shared<CLI::App*>();
  CLI::App& app = program.add(
      "apply", "Attention on files or on random numbers: bare, as a layer, or as a block.",
      "  attend apply --q q.npy --k k.npy --v v.npy --causal --output y.npy\n"
      "  attend apply --weights layer.safetensors --heads 8 --input x.npy --output y.npy\n"
      "  attend apply --model-dim 512 --heads 8 --length 10 --trace steps.safetensors\n"
      "  attend apply --block --model-dim 64 --heads 4 --hidden-dim 256 --length 10 --json",
      [=](const Common& common) { return run(**self, *options, *kernel, common); });
  *self = &app;
  add_flags(app, *options);
  add_attention_flags(app, options->attention);
  one_of(app.add_option("--type", options->type, "Type to compute in; inputs are converted to it"),
         type_names());
  app.add_option("--kernel", *kernel, "Kernel to use; attend info lists them")->type_name("NAME");
  Adder outputs{app, kOutputs};
  outputs.file("--output", options->output, "The result");
  outputs.file("--save-weights", options->save_weights, "The attention weights");
  outputs.file("--save-lse", options->save_lse, "log-sum-exp of the scores (lse)");
  outputs.file("--save-scores", options->save_scores, "The scores");
  outputs.word("--score-stage", options->score_stage, "Which scores",
               {"raw", "softcapped", "masked"});
  outputs.file("--trace", options->trace, "Every step, with its formula, as safetensors");
}

}  // namespace attend::cli
