// The block around attention. Plain, training, tracing and decoding passes go through the same
// parts in the same order (run); they differ in what they do at each place (Pass).
#include <attend/block.h>

#include "api/tensor_memory.h"
#include "core/printable.h"
#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/elementwise.h"
#include "layer/initialise.h"
#include "layer/lists.h"
#include "layer/metadata.h"
#include "layer/multi_head_attention.h"
#include "layer/multi_head_options.h"
#include "layer/option_names.h"

#include <functional>
#include <iterator>

namespace attend {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidArgument(text("attention_block: ", parts...));
}

struct Pass {
  std::function<Tensor(const Tensor&)> attention, cross,
      feed_forward;  // none: there is no such part
  std::function<Tensor(int part, const Tensor&)> norm;
  std::function<void(const char* name, int part, const Tensor&)> seen;  // residuals and norms
};

// y = norm(x + f(x)), x + f(norm(x)) or x + f(x), for each part f.
Tensor run(const Pass& pass, NormPlacement placement, Tensor x, const Where& where) {
  const auto seen = [&](const char* name, int part, const Tensor& value) {
    if (pass.seen) pass.seen(name, part, value);
  };
  int part = 0;
  for (const auto* f : {&pass.attention, &pass.cross, &pass.feed_forward}) {
    ++part;
    if (!*f) continue;
    if (placement == NormPlacement::pre) {
      const Tensor normed = pass.norm(part, x);
      seen("norm", part, normed);
      add_to(x, (*f)(normed), where);
      seen("residual", part, x);
    } else {
      add_to(x, (*f)(x), where);
      seen("residual", part, x);
      if (placement == NormPlacement::none) continue;
      x = pass.norm(part, x);
      seen("norm", part, x);
    }
  }
  return x;
}

// The way back through one part: from dy to dx. `f` gives the gradient at the part's input, `norm`
// at the norm's.
template <class F, class NormBackward>
Tensor back(NormPlacement placement, Tensor dy, const F& f, const NormBackward& norm,
            const Where& where) {
  if (placement == NormPlacement::post) dy = norm(dy);
  add_to(dy, placement == NormPlacement::pre ? norm(f(dy)) : f(dy), where);
  return dy;
}

// The file must hold matrices of the sizes that its metadata claims, before any are made.
void check_matrices(const TensorFile& file, const AttentionBlockOptions& options) {
  const MultiHeadAttentionOptions o = filled_in(options.attention);
  const auto expect = [&](bool wanted, const char* name, std::int64_t out, std::int64_t in) {
    const Tensor* const found = wanted ? &file.at(name) : nullptr;
    if (found != nullptr && found->shape() != Shape{out, in})
      throw FileError(text("attention_block: ", place_of(file), name, " is ", found->shape(),
                           "; by the metadata it must be ", Shape{out, in}));
  };
  expect(true, "attention.q.weight", o.heads * o.d_k, o.model_dim);
  expect(true, "attention.k.weight", o.key_heads * o.d_k, o.key_dim);
  expect(true, "attention.v.weight", o.key_heads * o.d_v, o.value_dim);
  expect(o.output_projection, "attention.o.weight", o.model_dim, o.heads * o.d_v);
  expect(options.cross, "cross.k.weight", o.key_heads * o.d_k, options.memory_dim);
  expect(options.hidden_dim > 0, "feed_forward.up.weight", options.hidden_dim, o.model_dim);
}

}  // namespace

