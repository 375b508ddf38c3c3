#include "shown.h"

#include "frame/json.h"
#include "frame/natural_order.h"
#include "frame/program.h"
#include "tensors.h"
#include "trace_shapes.h"

#include <attend/io.h>

#include <algorithm>
#include <sstream>
#include <tuple>

namespace attend::cli {
namespace {

const char* const kFiles = "What to show: layers in files [batch, heads, length, d]";
const char* const kLayer = "What to show: a layer of weights, and its input [batch, length, width]";
const char* const kTokens = "Tokens (positions if none are given)";

// The name of the file without folders and ending, for people.
std::string short_name(const std::string& path) { return std::filesystem::path(path).stem(); }

// What differs of two paths, without the folders and files that both begin or end with.
std::pair<std::string, std::string> names_apart(const std::filesystem::path& a,
                                                const std::filesystem::path& b) {
  std::deque<std::filesystem::path> x(a.begin(), a.end()), y(b.begin(), b.end());
  for (; !x.empty() && !y.empty() && x.front() == y.front(); y.pop_front()) x.pop_front();
  for (; !x.empty() && !y.empty() && x.back() == y.back(); y.pop_back()) x.pop_back();
  if (x.empty() || y.empty()) return {a.string(), b.string()};  // one path goes on from the other
  const auto joined = [](const std::deque<std::filesystem::path>& parts) {
    std::filesystem::path path;
    for (const std::filesystem::path& part : parts) path /= part;
    return path.string();
  };
  return {joined(x), joined(y)};
}

// [heads, length, d] and [length, d] are of one sequence, [length, d] of one head.
ConstTensorView four_dimensions(const ConstTensorView& x) {
  if (x.rank() > 3 || x.rank() < 2) return x;
  const std::int64_t heads = x.rank() == 3 ? x.size(0) : 1;
  return {x.data(), x.dtype(), {1, heads, x.size(x.rank() - 2), x.size(x.rank() - 1)}};
}

// Element n of the first of five dimensions: a layer of many.
ConstTensorView layer_of(const Tensor& x, std::int64_t n) {
  if (!x) return {};
  const ConstTensorView one = x.view().slice(0, n, n + 1);
  return {one.data(), one.dtype(), {one.size(1), one.size(2), one.size(3), one.size(4)}};
}

}  // namespace

void add_shown_flags(Flags& flags, ShownFlags& shown, bool compare) {
  flags
      .add_texts("FILES", shown.files,
                 compare ? "Safetensors with q, k, v of layers, or a trace, two are compared; or "
                           "q.npy k.npy v.npy"
                         : "Safetensors with q, k, v of layers, or a trace; or q.npy k.npy v.npy")
      .value("FILE")
      .times(1, 3)
      .text(" ");
  Flags files = flags.group(kFiles);
  files.add_texts("--q", shown.q, "Queries; more than one file, or five dimensions: more layers")
      .value("FILE");
  files.add_texts("--k", shown.k, "Keys").value("FILE");
  files.add_texts("--v", shown.v, "Values; may be missing").value("FILE");
  Flags layer = flags.group(kLayer);
  layer
      .add_texts(
          "--weights", shown.weights,
          compare ? "Weights in safetensors; two files are compared" : "Weights in safetensors")
      .value("FILE")
      .times(1, compare ? 2 : 1);
  layer.add_file("--input", shown.input, "Input of self-attention");
  layer.add_file("--query", shown.query, "Query input of cross-attention");
  layer.add_file("--memory", shown.memory, "Key and value input of cross-attention");
  add_layer_file_flags(layer, shown.layer);
  layer.add_size("--heads", shown.layer.heads, "Heads; those of the weights' file if not given");
  layer.add_size("--key-heads", shown.layer.key_heads, "Heads of keys and values, likewise");
  Flags tokens = flags.group(kTokens);
  tokens.add_text("--text", shown.text, "Text whose words are the tokens");
  tokens.add_file("--tokens", shown.tokens,
                  "Tokens: a JSON list, or a text file with one per line");
  tokens.add_file("--key-tokens", shown.key_tokens, "Tokens of the keys, if they differ");
  add_attention_flags(flags, shown.attention);
  flags.add_word("--type", shown.type, "Type to compute in; inputs are converted to it",
                 type_names());
  if (compare)
    flags.add_word("--compare-type", shown.compare_type,
                   "Compares with the same numbers rounded to this type", type_names());
}

// ---- tokens ------------------------------------------------------------------------------------

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> list;
  for (std::string word; words >> word;) list.push_back(word);
  return list;
}

