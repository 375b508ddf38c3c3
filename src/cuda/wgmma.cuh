// The instruction itself: wgmma.mma_async, 64 rows by kN columns by 16, bf16 or f16 with f32 sums.
// Its operands are a list of registers that the assembler wants spelled out.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attend::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

template <class T, int kN>
struct Wgmma;

#define ATTEND_SUMS_4(c, n) "+f"(c[n]), "+f"(c[n + 1]), "+f"(c[n + 2]), "+f"(c[n + 3])
#define ATTEND_SUMS_8(c, n)                                                                   \
  "+f"(c[n]), "+f"(c[n + 1]), "+f"(c[n + 2]), "+f"(c[n + 3]), "+f"(c[n + 4]), "+f"(c[n + 5]), \
      "+f"(c[n + 6]), "+f"(c[n + 7])
#define ATTEND_SUMS_16(c, n) ATTEND_SUMS_8(c, n), ATTEND_SUMS_8(c, n + 8)
#define ATTEND_SUMS_32(c, n) ATTEND_SUMS_16(c, n), ATTEND_SUMS_16(c, n + 16)
#define ATTEND_SUMS_40(c, n) ATTEND_SUMS_32(c, n), ATTEND_SUMS_8(c, n + 32)
#define ATTEND_SUMS_48(c, n) ATTEND_SUMS_40(c, n), ATTEND_SUMS_8(c, n + 40)
#define ATTEND_SUMS_64(c, n) ATTEND_SUMS_32(c, n), ATTEND_SUMS_32(c, n + 32)

#define ATTEND_SUMS_128(c, n) ATTEND_SUMS_64(c, n), ATTEND_SUMS_64(c, n + 64)

#define ATTEND_LIST_4 "%0, %1, %2, %3"
#define ATTEND_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ATTEND_LIST_32 \
  ATTEND_LIST_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTEND_LIST_40 ATTEND_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATTEND_LIST_48 ATTEND_LIST_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTEND_LIST_64                                                           \
  ATTEND_LIST_40                                                                 \
  ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54," \
  " %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define ATTEND_LIST_128                                                                   \
  ATTEND_LIST_64                                                                          \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"     \
  " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96," \
  " %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110,"     \
  " %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124,"  \
  " %125, %126, %127"

// o0 to o5: the numbers of the operands after the sums.
#define ATTEND_WGMMA(T, type, n, sums, o0, o1, o2, o3, o4, o5)                                    \
  template <>                                                                                     \
  struct Wgmma<T, n> {                                                                            \
    /* c = or += a b^T, both of rows in shared memory */                                          \
    __device__ __forceinline__ static void of_rows(float* c, std::uint64_t a, std::uint64_t b,    \
                                                   bool add) {                                    \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" o2                                        \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type                \
                   " {" ATTEND_LIST_##sums "}, %" o0 ", %" o1 ", p, 1, 1, 0, 0;\n}"               \
                   : ATTEND_SUMS_##sums(c, 0)                                                     \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                 \
    }                                                                                             \
    /* c += a b, a in registers, b's columns in shared memory */                                  \
    __device__ __forceinline__ static void add_of_columns(float* c, const std::uint32_t* a,       \
                                                          std::uint64_t b) {                      \
      asm volatile(                                                                               \
          "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                              \
          "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" ATTEND_LIST_##sums \
          "}, {%" o0 ", %" o1 ", %" o2 ", %" o3 "}, %" o4 ", p, 1, 1, 1;\n}"                      \
          : ATTEND_SUMS_##sums(c, 0)                                                              \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
    }                                                                                             \
    /* c = or += a b^T, a in registers, b of rows in shared memory */                             \
    __device__ __forceinline__ static void of_rows(float* c, const std::uint32_t* a,              \
                                                   std::uint64_t b, bool add) {                   \
      asm volatile(                                                                               \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %" o5                                                 \
          ", 0;\n"                                                                                \
          "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" ATTEND_LIST_##sums \
          "}, {%" o0 ", %" o1 ", %" o2 ", %" o3 "}, %" o4 ", p, 1, 1, 0;\n}"                      \
          : ATTEND_SUMS_##sums(c, 0)                                                              \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));      \
    }                                                                                             \
    /* c += a^T b^T, a's columns and b's rows in shared memory: b a, turned */                    \
    __device__ __forceinline__ static void add_turned(float* c, std::uint64_t a,                  \
                                                      std::uint64_t b) {                          \
      asm volatile(                                                                               \
          "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                              \
          "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" ATTEND_LIST_##sums \
          "}, %" o0 ", %" o1 ", p, 1, 1, 1, 0;\n}"                                                \
          : ATTEND_SUMS_##sums(c, 0)                                                              \
          : "l"(a), "l"(b));                                                                      \
    }                                                                                             \
  };
#define ATTEND_WGMMA_BOTH(n, sums, ...)            \
  ATTEND_WGMMA(bf16, "bf16", n, sums, __VA_ARGS__) \
  ATTEND_WGMMA(f16, "f16", n, sums, __VA_ARGS__)

ATTEND_WGMMA_BOTH(8, 4, "4", "5", "6", "7", "8", "9")
ATTEND_WGMMA_BOTH(64, 32, "32", "33", "34", "35", "36", "37")
ATTEND_WGMMA_BOTH(80, 40, "40", "41", "42", "43", "44", "45")
ATTEND_WGMMA_BOTH(96, 48, "48", "49", "50", "51", "52", "53")
ATTEND_WGMMA_BOTH(128, 64, "64", "65", "66", "67", "68", "69")
ATTEND_WGMMA_BOTH(256, 128, "128", "129", "130", "131", "132", "133")

#undef ATTEND_WGMMA_BOTH
#undef ATTEND_WGMMA

}  // namespace attend::cuda
