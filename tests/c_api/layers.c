/* Multi-head attention layers: options, weights, values, gradients, files. */
#include "check.h"

static attend_layer* make(const attend_layer_options* options) {
  attend_layer* layer = NULL;
  OK(attend_layer_create(options, &layer));
  return layer;
}

static void set(attend_layer* layer, const char* name, const double* values) {
  attend_view view = ATTEND_INIT(attend_view);
  OK(attend_layer_parameter_find(layer, name, &view));
  memcpy(view.data, values, (size_t)count_of(&view) * sizeof *values);
}

/* With identity weights the layer is attention itself: the worked example. */
static void identity_weights_give_the_worked_example(void) {
  const double q[] = {1, 3, 2, 0.5}, k[] = {0.5, 2, 1, 3}, v[] = {0, 4, 1, 2};
  const double identity[] = {1, 0, 0, 1}, shift[] = {100, 200};
  const double wanted[] = {0.9223615, 2.1552770, 0.7428167, 2.5143666};
  const int64_t* shape = SHAPE(1, 2, 2);
  const attend_view qv = view_of(q, ATTEND_F64, 3, shape), kv = view_of(k, ATTEND_F64, 3, shape);
  const attend_view vv = view_of(v, ATTEND_F64, 3, shape);
  double weights[4];
  const attend_view wv = view_of(weights, ATTEND_F64, 4, SHAPE(1, 1, 2, 2));
  attend_attention_outputs outputs = ATTEND_INIT(attend_attention_outputs);
  attend_layer_options options = ATTEND_INIT(attend_layer_options);
  attend_tensor* y = NULL;
  attend_view view = ATTEND_INIT(attend_view);
  attend_trace* trace = NULL;
  attend_layer* layer;
  int n;
  options.model_dim = 2;
  options.dtype = ATTEND_F64;
  layer = make(&options);
  set(layer, "q.weight", identity), set(layer, "k.weight", identity);
  set(layer, "v.weight", identity), set(layer, "o.weight", identity), set(layer, "o.bias", shift);
  outputs.weights = &wv;
  OK(attend_layer_forward(layer, &qv, &kv, &vv, NULL, &outputs, NULL, &y));
  for (n = 0; n < 4; ++n) NEAR(doubles(y)[n], wanted[n] + shift[n % 2], 5e-8);
  NEAR(weights[1], 0.9223615, 5e-8);
  OK(attend_layer_trace(layer, &qv, &kv, &vv, NULL, NULL, &trace));
  OK(attend_trace_find(trace, "output", &view));
  CHECK(memcmp(view.data, doubles(y), sizeof wanted) == 0);
  attend_trace_destroy(trace);
  attend_tensor_destroy(y);
  y = NULL;
  FAILS(ATTEND_INVALID_ARGUMENT, "value is NULL",
        attend_layer_forward(layer, &qv, &kv, NULL, NULL, NULL, NULL, &y));
  CHECK(y == NULL);
  attend_layer_destroy(layer);
}

