// Multi-head attention in files: our own names, and those of others. A row of kSchemes is one way
// to name the four matrices; a file is read by the first row whose W^Q it has.
#include "core/printable.h"
#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/metadata.h"
#include "layer/multi_head_attention.h"
#include "layer/multi_head_options.h"
#include "layer/option_names.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace attend {
namespace {

using Orientation = WeightsFormat::Orientation;

struct Scheme {
  const char *q, *k, *v, *o;  // names of the weights; k and v null: q holds all three, one below
                              // the other
  const char *q_bias, *k_bias, *v_bias, *o_bias;  // k_bias null: q_bias holds all three
  Orientation orientation = Orientation::out_in;
};

#define ATTEND_FOUR(q, k, v, o) \
  { q ".weight", k ".weight", v ".weight", o ".weight", q ".bias", k ".bias", v ".bias", o ".bias" }
constexpr Scheme kSchemes[] = {
    ATTEND_FOUR("q", "k", "v", "o"),                      // ours
    ATTEND_FOUR("q_proj", "k_proj", "v_proj", "o_proj"),  // Llama and many others
    ATTEND_FOUR("q_proj", "k_proj", "v_proj", "out_proj"),
    ATTEND_FOUR("wq", "wk", "wv", "wo"),
    ATTEND_FOUR("W_Q", "W_K", "W_V", "W_O"),
    ATTEND_FOUR("query_linear", "key_linear", "value_linear", "out_linear"),
    ATTEND_FOUR("self.query", "self.key", "self.value", "output.dense"),  // BERT
    // PyTorch's nn.MultiheadAttention; the second when key or value have a width of their own.
    {"in_proj_weight", nullptr, nullptr, "out_proj.weight", "in_proj_bias", nullptr, nullptr,
     "out_proj.bias"},
    {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight", "in_proj_bias", nullptr,
     nullptr, "out_proj.bias"},
    {"c_attn.weight", nullptr, nullptr, "c_proj.weight", "c_attn.bias", nullptr, nullptr,
     "c_proj.bias", Orientation::in_out},  // GPT-2
};
#undef ATTEND_FOUR

// A file, what was said about it, and the row of the table that fits.
class Loader {
 public:
  Loader(const TensorFile& file, const WeightsFormat& format)
      : file_(file), format_(format), metadata_(file) {}

  MultiHeadAttention load() {
    if (has("head.0.q.weight")) return load_per_head();
    const Scheme& scheme = find_scheme();
    in_out_ = (format_.orientation == Orientation::automatic
                   ? scheme.orientation
                   : format_.orientation) == Orientation::in_out;
    refuse("bias_k", "add_bias_kv");
    Tensor q = matrix(scheme.q), k, v, q_bias = vector(scheme.q_bias), k_bias, v_bias, o, o_bias;
    if (scheme.k != nullptr) {
      k = matrix(scheme.k);
      v = matrix(scheme.v);
    } else {
      split_fused(scheme.q, q, k, v);
    }
    if (scheme.k_bias != nullptr) {
      k_bias = vector(scheme.k_bias);
      v_bias = vector(scheme.v_bias);
    } else if (q_bias) {
      split_bias(scheme.q_bias, q, k, v, q_bias, k_bias, v_bias);
    }
    if (has_output()) {
      if (!has(scheme.o))
        fail("there is no ", full(scheme.o),
             "; a layer without W^O needs output_projection = false", "; there are:", names());
      o = matrix(scheme.o);
      o_bias = vector(scheme.o_bias);
    }
    MultiHeadAttentionOptions options = options_from(scheme, q, k, v, o);
    options.type = type_of(scheme, {{scheme.q, &q},
                                    {scheme.k, &k},
                                    {scheme.v, &v},
                                    {scheme.o, &o},
                                    {scheme.q_bias, &q_bias},
                                    {scheme.k_bias, &k_bias},
                                    {scheme.v_bias, &v_bias},
                                    {scheme.o_bias, &o_bias}});
    check_bias(scheme.q_bias, q_bias, q);
    check_bias(scheme.k_bias, k_bias, k);
    check_bias(scheme.v_bias, v_bias, v);
    check_bias(scheme.o_bias, o_bias, o);
    const auto map = [&](const char* name, Tensor& weight, Tensor& bias) {
      const GivenWeights ours{.unchanged = true};
      if (!weight) return Linear();
      if (weight.dtype() != DType::i8) return Linear(std::move(weight), std::move(bias), ours);
      return Linear(std::move(weight), file_.at(full(name) + "_scales"), std::move(bias),
                    options.type, ours);
    };
    return {options, map(scheme.q, q, q_bias), map(scheme.k, k, k_bias), map(scheme.v, v, v_bias),
            map(scheme.o, o, o_bias)};
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FileError(printable(text("multi_head_attention: ", place_of(file_), parts...)));
  }