std::vector<std::string> tokens_in(const std::string& path) {
  const std::string all = read_text(path);
  std::vector<std::string> list;
  if (!path.ends_with(".json")) {
    std::istringstream lines(all);
    for (std::string line; std::getline(lines, line);) list.push_back(line);
    while (!list.empty() && list.back().empty()) list.pop_back();
    return list;
  }
  return json_tokens(all, path);
}

// ---- the runs ----------------------------------------------------------------------------------

Shown::Shown(const Flags& given, const ShownFlags& flags, std::uint64_t seed, Context& context)
    : given_(given), flags_(flags), seed_(seed), context_(context) {
  take_npy_files();
  const bool arrays = !flags_.q.empty() || !flags_.k.empty() || !flags_.v.empty();
  const bool layer = !flags.weights.empty() || !flags.input.empty() || !flags.query.empty();
  const int kinds = !flags_.files.empty() + arrays + layer;
  if (kinds == 0)
    throw UsageError(
        "nothing to show: give a safetensors file, or --q and --k, or --weights and --input");
  if (kinds > 1) throw UsageError("a file, --q and --k, or --weights and --input: one of them");
  for (const std::string& path : flags_.files) add_file(path);
  if (arrays) add_arrays();
  if (layer && flags.weights.empty()) throw UsageError("--input needs --weights");
  for (const std::string& weights : flags.weights) add_layer(weights);
  if (!flags.compare_type.empty()) add_converted();
  const std::vector<std::string>& paths = flags_.files.empty() ? flags_.weights : flags_.files;
  if (paths.size() == 2 && runs_[0].name == runs_[1].name)
    std::tie(runs_[0].name, runs_[1].name) = names_apart(paths[0], paths[1]);
  add_tokens();
}

// Two or three npy files are q, k and v.
void Shown::take_npy_files() {
  std::vector<std::string>& files = flags_.files;
  const bool npy = std::all_of(files.begin(), files.end(),
                               [](const std::string& path) { return path.ends_with(".npy"); });
  if (npy && files.size() >= 2) {
    for (auto* list : {&flags_.q, &flags_.k, &flags_.v})
      if (!list->empty()) throw UsageError("q, k and v are files, or given by --q, --k and --v");
    flags_.q = {files[0]};
    flags_.k = {files[1]};
    if (files.size() == 3) flags_.v = {files[2]};
    files.clear();
  }
  if (files.size() == 2 && files[0].ends_with(".safetensors") && files[1].ends_with(".npy"))
    throw UsageError("a layer and its input are --weights " + files[0] + " --input " + files[1]);
  const std::size_t most = given_.has("--compare-type") ? 2 : 1;
  if (files.size() > most)
    throw UsageError("there are " + std::to_string(files.size()) + " files; give " +
                     (most == 2 ? "one, or two to compare" : "one") +
                     ", or q.npy, k.npy and v.npy");
}

const Tensor& Shown::keep(Tensor tensor) { return tensors_.emplace_back(std::move(tensor)); }

Tensor Shown::typed(Tensor tensor, const std::string& name) {
  if (!is_floating_point(tensor.dtype()))
    throw UsageError(name + " is " + std::string(name_of(tensor.dtype())) +
                     "; it must be f64, f32, bf16 or f16");
  return flags_.type.empty() ? std::move(tensor)
                             : converted(std::move(tensor), type_named(flags_.type));
}

const AttentionOptions& Shown::options_for(DType type) {
  const auto found = options_.find(type);
  if (found != options_.end()) return found->second.options;
  return options_.emplace(type, load_options(flags_.attention, type, true, seed_))
      .first->second.options;
}