AttentionBlock::AttentionBlock(const AttentionBlockOptions& options) : options_(options) {
  reporting("attention_block", [&] {
    check_choice("attention_block", "activation", options.activation, std::size(kActivations));
    check_choice("attention_block", "placement", options.placement, std::size(kPlacements));
    check_choice("attention_block", "norm", options.norm, std::size(kNorms));
    if (options.memory_dim < 0 || (options.memory_dim > 0 && !options.cross))
      fail("memory_dim is ", options.memory_dim,
           "; it must be at least 1 with cross-attention, and 0 without");
    MultiHeadAttentionOptions o = options.attention;
    const std::uint64_t seed = o.seed;
    o.seed = derived_seed(seed, "attention");
    attention_ = MultiHeadAttention(o);
    o = attention_.options();
    if (o.key_dim != o.model_dim || o.value_dim != o.model_dim)
      fail("attention.key_dim is ", o.key_dim, " and attention.value_dim ", o.value_dim,
           "; in a block both are model_dim ", o.model_dim,
           ", give memory_dim for cross-attention");
    if (!o.output_projection && o.heads * o.d_v != o.model_dim)
      fail("without output_projection the heads give ", o.heads * o.d_v,
           " features; the residual needs model_dim ", o.model_dim);
    options_.attention = o;
    if (options.cross) {
      if (options_.memory_dim == 0) options_.memory_dim = o.model_dim;
      o.key_dim = o.value_dim = options_.memory_dim;
      o.rotary.reset();
      o.seed = derived_seed(seed, "cross");
      cross_ = MultiHeadAttention(o);
    }
    options_.attention.seed = seed;
    if (options.hidden_dim < 0)
      fail("hidden_dim is ", options.hidden_dim, "; it must be at least 0 (0: no feed-forward)");
    if (options.hidden_dim > 0)
      feed_forward_ = FeedForward({.model_dim = o.model_dim,
                                   .hidden_dim = options.hidden_dim,
                                   .activation = options.activation,
                                   .bias = o.bias,
                                   .type = o.type,
                                   .seed = derived_seed(seed, "feed_forward")});
    if (options.placement == NormPlacement::none) return;
    const Norm norm({.dim = o.model_dim,
                     .kind = options.norm,
                     .epsilon = options.epsilon,
                     .bias = o.bias,
                     .type = o.type});
    norm_1_ = norm;
    if (cross_) norm_2_ = norm;
    if (feed_forward_) norm_3_ = norm;
  });
}

void AttentionBlock::check_inputs(const ConstTensorView& x, bool given) const {
  check_made("attention_block", static_cast<bool>(attention_));
  check_input("attention_block", "x", x, options_.attention.type, options_.attention.model_dim);
  if (given && !cross_) fail("memory is given, but the block has no cross-attention");
  if (!given && cross_) fail("memory is not given; the block has cross-attention");
}

const Norm& AttentionBlock::norm(int part) const noexcept {
  return part == 1 ? norm_1_ : part == 2 ? norm_2_ : norm_3_;
}

// ---- forward -----------------------------------------------------------------------------------

Tensor AttentionBlock::forward(const ConstTensorView& x, const AttentionOptions& self,
                               const Where& where) const {
  return forward(x, ConstTensorView(), self, {}, where);
}

Tensor AttentionBlock::forward(const ConstTensorView& x, const Required<ConstTensorView>& memory,
                               const AttentionOptions& self, const AttentionOptions& cross,
                               const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, static_cast<bool>(memory));
    Pass pass;
    pass.attention = [&](const Tensor& u) { return attention_.forward(u, self, {}, where); };
    if (cross_)
      pass.cross = [&](const Tensor& u) {
        return cross_.forward(u, memory, memory, cross, {}, where);
      };
    if (feed_forward_)
      pass.feed_forward = [&](const Tensor& u) { return feed_forward_.forward(u, where); };
    pass.norm = [&](int part, const Tensor& u) { return norm(part).forward(u, where); };
    return run(pass, options_.placement, copied(x, where), where);
  });
}

Tensor AttentionBlock::forward(const ConstTensorView& x, KvCache& cache,
                               const AttentionOptions& self, const ConstTensorView& lengths,
                               const Where& where) const {
  return decode(x, cache, nullptr, self, {}, lengths, where);
}

Tensor AttentionBlock::forward(const ConstTensorView& x, KvCache& cache, const KvCache& memory,
                               const AttentionOptions& self, const AttentionOptions& cross,
                               const ConstTensorView& lengths, const Where& where) const {
  return decode(x, cache, &memory, self, cross, lengths, where);
}

Tensor AttentionBlock::decode(const ConstTensorView& x, KvCache& cache, const KvCache* memory,
                              const AttentionOptions& self, const AttentionOptions& cross,
                              const ConstTensorView& lengths, const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, memory != nullptr);
    const Tensor before = Tensor::copy_of(cache.key_lengths());
    Pass pass;
    pass.attention = [&](const Tensor& u) {
      return attention_.forward(u, cache, self, lengths, where);
    };
    if (memory != nullptr)
      pass.cross = [&](const Tensor& u) { return cross_.attend(u, *memory, cross, where); };
    if (feed_forward_)
      pass.feed_forward = [&](const Tensor& u) { return feed_forward_.forward(u, where); };
    pass.norm = [&](int part, const Tensor& u) { return norm(part).forward(u, where); };
    try {
      return run(pass, options_.placement, copied(x, where), where);
    } catch (...) {  // a later part failed: the cache forgets the tokens again
      for (std::int64_t b = 0; b < before.size(0); ++b)
        cache.truncate(b, before.at<std::int64_t>({b}));
      throw;
    }
  });
}