  std::string full(const char* name) const { return format_.prefix + name; }
  bool has(const char* name) const { return file_.find(full(name)) != nullptr; }
  std::string names() const {
    std::string all;
    for (const NamedTensor& named : file_.tensors) all += " " + named.name;
    return all;
  }
  void refuse(const char* name, const char* feature) const {
    if (has(name)) fail(full(name), " is there; ", feature, " is not part of this layer");
  }

  const Scheme& find_scheme() const {
    const Scheme* by_q = nullptr;
    for (const Scheme& scheme : kSchemes) {
      if (!has(scheme.q)) continue;
      by_q = by_q == nullptr ? &scheme : by_q;
      if (has(scheme.o)) return scheme;
    }
    if (by_q != nullptr) return *by_q;
    suggest_prefix();
    std::string known;
    for (const Scheme& scheme : kSchemes) {
      const std::string name = full(scheme.q);
      if (known.find(name) == std::string::npos) known += " " + name;
    }
    fail("no weights of an attention layer; W^Q is looked for as", known, "; there are:", names());
  }

  // A layer inside a model: its tensors have longer names. Fails with those prefixes that lead to
  // one, if there are any.
  void suggest_prefix() const {
    constexpr std::size_t kShown = 4;
    std::vector<std::string> prefixes;
    const auto add = [&](std::string_view name, std::string_view ending) {
      if (!name.ends_with(ending)) return;
      const std::string prefix(name.substr(0, name.size() - ending.size()));
      if (prefix.ends_with('.') &&
          std::find(prefixes.begin(), prefixes.end(), prefix) == prefixes.end())
        prefixes.push_back(prefix);
    };
    for (const NamedTensor& named : file_.tensors) {
      add(named.name, "head.0.q.weight");
      for (const Scheme& scheme : kSchemes) add(named.name, scheme.q);
    }
    if (prefixes.empty()) return;
    std::string list;
    for (std::size_t n = 0; n < std::min(prefixes.size(), kShown); ++n)
      list += (n == 0 ? "'" : ", '") + prefixes[n] + "'";
    if (prefixes.size() > kShown) list += text(" and ", prefixes.size() - kShown, " others");
    fail("no attention layer with the prefix '", format_.prefix, "'; there are layers with prefix ",
         list);
  }

  // As [out, in].
  Tensor matrix(const char* name) const {
    const Tensor& found = file_.at(full(name));
    if (found.view().rank() != 2 || found.count() == 0)
      fail(full(name), " is ", found.shape(), "; a weight is a matrix, neither size of it 0");
    return in_out_ ? Tensor::copy_of(found.view().permute({1, 0})) : found;
  }
  Tensor vector(const char* name) const {
    const Tensor* found = file_.find(full(name));
    return found == nullptr ? Tensor() : *found;
  }

  // The layer's: that of the first tensor that is not of 8 bits, as any of the weights may be; if
  // all are, the metadata's.
  DType type_of(const Scheme& scheme,
                std::initializer_list<std::pair<const char*, const Tensor*>> all) const {
    for (const auto& [name, tensor] : all)
      if (*tensor && tensor->dtype() == DType::i8 && (scheme.k == nullptr || in_out_))
        fail(full(name == nullptr ? scheme.q : name),
             " is i8; weights of 8 bits must be as save() writes them, W^Q, W^K, W^V ",
             "and W^O apart, [out, in], with scales");
    for (const auto& [name, tensor] : all)
      if (*tensor && tensor->dtype() != DType::i8) return tensor->dtype();
    return metadata_.has("type") ? static_cast<DType>(metadata_.choice("type", kTypes))
                                 : DType::f32;
  }

