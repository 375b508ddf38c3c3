// cuda.cublaslt.product: products by cuBLASLt, one algorithm for all numbers of rows. It reads
// matrices that begin and go on at multiples of 16 bytes; others are copied first, so that no bit
// depends on how they lie. The bias is added to the sum before it is rounded (of f64 after, which
// is the same: sums are f64); activation and residual come after that, as on the host, by a kernel
// of their own.
#include "cuda/cublaslt.h"
#include "cuda/products.h"
#include "cuda/rows.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <set>
#include <string>

namespace attend {
namespace cuda {
namespace {

constexpr std::int64_t kMostRowsAtOnce = std::int64_t{1} << 30,
                       kMostBlasSize = (std::int64_t{1} << 31) - 1;

bool is_aligned_for_blas(const void* data, std::int64_t stride, DType type) noexcept {
  return reinterpret_cast<std::uintptr_t>(data) % kBlasAlignment == 0 &&
         stride % (kBlasAlignment / size_of(type)) == 0 && stride <= kMostBlasSize;
}

// A matrix [rows, columns] as cuBLASLt reads it.
struct BlasMatrix {
  const void* data = nullptr;
  std::int64_t stride = 0;  // from row to row; across, from column to column
  bool across = false;
};

// Of one row or column the strides say nothing: it lies as if there were more of them in x, so that
// the algorithm depends on sizes alone.
bool lies_across(const ConstMatrix& x, std::int64_t rows, std::int64_t columns) noexcept {
  return rows > 1 && columns > 1 && x.column != 1 && x.row == 1;
}

Status prepare_matrix(const ConstMatrix& x, std::int64_t rows, std::int64_t columns, DType type,
                      Loans& loans, StreamQueue& queue, BlasMatrix& to) noexcept {
  to.across = lies_across(x, rows, columns);
  const std::int64_t inner = to.across ? rows : columns, outer = to.across ? columns : rows;
  const std::int64_t step = to.across ? x.row : x.column;
  to.data = x.data;
  to.stride = to.across ? x.column : x.row;
  if (outer == 1) to.stride = aligned_stride(inner, type);
  if ((step == 1 || inner == 1) && to.stride >= inner &&
      is_aligned_for_blas(x.data, to.stride, type))
    return {};
  to.stride = aligned_stride(inner, type);
  std::byte* const copy = loans.take<std::byte>(outer * to.stride * size_of(type));
  if (loans.failed()) return loans.status();
  to.data = copy;
  return start_add(type,
                   {.features = columns,
                    .a = {x.data, x.row, x.column},
                    .b = {},
                    .y = copy,
                    .y_row = to.across ? 1 : to.stride,
                    .y_column = to.across ? to.stride : 1},
                   rows, queue);
}

// A Status has no memory of its own: its words are kept for ever, each once.
Status product_not_taken(const BlasProduct& of, std::int64_t m, Result result) noexcept try {
  constexpr std::size_t kMostKept = 1000;
  static auto* const kept = new std::set<std::string>;
  static std::mutex mutex;
  const std::string words = text("cuBLASLt did not take a product of ", of.type, ", m ", m, ", n ",
                                 of.n, ", k ", of.k, " (status ", result, ")");
  const std::lock_guard lock(mutex);
  if (kept->size() < kMostKept || kept->contains(words))
    return {Status::Kind::failed, kept->insert(words).first->c_str()};
  return {Status::Kind::failed, "cuBLASLt did not take a product"};
} catch (const std::bad_alloc&) {
  return {Status::Kind::failed, "cuBLASLt did not take a product"};
}

Status multiply_by_cublaslt(const BlasProduct& of, const BlasChoice& choice, BlasHandle handle,
                            std::int64_t m, const void* a, const void* b,
                            const BlasCall::Strides& strides, const void* bias, void* c,
                            void* workspace, Stream stream) noexcept {
  const BlasCall call(of, m, strides, bias);
  constexpr float kOne = 1, kZero = 0;
  constexpr double kOneWide = 1, kZeroWide = 0;
  const bool wide = of.type == DType::f64;
  const void* const one = wide ? static_cast<const void*>(&kOneWide) : &kOne;
  const void* const zero = wide ? static_cast<const void*>(&kZeroWide) : &kZero;
  const Result result =
      call.status != 0
          ? call.status
          : blas().multiply(handle, call.operation, one, b, call.b, a, call.a, zero, c, call.c, c,
                            call.c, &choice.algorithm, workspace, choice.workspace, stream);
  return result == 0 ? Status() : product_not_taken(of, m, result);
}

Status launch_by_cublaslt(const ProductProblem& p, const ProductCall& call, Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const std::int64_t size = size_of(p.type);
  const BlasProduct of{.type = p.type,
                       .bias = p.bias && p.type != DType::f64,
                       .a_across = lies_across(call.a, call.m, call.k),
                       .b_across = lies_across(call.b, call.k, call.n),
                       .n = call.n,
                       .k = call.k};
  BlasHandle handle = nullptr;
  BlasChoice choice;
  if (call.a.data != nullptr && std::max(call.n, call.k) <= kMostBlasSize) {
    const InContext in(queue->gpu());
    ATTEND_TRY(choose_algorithm(queue->gpu(), of, handle, choice));
  }
  if (!choice.found) return start_portable_product(p, call, *queue);

  Loans loans(*queue);
  BlasMatrix a, b, bias, c;
  ATTEND_TRY(prepare_matrix(call.a, call.m, call.k, p.type, loans, *queue, a));
  ATTEND_TRY(prepare_matrix(call.b, call.k, call.n, p.type, loans, *queue, b));
  if (of.bias)
    ATTEND_TRY(prepare_matrix({call.bias, call.n, call.bias_stride}, 1, call.n, p.type, loans,
                              *queue, bias));
  c.stride = call.m == 1 ? aligned_stride(call.n, p.type) : call.c_row;
  const bool direct = (call.c_column == 1 || call.n == 1) && c.stride >= call.n &&
                      is_aligned_for_blas(call.c, c.stride, p.type);
  std::byte* made = static_cast<std::byte*>(call.c);
  if (!direct) {
    c.stride = aligned_stride(call.n, p.type);
    made = loans.take<std::byte>(call.m * c.stride * size);
  }
  std::byte* const workspace =
      choice.workspace > 0 ? loans.take<std::byte>(static_cast<std::int64_t>(choice.workspace))
                           : nullptr;
  if (loans.failed()) return loans.status();
  {
    const InContext in(queue->gpu());
    for (std::int64_t row = 0; row < call.m; row += kMostRowsAtOnce)
      ATTEND_TRY(multiply_by_cublaslt(
          of, choice, handle, std::min(call.m - row, kMostRowsAtOnce),
          static_cast<const std::byte*>(a.data) + row * (a.across ? 1 : a.stride) * size, b.data,
          {a.stride, b.stride, c.stride}, bias.data, made + row * c.stride * size, workspace,
          queue->stream()));
  }
  if (!direct)
    ATTEND_TRY(start_add(p.type,
                         {.features = call.n,
                          .a = {made, c.stride, 1},
                          .b = {},
                          .y = call.c,
                          .y_row = call.c_row,
                          .y_column = call.c_column},
                         call.m, *queue));
  return start_end(p, call, p.bias && !of.bias, *queue);
}

std::string declines_cublaslt(const ProductProblem& p, const Machine& machine) {
  if (std::string reason = portable_declines(p, machine); !reason.empty()) return reason;
  return blas(Gpu::find(p.device.index)).missing;
}

}  // namespace
}  // namespace cuda

extern constinit const Kernel<Product> kCudaCublasltProduct{
    .name = "cuda.cublaslt.product",
    .only_if_forced = false,
    .takes = kHostTypes | kTakenByActivations |
             Features{Feature::device_memory, Feature::row_bias, Feature::row_activation,
                      Feature::row_residual},
    .declines = cuda::declines_cublaslt,
    .launch = cuda::launch_by_cublaslt,
};

}  // namespace attend
