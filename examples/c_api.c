/* Attention and a layer from C. Compile with:
 * cc -std=c99 c_api.c $(pkg-config --cflags --libs attend) */
#include <attend/c_api.h>
#include <stdio.h>

/* Every function says how it ended; the text of the last failure is kept for this thread. */
static int failed(attend_status status) {
  if (status != ATTEND_OK) printf("%s: %s\n", attend_status_name(status), attend_last_error());
  return status != ATTEND_OK;
}

int main(void) {
  double q[] = {1, 3, 2, 0.5}, k[] = {0.5, 2, 1, 3}, v[] = {0, 4, 1, 2}, out[4];
  const int64_t shape[] = {1, 1, 2, 2}; /* [batch, heads, tokens, head size] */

  /* Views show memory of your own. Every struct begins with its size; zero is each default. */
  attend_view qv = ATTEND_INIT(attend_view), kv, vv, ov;
  qv.shape = shape;
  qv.rank = 4;
  qv.dtype = ATTEND_F64;
  kv = vv = ov = qv;
  qv.data = q, kv.data = k, vv.data = v, ov.data = out;

  /* NULL: no options, no further outputs, the default context. */
  if (failed(attend_attention(&qv, &kv, &vv, &ov, NULL, NULL, NULL))) return 1;
  printf("attention  %.6f %.6f  %.6f %.6f\n", out[0], out[1], out[2], out[3]);

  /* A layer of width 8 with 2 heads, on three tokens: what is made is yours to destroy. */
  attend_layer_options options = ATTEND_INIT(attend_layer_options);
  options.model_dim = 8;
  options.heads = 2;
  attend_layer* layer = NULL;
  if (failed(attend_layer_create(&options, &layer))) return 1;

  const int64_t tokens[] = {3, 8};
  attend_tensor *x = NULL, *y = NULL;
  attend_view xv = ATTEND_INIT(attend_view), yv = ATTEND_INIT(attend_view);
  attend_attention_options causal = ATTEND_INIT(attend_attention_options);
  causal.causal = 1;
  int status = failed(attend_tensor_create(ATTEND_F32, 2, tokens, &x)) ||
               failed(attend_tensor_view(x, &xv)) ||
               failed(attend_layer_forward(layer, &xv, NULL, NULL, &causal, NULL, NULL, &y)) ||
               failed(attend_tensor_view(y, &yv));
  if (!status) printf("layer      [%d, %d] f32\n", (int)yv.shape[0], (int)yv.shape[1]);
  attend_tensor_destroy(y);
  attend_tensor_destroy(x);
  attend_layer_destroy(layer);
  return status;
}
