// C arguments into C++ ones: structs, enums, views, options.
#include "c_api/call.h"

#include <attend/option_list.h>

#include <algorithm>

namespace attend::c_api {

// The ABI from 1.0 on: sizes may grow, offsets may not change, and no struct has holes. That of
// attend_attention_options is beside it, in the header.
static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8);
static_assert(sizeof(attend_view) == 48 && offsetof(attend_view, rank) == 32);
static_assert(sizeof(attend_context_options) == 64);
static_assert(sizeof(attend_attention_outputs) == 64);
static_assert(sizeof(attend_backward_inputs) == 64);
static_assert(sizeof(attend_attention_gradients) == 56);
static_assert(sizeof(attend_kv_cache_options) == 72);
static_assert(sizeof(attend_rotary) == 32);
static_assert(sizeof(attend_layer_options) == 96);
static_assert(sizeof(attend_weights_format) == 48);
static_assert(sizeof(attend_block_options) == 56);
static_assert(static_cast<int>(ATTEND_MAX_RANK) == kMaxRank);

Name operator/(Name name, const char* field) {
  *std::find(std::begin(name.parts), std::end(name.parts), nullptr) = field;
  return name;
}

std::ostream& operator<<(std::ostream& os, Name name) {
  for (const char* part : name.parts)
    if (part != nullptr) os << (part == name.parts[0] ? "" : ".") << part;
  return os;
}

void Call::check_size(std::size_t given, std::size_t known, Name name) const {
  if (given == 0)
    fail(name, ".struct_size is 0; it must be the struct's sizeof, as ATTEND_INIT sets it");
  if (given > known)
    fail(name, ".struct_size is ", given, "; attend ", version(), " knows ", known,
         " bytes, the program was compiled for a newer one");
  if (given % 8 != 0) fail(name, ".struct_size is ", given, "; it must be a multiple of 8");
}

void Call::check_range(std::int32_t value, std::size_t count, Name name) const {
  if (value < 0 || static_cast<std::size_t>(value) >= count)
    fail(name, " is ", value, "; it must be from 0 to ", count - 1);
}

std::int64_t Call::index(std::int64_t index, std::size_t count) const {
  if (index < 0 || index >= static_cast<std::int64_t>(count))
    fail("index is ", index, "; there are ", count);
  return index;
}

DType Call::dtype(std::int32_t value, Name name) const { return choice(value, kTypes, name); }

Shape Call::shape(const std::int64_t* values, std::int32_t rank, Name name) const {
  if (rank < 0 || rank > kMaxRank)
    fail(name, " has rank ", rank, "; it must be from 0 to ", kMaxRank);
  if (rank > 0 && values == nullptr) fail(name, " has rank ", rank, ", but its shape is NULL");
  return Shape(std::span(values, static_cast<std::size_t>(rank)));
}

TensorView Call::view(const attend_view* view, Name name) const {
  need(view, name);
  return optional_view(view, name);
}

TensorView Call::optional_view(const attend_view* view, Name name) const {
  if (view == nullptr) return {};
  constexpr Device::Kind kKinds[] = {Device::Kind::cpu, Device::Kind::cuda};
  const attend_view v = read(view, name);
  const Shape sizes = shape(v.shape, v.rank, name);
  if (v.data == nullptr && element_count(sizes) != 0)
    fail(name, ".data is NULL, and its shape is ", sizes);
  const DType type = dtype(v.dtype, name / "dtype");
  const Device device{choice(v.device_kind, kKinds, name / "device_kind"), v.device_index};
  if (v.strides == nullptr) return {v.data, type, sizes, device};
  return {v.data, type, sizes, shape(v.strides, v.rank, name), device};
}

std::vector<ConstTensorView> Call::views(std::int64_t count, const attend_view* const* list,
                                         Name name) const {
  std::vector<ConstTensorView> made;
  if (count < 0) fail("the number of ", name, " is ", count);
  for (std::int64_t n = 0; n < count; ++n) made.push_back(view((&need(list, name))[n], name));
  return made;
}

std::vector<std::string> Call::texts(std::int64_t count, const char* const* list, Name name) const {
  std::vector<std::string> made;
  if (count < 0) fail("the number of ", name, " is ", count);
  for (std::int64_t n = 0; n < count; ++n) made.push_back(need_text((&need(list, name))[n], name));
  return made;
}

void Call::show(attend_view* view, const ConstTensorView& shown, Name name) const {
  attend_view made{};
  if (shown) {
    made.data = const_cast<void*>(shown.data());
    made.shape = shown.shape().begin();
    made.rank = shown.rank();
    made.dtype = number_of(shown.dtype(), kTypes);
    made.device_kind = shown.device().kind == Device::Kind::cpu ? ATTEND_CPU : ATTEND_CUDA;
    made.device_index = shown.device().index;
    if (shown.strides() != contiguous_strides(shown.shape()))
      made.strides = shown.strides().begin();
  }
  write(view, made, name);
}

void Call::show(attend_view* view, const Tensor& shown, Name name) const {
  attend_view made{};
  if (shown) {
    made.data = const_cast<void*>(shown.view().data());
    made.shape = shown.shape().begin();  // of the tensor itself: view() is a copy
    made.rank = shown.shape().rank();
    made.dtype = number_of(shown.dtype(), kTypes);
  }
  write(view, made, name);
}

