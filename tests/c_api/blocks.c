/* Blocks: options, values, gradients, files, decoding. */
#include "check.h"

static double x[12], memory[6], dy[12], self_bias[9], cross_bias[6];
static attend_view self_view, cross_view; /* of the two */

/* A decoder's layer: everything on. */
static attend_block* decoder(void) {
  attend_layer_options attention = ATTEND_INIT(attend_layer_options);
  attend_block_options options = ATTEND_INIT(attend_block_options);
  attend_block* block = NULL;
  attention.model_dim = 4, attention.heads = 2, attention.dtype = ATTEND_F64, attention.seed = 2;
  options.attention = &attention;
  options.memory_dim = 3, options.hidden_dim = 5, options.epsilon = 1e-3, options.cross = 1;
  options.activation = ATTEND_SWIGLU;
  options.placement = ATTEND_NORM_PRE;
  options.norm = ATTEND_RMS_NORM;
  OK(attend_block_create(&options, &block));
  return block;
}

/* Without norm and feed-forward the block adds the layer's output to its input. */
static void a_bare_block_is_a_residual_layer(void) {
  const attend_view in = view_of(x, ATTEND_F64, 3, SHAPE(1, 3, 4));
  attend_layer_options attention = ATTEND_INIT(attend_layer_options);
  attend_block_options options = ATTEND_INIT(attend_block_options);
  attend_block* block = NULL;
  attend_layer* layer = NULL;
  attend_tensor *y = NULL, *f = NULL;
  const char* name = NULL;
  int64_t count = 0, n;
  attention.model_dim = 4, attention.heads = 2, attention.dtype = ATTEND_F64;
  options.attention = &attention;
  options.placement = ATTEND_NORM_NONE;
  OK(attend_block_create(&options, &block));
  OK(attend_layer_create(&attention, &layer));
  OK(attend_block_parameter_count(block, &count));
  CHECK(count == 8);
  for (n = 0; n < count; ++n) { /* the block's weights into the layer */
    attend_view from = ATTEND_INIT(attend_view), to = ATTEND_INIT(attend_view);
    OK(attend_block_parameter_at(block, n, &name, &from));
    CHECK(strncmp(name, "attention.", 10) == 0);
    OK(attend_layer_parameter_find(layer, name + 10, &to));
    memcpy(to.data, from.data, (size_t)count_of(&to) * sizeof *x);
  }
  OK(attend_block_forward(block, &in, NULL, NULL, NULL, NULL, &y));
  OK(attend_layer_forward(layer, &in, NULL, NULL, NULL, NULL, NULL, &f));
  for (n = 0; n < 12; ++n) NEAR(doubles(y)[n], x[n] + doubles(f)[n], 1e-15);
  attend_tensor_destroy(y);
  attend_tensor_destroy(f);
  attend_layer_destroy(layer);
  attend_block_destroy(block);
  block = NULL;
  options.placement = 3;
  FAILS(ATTEND_INVALID_ARGUMENT, "options.placement is 3", attend_block_create(&options, &block));
  options.attention = NULL;
  FAILS(ATTEND_INVALID_ARGUMENT, "options.attention is NULL",
        attend_block_create(&options, &block));
  CHECK(block == NULL);
}

static void every_block_option_arrives(const attend_block* block) {
  attend_block_options back = ATTEND_INIT(attend_block_options);
  OK(attend_block_get_options(block, &back));
  CHECK(back.memory_dim == 3 && back.hidden_dim == 5 && back.epsilon == 1e-3 && back.cross == 1);
  CHECK(back.activation == ATTEND_SWIGLU && back.placement == ATTEND_NORM_PRE);
  CHECK(back.norm == ATTEND_RMS_NORM);
  CHECK(back.attention->model_dim == 4 && back.attention->heads == 2);
  CHECK(back.attention->dtype == ATTEND_F64 && back.attention->rotary == NULL);
}

static void another_type_keeps_the_options(const attend_block* block) {
  attend_block_options back = ATTEND_INIT(attend_block_options);
  attend_block* other = NULL;
  OK(attend_block_to(block, ATTEND_F16, &other));
  OK(attend_block_get_options(other, &back));
  CHECK(back.attention->dtype == ATTEND_F16 && back.hidden_dim == 5 && back.cross == 1);
  attend_block_destroy(other);
  other = NULL;
  OK(attend_block_quantize(block, &other));
  OK(attend_block_get_options(other, &back));
  CHECK(back.attention->dtype == ATTEND_F64 && back.hidden_dim == 5 && back.cross == 1);
  attend_block_destroy(other);
}

