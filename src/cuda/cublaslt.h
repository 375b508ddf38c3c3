// cuBLASLt, loaded when it is first asked for, as the driver is: nothing is linked, and machines
// without it have the portable kernel. Types and numbers are cublasLt.h's own in all but name, the
// same in versions 12 and 13, so that no toolkit is needed to build.
#pragma once

#include "cuda/device.h"

#include "core/product.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace attend::cuda {

using BlasHandle = struct BlasHandleTag*;
using BlasOperation = struct BlasOperationTag*;    // cublasLtMatmulDesc_t
using BlasLayout = struct BlasLayoutTag*;          // cublasLtMatrixLayout_t
using BlasPreference = struct BlasPreferenceTag*;  // cublasLtMatmulPreference_t

struct BlasAlgorithm {
  std::uint64_t data[8];
};
struct BlasFound {  // cublasLtMatmulHeuristicResult_t
  BlasAlgorithm algorithm;
  std::size_t workspace;
  Result state;
  float waves;
  int reserved[4];
};

// Functions of the library, by the names that it exports. 0: all is well.
#define ATTEND_BLAS_FUNCTIONS(use)                                                                 \
  use(create, "cublasLtCreate", BlasHandle*)                                                       \
      use(make_operation, "cublasLtMatmulDescCreate", BlasOperation*, int compute, int scale) use( \
          set_operation, "cublasLtMatmulDescSetAttribute", BlasOperation, int, const void*,        \
          std::size_t) use(destroy_operation, "cublasLtMatmulDescDestroy", BlasOperation)          \
          use(make_layout, "cublasLtMatrixLayoutCreate", BlasLayout*, int type,                    \
              std::uint64_t rows, std::uint64_t columns,                                           \
              std::int64_t stride) use(destroy_layout, "cublasLtMatrixLayoutDestroy", BlasLayout)  \
              use(make_preference, "cublasLtMatmulPreferenceCreate", BlasPreference*) use(         \
                  set_preference, "cublasLtMatmulPreferenceSetAttribute", BlasPreference, int,     \
                  const void*, std::size_t)                                                        \
                  use(destroy_preference, "cublasLtMatmulPreferenceDestroy", BlasPreference)       \
                      use(find, "cublasLtMatmulAlgoGetHeuristic", BlasHandle, BlasOperation,       \
                          BlasLayout a, BlasLayout b, BlasLayout c, BlasLayout d, BlasPreference,  \
                          int wanted, BlasFound* list, int* found)                                 \
                          use(check, "cublasLtMatmulAlgoCheck", BlasHandle, BlasOperation,         \
                              BlasLayout a, BlasLayout b, BlasLayout c, BlasLayout d,              \
                              const BlasAlgorithm*, BlasFound*)                                    \
                              use(configuration, "cublasLtMatmulAlgoConfigGetAttribute",           \
                                  const BlasAlgorithm*, int, void*, std::size_t, std::size_t*)     \
                                  use(multiply, "cublasLtMatmul", BlasHandle, BlasOperation,       \
                                      const void* alpha, const void* a, BlasLayout, const void* b, \
                                      BlasLayout, const void* beta, const void* c, BlasLayout,     \
                                      void* d, BlasLayout, const BlasAlgorithm*, void* workspace,  \
                                      std::size_t, Stream)

struct Blas {
#define ATTEND_BLAS_MEMBER(name, symbol, ...) Result (*name)(__VA_ARGS__) = nullptr;
  ATTEND_BLAS_FUNCTIONS(ATTEND_BLAS_MEMBER)
#undef ATTEND_BLAS_MEMBER
  std::string missing;         // why there is none; empty: it can be called
  BlasHandle tried = nullptr;  // the handle that it gave to see whether it can be, and on which GPU
  int tried_on = -1;
};
// The first of the libraries of these names that has all functions and gives a handle on the GPU
// (null: whatever is current).
Blas load_blas(std::span<const char* const> names, const Gpu* gpu);
// The library of this process. Who asks first says on which GPU it is tried: the row, which
// declines where it cannot be used.
const Blas& blas(const Gpu* gpu = nullptr);

// What the algorithm of a product depends on, and nothing else does: not the number of its rows,
// so that no bit of a row depends on the others.
struct BlasProduct {
  DType type = DType::f32;
  bool bias = false;
  bool a_across = false, b_across = false;  // its rows, not its columns, lie side by side
  std::int64_t n = 0, k = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): of the comparison that the compiler writes
  friend auto operator<=>(const BlasProduct&, const BlasProduct&) = default;
};

// One whose sums over k are not divided; the same for every number of rows.
struct BlasChoice {
  bool found = false;  // cuBLASLt has one
  BlasAlgorithm algorithm{};
  std::size_t workspace = 0;
};
// It is asked for matrices that begin and go on at multiples of so many bytes: strides of such.
inline constexpr std::int64_t kBlasAlignment = 16;
inline std::int64_t aligned_stride(std::int64_t size, DType type) noexcept {
  const std::int64_t together = kBlasAlignment / size_of(type);
  return (size + together - 1) / together * together;
}

// In the device's context. The first time, cuBLASLt is asked.
Status choose_algorithm(Gpu& gpu, const BlasProduct& product, BlasHandle& handle,
                        BlasChoice& choice) noexcept;

// Matrices as cuBLASLt has them, columns side by side: c^T [n, m] = b^T a^T. Strides in elements.
class BlasCall {
 public:
  struct Strides {
    std::int64_t a, b, c;
  };
  BlasCall(const BlasProduct& product, std::int64_t m, const Strides& strides,
           const void* bias) noexcept;
  ~BlasCall();
  BlasCall(const BlasCall&) = delete;
  BlasCall& operator=(const BlasCall&) = delete;

  Result status = 0;
  BlasOperation operation = nullptr;
  BlasLayout a = nullptr, b = nullptr, c = nullptr;
};

}  // namespace attend::cuda