static void every_layer_option_arrives(void) {
  attend_layer_options o = ATTEND_INIT(attend_layer_options), back;
  attend_rotary rotary = ATTEND_INIT(attend_rotary);
  attend_view view = ATTEND_INIT(attend_view);
  attend_layer *layer, *other;
  const char* name = NULL;
  int64_t count = 0;
  float first;
  rotary.base = 500;
  rotary.dim = 2;
  rotary.pairing = ATTEND_PAIRS_NEIGHBOURS;
  o.model_dim = 6, o.heads = 4, o.key_heads = 2, o.d_k = 4, o.d_v = 3, o.key_dim = 5;
  o.value_dim = 7, o.no_bias = 1, o.no_output_projection = 1, o.rotary = &rotary, o.seed = 9;
  layer = make(&o);
  back = ATTEND_INIT(attend_layer_options);
  OK(attend_layer_get_options(layer, &back));
  CHECK(back.rotary->base == 500 && back.rotary->dim == 2);
  CHECK(back.rotary->pairing == ATTEND_PAIRS_NEIGHBOURS);
  back.rotary = o.rotary;
  CHECK(memcmp(&back, &o, sizeof o) == 0);
  OK(attend_layer_parameter_count(layer, &count));
  CHECK(count == 3); /* no biases, no W^O */
  OK(attend_layer_parameter_at(layer, 0, &name, &view));
  CHECK(strcmp(name, "q.weight") == 0 && view.shape[0] == 16 && view.shape[1] == 6);
  first = ((float*)view.data)[0];
  OK(attend_layer_parameter_find(layer, "k.weight", &view));
  CHECK(view.shape[0] == 8 && view.shape[1] == 5);
  OK(attend_layer_parameter_find(layer, "v.weight", &view));
  CHECK(view.shape[0] == 6 && view.shape[1] == 7);
  OK(attend_layer_end_writing(layer));
  other = NULL;
  OK(attend_layer_to(layer, ATTEND_BF16, &other));
  OK(attend_layer_get_options(other, &back));
  CHECK(back.dtype == ATTEND_BF16 && back.d_v == 3);
  OK(attend_layer_parameter_at(other, 0, NULL, &view));
  CHECK(view.dtype == ATTEND_BF16 && view.shape[0] == 16);
  attend_layer_destroy(other);
  other = NULL;
  FAILS(ATTEND_INVALID_ARGUMENT, "dtype is 42", attend_layer_to(layer, 42, &other));
  FAILS(ATTEND_INVALID_ARGUMENT, "the type is i64; it must be f64, f32, bf16 or f16",
        attend_layer_to(layer, ATTEND_I64, &other));
  CHECK(other == NULL);
  OK(attend_layer_quantize(layer, &other));
  OK(attend_layer_get_options(other, &back));
  CHECK(back.dtype == o.dtype && back.d_v == 3);
  OK(attend_layer_parameter_count(other, &count));
  CHECK(count == 6);
  OK(attend_layer_parameter_at(other, 0, NULL, &view));
  CHECK(view.dtype == ATTEND_I8 && view.shape[0] == 16);
  OK(attend_layer_parameter_find(other, "q.weight_scales", &view));
  CHECK(view.dtype == ATTEND_F32 && view.rank == 1 && view.shape[0] == 16);
  OK(attend_layer_end_writing(other));
  attend_layer_destroy(other);
  other = NULL;
  OK(attend_layer_end_writing(layer)); /* more than once, or without a view, does no harm */
  o.seed = 10;
  other = make(&o);
  OK(attend_layer_parameter_at(other, 0, NULL, &view));
  CHECK(((float*)view.data)[0] != first);
  FAILS(ATTEND_INVALID_ARGUMENT, "there is no \"o.weight\", only q.weight k.weight v.weight",
        attend_layer_parameter_find(layer, "o.weight", &view));
  attend_layer_destroy(layer);
  attend_layer_destroy(other);
  layer = NULL;

  rotary.pairing = 2;
  FAILS(ATTEND_INVALID_ARGUMENT, "options.rotary.pairing is 2", attend_layer_create(&o, &layer));
  rotary.struct_size = 0;
  FAILS(ATTEND_INVALID_ARGUMENT, "options.rotary.struct_size is 0",
        attend_layer_create(&o, &layer));
  o = ATTEND_INIT(attend_layer_options);
  o.model_dim = 512, o.heads = 7;
  FAILS(ATTEND_INVALID_ARGUMENT, "model_dim 512 is not divisible by heads 7",
        attend_layer_create(&o, &layer));
  o.heads = 0; /* 1 */
  o.dtype = ATTEND_I8;
  FAILS(ATTEND_INVALID_ARGUMENT, "type is i8", attend_layer_create(&o, &layer));
  CHECK(layer == NULL);
}

