// attend explain FILES: q, k, v; a layer with an input; or a saved trace.
#include "files.h"
#include "files/shown.h"
#include "files/tensors.h"
#include "files/trace_shapes.h"
#include "frame/natural_order.h"
#include "frame/units.h"
#include "frame/usage_error.h"
#include "steps.h"

#include <algorithm>
#include <cmath>

namespace attend::cli {
namespace {

// Numbers of weights that are computed at most: scores and weights of all heads are kept.
constexpr std::int64_t kMost = std::int64_t{1} << 24;

// A matrix [length, d] is one head of one sequence.
Tensor as_heads(Tensor x, const std::string& name) {
  const int rank = x.view().rank();
  if (rank == 2)
    return Tensor::copy_of(
        ConstTensorView(x.view().data(), x.dtype(), {1, 1, x.size(0), x.size(1)}));
  if (rank == 4) return x;
  throw UsageError(name + " is " + to_string(x.shape()) +
                   "; it must be [batch, heads, length, d] or [length, d]");
}

void check_number(const char* flag, std::int64_t number, std::int64_t count, const char* of) {
  if (number < 0 || number >= count)
    throw UsageError(std::string(flag) + " is " + std::to_string(number) + ", there are " +
                     std::to_string(count) + " " + of + ", from 0 on");
}

void check_size(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys) {
  if (batch == 0 || heads == 0 || queries == 0 || keys == 0)
    throw UsageError("there is nothing to explain: " + std::to_string(batch) + " sequences, " +
                     std::to_string(heads) + " heads, " + std::to_string(queries) + " queries, " +
                     std::to_string(keys) + " keys");
  const double count = static_cast<double>(batch) * static_cast<double>(heads) *
                       static_cast<double>(queries) * static_cast<double>(keys);
  if (count > static_cast<double>(kMost))
    throw UsageError("the weights of all heads are " + grouped(static_cast<std::int64_t>(count)) +
                     " numbers; at most " + grouped(kMost) +
                     " are explained: give files of fewer sequences, heads or tokens");
}

// What explain does not tell: many sequences in one, and chance.
void check_flags(const AttentionFlags& flags) {
  for (const auto& [flag, given] : {std::pair{"--dropout", flags.options.dropout.p > 0},
                                    {"--cu-seqlens-q", flags.gives("cu_seqlens_q")},
                                    {"--cu-seqlens-k", flags.gives("cu_seqlens_k")},
                                    {"--block-table", flags.gives("block_table")}})
    if (given)
      throw UsageError(std::string(flag) +
                       " cannot be explained; whole sequences without dropout can");
}

// Reads what was named and fills a Subject.
class Reader {
 public:
  Reader(const ExplainFiles& files, Context& context) : f_(files), context_(context) {}

  Explanation explain() {
    check_flags(f_.attention);
    const std::size_t count = f_.paths.size();
    if (count == 3) read_qkv();
    else if (count == 2) read_layer();
    else if (count == 1) read_trace();
    else
      throw UsageError("give a trace, a layer and its input, or q, k and v; " +
                       std::to_string(count) + " files are none of these");
    const Tensor& weights = s_.trace.at("weights");
    check_number("--sequence", f_.sequence, weights.size(0), "sequences");
    check_number("--head", f_.head, weights.size(1), "heads");
    s_.sequence = f_.sequence;
    s_.heads = {f_.head};
    if (weights.size(1) == 2) s_.heads = {0, 1};
    Explanation e{.name = "files", .title = {title_, title_zh_}};
    take_tokens(e, weights.size(2), weights.size(3));
    add_steps(e, s_);
    return e;
  }

 private:
  void attend_to(const LoadedOptions& loaded) {
    s_.scale = loaded.options.scale.value_or(1 / std::sqrt(static_cast<double>(s_.q.size(3))));
    if (!loaded.options.bias_before_softcap) s_.softcap = loaded.options.softcap;
    s_.sinks = static_cast<bool>(loaded.options.sinks);
  }

  void read_qkv() {
    Tensor* tensors[] = {&s_.q, &s_.k, &s_.v};
    const char* names[] = {"q", "k", "v"};
    for (std::size_t n = 0; n < 3; ++n) {
      *tensors[n] = as_heads(load_tensor(f_.paths[n]), names[n]);
      if (!is_floating_point(tensors[n]->dtype()))
        throw UsageError(std::string(names[n]) + " is " +
                         std::string(attend::name_of(tensors[n]->dtype())) +
                         "; it must be f64, f32, bf16 or f16");
    }
    check_size(s_.q.size(0), s_.q.size(1), s_.q.size(2), s_.k.size(2));
    const LoadedOptions loaded = load_options(f_.attention, s_.q.dtype(), true, 0);
    s_.trace = trace_attention(s_.q, s_.k, s_.v, loaded.options, context_);
    attend_to(loaded);
    title_ = "Attention of " + f_.paths[0] + ", " + f_.paths[1] + ", " + f_.paths[2];
    title_zh_ = f_.paths[0] + "、" + f_.paths[1] + "、" + f_.paths[2] + " 的注意力";
  }