  // Whether there is a W^O. Its absence is never guessed: a name nobody knows looks the same.
  bool has_output() const {
    const std::string key = "output_projection";
    return format_.output_projection && !(metadata_.has(key) && !metadata_.boolean(key));
  }

  std::int64_t heads() const {
    if (format_.heads != 0) return format_.heads;
    if (metadata_.has("heads")) return metadata_.integer("heads");
    fail("the metadata has no heads; the number of heads must be given");
  }

  // 0: neither given nor in the metadata.
  std::int64_t key_heads() const {
    if (format_.key_heads != 0) return format_.key_heads;
    return metadata_.has("key_heads") ? metadata_.integer("key_heads") : 0;
  }

  const char* orientation() const { return in_out_ ? "[in, out]" : "[out, in]"; }
  // The shape that the matrix has in the file.
  Shape in_file(const Tensor& w) const { return in_out_ ? Shape{w.size(1), w.size(0)} : w.shape(); }

  // W^Q, W^K and W^V one below the other, in one matrix. W^K and W^V have as many rows as each
  // other; with as many heads as key heads each has a third.
  void split_fused(const char* name, Tensor& q, Tensor& k, Tensor& v) const {
    const std::int64_t rows = q.size(0), h = heads();
    const std::int64_t kh = key_heads() != 0 ? key_heads() : h;
    if (h < 1 || kh < 1 || h > rows || kh > rows || rows % (h + 2 * kh) != 0)
      fail(full(name), " is ", in_file(q), ", read as ", orientation(), "; its ", rows,
           " outputs must be divisible among ", h, " heads and twice ", kh, " key heads");
    const std::int64_t d = rows / (h + 2 * kh);
    const Tensor whole = std::move(q);
    const auto rows_of = [&](std::int64_t begin, std::int64_t end) {
      return Tensor::copy_of(whole.view().slice(0, begin, end));
    };
    q = rows_of(0, h * d);
    k = rows_of(h * d, (h + kh) * d);
    v = rows_of((h + kh) * d, rows);
  }

  void split_bias(const char* name, const Tensor& q, const Tensor& k, const Tensor& v,
                  Tensor& q_bias, Tensor& k_bias, Tensor& v_bias) const {
    const std::int64_t to_k = q.size(0), to_v = to_k + k.size(0), end = to_v + v.size(0);
    if (q_bias.shape() != Shape{end})
      fail(full(name), " is ", q_bias.shape(), "; it must be ", Shape{end},
           ", for W^Q, W^K and W^V");
    const Tensor whole = std::move(q_bias);
    q_bias = Tensor::copy_of(whole.view().slice(0, 0, to_k));
    k_bias = Tensor::copy_of(whole.view().slice(0, to_k, to_v));
    v_bias = Tensor::copy_of(whole.view().slice(0, to_v, end));
  }

  void check_bias(const char* name, const Tensor& bias, const Tensor& weight) const {
    if (bias && bias.shape() != Shape{weight.size(0)})
      fail(full(name), " is ", bias.shape(), "; its weight is ", in_file(weight), ", read as ",
           orientation());
  }

  // The sizes, from the shapes. A mismatch names the shapes and how they were read.
  MultiHeadAttentionOptions options_from(const Scheme& scheme, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const Tensor& o) const {
    const std::int64_t h = heads();
    const std::string hint =
        text("; W^Q, W^K, W^V are ", in_file(q), ", ", in_file(k), ", ", in_file(v), ", read as ",
             orientation(), ", with ", h, " heads: is either wrong?");
    if (h < 1 || q.size(0) % h != 0)
      fail(full(scheme.q), " has ", q.size(0), " outputs for ", h, " heads", hint);
    const std::int64_t d_k = q.size(0) / h;
    const std::int64_t kh = key_heads() != 0 ? key_heads() : k.size(0) / d_k;
    const char* k_name = scheme.k == nullptr ? scheme.q : scheme.k;
    const char* v_name = scheme.v == nullptr ? scheme.q : scheme.v;
    if (kh < 1 || k.size(0) % d_k != 0 || k.size(0) / d_k != kh)
      fail(full(k_name), " has ", k.size(0), " outputs; W^Q has ", q.size(0), ", so d_k is ", d_k,
           " and key heads would be ", kh, hint);
    if (v.size(0) % kh != 0)
      fail(full(v_name), " has ", v.size(0), " outputs for ", kh, " key heads", hint);
    const std::int64_t d_v = v.size(0) / kh;
    if (o && (o.size(1) != h * d_v || o.size(0) != q.size(1)))
      fail(full(scheme.o), " is ", in_file(o), "; it must map the ", h * d_v,
           " features of the heads to the ", q.size(1), " that W^Q takes", hint);
    return {.model_dim = q.size(1),
            .heads = h,
            .key_heads = kh,
            .d_k = d_k,
            .d_v = d_v,
            .key_dim = k.size(1),
            .value_dim = v.size(1),
            .output_projection = static_cast<bool>(o),
            .rotary = format_.rotary ? format_.rotary : read_rotary(metadata_, "")};
  }