/* Causal, with a bias in each attention. */
static attend_attention_options biased(const attend_view* bias, int32_t causal) {
  attend_attention_options options = ATTEND_INIT(attend_attention_options);
  options.causal = causal;
  options.bias = bias;
  return options;
}

static attend_tensor* forward(const attend_block* block) {
  const attend_view in = view_of(x, ATTEND_F64, 3, SHAPE(1, 3, 4));
  const attend_view mem = view_of(memory, ATTEND_F64, 3, SHAPE(1, 2, 3));
  const attend_attention_options self = biased(&self_view, 1), cross = biased(&cross_view, 0);
  attend_tensor* y = NULL;
  OK(attend_block_forward(block, &in, &mem, &self, &cross, NULL, &y));
  return y;
}

static void differences(const attend_block* block, double* values, const attend_view* gradient) {
  const double step = 1e-5;
  int64_t n;
  for (n = 0; n < count_of(gradient); ++n) {
    const double kept = values[n];
    attend_tensor *up, *down;
    values[n] = kept + step;
    up = forward(block);
    values[n] = kept - step;
    down = forward(block);
    NEAR(((double*)gradient->data)[n],
         (dot(dy, doubles(up), 12) - dot(dy, doubles(down), 12)) / (2 * step), 1e-7);
    values[n] = kept;
    attend_tensor_destroy(up);
    attend_tensor_destroy(down);
  }
}

static void gradients(attend_block* block) {
  const attend_view in = view_of(x, ATTEND_F64, 3, SHAPE(1, 3, 4));
  const attend_view mem = view_of(memory, ATTEND_F64, 3, SHAPE(1, 2, 3));
  const attend_view dyv = view_of(dy, ATTEND_F64, 3, SHAPE(1, 3, 4));
  const attend_attention_options self = biased(&self_view, 1), cross = biased(&cross_view, 0);
  attend_view view = ATTEND_INIT(attend_view), parameter = ATTEND_INIT(attend_view);
  attend_tensor *y = NULL, *plain = forward(block);
  attend_saved* saved = NULL;
  attend_gradients* made = NULL;
  attend_layer_options small = ATTEND_INIT(attend_layer_options);
  attend_layer* layer = NULL;
  const char* name = NULL;
  int64_t count = 0, n;
  OK(attend_block_forward_train(block, &in, &mem, &self, &cross, NULL, &y, &saved));
  CHECK(memcmp(doubles(y), doubles(plain), sizeof x) == 0);
  OK(attend_block_backward(block, &dyv, saved, NULL, &made));
  OK(attend_gradients_find(made, "dx", &view));
  differences(block, x, &view);
  OK(attend_gradients_find(made, "dmemory", &view));
  differences(block, memory, &view);
  OK(attend_gradients_find(made, "self.dbias", &view));
  differences(block, self_bias, &view);
  OK(attend_gradients_find(made, "cross.dbias", &view));
  differences(block, cross_bias, &view);
  OK(attend_gradients_count(made, &count));
  for (n = 4; n < count; ++n) {
    OK(attend_gradients_at(made, n, &name, &view));
    OK(attend_block_parameter_find(block, name, &parameter));
    differences(block, parameter.data, &view);
  }
  OK(attend_block_end_writing(block)); /* every weight is as it was, and may be packed again */
  attend_tensor_destroy(y);
  y = forward(block);
  CHECK(memcmp(doubles(y), doubles(plain), sizeof x) == 0);
  attend_gradients_destroy(made);
  made = NULL;

  /* What a block saved is not a layer's, and the other way round. */
  small.model_dim = 4, small.dtype = ATTEND_F64;
  OK(attend_layer_create(&small, &layer));
  FAILS(ATTEND_INVALID_ARGUMENT, "saved is of a block",
        attend_layer_backward(layer, &dyv, saved, NULL, &made));
  attend_saved_destroy(saved);
  attend_tensor_destroy(y);
  saved = NULL, y = NULL;
  OK(attend_layer_forward_train(layer, &in, NULL, NULL, NULL, NULL, &y, &saved));
  FAILS(ATTEND_INVALID_ARGUMENT, "saved is of a layer",
        attend_block_backward(block, &dyv, saved, NULL, &made));
  CHECK(made == NULL);
  attend_saved_destroy(saved);
  attend_tensor_destroy(y);
  attend_tensor_destroy(plain);
  attend_layer_destroy(layer);
}