// Every option from the field of the C struct that has its name, after the way of its kind. One
// that the struct lacks does not compile.
AttentionOptions Call::options(const attend_attention_options* given, Name name) const {
  const attend_attention_options o = read(given, name);
  AttentionOptions made;
  // A value without its flag would be ignored without a word.
  const auto flagged = [&](std::int32_t flag, auto value, const char* field) {
    if (flag == 0 && value != 0)
      fail(name / field, " is ", value, ", but has_", field, " is 0; set that, too");
    return flag != 0;
  };
  const auto window = [&] {
    Window sides;
    if (flagged(o.has_window_left, o.window_left, "window_left")) sides.left = o.window_left;
    if (flagged(o.has_window_right, o.window_right, "window_right")) sides.right = o.window_right;
    return sides;
  };
  const auto query_offset = [&]() -> QueryOffset {
    if (o.has_query_offset && o.query_offsets)
      fail(name, " has query_offset and query_offsets; give one");
    if (flagged(o.has_query_offset, o.query_offset, "query_offset")) return o.query_offset;
    return optional_view(o.query_offsets, name / "query_offsets");
  };
  const auto blocks = [&]() -> Blocks {
    return {optional_view(o.blocks_visible, name / "blocks_visible"), o.blocks_query_size,
            o.blocks_key_size};
  };
  const auto dropout = [&]() -> Dropout {
    return {o.dropout_p,
            o.dropout_seed,
            o.dropout_offset,
            {o.dropout_origin_b, o.dropout_origin_h, o.dropout_origin_i, o.dropout_origin_j,
             o.dropout_origin_heads}};
  };

#define ATTEND_number(field) made.field = o.field;
#define ATTEND_flag(field) made.field = o.field != 0;
#define ATTEND_optional_number(field) \
  if (flagged(o.has_##field, o.field, #field)) made.field = o.field;
#define ATTEND_optional_integer(field) ATTEND_optional_number(field)
#define ATTEND_mask_tensor(field) made.field = optional_view(o.field, name / #field);
#define ATTEND_float_tensor(field) ATTEND_mask_tensor(field)
#define ATTEND_head_tensor(field) ATTEND_mask_tensor(field)
#define ATTEND_key_tensor(field) ATTEND_mask_tensor(field)
#define ATTEND_integer_tensor(field) ATTEND_mask_tensor(field)
#define ATTEND_own_type(field) made.field = field();
#define ATTEND_TAKE(kind, field) ATTEND_##kind(field)
  ATTEND_OPTION_LIST(ATTEND_TAKE)
  return made;
}

AttentionOutputs Call::outputs(const attend_attention_outputs* given) const {
  constexpr ScoreStage kStages[] = {ScoreStage::masked, ScoreStage::raw, ScoreStage::softcapped};
  const Name name = "outputs";
  const attend_attention_outputs o = read(given, name);
  reserved(o.reserved, name);
  if ((o.weight_heads == nullptr) != (o.weight_heads_count == 0) || o.weight_heads_count < 0)
    fail(name, ".weight_heads is ", o.weight_heads == nullptr ? "NULL" : "given",
         " and weight_heads_count is ", o.weight_heads_count,
         "; a list of heads has at least one, and all heads are NULL and 0");
  return {.lse = optional_view(o.lse, name / "lse"),
          .weights = optional_view(o.weights, name / "weights"),
          .weight_heads = {o.weight_heads, o.weight_heads + o.weight_heads_count},
          .scores = optional_view(o.scores, name / "scores"),
          .stage = choice(o.stage, kStages, name / "stage"),
          .visited_blocks = o.visited_blocks};
}

BackwardInputs Call::backward_inputs(const attend_backward_inputs* given) const {
  const Name name = "inputs";
  const attend_backward_inputs i = read(&need(given, name), name);
  return {.q = view(i.q, name / "q"),
          .k = view(i.k, name / "k"),
          .v = view(i.v, name / "v"),
          .out = view(i.out, name / "out"),
          .lse = view(i.lse, name / "lse"),
          .dout = view(i.dout, name / "dout"),
          .dlse = optional_view(i.dlse, name / "dlse")};
}

AttentionGradients Call::gradients(const attend_attention_gradients* given) const {
  const Name name = "gradients";
  const attend_attention_gradients g = read(&need(given, name), name);
  return {optional_view(g.dq, name / "dq"),         optional_view(g.dk, name / "dk"),
          optional_view(g.dv, name / "dv"),         optional_view(g.dbias, name / "dbias"),
          optional_view(g.dsinks, name / "dsinks"), optional_view(g.dalibi, name / "dalibi")};
}

Rotary Call::rotary(const attend_rotary& given, Name name) const {
  const attend_rotary r = read(&given, name);
  reserved(r.reserved, name);
  Rotary made;
  made.pairing = choice(r.pairing, kPairings, name / "pairing");
  if (r.base != 0) made.base = r.base;
  made.dim = r.dim;
  return made;
}

MultiHeadAttentionOptions Call::layer_options(const attend_layer_options* given, Name name) const {
  const attend_layer_options o = read(&need(given, name), name);
  reserved(o.reserved, name);
  MultiHeadAttentionOptions made;
  made.model_dim = o.model_dim;
  if (o.heads != 0) made.heads = o.heads;
  made.key_heads = o.key_heads;
  made.d_k = o.d_k;
  made.d_v = o.d_v;
  made.key_dim = o.key_dim;
  made.value_dim = o.value_dim;
  made.bias = o.no_bias == 0;
  made.output_projection = o.no_output_projection == 0;
  if (o.rotary) made.rotary = rotary(*o.rotary, name / "rotary");
  made.type = dtype(o.dtype, name / "dtype");
  made.seed = o.seed;
  return made;
}

}  // namespace attend::c_api
