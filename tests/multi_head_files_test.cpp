// Weights from files: ours, and those of others under their names, always with matrices that are
// not square, so that a wrong orientation or order shows.
#include "support/attention_layers.h"

namespace attend::test {
namespace {

using Orientation = WeightsFormat::Orientation;

Tensor transposed(const Tensor& w) { return Tensor::copy_of(w.view().permute({1, 0})); }

// Matrices or vectors one below the other.
Tensor stacked(const std::vector<const Tensor*>& parts) {
  Shape shape = parts[0]->shape();
  shape[0] = 0;
  for (const Tensor* part : parts) shape[0] += part->size(0);
  Tensor all(shape, parts[0]->dtype());
  float* to = all.data<float>();
  for (const Tensor* part : parts) to = std::copy_n(part->data<float>(), part->count(), to);
  return all;
}

std::string same_layer(const MultiHeadAttention& a, const MultiHeadAttention& b) {
  const MultiHeadAttentionOptions &x = a.options(), &y = b.options();
  if (x.model_dim != y.model_dim || x.heads != y.heads || x.key_heads != y.key_heads ||
      x.d_k != y.d_k || x.d_v != y.d_v || x.key_dim != y.key_dim || x.value_dim != y.value_dim ||
      x.bias != y.bias || x.output_projection != y.output_projection || x.type != y.type)
    return "the options differ";
  if (x.rotary.has_value() != y.rotary.has_value()) return "one is rotary";
  if (x.rotary && (x.rotary->base != y.rotary->base || x.rotary->dim != y.rotary->dim ||
                   x.rotary->pairing != y.rotary->pairing))
    return "the rotary options differ";
  return lists_differ(a.parameters(), b.parameters());
}

// ---- Our own -----------------------------------------------------------------------------------

TEST(MultiHeadFiles, what_is_saved_is_loaded) {
  const TemporaryFolder folder;
  const Rotary rotary{.pairing = Rotary::Pairing::neighbours, .base = 1234.1, .dim = 2};
  const std::vector<MultiHeadAttentionOptions> all = {
      {.model_dim = 8, .heads = 2},
      {.model_dim = 10,
       .heads = 6,
       .key_heads = 3,
       .d_k = 4,
       .d_v = 5,
       .key_dim = 7,
       .value_dim = 9,
       .rotary = rotary,
       .type = DType::bf16},
      {.model_dim = 6, .heads = 3, .key_heads = 1, .bias = false, .rotary = Rotary{}},
      {.model_dim = 6, .heads = 3, .d_v = 4, .output_projection = false, .type = DType::f64}};
  for (const MultiHeadAttentionOptions& options : all)
    for (const bool per_head : {false, true}) {
      const MultiHeadAttention layer = drawn(options);
      layer.save(folder / "layer", per_head);
      const TensorFile file = load_safetensors(folder / "layer");
      EXPECT_EQ(file.find("head.0.q.weight") != nullptr, per_head);
      EXPECT_EQ(file.metadata.at("layout"), per_head ? "per_head [out, in]" : "fused [out, in]");
      EXPECT_EQ(same_layer(MultiHeadAttention::load(folder / "layer"), layer), "")
          << "model_dim " << options.model_dim << " per_head " << per_head;
      const MultiHeadAttention turned =
          MultiHeadAttention::load(file, {.rotary = Rotary{.base = 5}});
      EXPECT_EQ(turned.options().rotary->base, 5) << per_head;  // the caller knows better
    }
}

// ---- Others' -----------------------------------------------------------------------------------

struct Scheme {
  const char* name;
  const char *q, *k, *v, *o;  // without ".weight"
};
constexpr Scheme kFour[] = {{"ours", "q", "k", "v", "o"},
                            {"o_proj", "q_proj", "k_proj", "v_proj", "o_proj"},
                            {"out_proj", "q_proj", "k_proj", "v_proj", "out_proj"},
                            {"wq", "wq", "wk", "wv", "wo"},
                            {"W_Q", "W_Q", "W_K", "W_V", "W_O"},
                            {"linear", "query_linear", "key_linear", "value_linear", "out_linear"},
                            {"bert", "self.query", "self.key", "self.value", "output.dense"}};

void add(TensorFile& file, const std::string& name, const Linear& linear, bool in_out = false) {
  if (!linear) return;
  file.tensors.push_back(
      {name + ".weight", in_out ? transposed(linear.weight()) : linear.weight()});
  if (linear.bias()) file.tensors.push_back({name + ".bias", linear.bias()});
}

TEST(MultiHeadFiles, four_matrices_are_found_by_their_names) {
  for (const Scheme& s : kFour)
    for (const bool bias : {true, false})
      for (const bool in_out : {true, false})
        for (const std::string prefix : {"", "encoder.layers.0.attention."}) {
          const MultiHeadAttention layer = drawn({.model_dim = 10,
                                                  .heads = 4,
                                                  .key_heads = 2,
                                                  .d_k = 3,
                                                  .d_v = 5,
                                                  .key_dim = 7,
                                                  .value_dim = 8,
                                                  .bias = bias});
          TensorFile file;
          add(file, prefix + s.v, layer.v(), in_out);  // in any order
          add(file, prefix + s.o, layer.o(), in_out);
          add(file, prefix + s.k, layer.k(), in_out);
          add(file, prefix + s.q, layer.q(), in_out);
          add(file, "other." + prefix + s.q, layer.k());
          const WeightsFormat format{
              .prefix = prefix,
              .heads = 4,
              .orientation = in_out ? Orientation::in_out : Orientation::automatic};
          EXPECT_EQ(same_layer(MultiHeadAttention::load(file, format), layer), "")
              << s.name << " " << prefix << " in_out " << in_out;
        }
}

// A W^O under a name that nobody knows looks like no W^O at all: the caller has to say which.
TEST(MultiHeadFiles, a_layer_without_w_o_is_never_guessed) {
  const MultiHeadAttention layer =
      drawn({.model_dim = 6, .heads = 2, .d_v = 4, .output_projection = false});
  TensorFile file;
  add(file, "wq", layer.q());
  add(file, "wk", layer.k());
  add(file, "wv", layer.v());
  file.tensors.push_back({"output.weight", Tensor({6, 8})});
  const std::string error = error_of([&] { MultiHeadAttention::load(file, {.heads = 2}); });
  EXPECT_NE(error.find("FileError"), std::string::npos) << error;
  EXPECT_NE(error.find("wo.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("output.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("output_projection = false"), std::string::npos) << error;
  const WeightsFormat format{.heads = 2, .output_projection = false};
  EXPECT_EQ(same_layer(MultiHeadAttention::load(file, format), layer), "");
}

// nn.MultiheadAttention: in_proj_weight [3 E, E] is W^Q, W^K, W^V in this order.
TEST(MultiHeadFiles, in_proj_weight_holds_q_k_v_in_this_order) {
  const MultiHeadAttention layer = drawn({.model_dim = 12, .heads = 3});
  TensorFile file;
  file.tensors.push_back(
      {"in_proj_weight", stacked({&layer.q().weight(), &layer.k().weight(), &layer.v().weight()})});
  file.tensors.push_back(
      {"in_proj_bias", stacked({&layer.q().bias(), &layer.k().bias(), &layer.v().bias()})});
  add(file, "out_proj", layer.o());
  EXPECT_EQ(same_layer(MultiHeadAttention::load(file, {.heads = 3}), layer), "");
  file.metadata["heads"] = "3";
  EXPECT_EQ(same_layer(MultiHeadAttention::load(file), layer), "");
  file.tensors.push_back({"bias_k", Tensor({1, 1, 12})});
  EXPECT_EQ(
      error_of([&] { MultiHeadAttention::load(file); }),
      "FileError: multi_head_attention: bias_k is there; add_bias_kv is not part of this layer");
}

// The same with kdim and vdim of their own: three matrices, one bias.
TEST(MultiHeadFiles, q_proj_weight_has_widths_of_its_own) {
  const MultiHeadAttention layer =
      drawn({.model_dim = 12, .heads = 3, .key_dim = 5, .value_dim = 7});
  TensorFile file;
  file.tensors.push_back({"q_proj_weight", layer.q().weight()});
  file.tensors.push_back({"k_proj_weight", layer.k().weight()});
  file.tensors.push_back({"v_proj_weight", layer.v().weight()});
  file.tensors.push_back(
      {"in_proj_bias", stacked({&layer.q().bias(), &layer.k().bias(), &layer.v().bias()})});
  add(file, "out_proj", layer.o());
  EXPECT_EQ(same_layer(MultiHeadAttention::load(file, {.heads = 3}), layer), "");
}

// GPT-2's Conv1D is [in, out]: c_attn [E, 3 E]. Grouped heads need key_heads.
TEST(MultiHeadFiles, c_attn_is_in_out) {
  for (const std::int64_t key_heads : {4, 2}) {
    const MultiHeadAttention layer = drawn({.model_dim = 12, .heads = 4, .key_heads = key_heads});
    TensorFile file;
    file.tensors.push_back(
        {"h.0.attn.c_attn.weight",
         transposed(stacked({&layer.q().weight(), &layer.k().weight(), &layer.v().weight()}))});
    file.tensors.push_back({"h.0.attn.c_attn.bias",
                            stacked({&layer.q().bias(), &layer.k().bias(), &layer.v().bias()})});
    add(file, "h.0.attn.c_proj", layer.o(), true);
    const WeightsFormat format{
        .prefix = "h.0.attn.", .heads = 4, .key_heads = key_heads == 4 ? 0 : key_heads};
    EXPECT_EQ(same_layer(MultiHeadAttention::load(file, format), layer), "") << key_heads;
    WeightsFormat wrong = format;
    wrong.orientation = Orientation::out_in;
    EXPECT_TRUE(
        error_of([&] { MultiHeadAttention::load(file, wrong); }).starts_with("FileError: "));
  }
}

TEST(MultiHeadFiles, grouped_heads_show_in_the_shapes) {
  const MultiHeadAttention layer = drawn({.model_dim = 12, .heads = 6, .key_heads = 2, .d_v = 3});
  TensorFile file;
  add(file, "q_proj", layer.q());
  add(file, "k_proj", layer.k());
  add(file, "v_proj", layer.v());
  add(file, "o_proj", layer.o());
  const MultiHeadAttention loaded = MultiHeadAttention::load(file, {.heads = 6});
  EXPECT_EQ(loaded.options().key_heads, 2);
  EXPECT_EQ(same_layer(loaded, layer), "");
  EXPECT_TRUE(error_of([&] {
                MultiHeadAttention::load(file, {.heads = 6, .key_heads = 3});
              }).starts_with("FileError: "));
}

// ---- What does not fit -------------------------------------------------------------------------

TEST(MultiHeadFiles, a_wrong_orientation_names_the_shapes_and_the_orientation) {
  const MultiHeadAttention layer = drawn({.model_dim = 10, .heads = 4, .d_k = 3, .key_dim = 7});
  const auto error = [&](bool in_out, Orientation orientation, bool bias) {
    TensorFile file;
    for (const auto& [name, linear] :
         {std::pair{"wq", &layer.q()}, {"wk", &layer.k()}, {"wv", &layer.v()}, {"wo", &layer.o()}})
      add(file, name, bias ? *linear : Linear(linear->weight()), in_out);
    file.path = "weights.safetensors";
    return error_of(
        [&] { MultiHeadAttention::load(file, {.heads = 4, .orientation = orientation}); });
  };
  EXPECT_EQ(error(true, Orientation::automatic, true),
            "FileError: multi_head_attention: weights.safetensors: wq.weight has 10 outputs for 4 "
            "heads; W^Q, W^K, W^V are "
            "[10, 12], [7, 12], [7, 12], read as [out, in], with 4 heads: is either wrong?");
  EXPECT_EQ(error(false, Orientation::in_out, false),
            "FileError: multi_head_attention: weights.safetensors: wq.weight has 10 outputs for 4 "
            "heads; W^Q, W^K, W^V are "
            "[12, 10], [12, 7], [12, 7], read as [in, out], with 4 heads: is either wrong?");
  // Where the shapes fit either way, the biases tell.
  TensorFile file;
  const MultiHeadAttention even = drawn({.model_dim = 8, .heads = 4, .d_k = 3});
  for (const auto& [name, linear] :
       {std::pair{"wq", &even.q()}, {"wk", &even.k()}, {"wv", &even.v()}, {"wo", &even.o()}})
    add(file, name, *linear, true);
  EXPECT_EQ(
      error_of([&] { MultiHeadAttention::load(file, {.heads = 4}); }),
      "FileError: multi_head_attention: wq.bias is [12]; its weight is [8, 12], read as [out, in]");
}

TEST(MultiHeadFiles, unknown_names_are_answered_with_those_that_are_there) {
  TensorFile file;
  file.path = "f";
  file.tensors.push_back({"model.queries", Tensor({2, 2})});
  file.tensors.push_back({"model.k\n", Tensor({2, 2})});
  EXPECT_EQ(error_of([&] { MultiHeadAttention::load(file, {.prefix = "model."}); }),
            "FileError: multi_head_attention: f: no weights of an attention layer; W^Q is looked "
            "for as model.q.weight "
            "model.q_proj.weight model.wq.weight model.W_Q.weight model.query_linear.weight "
            "model.self.query.weight model.in_proj_weight model.q_proj_weight model.c_attn.weight; "
            "there are: model.queries model.k\\x0A");
  file.tensors.push_back({"wq.weight", Tensor({2, 2})});
  EXPECT_EQ(error_of([&] { MultiHeadAttention::load(file, {.heads = 1}); }),
            "FileError: TensorFile::at: f: there is no tensor 'wk.weight'; there are "
            "'model.queries', 'model.k\\x0A', "
            "'wq.weight'");
  file.tensors.push_back({"wk.weight", Tensor({2, 2})});
  file.tensors.push_back({"wv.weight", Tensor({2, 2})});
  file.tensors.push_back({"wo.weight", Tensor({2, 2})});
  EXPECT_EQ(error_of([&] { MultiHeadAttention::load(file); }),
            "FileError: multi_head_attention: f: the metadata has no heads; the number of heads "
            "must be given");
}

// Every mistake in shapes, types and numbers of heads: an error, never a crash.
TEST(MultiHeadFiles, whatever_does_not_fit_is_refused) {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const auto file_of = [](const Shape& q, const Shape& k, const Shape& v, const Shape& o) {
    TensorFile file;
    file.tensors.push_back({"wq.weight", Tensor(q)});
    file.tensors.push_back({"wk.weight", Tensor(k)});
    file.tensors.push_back({"wv.weight", Tensor(v)});
    file.tensors.push_back({"wo.weight", Tensor(o)});
    return file;
  };
  const auto refused = [](const TensorFile& file, const WeightsFormat& format, const char* why) {
    const std::string error = error_of([&] { MultiHeadAttention::load(file, format); });
    EXPECT_TRUE(error.starts_with("FileError: ") || error.starts_with("InvalidArgument: "))
        << why << ": " << error;
  };
  const TensorFile good = file_of({8, 6}, {8, 6}, {8, 6}, {6, 8});
  EXPECT_EQ(MultiHeadAttention::load(good, {.heads = 2}).options().d_k, 4);
  for (const std::int64_t heads : {std::int64_t{3}, std::int64_t{-1}, huge, -huge - 1}) {
    refused(good, {.heads = heads}, "heads");
    refused(good, {.heads = 2, .key_heads = heads}, "key_heads");
  }
  refused(file_of({0, 6}, {8, 6}, {8, 6}, {6, 8}), {.heads = 2}, "empty W^Q");
  refused(file_of({8, 0}, {8, 0}, {8, 0}, {0, 8}), {.heads = 2}, "no inputs");
  refused(file_of({8}, {8, 6}, {8, 6}, {6, 8}), {.heads = 2}, "W^Q is a vector");
  refused(file_of({8, 6}, {7, 6}, {8, 6}, {6, 8}), {.heads = 2}, "W^K");
  refused(file_of({8, 6}, {2, 6}, {8, 6}, {6, 8}), {.heads = 2}, "W^K of half a head");
  refused(file_of({8, 6}, {8, 6}, {7, 6}, {6, 8}), {.heads = 2}, "W^V");
  refused(file_of({8, 6}, {8, 6}, {8, 6}, {8, 6}), {.heads = 2}, "W^O");
  refused(file_of({12, 6}, {8, 6}, {8, 6}, {6, 12}), {.heads = 3}, "heads no multiple");
  TensorFile file = good;
  file.tensors.push_back({"wk.bias", Tensor({7})});
  refused(file, {.heads = 2}, "bias");
  file = good;
  file.tensors[1].tensor = Tensor({8, 6}, DType::f64);
  refused(file, {.heads = 2}, "types that differ");
  for (NamedTensor& t : file.tensors) t.tensor = Tensor(t.tensor.shape(), DType::i32);
  refused(file, {.heads = 2}, "integers");
  TensorFile fused;
  fused.tensors.push_back({"in_proj_weight", Tensor({24, 8})});
  fused.tensors.push_back({"out_proj.weight", Tensor({8, 8})});
  EXPECT_EQ(MultiHeadAttention::load(fused, {.heads = 4}).options().d_k, 2);
  for (const std::int64_t heads : {std::int64_t{5}, std::int64_t{-1}, huge, huge / 2 + 1}) {
    refused(fused, {.heads = heads}, "fused heads");
    refused(fused, {.heads = 4, .key_heads = heads}, "fused key_heads");
  }
  refused(fused, {.heads = std::int64_t{1} << 62, .key_heads = std::int64_t{3} << 61}, "sum 2^64");
  fused.tensors.push_back({"in_proj_bias", Tensor({8})});
  refused(fused, {.heads = 4}, "in_proj_bias");
}

TEST(MultiHeadFiles, malformed_metadata_is_refused) {
  const TemporaryFolder folder;
  const MultiHeadAttention layer =
      drawn({.model_dim = 12, .heads = 3, .rotary = Rotary{.base = 100, .dim = 2}});
  for (const bool per_head : {false, true}) {
    layer.save(folder / "layer", per_head);
    const TensorFile good = load_safetensors(folder / "layer");
    const auto refused = [&](const std::string& key, const std::string& value) {
      TensorFile file = good;
      if (value == "missing") file.metadata.erase(key);
      else file.metadata[key] = value;
      const std::string error = error_of([&] { MultiHeadAttention::load(file); });
      EXPECT_TRUE(error.starts_with("FileError: ") || error.starts_with("InvalidArgument: "))
          << key << " = " << value << " per_head " << per_head << ": " << error;
    };
    const std::vector<std::string> not_numbers = {"",
                                                  " 3",
                                                  "3 ",
                                                  "3x",
                                                  "x",
                                                  "+3",
                                                  "0x3",
                                                  "3.0",
                                                  "-1",
                                                  "99999999999999999999",
                                                  "9223372036854775807",
                                                  "4611686018427387904",
                                                  "5"};
    std::vector<std::string> integers = {"heads"};
    if (per_head)
      integers = {"model_dim", "heads", "key_heads", "d_k", "d_v", "key_dim", "value_dim"};
    for (const std::string& key : integers) {
      for (const std::string& value : not_numbers) refused(key, value);
      refused(key, "missing");
    }
    for (const char* value : {"", "Halves", "both", "halves "}) refused("rotary", value);
    for (const char* value : {"", "x", "nan", "inf", "0", "-1", "1e999", "10 ", "missing"})
      refused("rotary_base", value);
    for (const char* value : {"", "3", "-2", "6", "2.0", "missing"}) refused("rotary_dim", value);
    if (!per_head) continue;
    for (const char* value : {"", "1", "True", "yes", "missing"}) {
      refused("bias", value);
      refused("output_projection", value);
    }
    for (const char* value : {"", "f8", "i32", "float", "missing"}) refused("type", value);
    TensorFile file = good;
    file.metadata["heads"] = "4611686018427387904";
    EXPECT_TRUE(
        error_of([&] {
          MultiHeadAttention::load(file);
        }).ends_with("there is no head.3.q.weight; there should be 4611686018427387904 heads"));
  }
}

}  // namespace
}  // namespace attend::test
