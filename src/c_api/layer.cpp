// Multi-head attention layers, and the gradients of any layer.
#include "c_api/handles.h"

namespace c_api = attend::c_api;
using c_api::Call;

namespace {

attend::WeightsFormat weights_format(const Call& call, const attend_weights_format* given) {
  using Orientation = attend::WeightsFormat::Orientation;
  constexpr Orientation kOrientations[] = {Orientation::automatic, Orientation::out_in,
                                           Orientation::in_out};
  const c_api::Name name = "format";
  const attend_weights_format f = call.read(given, name);
  attend::WeightsFormat made;
  made.prefix = Call::optional_text(f.prefix);
  made.heads = f.heads;
  made.key_heads = f.key_heads;
  if (f.rotary != nullptr) made.rotary = call.rotary(*f.rotary, name / "rotary");
  made.output_projection = f.no_output_projection == 0;
  made.orientation = call.choice(f.orientation, kOrientations, name / "orientation");
  return made;
}

// The three inputs: the same function serves self-attention, where key and value are none.
struct Inputs {
  attend::ConstTensorView query, key, value;
  bool self;
};

Inputs inputs(const Call& call, const attend_view* query, const attend_view* key,
              const attend_view* value) {
  if (key == nullptr && value == nullptr) return {call.view(query, "query"), {}, {}, true};
  return {call.view(query, "query"), call.view(key, "key"), call.view(value, "value"), false};
}

}  // namespace

namespace attend::c_api {

std::vector<NamedTensor> gradient_list(std::span<NamedTensor> inputs,
                                       std::vector<NamedTensor> parameters) {
  std::vector<NamedTensor> list;
  for (NamedTensor& input : inputs)
    if (input.tensor) list.push_back(std::move(input));
  std::move(parameters.begin(), parameters.end(), std::back_inserter(list));
  return list;
}

attend_layer_options shown_options(const MultiHeadAttentionOptions& options,
                                   attend_rotary& rotary) {
  attend_layer_options shown = attend_init<attend_layer_options>();
  shown.model_dim = options.model_dim;
  shown.heads = options.heads;
  shown.key_heads = options.key_heads;
  shown.d_k = options.d_k;
  shown.d_v = options.d_v;
  shown.key_dim = options.key_dim;
  shown.value_dim = options.value_dim;
  shown.no_bias = !options.bias;
  shown.no_output_projection = !options.output_projection;
  shown.seed = options.seed;
  shown.dtype = Call::number_of(options.type, kTypes);
  if (options.rotary) {
    rotary = attend_init<attend_rotary>();
    rotary.base = options.rotary->base;
    rotary.dim = options.rotary->dim;
    rotary.pairing = Call::number_of(options.rotary->pairing, kPairings);
    shown.rotary = &rotary;
  }
  return shown;
}

}  // namespace attend::c_api

attend_layer::attend_layer(attend::MultiHeadAttention made)
    : layer(std::move(made)), parameters(layer),
      options(c_api::shown_options(layer.options(), rotary)) {}

// ---- making, files, options --------------------------------------------------------------------

attend_status attend_layer_create(const attend_layer_options* options, attend_layer** made) {
  return c_api::guarded("attend_layer_create", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, attend::MultiHeadAttention(call.layer_options(options, "options")));
  });
}

attend_status attend_layer_load(const char* path, const attend_weights_format* format,
                                attend_layer** made) {
  return c_api::guarded("attend_layer_load", [&](const Call& call) {
    call.need(made, "made");
    const std::filesystem::path file = call.need_text(path, "path");
    c_api::give(made, attend::MultiHeadAttention::load(file, weights_format(call, format)));
  });
}

attend_status attend_layer_load_from(const attend_tensor_file* file,
                                     const attend_weights_format* format, attend_layer** made) {
  return c_api::guarded("attend_layer_load_from", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, attend::MultiHeadAttention::load(call.need(file, "file").file,
                                                       weights_format(call, format)));
  });
}

attend_status attend_layer_save(const attend_layer* layer, const char* path, int32_t per_head) {
  return c_api::guarded("attend_layer_save", [&](const Call& call) {
    call.need(layer, "layer").layer.save(call.need_text(path, "path"), per_head != 0);
  });
}

attend_status attend_layer_to(const attend_layer* layer, int32_t dtype, attend_layer** made) {
  return c_api::guarded("attend_layer_to", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, call.need(layer, "layer").layer.to(call.dtype(dtype, "dtype")));
  });
}

