// Key-value caches.
#include "c_api/handles.h"

#include <initializer_list>

namespace c_api = attend::c_api;
using c_api::Call;

namespace {

struct ShownPart {
  attend_view* to;
  attend::ConstTensorView& kept;
  attend::ConstTensorView shown;
  const char* name;
};

void show_parts(const Call& call, std::initializer_list<ShownPart> parts) {
  for (const ShownPart& part : parts)  // all are sound, before one is written
    if (part.to != nullptr) call.checked_size(*part.to, part.name);
  for (const ShownPart& part : parts) {
    part.kept = part.shown;
    if (part.to != nullptr) call.show(part.to, part.kept, part.name);
  }
}

}  // namespace

attend_status attend_kv_cache_create(const attend_kv_cache_options* options,
                                     attend_kv_cache** made) {
  return c_api::guarded("attend_kv_cache_create", [&](const Call& call) {
    call.need(made, "made");
    const attend_kv_cache_options o = call.read(&call.need(options, "options"), "options");
    call.reserved(o.reserved, "options");
    attend::KvCacheOptions given;
    if (o.batch != 0) given.batch = o.batch;
    given.key_heads = o.key_heads;
    given.d_k = o.d_k;
    given.d_v = o.d_v;
    given.capacity = o.capacity;
    given.page_size = o.page_size;
    given.pages = o.pages;
    given.type = call.dtype(o.dtype, c_api::Name("options") / "dtype");
    c_api::give(made, attend::KvCache(given));
  });
}

attend_status attend_kv_cache_append(attend_kv_cache* cache, const attend_view* k,
                                     const attend_view* v, const attend_view* lengths) {
  return c_api::guarded("attend_kv_cache_append", [&](const Call& call) {
    call.need(cache, "cache")
        .cache.append(call.view(k, "k"), call.view(v, "v"), call.optional_view(lengths, "lengths"));
  });
}

attend_status attend_kv_cache_truncate(attend_kv_cache* cache, int64_t b, int64_t length) {
  return c_api::guarded("attend_kv_cache_truncate", [&](const Call& call) {
    call.need(cache, "cache").cache.truncate(b, length);
  });
}

attend_status attend_kv_cache_length(const attend_kv_cache* cache, int64_t b, int64_t* length) {
  return c_api::guarded("attend_kv_cache_length", [&](const Call& call) {
    call.need(length, "length") = call.need(cache, "cache").cache.length(b);
  });
}

attend_status attend_kv_cache_free_pages(const attend_kv_cache* cache, int64_t* pages) {
  return c_api::guarded("attend_kv_cache_free_pages", [&](const Call& call) {
    call.need(pages, "pages") = call.need(cache, "cache").cache.free_pages();
  });
}

attend_status attend_kv_cache_views(attend_kv_cache* cache, attend_view* keys, attend_view* values,
                                    attend_view* key_lengths, attend_view* block_table) {
  return c_api::guarded("attend_kv_cache_views", [&](const Call& call) {
    attend_kv_cache& c = call.need(cache, "cache");
    show_parts(call, {{keys, c.keys, c.cache.keys(), "keys"},
                      {values, c.values, c.cache.values(), "values"},
                      {key_lengths, c.lengths, c.cache.key_lengths(), "key_lengths"},
                      {block_table, c.table, c.cache.block_table(), "block_table"}});
  });
}

attend_status attend_kv_cache_scales(attend_kv_cache* cache, attend_view* k_scales,
                                     attend_view* v_scales) {
  return c_api::guarded("attend_kv_cache_scales", [&](const Call& call) {
    attend_kv_cache& c = call.need(cache, "cache");
    show_parts(call, {{k_scales, c.k_scales, c.cache.k_scales(), "k_scales"},
                      {v_scales, c.v_scales, c.cache.v_scales(), "v_scales"}});
  });
}

void attend_kv_cache_destroy(attend_kv_cache* cache) { delete cache; }