  // Our own files, one set of matrices a head. All options are in the metadata.
  MultiHeadAttention load_per_head() const {
    MultiHeadAttentionOptions options = read_options(metadata_, "");
    if (format_.heads != 0) options.heads = format_.heads;
    if (format_.key_heads != 0) options.key_heads = format_.key_heads;
    if (format_.rotary) options.rotary = format_.rotary;
    options.output_projection = options.output_projection && format_.output_projection;
    const auto of_output = [&](const Tensor& x) {
      return options.output_projection ? x : Tensor();
    };
    std::vector<MultiHeadAttention::HeadWeights> all;
    for (std::int64_t h = 0; h < options.heads; ++h) {
      const std::string first = text(format_.prefix, "head.", h, ".q.weight");
      if (file_.find(first) == nullptr)
        fail("there is no ", first, "; there should be ", options.heads, " heads");
      const auto at = [&](const char* name) {
        const Tensor* found = file_.find(text(format_.prefix, "head.", h, ".", name));
        return found == nullptr ? Tensor() : *found;
      };
      all.push_back({.q = at("q.weight"),
                     .k = at("k.weight"),
                     .v = at("v.weight"),
                     .o = of_output(at("o.weight")),
                     .q_bias = at("q.bias"),
                     .k_bias = at("k.bias"),
                     .v_bias = at("v.bias")});
    }
    return MultiHeadAttention::join(options, all, of_output(vector("o.bias")));
  }

  const TensorFile& file_;
  const WeightsFormat& format_;
  MetadataReader metadata_;
  bool in_out_ = false;
};

}  // namespace

void MultiHeadAttention::save(const std::filesystem::path& path, bool per_head) const {
  reporting("multi_head_attention", [&] {
    check_made("multi_head_attention", static_cast<bool>(*this));
    Metadata metadata{{"format", "attend.multi_head_attention"},
                      {"layout", per_head ? "per_head [out, in]" : "fused [out, in]"}};
    write_options(metadata, "", options_);
    if (!per_head) {
      save_safetensors(path, parameters(), metadata);
      return;
    }
    const std::vector<HeadWeights> heads = split();
    std::vector<NamedView> list;
    for (std::size_t h = 0; h < heads.size(); ++h)
      for (const auto& [name, tensor] : {std::pair{"q.weight", &heads[h].q},
                                         {"q.bias", &heads[h].q_bias},
                                         {"k.weight", &heads[h].k},
                                         {"k.bias", &heads[h].k_bias},
                                         {"v.weight", &heads[h].v},
                                         {"v.bias", &heads[h].v_bias},
                                         {"o.weight", &heads[h].o}})
        if (*tensor) list.push_back({text("head.", h, ".", name), *tensor});
    if (o_ && o_.bias()) list.push_back({"o.bias", o_.bias()});
    save_safetensors(path, list, metadata);
  });
}

MultiHeadAttention MultiHeadAttention::load(const std::filesystem::path& path,
                                            const WeightsFormat& format) {
  return load(load_safetensors(path), format);
}

MultiHeadAttention MultiHeadAttention::load(const TensorFile& file, const WeightsFormat& format) {
  return reporting("multi_head_attention", [&] {
    check_choice("multi_head_attention", "orientation", format.orientation, 3);
    try {
      return Loader(file, format).load();
    } catch (const InvalidArgument& error) {  // the file's fault, not the caller's
      throw FileError(printable(text("multi_head_attention: ", place_of(file), error.what())));
    }
  });
}

}  // namespace attend
