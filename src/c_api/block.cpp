// Attention blocks.
#include "c_api/handles.h"

namespace c_api = attend::c_api;
using c_api::Call;

namespace {

using attend::Activation;
using attend::NormKind;
using attend::NormPlacement;
constexpr Activation kActivations[] = {Activation::gelu, Activation::relu, Activation::gelu_tanh,
                                       Activation::swiglu};
constexpr NormPlacement kPlacements[] = {NormPlacement::post, NormPlacement::pre,
                                         NormPlacement::none};
constexpr NormKind kNorms[] = {NormKind::layer_norm, NormKind::rms_norm};

attend::AttentionBlockOptions block_options(const Call& call, const attend_block_options* given) {
  const c_api::Name name = "options";
  const attend_block_options o = call.read(&call.need(given, name), name);
  attend::AttentionBlockOptions made;
  made.attention = call.layer_options(o.attention, name / "attention");
  made.cross = o.cross != 0;
  made.memory_dim = o.memory_dim;
  made.hidden_dim = o.hidden_dim;
  made.activation = call.choice(o.activation, kActivations, name / "activation");
  made.placement = call.choice(o.placement, kPlacements, name / "placement");
  made.norm = call.choice(o.norm, kNorms, name / "norm");
  if (o.epsilon != 0) made.epsilon = o.epsilon;
  return made;
}

}  // namespace

attend_block::attend_block(attend::AttentionBlock made)
    : block(std::move(made)), parameters(block),
      attention_options(c_api::shown_options(block.options().attention, rotary)) {}

// ---- making, files, options --------------------------------------------------------------------

attend_status attend_block_create(const attend_block_options* options, attend_block** made) {
  return c_api::guarded("attend_block_create", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, attend::AttentionBlock(block_options(call, options)));
  });
}

attend_status attend_block_load(const char* path, attend_block** made) {
  return c_api::guarded("attend_block_load", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, attend::AttentionBlock::load(call.need_text(path, "path")));
  });
}

attend_status attend_block_save(const attend_block* block, const char* path) {
  return c_api::guarded("attend_block_save", [&](const Call& call) {
    call.need(block, "block").block.save(call.need_text(path, "path"));
  });
}

attend_status attend_block_to(const attend_block* block, int32_t dtype, attend_block** made) {
  return c_api::guarded("attend_block_to", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, call.need(block, "block").block.to(call.dtype(dtype, "dtype")));
  });
}

attend_status attend_block_quantize(const attend_block* block, attend_block** made) {
  return c_api::guarded("attend_block_quantize", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, call.need(block, "block").block.quantize());
  });
}

void attend_block_destroy(attend_block* block) { delete block; }

attend_status attend_block_get_options(const attend_block* block, attend_block_options* options) {
  return c_api::guarded("attend_block_get_options", [&](const Call& call) {
    const attend_block& b = call.need(block, "block");
    const attend::AttentionBlockOptions& o = b.block.options();
    attend_block_options shown{};
    shown.attention = &b.attention_options;
    shown.memory_dim = o.memory_dim;
    shown.hidden_dim = o.hidden_dim;
    shown.epsilon = o.epsilon;
    shown.cross = o.cross;
    shown.activation = Call::number_of(o.activation, kActivations);
    shown.placement = Call::number_of(o.placement, kPlacements);
    shown.norm = Call::number_of(o.norm, kNorms);
    call.write(options, shown, "options");
  });
}

attend_status attend_block_parameter_count(const attend_block* block, int64_t* count) {
  return c_api::guarded("attend_block_parameter_count", [&](const Call& call) {
    call.need(count, "count") =
        static_cast<int64_t>(call.need(block, "block").parameters.list().size());
  });
}

attend_status attend_block_parameter_at(attend_block* block, int64_t index, const char** name,
                                        attend_view* view) {
  return c_api::guarded("attend_block_parameter_at", [&](const Call& call) {
    auto& parameters = call.need(block, "block").parameters;
    const auto& list = parameters.list();
    const attend::Parameter& found = list[static_cast<std::size_t>(call.index(index, list.size()))];
    if (view != nullptr) parameters.show(call, found, view);
    if (name != nullptr) *name = found.name.c_str();
  });
}

attend_status attend_block_parameter_find(attend_block* block, const char* name,
                                          attend_view* view) {
  return c_api::guarded("attend_block_parameter_find", [&](const Call& call) {
    auto& parameters = call.need(block, "block").parameters;
    parameters.show(call, call.find(parameters.list(), name), view);
  });
}

attend_status attend_block_end_writing(attend_block* block) {
  return c_api::guarded("attend_block_end_writing", [&](const Call& call) {
    call.need(block, "block").parameters.end_writing();
  });
}

// ---- forward and backward ----------------------------------------------------------------------

attend_status attend_block_forward(const attend_block* block, const attend_view* x,
                                   const attend_view* memory, const attend_attention_options* self,
                                   const attend_attention_options* cross, attend_context* context,
                                   attend_tensor** made) {
  return c_api::guarded("attend_block_forward", [&](const Call& call) {
    call.need(made, "made");
    const attend::AttentionBlock& b = call.need(block, "block").block;
    const attend::ConstTensorView in = call.view(x, "x");
    const attend::AttentionOptions s = call.options(self, "self");
    const attend::AttentionOptions o = call.options(cross, "cross");
    attend::Context& c = c_api::context_of(context);
    c_api::give(made, memory == nullptr ? b.forward(in, s, c)
                                        : b.forward(in, call.view(memory, "memory"), s, o, c));
  });
}

