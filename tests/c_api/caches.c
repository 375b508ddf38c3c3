/* Token by token: what a cache holds, and that decoding gives what the whole sequence gives. */
#include "check.h"

enum { TOKENS = 5, WIDTH = 4 };
static double x[TOKENS * WIDTH];

static attend_layer* make(void) {
  attend_layer_options options = ATTEND_INIT(attend_layer_options);
  attend_layer* layer = NULL;
  options.model_dim = WIDTH, options.heads = 2, options.dtype = ATTEND_F64;
  OK(attend_layer_create(&options, &layer));
  return layer;
}

static void decoding_gives_the_whole(const attend_layer* layer, int64_t page_size) {
  const attend_view all = view_of(x, ATTEND_F64, 3, SHAPE(1, TOKENS, WIDTH));
  attend_attention_options causal = ATTEND_INIT(attend_attention_options);
  attend_tensor *whole = NULL, *row = NULL;
  attend_kv_cache* cache = NULL;
  int64_t t, length = 0, pages = 0;
  causal.causal = 1;
  OK(attend_layer_forward(layer, &all, NULL, NULL, &causal, NULL, NULL, &whole));
  OK(attend_layer_make_cache(layer, 1, TOKENS, page_size, 0, &cache));
  for (t = 0; t < TOKENS; ++t) {
    const attend_view token = view_of(x + t * WIDTH, ATTEND_F64, 3, SHAPE(1, 1, WIDTH));
    OK(attend_layer_forward_cached(layer, &token, cache, &causal, NULL, NULL, &row));
    CHECK(memcmp(doubles(row), doubles(whole) + t * WIDTH, WIDTH * sizeof *x) == 0);
    attend_tensor_destroy(row);
    row = NULL;
    OK(attend_kv_cache_length(cache, 0, &length));
    CHECK(length == t + 1);
  }
  OK(attend_kv_cache_free_pages(cache, &pages));
  CHECK(pages == 0);
  FAILS(ATTEND_INVALID_ARGUMENT, "the capacity is 5",
        attend_layer_forward_cached(layer, &all, cache, &causal, NULL, NULL, &row));
  OK(attend_kv_cache_truncate(cache, 0, 2));
  OK(attend_kv_cache_length(cache, 0, &length));
  CHECK(length == 2 && row == NULL);
  OK(attend_kv_cache_free_pages(cache, &pages));
  CHECK(pages == (page_size == 2 ? 2 : 0)); /* 3 pages for 5 tokens, 1 for 2 */
  FAILS(ATTEND_INVALID_ARGUMENT, "there is no sequence 1",
        attend_kv_cache_length(cache, 1, &length));
  attend_kv_cache_destroy(cache);
  attend_tensor_destroy(whole);
}

/* append and attend: cross-attention over a memory that stays. With lengths, rows are left out. */
static void halves_give_cross_attention(const attend_layer* layer) {
  const attend_view query = view_of(x, ATTEND_F64, 3, SHAPE(1, 2, WIDTH));
  const attend_view memory = view_of(x + WIDTH, ATTEND_F64, 3, SHAPE(1, 3, WIDTH));
  const attend_view longer = view_of(x + WIDTH, ATTEND_F64, 3, SHAPE(1, 4, WIDTH));
  const int64_t three[] = {3};
  const attend_view lengths = view_of(three, ATTEND_I64, 1, SHAPE(1));
  attend_tensor *wanted = NULL, *found = NULL;
  attend_kv_cache* cache = NULL;
  int64_t length = 0;
  OK(attend_layer_forward(layer, &query, &memory, &memory, NULL, NULL, NULL, &wanted));
  OK(attend_layer_make_cache(layer, 1, 8, 0, 0, &cache));
  OK(attend_layer_append(layer, &longer, &longer, cache, &lengths, NULL));
  OK(attend_kv_cache_length(cache, 0, &length));
  CHECK(length == 3);
  OK(attend_layer_attend(layer, &query, cache, NULL, NULL, &found));
  CHECK(memcmp(doubles(wanted), doubles(found), 2 * WIDTH * sizeof *x) == 0);
  attend_tensor_destroy(wanted);
  attend_tensor_destroy(found);
  attend_kv_cache_destroy(cache);
}

