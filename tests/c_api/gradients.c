/* The gradient of attention by central differences, and plans. */
#include "check.h"

/* 2 heads, 2 queries, 3 keys, 2 features; loss = dout . out + dlse . lse. */
static double q[8], k[12], v[12], bias[6], sinks[2], alibi[2], dout[8], dlse[4];
static double out[8], lse[4];

static const int64_t rows[] = {1, 2, 2, 2}, keys[] = {1, 2, 3, 2}, pairs[] = {1, 1, 2, 3},
                     heads[] = {2};

typedef struct {
  attend_view q, k, v, out, lse, dout, dlse, bias, sinks, alibi;
  attend_attention_options options;
  attend_backward_inputs inputs;
} Problem;

static void make(Problem* p) {
  fill(q, 8, 1), fill(k, 12, 2), fill(v, 12, 3), fill(bias, 6, 4), fill(sinks, 2, 5);
  fill(alibi, 2, 6), fill(dout, 8, 7), fill(dlse, 4, 8);
  p->q = view_of(q, ATTEND_F64, 4, rows);
  p->k = view_of(k, ATTEND_F64, 4, keys);
  p->v = view_of(v, ATTEND_F64, 4, keys);
  p->out = view_of(out, ATTEND_F64, 4, rows);
  p->lse = view_of(lse, ATTEND_F64, 3, rows);
  p->dout = view_of(dout, ATTEND_F64, 4, rows);
  p->dlse = view_of(dlse, ATTEND_F64, 3, rows);
  p->bias = view_of(bias, ATTEND_F64, 4, pairs);
  p->sinks = view_of(sinks, ATTEND_F64, 1, heads);
  p->alibi = view_of(alibi, ATTEND_F64, 1, heads);
  p->options = ATTEND_INIT(attend_attention_options);
  p->options.bias = &p->bias;
  p->options.sinks = &p->sinks;
  p->options.alibi = &p->alibi;
  p->inputs = ATTEND_INIT(attend_backward_inputs);
  p->inputs.q = &p->q;
  p->inputs.k = &p->k;
  p->inputs.v = &p->v;
  p->inputs.out = &p->out;
  p->inputs.lse = &p->lse;
  p->inputs.dout = &p->dout;
  p->inputs.dlse = &p->dlse;
}

static double loss(const Problem* p) {
  attend_attention_outputs outputs = ATTEND_INIT(attend_attention_outputs);
  outputs.lse = &p->lse;
  OK(attend_attention(&p->q, &p->k, &p->v, &p->out, &p->options, &outputs, NULL));
  return dot(dout, out, 8) + dot(dlse, lse, 4);
}

static void check_differences(const Problem* p, double* x, const double* dx, int count) {
  const double step = 1e-5;
  int n;
  for (n = 0; n < count; ++n) {
    const double kept = x[n];
    double up;
    x[n] = kept + step;
    up = loss(p);
    x[n] = kept - step;
    NEAR(dx[n], (up - loss(p)) / (2 * step), 1e-8);
    x[n] = kept;
  }
}

void test_gradients(void) {
  double dq[8] = {0}, dk[12] = {0}, dv[12] = {0}, dbias[6] = {0}, dsinks[2] = {0}, dalibi[2] = {0};
  double again[8] = {0};
  attend_attention_gradients gradients = ATTEND_INIT(attend_attention_gradients);
  const attend_view views[] = {
      view_of(dq, ATTEND_F64, 4, rows),      view_of(dk, ATTEND_F64, 4, keys),
      view_of(dv, ATTEND_F64, 4, keys),      view_of(dbias, ATTEND_F64, 4, pairs),
      view_of(dsinks, ATTEND_F64, 1, heads), view_of(dalibi, ATTEND_F64, 1, heads)};
  attend_view again_view = view_of(again, ATTEND_F64, 4, rows);
  attend_plan *plan = NULL, *backward = NULL, *none = NULL;
  const char *kernel = NULL, *description = NULL;
  int64_t bytes = -1;
  Problem p;
  make(&p);
  loss(&p);
  gradients.dq = &views[0];
  gradients.dk = &views[1];
  gradients.dv = &views[2];
  gradients.dbias = &views[3];
  gradients.dsinks = &views[4];
  gradients.dalibi = &views[5];
  OK(attend_attention_backward(&p.inputs, &p.options, &gradients, NULL));
  check_differences(&p, q, dq, 8);
  check_differences(&p, k, dk, 12);
  check_differences(&p, v, dv, 12);
  check_differences(&p, bias, dbias, 6);
  check_differences(&p, sinks, dsinks, 2);
  check_differences(&p, alibi, dalibi, 2);

  /* Plans give the same bits, and say what they are. */
  loss(&p);
  OK(attend_plan_attention(&p.q, &p.k, &p.v, &again_view, &p.options, NULL, NULL, NULL, &plan));
  OK(attend_plan_run(plan, &p.q, &p.k, &p.v, &again_view, &p.options, NULL));
  CHECK(memcmp(again, out, sizeof out) == 0);
  attend_plan_destroy(plan);
  OK(attend_plan_attention(&p.q, &p.k, &p.v, &again_view, &p.options, NULL, "reference.forward",
                           NULL, &plan));
  OK(attend_plan_describe(plan, &kernel, &description, &bytes));
  CHECK(strcmp(kernel, "reference.forward") == 0 && strstr(description, kernel) != NULL);
  CHECK(bytes >= 0);
  OK(attend_plan_describe(plan, NULL, NULL, NULL));
  memcpy(again, dq, sizeof dq);
  OK(attend_plan_attention_backward(&p.inputs, &p.options, &gradients, NULL, NULL, &backward));
  memset(dq, 0, sizeof dq);
  OK(attend_plan_run_backward(backward, &p.inputs, &p.options, &gradients));
  CHECK(memcmp(again, dq, sizeof dq) == 0);

  p.inputs.lse = NULL;
  FAILS(ATTEND_INVALID_ARGUMENT, "inputs.lse is NULL",
        attend_attention_backward(&p.inputs, &p.options, &gradients, NULL));
  FAILS(ATTEND_INVALID_ARGUMENT, "plan: made for",
        attend_plan_run(plan, &p.q, &p.k, &p.v, &again_view, NULL, NULL));
  CHECK(attend_plan_attention(&p.q, &p.k, &p.v, &again_view, NULL, NULL, "no.such", NULL, &none) !=
        ATTEND_OK);
  CHECK(none == NULL);
  attend_plan_destroy(plan);
  attend_plan_destroy(backward);
}
