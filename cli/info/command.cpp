// attend info: the machine and the kernels; and, of a configuration, what it costs: single-head and
// multi-head side by side.
#include "cost.h"
#include "frame/machine.h"
#include "frame/program.h"
#include "frame/units.h"

#include <attend/version.h>

#include <cmath>
#include <cstdio>
#include <iostream>

namespace attend::cli {
namespace {

std::string percent(const Cost& cost) {
  char text[32];
  const auto attention = static_cast<double>(cost.attention_flops);
  std::snprintf(text, sizeof text, "%.1f %%",
                100 * attention / (attention + static_cast<double>(cost.projection_flops)));
  return text;
}

// One way to spend the same width.
struct Column {
  const char* name;   // in text
  const char* field;  // in JSON
  LayerSizes sizes;
  Cost cost;
};

// The head of the single-head formula, Q K^T and values of size d_k; that of full width; and all.
std::vector<Column> columns_of(const LayerSizes& multi) {
  LayerSizes small = multi;
  small.heads = small.key_heads = 1;
  small.bias = small.output_projection = false;
  LayerSizes full = small;
  full.d_k = full.d_v = multi.model_dim;
  std::vector<Column> columns = {{"one head of d_k", "single_head", small, {}},
                                 {"one head, full width", "single_head_full_width", full, {}},
                                 {"multi-head", "multi_head", multi, {}}};
  for (Column& column : columns) column.cost = cost_of(column.sizes);
  return columns;
}

Json json_of(const Column& column) {
  const LayerSizes& s = column.sizes;
  const Cost& c = column.cost;
  return {{"heads", s.heads},
          {"key_heads", s.key_heads},
          {"d_k", s.d_k},
          {"d_v", s.d_v},
          {"output_projection", s.output_projection},
          {"weights", c.weights},
          {"biases", c.biases},
          {"projection_flops", c.projection_flops},
          {"attention_flops", c.attention_flops},
          {"equal_length", c.equal_length},
          {"parameter_bytes", c.parameter_bytes},
          {"activation_bytes", c.activation_bytes},
          {"cache_bytes", c.cache_bytes},
          {"matrix_bytes", c.matrix_bytes}};
}

Json machine_json(const Common& common) {
  const MachineInfo machine = machine_info();
  Json object = json_object("attend.info/1");
  object["version"] = version();
  object["machine"] = {{"architecture", machine.architecture},
                       {"processor", machine.model},
                       {"processors", machine.processors},
                       {"allowed_processors", machine.allowed},
                       {"threads", common.context()->threads()},
                       {"memory_bytes", machine.memory_bytes},
                       {"simd", machine.simd}};
  object["kernels"] = Json::array();
  for (const KernelInfo& kernel : Context::kernels())
    object["kernels"].push_back({{"name", kernel.name},
                                 {"operation", kernel.operation},
                                 {"only_if_forced", kernel.only_if_forced}});
  return object;
}

void print_machine(const Common& common) {
  const MachineInfo machine = machine_info();
  std::cout << "attend " << version() << '\n'
            << "machine   " << machine.architecture
            << (machine.model.empty() ? "" : ", " + machine.model) << ", " << machine.allowed
            << " of " << machine.processors << " processors, " << bytes(machine.memory_bytes)
            << '\n'
            << "threads   " << common.context()->threads() << '\n'
            << "simd     ";
  for (const std::string& name : machine.simd) std::cout << ' ' << name;
  std::cout << "\nkernels   best first\n";
  for (const KernelInfo& kernel : Context::kernels())
    std::cout << "  " << kernel.name << (kernel.only_if_forced ? "  (only if forced)" : "") << '\n';
}

void print_costs(const LayerSizes& s, const std::vector<Column>& columns) {
  std::cout << "model_dim " << s.model_dim << ", " << s.layers
            << (s.layers == 1 ? " layer" : " layers") << ", batch " << s.batch << ", " << s.queries
            << " queries, " << s.keys << " keys, " << name_of(s.type)
            << (s.causal ? ", causal" : "") << "\n\n";
  const auto row = [&](const char* name, auto&& value) {
    std::printf("%-25s", name);
    for (const Column& column : columns) std::printf("%22s", std::string(value(column)).c_str());
    std::printf("\n");
  };
  using C = const Column&;
  row("", [](C c) { return std::string(c.name); });
  row("heads", [](C c) {
    const LayerSizes& sizes = c.sizes;
    return std::to_string(sizes.heads) +
           (sizes.key_heads != sizes.heads ? " on " + std::to_string(sizes.key_heads) : "");
  });
  row("d_k, d_v",
      [](C c) { return std::to_string(c.sizes.d_k) + ", " + std::to_string(c.sizes.d_v); });
  row("output projection",
      [](C c) { return std::string(c.sizes.output_projection ? "yes" : "no"); });
  row("weights", [](C c) { return grouped(c.cost.weights); });
  row("biases", [](C c) { return grouped(c.cost.biases); });
  row("FLOP, projections", [](C c) { return operations(c.cost.projection_flops); });
  row("FLOP, attention", [](C c) { return operations(c.cost.attention_flops); });
  row("share of attention", [](C c) { return percent(c.cost); });
  row("equal at length", [](C c) { return grouped(std::llround(c.cost.equal_length)); });
  row("parameters", [](C c) { return bytes(c.cost.parameter_bytes); });
  row("activations of a layer", [](C c) { return bytes(c.cost.activation_bytes); });
  row("KV cache", [](C c) { return bytes(c.cost.cache_bytes); });
  row("attention matrix, if kept", [](C c) { return bytes(c.cost.matrix_bytes); });
}

int info(LayerSizes sizes, const Common& common) {
  const bool configured = sizes.model_dim != 0;
  if (configured && sizes.heads == 0) sizes.heads = 1;
  if (configured && sizes.queries == 0) sizes.queries = 1;
  if (configured) sizes = filled_in(sizes);
  const std::vector<Column> columns = configured ? columns_of(sizes) : std::vector<Column>();
  if (common.json) {
    Json object = machine_json(common);
    if (configured) {
      object["configuration"] = {{"model_dim", sizes.model_dim}, {"layers", sizes.layers},
                                 {"batch", sizes.batch},         {"queries", sizes.queries},
                                 {"keys", sizes.keys},           {"causal", sizes.causal},
                                 {"type", name_of(sizes.type)}};
      for (const Column& column : columns) object["costs"][column.field] = json_of(column);
    }
    print(object);
  } else if (configured) {
    print_costs(sizes, columns);
  } else {
    print_machine(common);
  }
  return kOk;
}

}  // namespace

void add_info(Program& program) {
  struct Options {
    LayerSizes sizes;
    std::string type = "f32";
    bool no_bias = false, no_output = false;
  };
  auto options = std::make_shared<Options>();
  LayerSizes& s = options->sizes;
  Flags& flags =
      program.add("info", "Machine and kernels; with --model-dim, what such a layer costs.",
                  "  attend info\n"
                  "  attend info --model-dim 512 --heads 8 --batch 32 --length 20",
                  [options](const Common& common, const Flags& given) {
                    for (const char* flag :
                         {"--causal", "--no-projection-bias", "--no-output-projection", "--type"})
                      if (given.given(flag) && options->sizes.model_dim == 0)
                        throw UsageError(std::string(flag) + " requires --model-dim");
                    LayerSizes sizes = options->sizes;
                    sizes.type = type_named(options->type);
                    sizes.bias = !options->no_bias;
                    sizes.output_projection = !options->no_output;
                    return info(sizes, common);
                  });
  const Flag width = flags.add_size("--model-dim", s.model_dim, "Width of the layer");
  const std::pair<const char*, std::pair<std::int64_t*, const char*>> sizes[] = {
      {"--heads", {&s.heads, "Heads; 1 if not given"}},
      {"--key-heads", {&s.key_heads, "Heads of keys and values; as many as heads if not given"}},
      {"--d-k", {&s.d_k, "Size of a head's queries and keys; model_dim / heads if not given"}},
      {"--d-v", {&s.d_v, "Size of a head's values; d_k if not given"}},
      {"--key-dim", {&s.key_dim, "Width of the key input; model_dim if not given"}},
      {"--value-dim", {&s.value_dim, "Width of the value input; key_dim if not given"}},
      {"--layers", {&s.layers, "Number of layers"}},
      {"--batch", {&s.batch, "Sequences"}},
      {"--length", {&s.queries, "Tokens of a sequence"}},
      {"--key-length", {&s.keys, "Keys, where they are not the queries' tokens"}}};
  for (const auto& [name, size] : sizes)
    flags.add_size(name, *size.first, size.second).needs(width).text("N");
  flags.add_switch("--causal", s.causal, "Queries see no later keys");
  flags.add_switch("--no-projection-bias", options->no_bias, "Projections without bias");
  flags.add_switch("--no-output-projection", options->no_output, "No W^O");
  flags.add_word("--type", options->type, "Type of the numbers", type_names());
}

}  // namespace attend::cli
