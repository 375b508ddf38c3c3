// The work of `attend apply`: the same calls of the library that a program would make.
#include "apply.h"

#include "files/tensors.h"
#include "frame/machine.h"
#include "frame/program.h"
#include "frame/terminal.h"

#include <attend/plan.h>

#include <algorithm>
#include <chrono>

namespace attend::cli {
namespace {

// Streams of the seed: what is drawn does not depend on what else is.
enum Stream : std::uint64_t { kFirst, kSecond, kThird };

ScoreStage stage_named(const std::string& name) {
  return name == "raw"          ? ScoreStage::raw
         : name == "softcapped" ? ScoreStage::softcapped
                                : ScoreStage::masked;
}

// Weights and scores are written with at least 32 bits.
DType shown(DType type) { return size_of(type) == 2 ? DType::f32 : type; }

class Job {
 public:
  Job(const ApplyOptions& options, Mode mode, std::uint64_t seed, Context& context,
      Outputs& outputs)
      : o_(options), seed_(seed), context_(context), outputs_(outputs) {
    result_.mode = mode;
    if (!o_.type.empty()) type_ = type_named(o_.type);
  }

  Applied run() {
    switch (result_.mode) {
      case Mode::attention: attend_bare(); break;
      case Mode::layer: attend_layer(); break;
      case Mode::block: attend_block(); break;
    }
    outputs_.put("output", result_.output);
    outputs_.put("weights", result_.weights);
    outputs_.put("lse", result_.lse);
    outputs_.put("scores", result_.scores);
    outputs_.put_file(o_.trace, [&](const auto& path) { result_.trace.save(path); });
    outputs_.write();
    return std::move(result_);
  }

 private:
  // ---- inputs --------------------------------------------------------------------------------

  // The first floating-point tensor says the type of the others, unless --type does.
  Tensor typed(const std::string& name, Tensor tensor) {
    if (!is_floating_point(tensor.dtype()))
      throw UsageError(name + " is " + std::string(name_of(tensor.dtype())) +
                       "; it must be f64, f32, bf16 or f16");
    if (!type_) {
      type_ = tensor.dtype();
      typed_by_ = name;
    }
    if (tensor.dtype() == *type_) return tensor;
    if (o_.type.empty())
      throw UsageError(name + " is " + std::string(name_of(tensor.dtype())) + ", " + typed_by_ +
                       " is " + std::string(name_of(*type_)) + "; --type " +
                       std::string(name_of(*type_)) + " converts");
    return converted(std::move(tensor), *type_);
  }

  const Tensor& take(const std::string& name, const std::string& source) {
    result_.inputs.push_back({name, typed(name, load_tensor(source))});
    return result_.inputs.back().tensor;
  }

  static double numbers_in(const Shape& shape) {
    double count = 1;
    for (const std::int64_t size : shape) count *= static_cast<double>(size);
    return count;
  }

  // Numbers are drawn in f64.
  const Tensor& draw(const std::string& name, const Shape& shape, Stream stream) {
    const double each = *type_ == DType::f64 ? 8 : 8 + static_cast<double>(size_of(*type_));
    check_memory(each * numbers_in(shape), name + " " + to_string(shape));
    result_.inputs.push_back({name, drawn(shape, *type_, seed_, stream)});
    return result_.inputs.back().tensor;
  }

  const Tensor& input(std::size_t n) const { return result_.inputs[n].tensor; }

  void load_flags() { loaded_ = load_options(o_.attention, *type_, !o_.type.empty(), seed_); }

  // ---- outputs -------------------------------------------------------------------------------

  void reserve() {
    outputs_.reserve(o_.output, "output", *type_);
    outputs_.reserve(o_.save_weights, "weights", shown(*type_));
    outputs_.reserve(o_.save_lse, "lse", statistics_type(*type_));
    outputs_.reserve(o_.save_scores, "scores", shown(*type_));
    for (const std::string& path : {o_.trace, o_.save_layer}) {
      if (!path.empty() && !path.ends_with(".safetensors"))
        throw UsageError("'" + path + "' must end in .safetensors");
      outputs_.reserve_file(path);
    }
  }