Trace AttentionBlock::trace(const ConstTensorView& x, const AttentionOptions& self,
                            const Where& where) const {
  return trace(x, ConstTensorView(), self, {}, where);
}

Trace AttentionBlock::trace(const ConstTensorView& x, const Required<ConstTensorView>& memory,
                            const AttentionOptions& self, const AttentionOptions& cross,
                            const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, static_cast<bool>(memory));
    Trace result;
    const char* axes = x.rank() == 3 ? "batch, token, feature" : "token, feature";
    // The steps of an attention, under its name; gives its output.
    const auto take = [&](const char* name, Trace steps) {
      Tensor output = steps.at("output");
      for (TraceStep& step : steps.steps) {
        step.name = text(name, ".", step.name);
        result.steps.push_back(std::move(step));
      }
      return output;
    };
    Pass pass;
    pass.attention = [&](const Tensor& u) {
      return take("attention", attention_.trace(u, self, where));
    };
    if (cross_)
      pass.cross = [&](const Tensor& u) {
        return take("cross", cross_.trace(u, memory, memory, cross, where));
      };
    if (feed_forward_)
      pass.feed_forward = [&](const Tensor& u) {
        Tensor y = feed_forward_.forward(u, where);
        result.steps.push_back({"feed_forward", "feed_forward(x)", axes, y});
        return y;
      };
    pass.norm = [&](int part, const Tensor& u) { return norm(part).forward(u, where); };
    pass.seen = [&](const char* name, int part, const Tensor& value) {
      const bool residual = std::string_view(name) == "residual";
      result.steps.push_back(
          {text(name, "_", part), residual ? "x + f(x)" : "norm(x)", axes, value});
    };
    Tensor y = run(pass, options_.placement, copied(x, where), where);
    result.steps.push_back({"output", "of the block", axes, std::move(y)});
    return result;
  });
}

// ---- training ----------------------------------------------------------------------------------

std::pair<Tensor, AttentionBlock::Saved> AttentionBlock::forward_train(const ConstTensorView& x,
                                                                       const AttentionOptions& self,
                                                                       const Where& where) const {
  return forward_train(x, ConstTensorView(), self, {}, where);
}

std::pair<Tensor, AttentionBlock::Saved> AttentionBlock::forward_train(
    const ConstTensorView& x, const Required<ConstTensorView>& memory, const AttentionOptions& self,
    const AttentionOptions& cross, const Where& where) const {
  return reporting("attention_block", [&] {
    check_inputs(x, static_cast<bool>(memory));
    Saved saved;
    // Keeps what a part saved, and passes its result on.
    const auto keep = [](auto result, auto& place) {
      place = std::move(result.second);
      return std::move(result.first);
    };
    Pass pass;
    pass.attention = [&](const Tensor& u) {
      return keep(attention_.forward_train(u, self, where), saved.attention);
    };
    if (cross_)
      pass.cross = [&](const Tensor& u) {
        return keep(cross_.forward_train(u, memory, memory, cross, where), saved.cross);
      };
    if (feed_forward_)
      pass.feed_forward = [&](const Tensor& u) {
        return keep(feed_forward_.forward_train(u, where), saved.feed_forward);
      };
    pass.norm = [&](int part, const Tensor& u) {
      Norm::Saved& place = part == 1 ? saved.norm_1 : part == 2 ? saved.norm_2 : saved.norm_3;
      return keep(norm(part).forward_train(u, where), place);
    };
    Tensor y = run(pass, options_.placement, copied(x, where), where);
    return std::pair{std::move(y), std::move(saved)};
  });
}

