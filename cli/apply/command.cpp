// attend apply: bare attention, a layer, or a block, on files or on numbers drawn from a seed.
#include "apply.h"

#include "files/tensors.h"
#include "frame/mistakes.h"
#include "frame/program.h"

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

void refuse(const Flags& flags, const std::string& group, const std::string& why) {
  if (const auto flag = flags.given_of(group)) throw UsageError(*flag + " " + why);
}

void refuse(const Flags& flags, std::initializer_list<const char*> names, const std::string& why) {
  for (const char* flag : names)
    if (flags.given(flag)) throw UsageError(std::string(flag) + " " + why);
}

Mode mode_of(const Flags& flags, const ApplyOptions& options) {
  const bool rows = flags.given_of(kRows) || flags.given("--model-dim") || flags.given("--weights");
  if (options.block) {
    refuse(flags, kBare, "is for bare attention; a block takes --input");
    refuse(flags, {"--weight-heads"},
           "is for attention and a layer; of a block all heads are saved");
    return Mode::block;
  }
  refuse(flags, kBlock, "is for a block; give --block");
  if (rows) {
    refuse(flags, kBare, "is for bare attention; a layer takes --input, or --query and --memory");
    return Mode::layer;
  }
  refuse(flags, kLayer, "is for a layer; give --input, --weights or --model-dim");
  return Mode::attention;
}

// Flags that say nothing without another one.
void check_needs(const Flags& flags) {
  const std::pair<const char*, const char*> needs[] = {
      {"--prefix", "--weights"},           {"--orientation", "--weights"},
      {"--rotary-base", "--rotary"},       {"--rotary-dim", "--rotary"},
      {"--score-stage", "--save-scores"},  {"--bias-before-softcap", "--softcap"},
      {"--dropout-offset", "--dropout"},   {"--dropout-origin", "--dropout"},
      {"--weight-heads", "--save-weights"}};
  for (const auto& [flag, needed] : needs)
    if (!flags.given(needed)) refuse(flags, {flag}, std::string("needs ") + needed);
  if (!flags.given("--hidden-dim") && !flags.given("--weights"))
    refuse(flags, {"--activation"}, "needs --hidden-dim");
}

// Sizes that the weights already have.
void check_weights(const Flags& flags) {
  if (!flags.given("--weights")) return;
  refuse(flags,
         {"--model-dim", "--d-k", "--d-v", "--key-dim", "--value-dim", "--no-projection-bias",
          "--cross", "--memory-dim", "--hidden-dim", "--activation", "--placement", "--norm",
          "--epsilon"},
         "is given by the weights");
  if (flags.given("--block"))
    refuse(flags,
           {"--heads", "--key-heads", "--rotary", "--prefix", "--orientation",
            "--no-output-projection"},
           "is given by the block's file");
}

