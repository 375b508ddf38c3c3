// The C API from C++ without exceptions and run-time types: failures are numbers here, and an
// exception that left the library would end this program.
#include <attend/c_api.h>

#include <cstring>

#ifdef __cpp_exceptions
#error this file is compiled with -fno-exceptions
#endif

int main() {
  const float values[] = {1, 2, 3, 4};
  const int64_t shape[] = {1, 1, 2, 2}, wrong_shape[] = {1, 1, 3, 3};
  float out[4] = {};
  attend_view x = ATTEND_INIT(attend_view), y = ATTEND_INIT(attend_view);
  x.data = const_cast<float*>(values);
  x.rank = y.rank = 4;
  x.shape = y.shape = shape;
  y.data = out;
  auto options = ATTEND_INIT(attend_attention_options);
  options.causal = 1;
  if (attend_attention(&x, &x, &x, &y, &options, nullptr, nullptr) != ATTEND_OK) return 1;
  if (std::memcmp(out, values, 2 * sizeof *out) != 0) return 2;  // the first sees only itself
  y.shape = wrong_shape;
  if (attend_attention(&x, &x, &x, &y, nullptr, nullptr, nullptr) != ATTEND_INVALID_ARGUMENT)
    return 3;
  if (std::strstr(attend_last_error(), "[1, 1, 3, 3]") == nullptr) return 4;
  attend_tensor* tensor = nullptr;
  if (attend_load_npy("no/such/file.npy", &tensor) != ATTEND_FILE_ERROR) return 5;
  return tensor == nullptr ? 0 : 6;
}