/* loss = dy . forward(...), and its gradient, for self- and for cross-attention. */
typedef struct {
  attend_layer* layer;
  const attend_view *query, *key, *value, *dy;
  attend_attention_options options;
} Training;

static double loss(const Training* t) {
  attend_tensor* y = NULL;
  double sum;
  OK(attend_layer_forward(t->layer, t->query, t->key, t->value, &t->options, NULL, NULL, &y));
  sum = dot(t->dy->data, doubles(y), count_of(t->dy));
  attend_tensor_destroy(y);
  return sum;
}

static void differences(const Training* t, double* x, const attend_view* dx) {
  const double step = 1e-5;
  int64_t n;
  for (n = 0; n < count_of(dx); ++n) {
    const double kept = x[n];
    double up;
    x[n] = kept + step;
    up = loss(t);
    x[n] = kept - step;
    NEAR(((double*)dx->data)[n], (up - loss(t)) / (2 * step), 1e-8);
    x[n] = kept;
  }
}

static void gradients(int self) {
  double query[12] = {0}, key[12] = {0}, value[12] = {0}, dy[12] = {0}, bias[9] = {0};
  const int64_t* shape = SHAPE(1, 3, 4);
  const attend_view qv = view_of(query, ATTEND_F64, 3, shape),
                    kv = view_of(key, ATTEND_F64, 3, shape);
  const attend_view vv = view_of(value, ATTEND_F64, 3, shape),
                    dv = view_of(dy, ATTEND_F64, 3, shape);
  const attend_view bv = view_of(bias, ATTEND_F64, 2, SHAPE(3, 3));
  attend_layer_options options = ATTEND_INIT(attend_layer_options);
  attend_view view = ATTEND_INIT(attend_view), parameter = ATTEND_INIT(attend_view);
  attend_tensor* y = NULL;
  attend_saved* saved = NULL;
  attend_gradients* made = NULL;
  const char* name = NULL;
  int64_t count = 0, parameters = 0, n;
  Training t = {NULL, &qv, NULL, NULL, &dv, ATTEND_INIT(attend_attention_options)};
  fill(query, 12, 1), fill(key, 12, 2), fill(value, 12, 3), fill(dy, 12, 4), fill(bias, 9, 5);
  options.model_dim = 4, options.heads = 2, options.dtype = ATTEND_F64;
  t.layer = make(&options);
  if (!self) t.key = &kv, t.value = &vv;
  t.options.bias = &bv;
  OK(attend_layer_forward_train(t.layer, t.query, t.key, t.value, &t.options, NULL, &y, &saved));
  NEAR(dot(dy, doubles(y), 12), loss(&t), 1e-14);
  OK(attend_layer_backward(t.layer, &dv, saved, NULL, &made));

  OK(attend_gradients_count(made, &count));
  OK(attend_layer_parameter_count(t.layer, &parameters));
  CHECK(parameters == 8 && count == parameters + (self ? 2 : 4));
  OK(attend_gradients_find(made, "dbias", &view));
  differences(&t, bias, &view);
  OK(attend_gradients_find(made, self ? "dx" : "dquery", &view));
  differences(&t, query, &view);
  if (!self) {
    OK(attend_gradients_find(made, "dkey", &view));
    differences(&t, key, &view);
    OK(attend_gradients_find(made, "dvalue", &view));
    differences(&t, value, &view);
  }
  for (n = 0; n < parameters; ++n) { /* in the order of the parameters, with their names */
    OK(attend_gradients_at(made, count - parameters + n, &name, &view));
    OK(attend_layer_parameter_find(t.layer, name, &parameter));
    CHECK(count_of(&parameter) == count_of(&view));
    differences(&t, parameter.data, &view);
  }
  attend_tensor_destroy(y);
  attend_saved_destroy(saved);
  attend_gradients_destroy(made);
  attend_layer_destroy(t.layer);
}