// Sizes that the inputs already have, and those that bare attention does not have.
void check_sizes(const Flags& flags, Mode mode) {
  if (flags.given_of(kBare)) refuse(flags, kSizes, "is given by the inputs");
  if (flags.given_of(kRows))
    refuse(flags, {"--batch", "--length", "--key-length"}, "is for inputs that are drawn");
  if (mode == Mode::attention)
    refuse(flags, {"--key-dim", "--value-dim"}, "is for a layer; give --input or --model-dim");
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

int run(const Flags& flags, const ApplyOptions& options, const std::string& kernel,
        const Common& common) {
  const Mode mode = mode_of(flags, options);
  check_needs(flags);
  check_weights(flags);
  check_sizes(flags, mode);
  check_kernel(kernel);
  const auto context = common.context(kernel.empty() ? "" : "forward:" + kernel);
  Outputs outputs(flags, {"--output", "--save-weights", "--save-lse", "--save-scores", "--trace",
                          "--save-layer"});
  const Applied done = apply(options, mode, common.seed, *context, outputs);
  if (common.json) print_json(done, outputs, context->threads());
  else print_text(done, outputs, context->threads());
  return kOk;
}

void add_flags(Flags& flags, ApplyOptions& o) {
  Flags bare = flags.group(kBare);
  bare.add_file("--q", o.q, "Queries");
  bare.add_file("--k", o.k, "Keys");
  bare.add_file("--v", o.v, "Values");

  Flags rows = flags.group(kRows);
  rows.add_file("--input", o.input, "Input of self-attention");
  rows.add_file("--query", o.query, "Query input of cross-attention");
  rows.add_file("--memory", o.memory, "Key and value input of cross-attention");
  rows.add_file("--key", o.key, "Key input");
  rows.add_file("--value", o.value, "Value input");

  Flags layer = flags.group(kLayer);
  layer.add_file("--weights", o.file.weights,
                 "Weights in safetensors; random, by --seed, if not given");
  add_layer_file_flags(layer, o.file);
  layer.add_switch("--no-projection-bias", o.no_bias, "Projections without bias");
  layer.add_file("--save-layer", o.save_layer, "Writes the weights that were used");

  flags.add_switch("--block", o.block, "A block: attention, residual, norm, feed-forward");
  Flags block = flags.group(kBlock);
  block.add_switch("--cross", o.sizes.cross, "A second attention, over a memory");
  block.add_size("--memory-dim", o.sizes.memory_dim, "Width of the memory; model_dim if not given");
  block.add_size("--hidden-dim", o.sizes.hidden_dim,
                 "Width of the feed-forward network; none if not given");
  block.add_word("--activation", o.activation, "Activation of the feed-forward network",
                 {"relu", "gelu", "gelu_tanh", "swiglu"});
  block.add_word("--placement", o.placement, "norm(x + f(x)), x + f(norm(x)), or x + f(x)",
                 {"post", "pre", "none"});
  block.add_word("--norm", o.norm, "Kind of the norms", {"layer_norm", "rms_norm"});
  block.add_real("--epsilon", o.sizes.epsilon, {.least = 0, .open = true},
                 "Added to the variance in the norms");
  block.add_file("--cross-mask", o.cross_mask, "Mask of the second attention");
  add_list(block, "--cross-key-lengths", o.cross_key_lengths, false,
           "Key lengths of the second attention");

  Flags sizes = flags.group(kSizes);
  MultiHeadAttentionOptions& s = o.sizes.attention;
  sizes.add_size("--model-dim", s.model_dim, "Width of a layer; that of the input if not given");
  sizes.add_size("--heads", s.heads, "Heads; those of the weights' file, or 1, if not given");
  sizes.add_size("--key-heads", s.key_heads,
                 "Heads of keys and values; as many as heads if not given");
  sizes.add_size("--d-k", s.d_k,
                 "Size of a head's queries and keys; model_dim / heads if not given");
  sizes.add_size("--d-v", s.d_v, "Size of a head's values; d_k if not given");
  sizes.add_size("--key-dim", s.key_dim, "Width of the key input; model_dim if not given");
  sizes.add_size("--value-dim", s.value_dim, "Width of the value input; key_dim if not given");
  sizes.add_size("--batch", o.batch, "Random sequences");
  sizes.add_size("--length", o.length, "Queries of each random sequence");
  sizes.add_size("--key-length", o.key_length, "Keys of each; as many as queries if not given");
}

}  // namespace

void add_apply(Program& program) {
  auto options = std::make_shared<ApplyOptions>();
  auto kernel = std::make_shared<std::string>();
  Flags& flags = program.add(
      "apply", "Attention on files or on random numbers: bare, as a layer, or as a block.",
      "  attend apply --q q.npy --k k.npy --v v.npy --causal --output y.npy\n"
      "  attend apply --weights layer.safetensors --heads 8 --input x.npy --output y.npy\n"
      "  attend apply --model-dim 512 --heads 8 --length 10 --trace steps.safetensors\n"
      "  attend apply --block --model-dim 64 --heads 4 --hidden-dim 256 --length 10 --json",
      [=](const Common& common, const Flags& given) {
        return run(given, *options, *kernel, common);
      });
  add_flags(flags, *options);
  add_attention_flags(flags, options->attention);  // --window-left and all that attention() takes
  flags.add_word("--type", options->type, "Type to compute in; inputs are converted to it",
                 type_names());
  flags.add_text("--kernel", *kernel, "Kernel to use; attend info lists them").value("NAME");
  Flags outputs = flags.group(kOutputs);
  outputs.add_file("--output", options->output, "The result");
  outputs.add_file("--save-weights", options->save_weights, "The attention weights");
  add_list(outputs, "--weight-heads", options->weight_heads, false,
           "Heads whose weights are saved, counted from 0; all if not given");
  outputs.add_file("--save-lse", options->save_lse, "log-sum-exp of the scores (lse)");
  outputs.add_file("--save-scores", options->save_scores, "The scores");
  outputs.add_word("--score-stage", options->score_stage, "Which scores",
                   {"raw", "softcapped", "masked"});
  outputs.add_file("--trace", options->trace, "Every step, with its formula, as safetensors");
}

}  // namespace attend::cli
