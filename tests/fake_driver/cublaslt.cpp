// A library of cuBLASLt's functions that computes nothing, and finds one algorithm. Built with
// ATTEND_FAILING_BLAS it gives no handle.
#include "fake_driver/launches.h"

#include <cstddef>
#include <cstdint>

namespace {

#ifdef ATTEND_FAILING_BLAS
constexpr int kCreated = 1;
#else
constexpr int kCreated = 0;
#endif

constexpr int kTransposeA = 3, kTransposeB = 4;

attend::test::FakeProduct product;

struct Found {  // cublasLtMatmulHeuristicResult_t
  std::uint64_t algorithm[8];
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

}  // namespace

extern "C" {

const attend::test::FakeProduct* last_fake_product() { return &product; }

int cublasLtCreate(void** handle) {
  *handle = &product;
  return kCreated;
}
int cublasLtMatmulDescCreate(void** operation, int, int) {
  *operation = &product;
  return 0;
}
int cublasLtMatmulDescSetAttribute(void*, int which, const void* value, std::size_t) {
  if (which == kTransposeA) product.first = *static_cast<const int*>(value);
  if (which == kTransposeB) product.second = *static_cast<const int*>(value);
  return 0;
}
int cublasLtMatmulDescDestroy(void*) { return 0; }
int cublasLtMatrixLayoutCreate(void** layout, int, std::uint64_t, std::uint64_t, std::int64_t) {
  *layout = &product;
  return 0;
}
int cublasLtMatrixLayoutDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = &product;
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) { return 0; }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int,
                                   Found* list, int* found) {
  list[0] = {};
  *found = 1;
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const void*, Found* found) {
  *found = {};
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const void*, int, void* value, std::size_t,
                                         std::size_t* written) {
  *static_cast<std::uint32_t*>(value) = 1;
  *written = sizeof(std::uint32_t);
  return 0;
}
int cublasLtMatmul() { return 0; }

}  // extern "C"
