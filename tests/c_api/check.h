/* What the C tests share: checks that print where they failed, and views of arrays. */
#ifndef ATTEND_TESTS_C_API_CHECK_H
#define ATTEND_TESTS_C_API_CHECK_H

#include <attend/c_api.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

extern int failures;

/* The condition holds. */
#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ++failures;                                                          \
      printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (0)

/* The call succeeds. */
#define OK(call) FAILS(ATTEND_OK, "", call)

/* The call ends with this status, and the error's text has this part. */
#define FAILS(status, part, call)                                                          \
  do {                                                                                     \
    const attend_status found_ = (call);                                                   \
    if (found_ != (status) || strstr(attend_last_error(), (part)) == NULL) {               \
      ++failures;                                                                          \
      printf("%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, attend_status_name(found_), \
             attend_last_error());                                                         \
    }                                                                                      \
  } while (0)

/* Two numbers are equal but for rounding. */
#define NEAR(found, wanted, tolerance)                                                        \
  do {                                                                                        \
    const double found_ = (found), wanted_ = (wanted);                                        \
    if (!(fabs(found_ - wanted_) <= (tolerance))) {                                           \
      ++failures;                                                                             \
      printf("%s:%d: %s is %.17g, not %.17g\n", __FILE__, __LINE__, #found, found_, wanted_); \
    }                                                                                         \
  } while (0)

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

/* A row-major view of an array. */
static inline attend_view view_of(const void* data, int32_t dtype, int32_t rank,
                                  const int64_t* shape) {
  attend_view view = ATTEND_INIT(attend_view);
  view.data = (void*)data;
  view.dtype = dtype;
  view.rank = rank;
  view.shape = shape;
  return view;
}

static inline int64_t count_of(const attend_view* view) {
  int64_t count = 1;
  int32_t dim;
  for (dim = 0; dim < view->rank; ++dim) count *= view->shape[dim];
  return count;
}

/* The doubles of a tensor that a function made. */
static inline attend_view shown(attend_tensor* tensor) {
  attend_view view = ATTEND_INIT(attend_view);
  OK(attend_tensor_view(tensor, &view));
  return view;
}

static inline double* doubles(attend_tensor* tensor) { return shown(tensor).data; }

/* Numbers between -1 and 1 that look random. */
static inline void fill(double* values, int64_t count, uint32_t seed) {
  int64_t n;
  for (n = 0; n < count; ++n) {
    seed = seed * 1664525u + 1013904223u;
    values[n] = (double)(seed >> 8) / 8388608.0 - 1;
  }
}

static inline double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  while (count-- > 0) sum += a[count] * b[count];
  return sum;
}

void test_status(void);
void test_structs(void);
void test_attention(void);
void test_gradients(void);
void test_contexts(void);
void test_files(const char* folder);
void test_layers(const char* folder);
void test_caches(void);
void test_blocks(const char* folder);

#endif