  std::vector<std::int64_t> weight_heads() const {
    const Tensor list = load_list(o_.weight_heads);
    if (list.dtype() != DType::i64 || list.view().rank() != 1 || list.view().count() == 0)
      throw UsageError("--weight-heads takes heads, as in 3,5, or a file of them in i64");
    const auto* first = list.data<std::int64_t>();
    return {first, first + list.view().count()};
  }

  AttentionOutputs make_outputs(const ConstTensorView& q, const ConstTensorView& k,
                                const ConstTensorView& v) {
    const Shape square = weights_shape(q, k, v, loaded_.options);  // also judges the shapes
    const int kept = !o_.save_weights.empty() + !o_.save_scores.empty() + 4 * !o_.trace.empty();
    check_memory(kept * numbers_in(square) * static_cast<double>(size_of(shown(*type_))),
                 "what is to be kept of weights and scores " + to_string(square));
    AttentionOutputs outputs;
    if (!o_.save_lse.empty()) {
      result_.lse = Tensor({q.size(0), q.size(1), q.size(2)}, statistics_type(*type_));
      outputs.lse = result_.lse;
    }
    if (!o_.save_weights.empty()) {
      Shape chosen = square;
      if (!o_.weight_heads.empty()) {
        outputs.weight_heads = weight_heads();
        chosen[1] = static_cast<std::int64_t>(outputs.weight_heads.size());
      }
      result_.weights = Tensor(chosen, shown(*type_));
      outputs.weights = result_.weights;
    }
    if (!o_.save_scores.empty()) {
      result_.scores = Tensor(square, shown(*type_));
      outputs.scores = result_.scores;
      outputs.stage = stage_named(o_.score_stage);
    }
    return outputs;
  }

  template <class Work>
  void timed(Work&& work) {
    const Waiting waiting("attending");
    const auto begin = std::chrono::steady_clock::now();
    result_.output = work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    result_.seconds = seconds.count();
  }

  // ---- bare attention ------------------------------------------------------------------------

  void take_heads() {
    const int given = !o_.q.empty() + !o_.k.empty() + !o_.v.empty();
    if (given == 3) {
      take("q", o_.q), take("k", o_.k), take("v", o_.v);
      return;
    }
    if (given != 0) throw UsageError("--q, --k and --v come together");
    const MultiHeadAttentionOptions& s = o_.sizes.attention;
    if (o_.length == 0 || s.d_k == 0)
      throw UsageError(
          "nothing to attend: give --q, --k and --v, or --input with --weights or --heads, or "
          "sizes: "
          "--length and --d-k, or --length and --model-dim");
    if (!type_) type_ = DType::f32;
    const std::int64_t keys = o_.key_length > 0 ? o_.key_length : o_.length;
    const std::int64_t heads = std::max<std::int64_t>(s.heads, 1);
    const std::int64_t key_heads = s.key_heads > 0 ? s.key_heads : heads;
    draw("q", {o_.batch, heads, o_.length, s.d_k}, kFirst);
    draw("k", {o_.batch, key_heads, keys, s.d_k}, kSecond);
    draw("v", {o_.batch, key_heads, keys, s.d_v > 0 ? s.d_v : s.d_k}, kThird);
  }

  // A matrix [length, d] is one head of one sequence.
  static ConstTensorView as_heads(const Tensor& x) {
    if (x.view().rank() != 2) return x;
    return ConstTensorView(x.view().data(), x.dtype(), {1, 1, x.size(0), x.size(1)});
  }

  void attend_bare() {
    take_heads();
    const bool matrices = input(0).view().rank() == 2;
    load_flags();
    reserve();
    if (!o_.save_layer.empty()) throw UsageError("--save-layer is for a layer or a block");
    const ConstTensorView q = as_heads(input(0)), k = as_heads(input(1)), v = as_heads(input(2));
    const AttentionOptions& options = loaded_.options;
    const AttentionOutputs outputs = make_outputs(q, k, v);
    Tensor out({q.size(0), q.size(1), q.size(2), v.size(3)}, *type_);
    const Plan plan = Plan::attention(q, k, v, out, options, outputs, {}, context_);
    result_.kernel = plan.kernel();
    timed([&] {
      plan.run(q, k, v, out, options, outputs);
      return std::move(out);
    });
    if (!o_.trace.empty()) result_.trace = trace_attention(q, k, v, options, context_);
    if (matrices)
      result_.output = Tensor::copy_of(ConstTensorView(
          result_.output.view().data(), *type_, {result_.output.size(2), result_.output.size(3)}));
  }