attend_status attend_layer_quantize(const attend_layer* layer, attend_layer** made) {
  return c_api::guarded("attend_layer_quantize", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, call.need(layer, "layer").layer.quantize());
  });
}

void attend_layer_destroy(attend_layer* layer) { delete layer; }

attend_status attend_layer_get_options(const attend_layer* layer, attend_layer_options* options) {
  return c_api::guarded("attend_layer_get_options", [&](const Call& call) {
    call.write(options, call.need(layer, "layer").options, "options");
  });
}

attend_status attend_layer_parameter_count(const attend_layer* layer, int64_t* count) {
  return c_api::guarded("attend_layer_parameter_count", [&](const Call& call) {
    call.need(count, "count") =
        static_cast<int64_t>(call.need(layer, "layer").parameters.list().size());
  });
}

attend_status attend_layer_parameter_at(attend_layer* layer, int64_t index, const char** name,
                                        attend_view* view) {
  return c_api::guarded("attend_layer_parameter_at", [&](const Call& call) {
    auto& parameters = call.need(layer, "layer").parameters;
    const auto& list = parameters.list();
    const attend::Parameter& found = list[static_cast<std::size_t>(call.index(index, list.size()))];
    if (view != nullptr) parameters.show(call, found, view);
    if (name != nullptr) *name = found.name.c_str();
  });
}

attend_status attend_layer_parameter_find(attend_layer* layer, const char* name,
                                          attend_view* view) {
  return c_api::guarded("attend_layer_parameter_find", [&](const Call& call) {
    auto& parameters = call.need(layer, "layer").parameters;
    parameters.show(call, call.find(parameters.list(), name), view);
  });
}

attend_status attend_layer_end_writing(attend_layer* layer) {
  return c_api::guarded("attend_layer_end_writing", [&](const Call& call) {
    call.need(layer, "layer").parameters.end_writing();
  });
}

// ---- forward and backward ----------------------------------------------------------------------

attend_status attend_layer_forward(const attend_layer* layer, const attend_view* query,
                                   const attend_view* key, const attend_view* value,
                                   const attend_attention_options* options,
                                   const attend_attention_outputs* outputs, attend_context* context,
                                   attend_tensor** made) {
  return c_api::guarded("attend_layer_forward", [&](const Call& call) {
    call.need(made, "made");
    const attend::MultiHeadAttention& l = call.need(layer, "layer").layer;
    const Inputs in = inputs(call, query, key, value);
    const attend::AttentionOptions o = call.options(options);
    const attend::AttentionOutputs out = call.outputs(outputs);
    attend::Context& c = c_api::context_of(context);
    c_api::give(made, in.self ? l.forward(in.query, o, out, c)
                              : l.forward(in.query, in.key, in.value, o, out, c));
  });
}

attend_status attend_layer_trace(const attend_layer* layer, const attend_view* query,
                                 const attend_view* key, const attend_view* value,
                                 const attend_attention_options* options, attend_context* context,
                                 attend_trace** made) {
  return c_api::guarded("attend_layer_trace", [&](const Call& call) {
    call.need(made, "made");
    const attend::MultiHeadAttention& l = call.need(layer, "layer").layer;
    const Inputs in = inputs(call, query, key, value);
    const attend::AttentionOptions o = call.options(options);
    attend::Context& c = c_api::context_of(context);
    c_api::give(made,
                in.self ? l.trace(in.query, o, c) : l.trace(in.query, in.key, in.value, o, c));
  });
}

attend_status attend_layer_forward_train(const attend_layer* layer, const attend_view* query,
                                         const attend_view* key, const attend_view* value,
                                         const attend_attention_options* options,
                                         attend_context* context, attend_tensor** made,
                                         attend_saved** saved) {
  return c_api::guarded("attend_layer_forward_train", [&](const Call& call) {
    call.need(made, "made");
    call.need(saved, "saved");
    const attend::MultiHeadAttention& l = call.need(layer, "layer").layer;
    const Inputs in = inputs(call, query, key, value);
    const attend::AttentionOptions o = call.options(options);
    attend::Context& c = c_api::context_of(context);
    c_api::give_both(made, saved,
                     in.self ? l.forward_train(in.query, o, c)
                             : l.forward_train(in.query, in.key, in.value, o, c));
  });
}

