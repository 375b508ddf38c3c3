/* Files of tensors and traces: there and back, and what is refused. */
#include "check.h"

static char path_buffer[2][1024];

static const char* in(const char* folder, const char* name) {
  static int turn = 0;
  turn = !turn;
  snprintf(path_buffer[turn], sizeof path_buffer[turn], "%s/%s", folder, name);
  return path_buffer[turn];
}

static void npy(const char* folder) {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  attend_view view = view_of(values, ATTEND_F32, 2, SHAPE(2, 3));
  attend_tensor* loaded = NULL;
  FILE* file;
  OK(attend_save_npy(in(folder, "x.npy"), &view));
  OK(attend_load_npy(in(folder, "x.npy"), &loaded));
  view = shown(loaded);
  CHECK(view.rank == 2 && view.shape[1] == 3 && view.dtype == ATTEND_F32);
  CHECK(memcmp(view.data, values, sizeof values) == 0);
  attend_tensor_destroy(loaded);
  loaded = NULL;
  FAILS(ATTEND_FILE_ERROR, "cannot be opened", attend_load_npy(in(folder, "absent.npy"), &loaded));
  file = fopen(in(folder, "bad.npy"), "wb");
  CHECK(file != NULL && fputs("not a npy file", file) >= 0 && fclose(file) == 0);
  FAILS(ATTEND_FILE_ERROR, "bad.npy", attend_load_npy(in(folder, "bad.npy"), &loaded));
  CHECK(loaded == NULL);
}

static void safetensors(const char* folder) {
  const double a[2] = {1, 2};
  const uint16_t b[3] = {0x3f80, 0x4000, 0x4040}; /* 1, 2, 3 as bf16 */
  const attend_view av = view_of(a, ATTEND_F64, 1, SHAPE(2));
  const attend_view bv = view_of(b, ATTEND_BF16, 2, SHAPE(3, 1));
  const attend_view* const views[] = {&av, &bv};
  const char* const names[] = {"a", "b"};
  const char* const keys[] = {"author", "title"};
  const char* const values[] = {"nobody", "two tensors"};
  const char* const twice[] = {"author", "author"};
  attend_view view = ATTEND_INIT(attend_view);
  attend_tensor_file* file = NULL;
  const char *name = NULL, *value = NULL;
  int64_t count = 0;
  OK(attend_save_safetensors(in(folder, "x.safetensors"), 2, names, views, 2, keys, values));
  OK(attend_load_safetensors(in(folder, "x.safetensors"), &file));
  OK(attend_tensor_file_count(file, &count));
  CHECK(count == 2);
  OK(attend_tensor_file_at(file, 1, &name, &view));
  CHECK(strcmp(name, "b") == 0 && view.dtype == ATTEND_BF16 && memcmp(view.data, b, sizeof b) == 0);
  OK(attend_tensor_file_find(file, "a", &view));
  CHECK(view.rank == 1 && memcmp(view.data, a, sizeof a) == 0);
  OK(attend_tensor_file_metadata_count(file, &count));
  CHECK(count == 2);
  OK(attend_tensor_file_metadata_at(file, 1, &name, &value));
  CHECK(strcmp(name, "title") == 0 && strcmp(value, "two tensors") == 0);
  OK(attend_tensor_file_metadata_find(file, "author", &value));
  CHECK(strcmp(value, "nobody") == 0);
  FAILS(ATTEND_INVALID_ARGUMENT, "there is no \"c\", only a b",
        attend_tensor_file_find(file, "c", &view));
  FAILS(ATTEND_INVALID_ARGUMENT, "index is 2; there are 2",
        attend_tensor_file_at(file, 2, &name, &view));
  FAILS(ATTEND_INVALID_ARGUMENT, "there is no \"x\", only author title",
        attend_tensor_file_metadata_find(file, "x", &value));
  attend_tensor_file_destroy(file);
  file = NULL;

  FAILS(ATTEND_INVALID_ARGUMENT, "occurs twice",
        attend_save_safetensors(in(folder, "y.safetensors"), 2, names, views, 2, twice, values));
  FAILS(ATTEND_INVALID_ARGUMENT, "the number of names is -1",
        attend_save_safetensors(in(folder, "y.safetensors"), -1, names, views, 0, NULL, NULL));
  FAILS(ATTEND_FILE_ERROR, "y.safetensors",
        attend_load_safetensors(in(folder, "y.safetensors"), &file));
  OK(attend_save_safetensors(in(folder, "empty.safetensors"), 0, NULL, NULL, 0, NULL, NULL));
  OK(attend_load_safetensors(in(folder, "empty.safetensors"), &file));
  FAILS(ATTEND_INVALID_ARGUMENT, "only an empty list", attend_tensor_file_find(file, "c", &view));
  FAILS(ATTEND_INVALID_ARGUMENT, "only an empty list",
        attend_tensor_file_metadata_find(file, "c", &value));
  attend_tensor_file_destroy(file);
}

/* The steps of the worked example. */
static void traces(const char* folder) {
  const double q[] = {1, 3, 2, 0.5}, k[] = {0.5, 2, 1, 3}, v[] = {0, 4, 1, 2};
  const int64_t* shape = SHAPE(1, 1, 2, 2);
  const attend_view qv = view_of(q, ATTEND_F64, 4, shape), kv = view_of(k, ATTEND_F64, 4, shape);
  const attend_view vv = view_of(v, ATTEND_F64, 4, shape);
  const char *name = NULL, *formula = NULL, *axes = NULL;
  attend_view view = ATTEND_INIT(attend_view);
  attend_trace* trace = NULL;
  attend_tensor_file* file = NULL;
  int64_t count = 0, kept = 0;
  OK(attend_trace_attention(&qv, &kv, &vv, NULL, NULL, &trace));
  OK(attend_trace_count(trace, &count));
  OK(attend_trace_at(trace, 0, &name, &formula, &axes, &view));
  CHECK(strcmp(name, "scores") == 0 && strcmp(formula, "Q K^T") == 0);
  CHECK(strcmp(axes, "batch, head, query, key") == 0 && ((double*)view.data)[1] == 10);
  OK(attend_trace_at(trace, count - 1, &name, NULL, NULL, NULL));
  CHECK(strcmp(name, "heads") == 0);
  OK(attend_trace_find(trace, "heads", &view));
  NEAR(((double*)view.data)[1], 2.1552770, 5e-8);
  FAILS(ATTEND_INVALID_ARGUMENT, "there is no \"tails\", only scores",
        attend_trace_find(trace, "tails", &view));
  OK(attend_trace_save(trace, in(folder, "trace.safetensors")));
  OK(attend_load_safetensors(in(folder, "trace.safetensors"), &file));
  OK(attend_tensor_file_count(file, &kept));
  CHECK(kept == count);
  attend_tensor_file_destroy(file);
  attend_trace_destroy(trace);
}

void test_files(const char* folder) {
  npy(folder);
  safetensors(folder);
  traces(folder);
}
