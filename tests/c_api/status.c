/* Versions, statuses, error texts of threads, struct sizes, and what a view may say. */
#include "check.h"

#include <pthread.h>

static void fail_with_rank(int32_t rank) {
  attend_tensor* tensor = NULL;
  CHECK(attend_tensor_create(ATTEND_F32, rank, NULL, &tensor) == ATTEND_INVALID_ARGUMENT);
  CHECK(tensor == NULL);
}

static void* other_thread(void* unused) {
  (void)unused;
  CHECK(strcmp(attend_last_error(), "") == 0); /* others' errors are not seen here */
  fail_with_rank(-5);
  CHECK(strstr(attend_last_error(), "rank -5") != NULL);
  return NULL;
}

static void errors_belong_to_threads(void) {
  pthread_t thread;
  int64_t count = 0;
  fail_with_rank(9);
  OK(attend_kernel_count(&count)); /* a success leaves the text */
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(strcmp(attend_last_error(),
               "attend_tensor_create: the tensor has rank 9; it must be from 0 to 8") == 0);
}

void test_status(void) {
  static const char* const names[] = {
      "ok",         "invalid_argument", "unsupported",    "out_of_memory",
      "file_error", "device_error",     "internal_error", "interrupted"};
  static const char* const types[] = {"f32", "f64", "bf16", "f16", "i64",
                                      "i32", "i8",  "u8",   "bool"};
  static const int64_t sizes[] = {4, 8, 2, 2, 8, 4, 1, 1, 1};
  int32_t n;
  int64_t bytes = 0;
  CHECK(strcmp(attend_version(), ATTEND_VERSION) == 0);
  CHECK(strcmp(attend_last_error(), "") == 0);
  for (n = 0; n < 8; ++n) CHECK(strcmp(attend_status_name(n), names[n]) == 0);
  CHECK(strcmp(attend_status_name(8), "unknown status") == 0);
  for (n = 0; n < 9; ++n) {
    CHECK(strcmp(attend_dtype_name(n), types[n]) == 0);
    OK(attend_dtype_size(n, &bytes));
    CHECK(bytes == sizes[n]);
  }
  CHECK(strcmp(attend_dtype_name(-1), "unknown dtype") == 0);
  FAILS(ATTEND_INVALID_ARGUMENT, "dtype is 9; it must be from 0 to 8",
        attend_dtype_size(9, &bytes));
  CHECK(bytes == 1); /* nothing is written on failure */
  errors_belong_to_threads();
}

/* A tensor with a view of every size and state. */
void test_structs(void) {
  const double values[6] = {1, 2, 3, 4, 5, 6};
  attend_view view = view_of(values, ATTEND_F64, 2, SHAPE(2, 3));
  attend_view small = ATTEND_INIT(attend_view);
  attend_tensor* tensor = NULL;
  attend_tensor* copy = NULL;

  OK(attend_tensor_create(ATTEND_I32, 2, SHAPE(2, 3), &tensor));
  small = shown(tensor);
  CHECK(small.rank == 2 && small.shape[0] == 2 && small.shape[1] == 3 && small.dtype == ATTEND_I32);
  CHECK(small.strides == NULL && small.device_kind == ATTEND_CPU);
  CHECK(((int32_t*)small.data)[5] == 0);
  attend_tensor_destroy(tensor);

  /* Transposed by strides: the copy is row-major. */
  view.shape = SHAPE(3, 2);
  view.strides = SHAPE(1, 3);
  OK(attend_tensor_copy(&view, &copy));
  CHECK(doubles(copy)[1] == 4 && doubles(copy)[2] == 2);
  attend_tensor_destroy(copy);
  copy = NULL;

  /* Older callers know fewer fields: 40 bytes end before the device, 32 before the rank. */
  view.device_kind = 77;
  FAILS(ATTEND_INVALID_ARGUMENT, "view.device_kind is 77", attend_tensor_copy(&view, &copy));
  view.struct_size = 40;
  OK(attend_tensor_copy(&view, &copy));
  small.struct_size = 40;
  small.device_index = 12345;
  OK(attend_tensor_view(copy, &small));
  CHECK(small.struct_size == 40 && small.rank == 2 && small.device_index == 12345);
  attend_tensor_destroy(copy);
  copy = NULL;

  view.struct_size = 0;
  FAILS(ATTEND_INVALID_ARGUMENT, "view.struct_size is 0", attend_tensor_copy(&view, &copy));
  view.struct_size = sizeof view + 8;
  FAILS(ATTEND_INVALID_ARGUMENT, "knows 48 bytes", attend_tensor_copy(&view, &copy));
  view.struct_size = 44;
  FAILS(ATTEND_INVALID_ARGUMENT, "multiple of 8", attend_tensor_copy(&view, &copy));

  view = view_of(values, ATTEND_F64, 2, SHAPE(2, 3));
  view.dtype = 9;
  FAILS(ATTEND_INVALID_ARGUMENT, "view.dtype is 9", attend_tensor_copy(&view, &copy));
  view.dtype = ATTEND_F64;
  view.shape = NULL;
  FAILS(ATTEND_INVALID_ARGUMENT, "its shape is NULL", attend_tensor_copy(&view, &copy));
  view.shape = SHAPE(2, -3);
  FAILS(ATTEND_INVALID_ARGUMENT, "negative size", attend_tensor_copy(&view, &copy));
  view.shape = SHAPE(2, 3);
  view.data = NULL;
  FAILS(ATTEND_INVALID_ARGUMENT, "view.data is NULL, and its shape is [2, 3]",
        attend_tensor_copy(&view, &copy));
  view.data = (void*)values;
  view.device_kind = ATTEND_CUDA;
  FAILS(ATTEND_INVALID_ARGUMENT, "cuda:0", attend_tensor_copy(&view, &copy));
  CHECK(copy == NULL);

  attend_tensor_destroy(NULL);
  attend_context_destroy(NULL);
  attend_plan_destroy(NULL);
  attend_tensor_file_destroy(NULL);
  attend_trace_destroy(NULL);
  attend_kv_cache_destroy(NULL);
  attend_saved_destroy(NULL);
  attend_gradients_destroy(NULL);
  attend_layer_destroy(NULL);
  attend_block_destroy(NULL);
}