attend_status attend_layer_backward(const attend_layer* layer, const attend_view* dy,
                                    const attend_saved* saved, attend_context* context,
                                    attend_gradients** made) {
  return c_api::guarded("attend_layer_backward", [&](const Call& call) {
    call.need(made, "made");
    const attend::MultiHeadAttention& l = call.need(layer, "layer").layer;
    const auto* kept =
        std::get_if<attend::MultiHeadAttention::Saved>(&call.need(saved, "saved").saved);
    if (kept == nullptr) call.fail("saved is of a block, not of a layer");
    attend::MultiHeadAttention::Gradients g =
        l.backward(call.view(dy, "dy"), *kept, c_api::context_of(context));
    attend::NamedTensor named[] = {{"dx", std::move(g.dx)},        {"dquery", std::move(g.dquery)},
                                   {"dkey", std::move(g.dkey)},    {"dvalue", std::move(g.dvalue)},
                                   {"dbias", std::move(g.dbias)},  {"dsinks", std::move(g.dsinks)},
                                   {"dalibi", std::move(g.dalibi)}};
    c_api::give(made, c_api::gradient_list(named, std::move(g.parameters)));
  });
}

// ---- token by token ----------------------------------------------------------------------------

attend_status attend_layer_make_cache(const attend_layer* layer, int64_t batch, int64_t capacity,
                                      int64_t page_size, int64_t pages, attend_kv_cache** made) {
  return c_api::guarded("attend_layer_make_cache", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made,
                call.need(layer, "layer").layer.make_cache(batch, capacity, page_size, pages));
  });
}

attend_status attend_layer_forward_cached(const attend_layer* layer, const attend_view* x,
                                          attend_kv_cache* cache,
                                          const attend_attention_options* options,
                                          const attend_view* lengths, attend_context* context,
                                          attend_tensor** made) {
  return c_api::guarded("attend_layer_forward_cached", [&](const Call& call) {
    call.need(made, "made");
    const attend::MultiHeadAttention& l = call.need(layer, "layer").layer;
    auto handle = std::make_unique<attend_tensor>();  // first: the cache must not run ahead
    handle->tensor =
        l.forward(call.view(x, "x"), call.need(cache, "cache").cache, call.options(options),
                  call.optional_view(lengths, "lengths"), c_api::context_of(context));
    *made = handle.release();
  });
}

attend_status attend_layer_append(const attend_layer* layer, const attend_view* key,
                                  const attend_view* value, attend_kv_cache* cache,
                                  const attend_view* lengths, attend_context* context) {
  return c_api::guarded("attend_layer_append", [&](const Call& call) {
    call.need(layer, "layer")
        .layer.append(call.view(key, "key"), call.view(value, "value"),
                      call.need(cache, "cache").cache, call.optional_view(lengths, "lengths"),
                      c_api::context_of(context));
  });
}

attend_status attend_layer_attend(const attend_layer* layer, const attend_view* query,
                                  const attend_kv_cache* cache,
                                  const attend_attention_options* options, attend_context* context,
                                  attend_tensor** made) {
  return c_api::guarded("attend_layer_attend", [&](const Call& call) {
    call.need(made, "made");
    const attend::MultiHeadAttention& l = call.need(layer, "layer").layer;
    c_api::give(made, l.attend(call.view(query, "query"), call.need(cache, "cache").cache,
                               call.options(options), c_api::context_of(context)));
  });
}

// ---- gradients ---------------------------------------------------------------------------------

void attend_saved_destroy(attend_saved* saved) { delete saved; }

attend_status attend_gradients_count(const attend_gradients* gradients, int64_t* count) {
  return c_api::guarded("attend_gradients_count", [&](const Call& call) {
    call.need(count, "count") = static_cast<int64_t>(call.need(gradients, "gradients").list.size());
  });
}

attend_status attend_gradients_at(const attend_gradients* gradients, int64_t index,
                                  const char** name, attend_view* view) {
  return c_api::guarded("attend_gradients_at", [&](const Call& call) {
    c_api::show_element(call, call.need(gradients, "gradients").list, index, name, view);
  });
}

attend_status attend_gradients_find(const attend_gradients* gradients, const char* name,
                                    attend_view* view) {
  return c_api::guarded("attend_gradients_find", [&](const Call& call) {
    call.show(view, call.find(call.need(gradients, "gradients").list, name).tensor);
  });
}

void attend_gradients_destroy(attend_gradients* gradients) { delete gradients; }