static void same_output(attend_layer* a, attend_layer* b) {
  float x[12] = {1, 2, 3, -1, 0, 1, 0.5f, 0, 2, 1, 1, 1};
  const attend_view xv = view_of(x, ATTEND_F32, 2, SHAPE(3, 4)); /* without a batch */
  attend_tensor *ya = NULL, *yb = NULL;
  OK(attend_layer_forward(a, &xv, NULL, NULL, NULL, NULL, NULL, &ya));
  OK(attend_layer_forward(b, &xv, NULL, NULL, NULL, NULL, NULL, &yb));
  CHECK(shown(ya).rank == 2);
  CHECK(memcmp(shown(ya).data, shown(yb).data, 12 * sizeof *x) == 0);
  attend_tensor_destroy(ya);
  attend_tensor_destroy(yb);
}

static void files(const char* folder) {
  char path[1024];
  attend_layer_options options = ATTEND_INIT(attend_layer_options), back = options;
  attend_weights_format format = ATTEND_INIT(attend_weights_format);
  attend_tensor_file* file = NULL;
  attend_layer *layer, *loaded = NULL;
  attend_view weights[4];
  const attend_view* const list[] = {&weights[0], &weights[1], &weights[2], &weights[3]};
  const char* const parameters[] = {"q.weight", "k.weight", "v.weight", "o.weight"};
  const char* const names[] = {"a.wq.weight", "a.wk.weight", "a.wv.weight", "a.wo.weight"};
  const int64_t transposed[] = {1, 4};
  int32_t per_head;
  int n;
  snprintf(path, sizeof path, "%s/layer.safetensors", folder);
  options.model_dim = 4, options.heads = 2, options.no_bias = 1, options.seed = 3;
  layer = make(&options);
  for (per_head = 0; per_head < 2; ++per_head) {
    OK(attend_layer_save(layer, path, per_head));
    OK(attend_layer_load(path, NULL, &loaded));
    same_output(layer, loaded);
    attend_layer_destroy(loaded);
  }
  /* Other names, behind a prefix, without metadata: heads and orientation come from the format. */
  for (n = 0; n < 4; ++n) {
    weights[n] = ATTEND_INIT(attend_view);
    OK(attend_layer_parameter_find(layer, parameters[n], &weights[n]));
    weights[n].strides = transposed; /* [in, out] */
  }
  OK(attend_save_safetensors(path, 4, names, list, 0, NULL, NULL));
  OK(attend_load_safetensors(path, &file));
  format.prefix = "a.";
  format.heads = 2;
  format.key_heads = 2;
  format.orientation = ATTEND_WEIGHTS_IN_OUT;
  OK(attend_layer_load_from(file, &format, &loaded));
  same_output(layer, loaded);
  OK(attend_layer_get_options(loaded, &back));
  CHECK(back.model_dim == 4 && back.heads == 2 && back.d_k == 2 && back.rotary == NULL);
  attend_layer_destroy(loaded);
  loaded = NULL;
  format.no_output_projection = 1; /* then W^O is left alone */
  OK(attend_layer_load_from(file, &format, &loaded));
  OK(attend_layer_get_options(loaded, &back));
  CHECK(back.no_output_projection);
  format.no_output_projection = 0;
  attend_layer_destroy(loaded);
  loaded = NULL;
  format.prefix = "b.";
  CHECK(attend_layer_load_from(file, &format, &loaded) != ATTEND_OK);
  format.orientation = 3;
  FAILS(ATTEND_INVALID_ARGUMENT, "format.orientation is 3",
        attend_layer_load_from(file, &format, &loaded));
  CHECK(loaded == NULL);
  attend_tensor_file_destroy(file);
  attend_layer_destroy(layer);
}

void test_layers(const char* folder) {
  identity_weights_give_the_worked_example();
  every_layer_option_arrives();
  gradients(1);
  gradients(0);
  files(folder);
}
