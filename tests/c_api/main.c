/* The C API from C99. The argument is a folder that may be written to. */
#include "check.h"

int failures = 0;

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: c_api_c FOLDER\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IONBF, 0); /* what failed is seen even if the next call crashes */
  test_status();
  test_structs();
  test_attention();
  test_gradients();
  test_contexts();
  test_files(argv[1]);
  test_layers(argv[1]);
  test_caches();
  test_blocks(argv[1]);
  printf("%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