/* A cache without a layer, and attention over what it shows. */
static void bare_cache(void) {
  attend_kv_cache_options options = ATTEND_INIT(attend_kv_cache_options);
  const double k[] = {1, 3, 7}, v[] = {10, 20, 30}, q[] = {2};
  const attend_view kv = view_of(k, ATTEND_F64, 4, SHAPE(1, 1, 3, 1));
  const attend_view vv = view_of(v, ATTEND_F64, 4, SHAPE(1, 1, 3, 1));
  const attend_view qv = view_of(q, ATTEND_F64, 4, SHAPE(1, 1, 1, 1));
  const int32_t two[] = {2};
  const attend_view lengths = view_of(two, ATTEND_I32, 1, SHAPE(1));
  double out[1];
  const attend_view ov = view_of(out, ATTEND_F64, 4, SHAPE(1, 1, 1, 1));
  attend_view keys = ATTEND_INIT(attend_view), values = keys, held = keys, table = keys;
  attend_attention_options attention = ATTEND_INIT(attend_attention_options);
  attend_kv_cache* cache = NULL;
  options.key_heads = 1, options.d_k = 1, options.capacity = 4, options.dtype = ATTEND_F64;
  OK(attend_kv_cache_create(&options, &cache));
  OK(attend_kv_cache_append(cache, &kv, &vv, &lengths));
  OK(attend_kv_cache_views(cache, &keys, &values, &held, &table));
  CHECK(keys.shape[2] == 4 && ((int64_t*)held.data)[0] == 2 && ((double*)keys.data)[1] == 3);
  CHECK(table.data == NULL && table.shape == NULL && table.rank == 0);
  attention.key_lengths = &held;
  OK(attend_attention(&qv, &keys, &values, &ov, &attention, NULL, NULL));
  NEAR(out[0], 10 + 10 / (1 + exp(-4)), 1e-13);
  held.struct_size = 0;
  keys.data = NULL;
  FAILS(ATTEND_INVALID_ARGUMENT, "key_lengths.struct_size is 0",
        attend_kv_cache_views(cache, &keys, NULL, &held, NULL));
  CHECK(keys.data == NULL); /* nothing is written on failure */
  OK(attend_kv_cache_scales(cache, &table, NULL));
  CHECK(table.data == NULL); /* only of 8 bits */
  attend_kv_cache_destroy(cache);
  cache = NULL;

  options.batch = 2, options.d_v = 3, options.page_size = 2, options.pages = 3;
  OK(attend_kv_cache_create(&options, &cache));
  table.struct_size = held.struct_size = sizeof table;
  OK(attend_kv_cache_views(cache, NULL, &values, NULL, &table));
  CHECK(values.shape[0] == 3 && values.shape[2] == 2 && values.shape[3] == 3);
  CHECK(table.shape[0] == 2 && table.shape[1] == 2);
  attend_kv_cache_destroy(cache);
  cache = NULL;
  options.capacity = 0;
  FAILS(ATTEND_INVALID_ARGUMENT, "capacity is 0", attend_kv_cache_create(&options, &cache));
  CHECK(cache == NULL);
}

/* 8 bits: the largest of a row is 127 of its scales. */
static void quantised_cache(const attend_layer* layer) {
  attend_kv_cache_options options = ATTEND_INIT(attend_kv_cache_options);
  const double k[] = {254, -1, 63.5, 0}, q[] = {0, 0};
  const attend_view kv = view_of(k, ATTEND_F64, 4, SHAPE(1, 1, 2, 2));
  const attend_view qv = view_of(q, ATTEND_F64, 4, SHAPE(1, 1, 1, 2));
  const attend_view all = view_of(x, ATTEND_F64, 3, SHAPE(1, TOKENS, WIDTH));
  double out[2];
  const attend_view ov = view_of(out, ATTEND_F64, 4, SHAPE(1, 1, 1, 2));
  attend_view keys = ATTEND_INIT(attend_view), values = keys, held = keys, ks = keys, vs = keys;
  attend_attention_options attention = ATTEND_INIT(attend_attention_options);
  attend_kv_cache* cache = NULL;
  attend_tensor *exact = NULL, *found = NULL;
  int n;
  options.key_heads = 1, options.d_k = 2, options.capacity = 4, options.dtype = ATTEND_I8;
  OK(attend_kv_cache_create(&options, &cache));
  OK(attend_kv_cache_append(cache, &kv, &kv, NULL));
  OK(attend_kv_cache_views(cache, &keys, &values, &held, NULL));
  OK(attend_kv_cache_scales(cache, &ks, &vs));
  CHECK(keys.dtype == ATTEND_I8 && ks.dtype == ATTEND_F32 && ks.rank == 3 && ks.shape[2] == 4);
  CHECK(((signed char*)keys.data)[0] == 127 && ((signed char*)keys.data)[1] == 0);
  CHECK(((float*)ks.data)[0] == 2 && ((float*)vs.data)[1] == 0.5F);
  attention.key_lengths = &held, attention.k_scales = &ks, attention.v_scales = &vs;
  OK(attend_attention(&qv, &keys, &values, &ov, &attention, NULL, NULL));
  NEAR(out[0], (254 + 63.5) / 2, 1e-13);
  attend_kv_cache_destroy(cache);
  cache = NULL;

  options.key_heads = 2, options.capacity = TOKENS;
  OK(attend_kv_cache_create(&options, &cache));
  OK(attend_layer_forward(layer, &all, NULL, NULL, NULL, NULL, NULL, &exact));
  OK(attend_layer_forward_cached(layer, &all, cache, NULL, NULL, NULL, &found));
  for (n = 0; n < TOKENS * WIDTH; ++n) NEAR(doubles(found)[n], doubles(exact)[n], 0.02);
  attend_tensor_destroy(exact);
  attend_tensor_destroy(found);
  attend_kv_cache_destroy(cache);
}

void test_caches(void) {
  attend_layer* layer = make();
  fill(x, TOKENS * WIDTH, 11);
  decoding_gives_the_whole(layer, 0);
  decoding_gives_the_whole(layer, 2);
  halves_give_cross_attention(layer);
  bare_cache();
  quantised_cache(layer);
  attend_layer_destroy(layer);
}