void Shown::add(ViewRun& run, const std::string& name, const Heads& heads,
                const AttentionOptions& options) {
  run.layers.push_back({.name = name,
                        .q = four_dimensions(heads.q),
                        .k = four_dimensions(heads.k),
                        .v = heads.v ? four_dimensions(heads.v) : heads.v,
                        .options = options,
                        .contribution = {}});
}

// Every PREFIXq with its PREFIXk is a layer, and so is every PREFIXq_heads of a trace. A file may
// hold its tensors in any order (PyTorch's are sorted by letter: 0, 1, 10, 11, 2); layers are
// counted.
void Shown::add_file(const std::string& path) {
  TensorFile file = load_file(path, "give arrays by --q, --k and --v");
  ViewRun& run = runs_.emplace_back();
  run.name = short_name(path);
  const bool traced = file.metadata["format"] == "attend.trace";
  traced_ |= traced;
  const std::string q = traced ? "q_heads" : "q", k = traced ? "k_heads" : "k",
                    v = traced ? "v_heads" : "v";
  std::vector<std::string> prefixes;
  for (const NamedTensor& named : file.tensors) {
    if (!named.name.ends_with(q)) continue;
    const std::string prefix = named.name.substr(0, named.name.size() - q.size());
    const bool separate =
        prefix.empty() || prefix.back() == '.' || prefix.back() == '_' || prefix.back() == '/';
    if (separate && file.find(prefix + k)) prefixes.push_back(prefix);
  }
  std::sort(prefixes.begin(), prefixes.end(), natural_less);
  for (const std::string& prefix : prefixes) {
    if (traced) {
      add_trace(run, file, prefix);
      continue;
    }
    const Tensor &queries = file.at(prefix + q), *values = file.find(prefix + v);
    const std::string name = prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1);
    add(run, name,
        {keep(typed(queries, prefix + q)), keep(typed(file.at(prefix + k), prefix + k)),
         values ? ConstTensorView(keep(typed(*values, prefix + v))) : ConstTensorView()},
        options_for(flags_.type.empty() ? queries.dtype() : type_named(flags_.type)));
  }
  if (!run.layers.empty()) return;
  if (traced) throw UsageError(path + ": the trace has no q_heads and k_heads; trace a layer");
  throw UsageError(path + ": no tensors are named q and k, or PREFIX.q and PREFIX.k" +
                   (holds_weights(file) ? "; a layer's weights come with its input: --weights " +
                                              path + " --input x.npy"
                                        : ""));
}

void Shown::add_trace(ViewRun& run, const TensorFile& file, const std::string& prefix) {
  if (const auto flag = given_.given_of(kAttentionGroup))
    throw UsageError(*flag + " is given by the trace");
  check_trace_shapes(run.name, [&](const std::string& name) { return file.find(prefix + name); });
  const Tensor* values = file.find(prefix + "v_heads");
  add(run, prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1),
      {keep(file.at(prefix + "q_heads")), keep(file.at(prefix + "k_heads")),
       values ? ConstTensorView(keep(*values)) : ConstTensorView()},
      options_of_trace(file, prefix, tensors_));
}

void Shown::add_arrays() {
  if (flags_.q.size() != flags_.k.size() ||
      (!flags_.v.empty() && flags_.v.size() != flags_.q.size()))
    throw UsageError(
        "--q, --k and --v have " + std::to_string(flags_.q.size()) + ", " +
        std::to_string(flags_.k.size()) + " and " + std::to_string(flags_.v.size()) +
        " files; a layer is one of --q and one of --k, and one of --v or no --v at all");
  ViewRun& run = runs_.emplace_back();
  for (std::size_t n = 0; n < flags_.q.size(); ++n) {
    const Tensor& q = keep(typed(load_tensor(flags_.q[n]), "q"));
    const Tensor& k = keep(typed(load_tensor(flags_.k[n]), "k"));
    const Tensor& v = keep(flags_.v.empty() ? Tensor() : typed(load_tensor(flags_.v[n]), "v"));
    const AttentionOptions& options = options_for(q.dtype());
    if (q.view().rank() != 5) {
      add(run, "", {q, k, v}, options);
      continue;
    }
    for (const Tensor* x : {&k, &v})
      if (*x && (x->view().rank() != 5 || x->size(0) != q.size(0)))
        throw UsageError("q is " + to_string(q.shape()) + ", but k or v is " +
                         to_string(x->shape()) + "; both are [layers, batch, heads, length, d]");
    for (std::int64_t layer = 0; layer < q.size(0); ++layer)
      add(run, "", {layer_of(q, layer), layer_of(k, layer), layer_of(v, layer)}, options);
  }
}