static void files_and_traces(const attend_block* block, const char* folder) {
  char path[1024];
  const attend_view in = view_of(x, ATTEND_F64, 3, SHAPE(1, 3, 4));
  const attend_view mem = view_of(memory, ATTEND_F64, 3, SHAPE(1, 2, 3));
  const attend_attention_options self = biased(&self_view, 1), cross = biased(&cross_view, 0);
  attend_view view = ATTEND_INIT(attend_view);
  attend_tensor *y = forward(block), *again = NULL;
  attend_block* loaded = NULL;
  attend_trace* trace = NULL;
  snprintf(path, sizeof path, "%s/block.safetensors", folder);
  OK(attend_block_save(block, path));
  OK(attend_block_load(path, &loaded));
  again = forward(loaded);
  CHECK(memcmp(doubles(y), doubles(again), sizeof x) == 0);
  every_block_option_arrives(loaded);
  attend_block_destroy(loaded);
  OK(attend_block_trace(block, &in, &mem, &self, &cross, NULL, &trace));
  OK(attend_trace_find(trace, "output", &view));
  CHECK(memcmp(view.data, doubles(y), sizeof x) == 0);
  attend_trace_destroy(trace);
  attend_tensor_destroy(y);
  attend_tensor_destroy(again);
}

static void decoding_gives_the_whole(const attend_block* block) {
  const attend_view mem = view_of(memory, ATTEND_F64, 3, SHAPE(1, 2, 3));
  const attend_view flat = view_of(memory, ATTEND_F64, 2, SHAPE(2, 3));
  attend_attention_options causal = ATTEND_INIT(attend_attention_options);
  const attend_view in = view_of(x, ATTEND_F64, 3, SHAPE(1, 3, 4));
  attend_tensor *whole = NULL, *row = NULL;
  attend_kv_cache *cache = NULL, *held = NULL, *none = NULL;
  int64_t t;
  causal.causal = 1;
  OK(attend_block_forward(block, &in, &mem, &causal, NULL, NULL, &whole));
  OK(attend_block_make_cache(block, 1, 3, 0, 0, &cache));
  OK(attend_block_make_memory_cache(block, &mem, NULL, NULL, &held));
  for (t = 0; t < 3; ++t) {
    const attend_view token = view_of(x + t * 4, ATTEND_F64, 3, SHAPE(1, 1, 4));
    OK(attend_block_forward_cached(block, &token, cache, held, &causal, NULL, NULL, NULL, &row));
    CHECK(memcmp(doubles(row), doubles(whole) + t * 4, 4 * sizeof *x) == 0);
    attend_tensor_destroy(row);
  }
  FAILS(ATTEND_INVALID_ARGUMENT, "memory is [2, 3]",
        attend_block_make_memory_cache(block, &flat, NULL, NULL, &none));
  CHECK(none == NULL);
  attend_kv_cache_destroy(cache);
  attend_kv_cache_destroy(held);
  attend_tensor_destroy(whole);
}

void test_blocks(const char* folder) {
  attend_block_options options = ATTEND_INIT(attend_block_options);
  attend_block* block;
  const int64_t self_shape[] = {3, 3}, cross_shape[] = {3, 2};
  fill(x, 12, 1), fill(memory, 6, 2), fill(dy, 12, 3), fill(self_bias, 9, 4);
  fill(cross_bias, 6, 5);
  self_view = view_of(self_bias, ATTEND_F64, 2, self_shape);
  cross_view = view_of(cross_bias, ATTEND_F64, 2, cross_shape);
  a_bare_block_is_a_residual_layer();
  block = decoder();
  every_block_option_arrives(block);
  another_type_keeps_the_options(block);
  OK(attend_block_get_options(block, &options));
  CHECK(options.attention->seed == 2); /* files do not keep it */
  gradients(block);
  files_and_traces(block, folder);
  decoding_gives_the_whole(block);
  attend_block_destroy(block);
}