  // ---- a layer -------------------------------------------------------------------------------

  MultiHeadAttentionOptions layer_options() const {
    MultiHeadAttentionOptions s = o_.sizes.attention;
    s.heads = std::max<std::int64_t>(s.heads, 1);
    s.bias = !o_.no_bias;
    s.output_projection = !o_.file.no_output_projection;
    s.type = type_.value_or(DType::f32);
    s.seed = seed_;
    s.rotary = rotary_of(o_.file);
    return s;
  }

  MultiHeadAttention load_file() {
    LayerFile file = o_.file;
    file.heads = o_.sizes.attention.heads;
    file.key_heads = o_.sizes.attention.key_heads;
    MultiHeadAttention layer = load_layer(file, o_.type.empty() ? std::optional<DType>() : type_);
    set_type(layer.options().type, "the layer");
    return layer;
  }

  void set_type(DType type, const char* by) {
    if (!type_) typed_by_ = by;
    type_ = type;
  }

  // The inputs that were given, in the order query, key, value; the width of the first one is that
  // of a layer whose width was not said.
  void take_rows() {
    if (!o_.input.empty() && !o_.query.empty())
      throw UsageError("--input and --query mean the same; give one");
    if (!o_.memory.empty() && !(o_.key.empty() && o_.value.empty()))
      throw UsageError("--memory stands for --key and --value");
    if (!o_.input.empty()) take("input", o_.input);
    if (!o_.query.empty()) take("query", o_.query);
    if (!o_.memory.empty()) take("memory", o_.memory);
    if (!o_.key.empty()) take("key", o_.key);
    if (!o_.value.empty()) take("value", o_.value);
    if (result_.inputs.empty()) return;
    if (o_.input.empty() && o_.query.empty())
      throw UsageError("--" + result_.inputs[0].name + " needs --query or --input");
    if (!o_.value.empty() && o_.key.empty()) throw UsageError("--value needs --key");
  }

  void draw_rows(std::int64_t model_dim, std::int64_t key_dim, std::int64_t value_dim, bool cross) {
    if (o_.length == 0) throw UsageError("give --input, or --length to draw one");
    const std::int64_t keys = o_.key_length > 0 ? o_.key_length : o_.length;
    draw(cross && result_.mode == Mode::layer ? "query" : "input", {o_.batch, o_.length, model_dim},
         kFirst);
    if (!cross) return;
    draw(key_dim == value_dim ? "memory" : "key", {o_.batch, keys, key_dim}, kSecond);
    if (key_dim != value_dim) draw("value", {o_.batch, keys, value_dim}, kThird);
  }

  // q, k and v as the layer will see them: shapes only, in the memory of the inputs.
  struct HeadViews {
    ConstTensorView q, k, v;
  };
  HeadViews views_of(const MultiHeadAttentionOptions& s, const Tensor& query,
                     const Tensor& key) const {
    const auto view = [&](const Tensor& x, std::int64_t heads, std::int64_t d) {
      const int rank = x.view().rank();
      if (rank != 2 && rank != 3) return ConstTensorView();
      return ConstTensorView(x.view().data(), s.type,
                             {rank == 3 ? x.size(0) : 1, heads, x.size(rank - 2), d}, {0, 0, 0, 0});
    };
    return {view(query, s.heads, s.d_k), view(key, s.key_heads, s.d_k),
            view(key, s.key_heads, s.d_v)};
  }

  // The kernel that the planner chooses inside a layer.
  void ask_kernel(const MultiHeadAttentionOptions& s, const HeadViews& h,
                  const AttentionOutputs& outputs) {
    Tensor out = Tensor::uninitialized({h.q.size(0), s.heads, h.q.size(2), s.d_v}, s.type);
    result_.kernel =
        Plan::attention(h.q, h.k, h.v, out, loaded_.options, outputs, {}, context_).kernel();
  }