AttentionBlock::Gradients AttentionBlock::backward(const ConstTensorView& dy, const Saved& saved,
                                                   const Where& where) const {
  return reporting("attention_block", [&] {
    check_made("attention_block", static_cast<bool>(*this));
    if (!saved.attention.query) fail("saved is not from this block's forward_train");
    check_shape("attention_block", "dy", dy, options_.attention.type,
                saved.attention.query.shape());
    const NormPlacement placement = options_.placement;
    Gradients result;
    std::vector<NamedTensor> of_attention, of_cross, of_feed_forward, of_norm[3];
    const auto norm_back = [&](int part, const Norm::Saved& kept) {
      return [&, part](const Tensor& d) {
        LayerGradients g = norm(part).backward(d, kept, where);
        of_norm[part - 1] = std::move(g.parameters);
        return std::move(g.dx);
      };
    };

    Tensor d = copied(dy, where);
    if (feed_forward_)
      d = back(
          placement, std::move(d),
          [&](const Tensor& df) {
            LayerGradients g = feed_forward_.backward(df, saved.feed_forward, where);
            of_feed_forward = std::move(g.parameters);
            return std::move(g.dx);
          },
          norm_back(3, saved.norm_3), where);
    if (cross_)
      d = back(
          placement, std::move(d),
          [&](const Tensor& df) {
            MultiHeadAttention::Gradients g = cross_.backward(df, saved.cross, where);
            of_cross = std::move(g.parameters);
            add_to(g.dkey, g.dvalue, where);
            result.dmemory = std::move(g.dkey);
            result.cross = {std::move(g.dbias), std::move(g.dsinks), std::move(g.dalibi)};
            return std::move(g.dquery);
          },
          norm_back(2, saved.norm_2), where);
    result.dx = back(
        placement, std::move(d),
        [&](const Tensor& df) {
          MultiHeadAttention::Gradients g = attention_.backward(df, saved.attention, where);
          of_attention = std::move(g.parameters);
          result.self = {std::move(g.dbias), std::move(g.dsinks), std::move(g.dalibi)};
          return std::move(g.dx);
        },
        norm_back(1, saved.norm_1), where);

    append(result.parameters, "attention.", std::move(of_attention));
    append(result.parameters, "norm_1.", std::move(of_norm[0]));
    append(result.parameters, "cross.", std::move(of_cross));
    append(result.parameters, "norm_2.", std::move(of_norm[1]));
    append(result.parameters, "feed_forward.", std::move(of_feed_forward));
    append(result.parameters, "norm_3.", std::move(of_norm[2]));
    return result;
  });
}

// ---- weights -----------------------------------------------------------------------------------

template <class List, class Block>
List AttentionBlock::list_of(Block& block) {
  List list;
  const auto add_part = [&](const char* prefix, auto& part) {
    if (part) append(list, prefix, parameters_of(part));
  };
  add_part("attention.", block.attention_);
  add_part("norm_1.", block.norm_1_);
  add_part("cross.", block.cross_);
  add_part("norm_2.", block.norm_2_);
  add_part("feed_forward.", block.feed_forward_);
  add_part("norm_3.", block.norm_3_);
  return list;
}

std::vector<NamedView> AttentionBlock::parameters() const {
  return reporting("attention_block", [&] { return list_of<std::vector<NamedView>>(*this); });
}

std::vector<Parameter> AttentionBlock::writable_parameters() {
  return reporting("attention_block", [&] { return list_of<std::vector<Parameter>>(*this); });
}

void AttentionBlock::save(const std::filesystem::path& path) const {
  reporting("attention_block", [&] {
    check_made("attention_block", static_cast<bool>(*this));
    Metadata metadata{{"format", "attend.attention_block"}, {"layout", "fused [out, in]"}};
    write_options(metadata, "attention.", options_.attention);
    metadata["cross"] = options_.cross ? "true" : "false";
    metadata["memory_dim"] = std::to_string(options_.memory_dim);
    metadata["hidden_dim"] = std::to_string(options_.hidden_dim);
    metadata["activation"] = kActivations[static_cast<int>(options_.activation)];
    metadata["placement"] = kPlacements[static_cast<int>(options_.placement)];
    metadata["norm"] = kNorms[static_cast<int>(options_.norm)];
    metadata["epsilon"] = digits(options_.epsilon);
    save_safetensors(path, parameters(), metadata);
  });
}

AttentionBlock AttentionBlock::load(const std::filesystem::path& path) {
  return reporting("attention_block", [&] {
    const TensorFile file = load_safetensors(path);
    const MetadataReader reader(file);
    reader.format_is("attend.attention_block");
    const AttentionBlockOptions options{
        .attention = read_options(reader, "attention."),
        .cross = reader.boolean("cross"),
        .memory_dim = reader.integer("memory_dim"),
        .hidden_dim = reader.integer("hidden_dim"),
        .activation = static_cast<Activation>(reader.choice("activation", kActivations)),
        .placement = static_cast<NormPlacement>(reader.choice("placement", kPlacements)),
        .norm = static_cast<NormKind>(reader.choice("norm", kNorms)),
        .epsilon = reader.number("epsilon")};
    try {
      check_matrices(file, options);
      AttentionBlock block(options);
      load_parameters(file, block.writable_parameters());
      return block;
    } catch (const InvalidArgument& error) {  // the file's fault, not the caller's
      throw FileError(printable(text("attention_block: ", path.string(), ": ", error.what())));
    }
  });
}

}  // namespace attend