void Shown::add_layer(const std::string& weights) {
  if (flags_.input.empty() == flags_.query.empty())
    throw UsageError("give --input, or --query and --memory");
  if (flags_.query.empty() != flags_.memory.empty())
    throw UsageError("--query and --memory come together");
  LayerFile file = flags_.layer;
  file.weights = weights;
  const MultiHeadAttention layer =
      load_layer(file, flags_.type.empty() ? std::optional<DType>() : type_named(flags_.type));
  const DType type = layer.options().type;
  const auto rows = [&](const std::string& path, const char* name) {
    return converted(typed(load_tensor(path), name), type);
  };
  const Tensor x = flags_.input.empty() ? rows(flags_.query, "query") : rows(flags_.input, "input");
  const Tensor memory = flags_.memory.empty() ? Tensor() : rows(flags_.memory, "memory");
  const ConstTensorView key = memory ? memory.view() : x.view();
  const AttentionOptions& options = options_for(type);
  MultiHeadAttention::Heads heads = layer.heads(x, key, key, options, context_);
  ViewRun& run = runs_.emplace_back();
  run.name = short_name(weights);
  add(run, "", {keep(std::move(heads.q)), keep(std::move(heads.k)), keep(std::move(heads.v))},
      options);
  run.layers.back().contribution = std::move(heads.contribution);
  if (const Tensor& w_o = layer.o().weight(); w_o && w_o.dtype() != DType::i8)
    run.layers.back().w_o = keep(Tensor::copy_of(w_o));
}

// The same run once more, in another type.
void Shown::add_converted() {
  if (runs_.size() > 1) throw UsageError("--compare-type is for one run; there are two");
  const DType type = type_named(flags_.compare_type);
  ViewRun run{
      .name = flags_.compare_type, .tokens = {}, .key_tokens = {}, .token_ids = {}, .layers = {}};
  for (const ViewLayer& layer : runs_[0].layers) {
    const auto in_type = [&](const ConstTensorView& x) -> ConstTensorView {
      if (!x) return x;
      return keep(converted(Tensor::copy_of(x), type));
    };
    add(run, layer.name, {in_type(layer.q), in_type(layer.k), in_type(layer.v)},
        traced_ ? layer.options : options_for(type));
    run.layers.back().contribution = layer.contribution;
    run.layers.back().w_o = layer.w_o;
  }
  runs_[0].name = name_of(runs_[0].layers[0].q.dtype());
  runs_.push_back(std::move(run));
}

void Shown::add_tokens() {
  if (!flags_.text.empty() && !flags_.tokens.empty())
    throw UsageError("--text and --tokens mean the same; give one");
  for (ViewRun& run : runs_) {
    if (!flags_.text.empty()) run.tokens = words_of(flags_.text);
    if (!flags_.tokens.empty()) run.tokens = tokens_in(flags_.tokens);
    if (!flags_.key_tokens.empty()) run.key_tokens = tokens_in(flags_.key_tokens);
    const bool given = given_.given("--text") || !flags_.tokens.empty();
    if (given && run.tokens.empty())
      throw UsageError((flags_.tokens.empty() ? "--text" : flags_.tokens) + " has no tokens");
    if (!flags_.key_tokens.empty() && run.key_tokens.empty())
      throw UsageError(flags_.key_tokens + " has no tokens");
  }
}

ViewWindow window_of(const std::string& text) {
  const auto n = whole_numbers_in(text);
  if (!n || n->size() != 6)
    throw UsageError("--window is LAYER,HEAD,QUERY,QUERIES,KEY,KEYS, six whole numbers; found '" +
                     text + "'");
  return {n->at(0), n->at(1), n->at(2), n->at(3), n->at(4), n->at(5)};
}

}  // namespace attend::cli
