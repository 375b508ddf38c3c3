// cuda.portable.product: products of every type, with any strides and ends, and weights of 8 bits,
// on any NVIDIA GPU from sm_80 on. Right, and not fast.
#include "cuda/portable_product.h"

#include "cuda/products.h"
#include "cuda/rows.h"

namespace attend {
namespace cuda {
namespace {

constexpr std::string_view kProductModule = "portable_product";

const char* product_name(DType type, const char* f64, const char* f32, const char* bf16,
                         const char* f16) noexcept {
  return type == DType::f64 ? f64 : type == DType::f32 ? f32 : type == DType::bf16 ? bf16 : f16;
}
#define ATTEND_PRODUCT_NAME(name, type) \
  product_name(type, name "_f64", name "_f32", name "_bf16", name "_f16")

// c [1, n] = the sum of b's rows.
Status start_sums(PortableProduct a, StreamQueue& queue) noexcept {
  Loans loans(queue);
  a.blocks = blocks_of(a.call.k, kSumBlock);
  a.across = blocks_of(a.call.n, kSumThreads);
  a.sums = loans.take<double>(a.blocks * a.call.n);
  if (loans.failed()) return loans.status();
  ATTEND_TRY(
      queue.start_round({kProductModule, ATTEND_PRODUCT_NAME("attend_sum_blocks", a.problem.type),
                         a.blocks * a.across, kSumThreads},
                        &a));
  return queue.start_round(
      {kProductModule, ATTEND_PRODUCT_NAME("attend_sum_totals", a.problem.type), a.across,
       kSumThreads},
      &a);
}

Status launch_product(const ProductProblem& p, const ProductCall& call, Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  return queue == nullptr ? status : start_portable_product(p, call, *queue);
}

}  // namespace

Status start_portable_product(const ProductProblem& p, const ProductCall& call,
                              StreamQueue& queue) noexcept {
  PortableProduct a{};
  a.problem = p;
  a.call = call;
  if (call.a.data == nullptr && call.m == 1 && call.k > 0) return start_sums(a, queue);
  a.across = blocks_of(call.n, kProductTile);
  a.tiles = blocks_of(call.m, kProductTile) * a.across;
  const char* const name = p.eight_bit_weights ? ATTEND_PRODUCT_NAME("attend_product_bytes", p.type)
                                               : ATTEND_PRODUCT_NAME("attend_product", p.type);
  return queue.start_round({kProductModule, name, a.tiles, kProductThreads}, &a);
}

}  // namespace cuda

extern constinit const Kernel<Product> kCudaPortableProduct{
    .name = "cuda.portable.product",
    .only_if_forced = false,
    .takes = kTakenByProducts | kTakenByActivations |
             Features{Feature::device_memory, Feature::row_activation, Feature::row_residual},
    .declines = cuda::portable_declines<ProductProblem>,
    .launch = cuda::launch_product,
};

}  // namespace attend
