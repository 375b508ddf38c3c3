/* Contexts: threads, kernels, and callbacks for memory and for loops. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
  int allocations, frees, loops;
  int refuse;
  int questions;
} Counts;

static void* allocate(void* user, size_t bytes, size_t alignment) {
  Counts* counts = user;
  void* memory = NULL;
  ++counts->allocations;
  return !counts->refuse && posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void deallocate(void* user, void* memory, size_t bytes) {
  Counts* counts = user;
  (void)bytes;
  ++counts->frees;
  free(memory);
}

/* Backwards: the order is free. */
static void parallel_for(void* user, int32_t n, attend_body body, void* argument) {
  Counts* counts = user;
  ++counts->loops;
  while (n-- > 0) body(argument, n);
}

static int32_t say_yes(void* user) {
  ++((Counts*)user)->questions;
  return 1;
}

static double q[8 * 64 * 8], out[8 * 64 * 8], wanted[8 * 64 * 8];

static attend_status attention_in(attend_context* context, double* to) {
  const int64_t* shape = SHAPE(1, 8, 64, 8);
  const attend_view view = view_of(q, ATTEND_F64, 4, shape), o = view_of(to, ATTEND_F64, 4, shape);
  attend_attention_options options = ATTEND_INIT(attend_attention_options);
  options.dropout_p = 0.25;
  return attend_attention(&view, &view, &view, &o, &options, NULL, context);
}

static void kernels_are_listed(void) {
  int64_t count = 0, index;
  int found = 0;
  OK(attend_kernel_count(&count));
  for (index = 0; index < count; ++index) {
    const char *name = NULL, *operation = NULL;
    int32_t forced = -1;
    OK(attend_kernel_at(index, &name, &operation, &forced));
    OK(attend_kernel_at(index, NULL, NULL, NULL));
    if (strcmp(name, "reference.forward") == 0 && strcmp(operation, "forward") == 0)
      found += forced == 0;
  }
  CHECK(found == 1);
  FAILS(ATTEND_INVALID_ARGUMENT, "index is", attend_kernel_at(count, NULL, NULL, NULL));
  FAILS(ATTEND_INVALID_ARGUMENT, "index is -1", attend_kernel_at(-1, NULL, NULL, NULL));
}

void test_contexts(void) {
  Counts counts = {0, 0, 0, 0, 0};
  attend_context_options options = ATTEND_INIT(attend_context_options);
  attend_context* context = NULL;
  int32_t threads = 0;
  kernels_are_listed();
  fill(q, sizeof q / sizeof *q, 1);
  OK(attention_in(NULL, wanted));
  OK(attend_context_threads(NULL, &threads));
  CHECK(threads >= 1);

  options.threads = 3;
  options.kernels = "forward:reference.forward";
  OK(attend_context_create(&options, &context));
  OK(attend_context_threads(context, &threads));
  CHECK(threads == 3);
  OK(attention_in(context, out));
  for (size_t n = 0; n < sizeof out / sizeof *out; ++n) CHECK(fabs(out[n] - wanted[n]) < 1e-5);
  attend_context_destroy(context);
  context = NULL;

  options.kernels = "forward:no.such";
  FAILS(ATTEND_INVALID_ARGUMENT, "forward:no.such", attend_context_create(&options, &context));
  options.kernels = NULL;
  options.threads = -1;
  FAILS(ATTEND_INVALID_ARGUMENT, "threads is -1", attend_context_create(&options, &context));
  options.threads = 4;
  options.reserved = 1;
  FAILS(ATTEND_INVALID_ARGUMENT, "reserved is 1", attend_context_create(&options, &context));
  options.reserved = 0;
  options.allocate = allocate;
  FAILS(ATTEND_INVALID_ARGUMENT, "both", attend_context_create(&options, &context));
  CHECK(context == NULL);

  options.deallocate = deallocate;
  options.parallel_for = parallel_for;
  options.user = &counts;
  OK(attend_context_create(&options, &context));
  counts.refuse = 1;
  memset(out, 0, sizeof out);
  FAILS(ATTEND_OUT_OF_MEMORY, "workspace", attention_in(context, out));
  CHECK(out[0] == 0);
  counts.refuse = 0;
  OK(attention_in(context, out));
  CHECK(memcmp(out, wanted, sizeof out) == 0);
  CHECK(counts.loops >= 1 && counts.allocations >= 2);
  attend_context_destroy(context);
  CHECK(counts.frees == counts.allocations - 1);

  OK(attend_context_create(NULL, &context));
  attend_context_destroy(context);

  options = ATTEND_INIT(attend_context_options);
  options.user = &counts;
  options.interrupt = say_yes;
  OK(attend_context_create(&options, &context));
  FAILS(ATTEND_INTERRUPTED, "interrupted", attention_in(context, out));
  CHECK(counts.questions == 1);
  attend_context_destroy(context);
}