  // Of the weights that are to be drawn. What the sizes are not, the layer says.
  static void check_parameters(const MultiHeadAttentionOptions& s, double more) {
    const auto size = [](std::int64_t n, std::int64_t otherwise) {
      return static_cast<double>(n > 0 ? n : otherwise);
    };
    const double width = size(s.model_dim, 1), heads = size(s.heads, 1);
    const double d_k = s.d_k > 0 ? size(s.d_k, 1) : width / heads;
    const double d_v = s.d_v > 0 ? size(s.d_v, 1) : d_k;
    const double key_heads = s.key_heads > 0 ? size(s.key_heads, 1) : heads;
    const double count = heads * d_k * width + key_heads * d_k * size(s.key_dim, s.model_dim) +
                         key_heads * d_v * size(s.value_dim, s.model_dim) +
                         (s.output_projection ? heads * d_v * width : 0) + more;
    check_memory(count * static_cast<double>(size_of(s.type)),
                 "a layer of width " + std::to_string(s.model_dim));
  }

  void attend_layer() {
    MultiHeadAttention layer;
    if (!o_.file.weights.empty()) layer = load_file();
    take_rows();
    MultiHeadAttentionOptions s = layer_options();
    if (!layer) {
      if (s.model_dim == 0 && !result_.inputs.empty() && input(0).view().rank() > 0)
        s.model_dim = input(0).size(input(0).view().rank() - 1);
      if (s.key_dim == 0 && result_.inputs.size() > 1 && input(1).view().rank() > 0)
        s.key_dim = input(1).size(input(1).view().rank() - 1);
      if (s.value_dim == 0 && result_.inputs.size() > 2 && input(2).view().rank() > 0)
        s.value_dim = input(2).size(input(2).view().rank() - 1);
      check_parameters(s, 0);
      layer = MultiHeadAttention(s);
    }
    s = layer.options();
    type_ = s.type;
    if (result_.inputs.empty())
      draw_rows(s.model_dim, s.key_dim, s.value_dim,
                o_.key_length > 0 || s.key_dim != s.model_dim || s.value_dim != s.model_dim);
    result_.parameters = parameter_count(layer.parameters());
    load_flags();
    reserve();
    const Tensor& query = input(0);
    const Tensor& key = result_.inputs.size() > 1 ? input(1) : query;
    const Tensor& value = result_.inputs.size() > 2 ? input(2) : key;
    AttentionOutputs outputs;
    const HeadViews h = views_of(s, query, key);
    if (h.q && h.k && !loaded_.options.block_table) {  // else the layer says what is wrong
      outputs = make_outputs(h.q, h.k, h.v);
      ask_kernel(s, h, outputs);
    }
    timed([&] { return layer.forward(query, key, value, loaded_.options, outputs, context_); });
    if (!o_.trace.empty())
      result_.trace = layer.trace(query, key, value, loaded_.options, context_);
    outputs_.put_file(o_.save_layer, [layer](const auto& path) { layer.save(path); });
  }

  // ---- a block -------------------------------------------------------------------------------

  // What belongs to the second attention, where there is none.
  void check_cross(bool cross) const {
    const std::pair<const char*, bool> flags[] = {
        {"--memory-dim", o_.sizes.memory_dim > 0},
        {"--cross-mask", !o_.cross_mask.empty()},
        {"--cross-key-lengths", !o_.cross_key_lengths.empty()},
        {"--key-length", o_.key_length > 0}};
    for (const auto& [flag, given] : flags)
      if (given && !cross) throw UsageError(std::string(flag) + " needs --cross or --memory");
  }