  void read_layer() {
    LayerFile layer = f_.layer;
    layer.weights = f_.paths[0];
    s_.layer = load_layer(layer, std::nullopt);
    if (s_.layer.quantized())
      throw UsageError(
          f_.paths[0] +
          " holds weights of 8 bits (i8); explain shows those of f64, f32, bf16 or f16");
    const MultiHeadAttentionOptions& o = s_.layer.options();
    s_.query = load_tensor(f_.paths[1]);
    const int rank = s_.query.view().rank();
    if (rank == 2 || rank == 3)  // else the layer says what is wrong
      check_size(rank == 3 ? s_.query.size(0) : 1, o.heads, s_.query.size(rank - 2),
                 s_.query.size(rank - 2));
    const LoadedOptions loaded = load_options(f_.attention, o.type, true, 0);
    s_.query = converted(std::move(s_.query), o.type);
    s_.trace = s_.layer.trace(s_.query, loaded.options, context_);
    take_heads();
    attend_to(loaded);
    title_ = "The layer " + f_.paths[0] + " on " + f_.paths[1];
    title_zh_ = "层 " + f_.paths[0] + " 作用于 " + f_.paths[1];
  }

  void take_heads() {
    for (const auto& [tensor, name] :
         {std::pair{&s_.q, "q_heads"}, {&s_.k, "k_heads"}, {&s_.v, "v_heads"}})
      if (const Tensor* found = s_.trace.find(name)) *tensor = *found;
  }

  // Steps of one attention of a saved trace: those whose names begin with the prefix.
  void read_trace() {
    const TensorFile file =
        load_file(f_.paths[0], "give all of q.npy, k.npy and v.npy, or a trace in safetensors");
    std::vector<std::string> prefixes;
    for (const NamedTensor& named : file.tensors)
      if (named.name.ends_with("weights") && named.tensor.view().rank() == 4)
        prefixes.push_back(named.name.substr(0, named.name.size() - 7));
    std::sort(prefixes.begin(), prefixes.end(), natural_less);
    std::string list;
    for (const std::string& prefix : prefixes) list += " '" + prefix + "'";
    if (prefixes.empty())
      throw UsageError(f_.paths[0] +
                       " is no saved trace: it has no weights [batch, heads, queries, keys]" +
                       instead_of_trace(file));
    const std::string prefix =
        f_.layer.prefix.empty() && prefixes.size() == 1 ? prefixes[0] : f_.layer.prefix;
    if (std::find(prefixes.begin(), prefixes.end(), prefix) == prefixes.end())
      throw UsageError(f_.paths[0] + " holds more than one attention; --prefix is one of" + list);
    for (const NamedTensor& named : file.tensors)
      if (named.name.starts_with(prefix) && is_floating_point(named.tensor.dtype()))
        s_.trace.steps.push_back({named.name.substr(prefix.size()), "", "", named.tensor});
    const Shape& square = s_.trace.at("weights").shape();
    check_size(square[0], square[1], square[2], square[3]);
    check_trace_shapes(f_.paths[0], [&](const std::string& name) { return s_.trace.find(name); });
    s_.trace.at("heads");
    take_heads();
    const auto formula = file.metadata.find(prefix + "scaled_scores.formula");
    if (s_.q && formula != file.metadata.end() && formula->second == "scores / sqrt(d_k)")
      s_.scale = 1 / std::sqrt(static_cast<double>(s_.q.size(3)));
    title_ = "The trace " + f_.paths[0];
    title_zh_ = "保存的计算过程 " + f_.paths[0];
  }

  // What somebody with this file may have meant.
  std::string instead_of_trace(const TensorFile& file) const {
    const std::string& path = f_.paths[0];
    if (file.find("q") && file.find("k") && file.find("v"))
      return "; its q, k and v are " + path + ":q " + path + ":k " + path + ":v";
    if (holds_weights(file)) return "; a layer comes with its input: " + path + " x.npy";
    return "";
  }

  void take_tokens(Explanation& e, std::int64_t queries, std::int64_t keys) const {
    if (!f_.text.empty() && !f_.tokens.empty())
      throw UsageError("--text and --tokens mean the same; give one");
    if (f_.text.empty() && f_.tokens.empty()) return;
    e.tokens = f_.tokens.empty() ? words_of(f_.text) : tokens_in(f_.tokens);
    const auto count = static_cast<std::int64_t>(e.tokens.size());
    if (count != keys || queries > keys)
      throw UsageError((f_.tokens.empty() ? "--text" : f_.tokens) + " has " +
                       std::to_string(count) + " tokens, there are " + std::to_string(keys) +
                       " keys");
    // Fewer queries than keys are the last ones.
    e.key_tokens = e.tokens;
    e.tokens.erase(e.tokens.begin(), e.tokens.end() - queries);
  }

  const ExplainFiles& f_;
  Context& context_;
  Subject s_;
  std::string title_, title_zh_;
};

}  // namespace

Explanation explain_files(const ExplainFiles& files, Context& context) {
  return Reader(files, context).explain();
}

}  // namespace attend::cli