attend_status attend_block_trace(const attend_block* block, const attend_view* x,
                                 const attend_view* memory, const attend_attention_options* self,
                                 const attend_attention_options* cross, attend_context* context,
                                 attend_trace** made) {
  return c_api::guarded("attend_block_trace", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, call.need(block, "block")
                          .block.trace(call.view(x, "x"), call.optional_view(memory, "memory"),
                                       call.options(self, "self"), call.options(cross, "cross"),
                                       c_api::context_of(context)));
  });
}

attend_status attend_block_forward_train(const attend_block* block, const attend_view* x,
                                         const attend_view* memory,
                                         const attend_attention_options* self,
                                         const attend_attention_options* cross,
                                         attend_context* context, attend_tensor** made,
                                         attend_saved** saved) {
  return c_api::guarded("attend_block_forward_train", [&](const Call& call) {
    call.need(made, "made");
    call.need(saved, "saved");
    c_api::give_both(
        made, saved,
        call.need(block, "block")
            .block.forward_train(call.view(x, "x"), call.optional_view(memory, "memory"),
                                 call.options(self, "self"), call.options(cross, "cross"),
                                 c_api::context_of(context)));
  });
}

attend_status attend_block_backward(const attend_block* block, const attend_view* dy,
                                    const attend_saved* saved, attend_context* context,
                                    attend_gradients** made) {
  return c_api::guarded("attend_block_backward", [&](const Call& call) {
    call.need(made, "made");
    const attend::AttentionBlock& b = call.need(block, "block").block;
    const auto* kept = std::get_if<attend::AttentionBlock::Saved>(&call.need(saved, "saved").saved);
    if (kept == nullptr) call.fail("saved is of a layer, not of a block");
    attend::AttentionBlock::Gradients g =
        b.backward(call.view(dy, "dy"), *kept, c_api::context_of(context));
    attend::NamedTensor named[] = {{"dx", std::move(g.dx)},
                                   {"dmemory", std::move(g.dmemory)},
                                   {"self.dbias", std::move(g.self.dbias)},
                                   {"self.dsinks", std::move(g.self.dsinks)},
                                   {"self.dalibi", std::move(g.self.dalibi)},
                                   {"cross.dbias", std::move(g.cross.dbias)},
                                   {"cross.dsinks", std::move(g.cross.dsinks)},
                                   {"cross.dalibi", std::move(g.cross.dalibi)}};
    c_api::give(made, c_api::gradient_list(named, std::move(g.parameters)));
  });
}

// ---- token by token ----------------------------------------------------------------------------

attend_status attend_block_make_cache(const attend_block* block, int64_t batch, int64_t capacity,
                                      int64_t page_size, int64_t pages, attend_kv_cache** made) {
  return c_api::guarded("attend_block_make_cache", [&](const Call& call) {
    call.need(made, "made");
    const attend::MultiHeadAttention& attention = call.need(block, "block").block.attention();
    c_api::give(made, attention.make_cache(batch, capacity, page_size, pages));
  });
}

attend_status attend_block_make_memory_cache(const attend_block* block, const attend_view* memory,
                                             const attend_view* lengths, attend_context* context,
                                             attend_kv_cache** made) {
  return c_api::guarded("attend_block_make_memory_cache", [&](const Call& call) {
    call.need(made, "made");
    const attend::MultiHeadAttention& cross = call.need(block, "block").block.cross();
    if (!cross) call.fail("the block was made without cross");
    const attend::ConstTensorView shown = call.view(memory, "memory");
    if (shown.rank() != 3)
      call.fail("memory is ", shown.shape(), "; it must be [batch, length, memory_dim]");
    attend::KvCache cache = cross.make_cache(shown.size(0), shown.size(1));
    cross.append(shown, shown, cache, call.optional_view(lengths, "lengths"),
                 c_api::context_of(context));
    c_api::give(made, std::move(cache));
  });
}

attend_status attend_block_forward_cached(const attend_block* block, const attend_view* x,
                                          attend_kv_cache* cache, const attend_kv_cache* memory,
                                          const attend_attention_options* self,
                                          const attend_attention_options* cross,
                                          const attend_view* lengths, attend_context* context,
                                          attend_tensor** made) {
  return c_api::guarded("attend_block_forward_cached", [&](const Call& call) {
    call.need(made, "made");
    const attend::AttentionBlock& b = call.need(block, "block").block;
    const attend::ConstTensorView in = call.view(x, "x");
    attend::KvCache& past = call.need(cache, "cache").cache;
    const attend::AttentionOptions s = call.options(self, "self");
    const attend::AttentionOptions o = call.options(cross, "cross");
    const attend::ConstTensorView n = call.optional_view(lengths, "lengths");
    attend::Context& c = c_api::context_of(context);
    auto handle = std::make_unique<attend_tensor>();  // first: the cache must not run ahead
    handle->tensor = memory == nullptr ? b.forward(in, past, s, n, c)
                                       : b.forward(in, past, memory->cache, s, o, n, c);
    *made = handle.release();
  });
}