  AttentionBlock make_block() {
    if (!o_.file.weights.empty()) {
      AttentionBlock block = AttentionBlock::load(o_.file.weights);
      if (type_ && *type_ != block.options().attention.type) {
        AttentionBlockOptions other = block.options();
        other.attention.type = *type_;
        block = AttentionBlock(other);
        load_parameters(load_safetensors(o_.file.weights), block.writable_parameters());
      }
      set_type(block.options().attention.type, "the block");
      check_cross(block.options().cross);
      return block;
    }
    take_rows();
    AttentionBlockOptions s = o_.sizes;
    s.attention = layer_options();
    if (s.attention.model_dim == 0 && !result_.inputs.empty() && input(0).view().rank() > 0)
      s.attention.model_dim = input(0).size(input(0).view().rank() - 1);
    s.cross = s.cross || !o_.memory.empty();
    check_cross(s.cross);
    s.activation = o_.activation == "relu"        ? Activation::relu
                   : o_.activation == "gelu"      ? Activation::gelu
                   : o_.activation == "gelu_tanh" ? Activation::gelu_tanh
                                                  : Activation::swiglu;
    s.placement = o_.placement == "post"  ? NormPlacement::post
                  : o_.placement == "pre" ? NormPlacement::pre
                                          : NormPlacement::none;
    s.norm = o_.norm == "layer_norm" ? NormKind::layer_norm : NormKind::rms_norm;
    if (s.cross && s.memory_dim == 0 && result_.inputs.size() > 1 && input(1).view().rank() > 0)
      s.memory_dim = input(1).size(input(1).view().rank() - 1);
    check_parameters(s.attention, 2 * static_cast<double>(s.hidden_dim) *
                                      static_cast<double>(s.attention.model_dim));
    return AttentionBlock(s);
  }

  void attend_block() {
    if (!o_.key.empty() || !o_.value.empty() || !o_.query.empty())
      throw UsageError("a block takes --input and --memory");
    const AttentionBlock block = make_block();
    const AttentionBlockOptions& s = block.options();
    type_ = s.attention.type;
    if (result_.inputs.empty()) take_rows();
    if (result_.inputs.empty())
      draw_rows(s.attention.model_dim, s.memory_dim > 0 ? s.memory_dim : s.attention.model_dim,
                s.memory_dim > 0 ? s.memory_dim : s.attention.model_dim, s.cross);
    result_.parameters = parameter_count(block.parameters());
    load_flags();
    reserve();
    const Tensor cross_mask = o_.cross_mask.empty() ? Tensor() : load_tensor(o_.cross_mask);
    const Tensor cross_lengths =
        o_.cross_key_lengths.empty() ? Tensor() : load_list(o_.cross_key_lengths);
    const AttentionOptions cross{.mask = cross_mask, .key_lengths = cross_lengths};
    const AttentionOptions& self = loaded_.options;
    const ConstTensorView memory =
        result_.inputs.size() > 1 ? ConstTensorView(input(1)) : ConstTensorView();
    timed([&] {
      return memory ? block.forward(input(0), memory, self, cross, context_)
                    : block.forward(input(0), self, context_);
    });
    ask_kernel(s.attention, views_of(s.attention, input(0), input(0)), {});
    if (!o_.trace.empty() || !o_.save_weights.empty() || !o_.save_lse.empty() ||
        !o_.save_scores.empty())
      take_from_trace(block.trace(input(0), memory, self, cross, context_));
    outputs_.put_file(o_.save_layer, [block](const auto& path) { block.save(path); });
  }

  // A block hands nothing out besides its output; its trace does.
  void take_from_trace(Trace trace) {
    const ScoreStage stage = stage_named(o_.score_stage);
    const bool capped = loaded_.options.softcap > 0;
    if (!o_.save_weights.empty()) result_.weights = trace.at("attention.weights");
    if (!o_.save_lse.empty()) result_.lse = trace.at("attention.lse");
    if (!o_.save_scores.empty())
      result_.scores =
          trace.at(stage == ScoreStage::masked                 ? "attention.masked_scores"
                   : stage == ScoreStage::softcapped && capped ? "attention.softcapped_scores"
                                                               : "attention.scaled_scores");
    if (!o_.trace.empty()) result_.trace = std::move(trace);
  }

  const ApplyOptions& o_;
  const std::uint64_t seed_;
  Context& context_;
  Outputs& outputs_;
  Applied result_;
  LoadedOptions loaded_;
  std::optional<DType> type_;
  std::string typed_by_ = "--type";
};

}  // namespace

Applied apply(const ApplyOptions& options, Mode mode, std::uint64_t seed, Context& context,
              Outputs& outputs) {
  return Job(options, mode, seed, context, outputs).run();
}

}  // namespace attend::cli
