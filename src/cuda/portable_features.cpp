// cuda.portable.*: norms, activations, rotary positions, conversion and sums of every type on any
// NVIDIA GPU from sm_80 on.
#include "cuda/portable_features.h"

#include "cuda/products.h"
#include "cuda/rows.h"

#include <algorithm>

namespace attend {
namespace cuda {
namespace {

constexpr std::string_view kNormModule = "portable_norm", kElementsModule = "portable_elements";
constexpr std::int64_t kMostElementBlocks = 1 << 16;

struct NamesByType {
  const char *f64, *f32, *bf16, *f16;
  const char* of(DType type) const noexcept {
    switch (type) {
      case DType::f64: return f64;
      case DType::f32: return f32;
      case DType::bf16: return bf16;
      default: return f16;
    }
  }
};
#define ATTEND_NAMES(name) \
  NamesByType { name "_f64", name "_f32", name "_bf16", name "_f16" }

std::int64_t blocks_of_elements(std::int64_t count) noexcept {
  return std::min(blocks_of(count, kElementThreads * kElementsEach), kMostElementBlocks);
}

Status launch_norm(const NormProblem& p, const NormCall& call, std::int64_t rows,
                   Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const PortableNorm a{p, call, rows};
  return queue->start_round(
      {kNormModule, ATTEND_NAMES("attend_norm").of(p.type), rows, kFeatureThreads}, &a);
}

Status launch_norm_backward(const NormProblem& p, const NormBackwardCall& call, std::int64_t rows,
                            Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  Loans loans(*queue);
  PortableNormBackward a{};
  a.problem = p;
  a.call = call;
  a.rows = rows;
  a.blocks = block_count(rows);
  a.columns = blocks_of(call.dim, kFeatureThreads);
  a.statistics = loans.take<NormStatistics>(rows);
  a.sums = loans.take<double>(a.blocks * 2 * call.dim);
  if (loans.failed()) return loans.status();
  const auto start = [&](const NamesByType& names, std::int64_t blocks) {
    return queue->start_round({kNormModule, names.of(p.type), blocks, kFeatureThreads}, &a);
  };
  ATTEND_TRY(start(ATTEND_NAMES("attend_norm_backward"), rows));
  ATTEND_TRY(start(ATTEND_NAMES("attend_norm_columns"), a.blocks * a.columns));
  return start(ATTEND_NAMES("attend_norm_totals"), a.columns);
}

Status launch_activation(const ActivationProblem& p, const ActivationCall& call, std::int64_t rows,
                         Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const PortableActivation a{p.kind, call, rows * call.features};
  return queue->start_round({kElementsModule, ATTEND_NAMES("attend_activation").of(p.type),
                             blocks_of_elements(a.count), kElementThreads},
                            &a);
}

Status launch_activation_backward(const ActivationProblem& p, const ActivationBackwardCall& call,
                                  std::int64_t rows, Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const PortableActivationBackward a{p.kind, call, rows * call.features};
  return queue->start_round({kElementsModule, ATTEND_NAMES("attend_activation_backward").of(p.type),
                             blocks_of_elements(a.count), kElementThreads},
                            &a);
}

Status launch_rotary(const RotaryProblem& p, const RotaryCall& call, std::int64_t rows,
                     Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  Loans loans(*queue);
  PortableRotary a{p.pairing == Rotary::Pairing::halves, call, rows};
  auto* const frequency = loans.take<double>(call.pairs);
  if (loans.failed()) return loans.status();
  ATTEND_TRY(put(frequency, call.frequency, static_cast<std::size_t>(call.pairs) * sizeof(double),
                 *queue));
  a.call.frequency = frequency;
  return queue->start_round(
      {kElementsModule, ATTEND_NAMES("attend_rotary").of(p.type),
       std::min(blocks_of(rows * call.pairs, kElementThreads), kMostElementBlocks),
       kElementThreads},
      &a);
}

Status launch_convert(const ConvertProblem& p, const ConvertCall& call, std::int64_t rows,
                      Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const PortableConvert a{p.to, call, rows * call.features};
  return queue->start_round({kElementsModule, ATTEND_NAMES("attend_convert").of(p.type),
                             blocks_of_elements(a.count), kElementThreads},
                            &a);
}

Status launch_add(const AddProblem& p, const AddCall& call, std::int64_t rows,
                  Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  return queue == nullptr ? status : start_add(p.type, call, rows, *queue);
}

}  // namespace

// One row of all, where they lie one behind the other: few features make short rows.
Status start_add(DType type, const AddCall& call, std::int64_t rows, StreamQueue& queue) noexcept {
  PortableAdd a{call, rows, 1};
  const auto in_line = [&](std::int64_t row, std::int64_t column) {
    return column == 1 && row == call.features;
  };
  if (in_line(call.a.row, call.a.column) && in_line(call.y_row, call.y_column) &&
      (call.b.data == nullptr || in_line(call.b.row, call.b.column))) {
    a.call.features *= rows;
    a.rows = 1;
  }
  a.columns = blocks_of(a.call.features, kElementThreads * kElementsEach);
  return queue.start_round(
      {kElementsModule, ATTEND_NAMES("attend_add").of(type), a.rows * a.columns, kElementThreads},
      &a);
}

Status start_end(const ProductProblem& p, const ProductCall& call, bool bias,
                 StreamQueue& queue) noexcept {
  if (!bias && !p.activation && !p.residual) return {};
  const PortableEnd a{.m = call.m,
                      .n = call.n,
                      .bias = bias ? call.bias : nullptr,
                      .bias_stride = call.bias_stride,
                      .activated = p.activation,
                      .kind = p.kind,
                      .gate = call.gate.data,
                      .residual = p.residual ? call.residual.data : nullptr,
                      .gate_row = call.gate.row,
                      .gate_column = call.gate.column,
                      .residual_row = call.residual.row,
                      .residual_column = call.residual.column,
                      .c = call.c,
                      .c_row = call.c_row,
                      .c_column = call.c_column,
                      .columns = blocks_of(call.n, kElementThreads * kElementsEach)};
  return queue.start_round(
      {kElementsModule, ATTEND_NAMES("attend_end").of(p.type), a.m * a.columns, kElementThreads},
      &a);
}

}  // namespace cuda

extern constinit const Kernel<NormForward> kCudaPortableNorm{
    .name = "cuda.portable.norm",
    .only_if_forced = false,
    .takes = kTakenByNorms | Features{Feature::device_memory},
    .declines = cuda::portable_declines<NormProblem>,
    .launch = cuda::launch_norm,
};
extern constinit const Kernel<NormBackward> kCudaPortableNormBackward{
    .name = "cuda.portable.norm_backward",
    .only_if_forced = false,
    .takes = kTakenByNorms | Features{Feature::device_memory},
    .declines = cuda::portable_declines<NormProblem>,
    .launch = cuda::launch_norm_backward,
};
extern constinit const Kernel<ActivationForward> kCudaPortableActivation{
    .name = "cuda.portable.activation",
    .only_if_forced = false,
    .takes = kTakenByActivations | Features{Feature::device_memory},
    .declines = cuda::portable_declines<ActivationProblem>,
    .launch = cuda::launch_activation,
};
extern constinit const Kernel<ActivationBackward> kCudaPortableActivationBackward{
    .name = "cuda.portable.activation_backward",
    .only_if_forced = false,
    .takes = kTakenByActivations | Features{Feature::device_memory},
    .declines = cuda::portable_declines<ActivationProblem>,
    .launch = cuda::launch_activation_backward,
};
extern constinit const Kernel<RotaryForward> kCudaPortableRotary{
    .name = "cuda.portable.rotary",
    .only_if_forced = false,
    .takes = kTakenByRotary | Features{Feature::device_memory},
    .declines = cuda::portable_declines<RotaryProblem>,
    .launch = cuda::launch_rotary,
};
extern constinit const Kernel<Convert> kCudaPortableConvert{
    .name = "cuda.portable.convert",
    .only_if_forced = false,
    .takes = kHostTypes | Features{Feature::device_memory},
    .declines = cuda::portable_declines<ConvertProblem>,
    .launch = cuda::launch_convert,
};
extern constinit const Kernel<Add> kCudaPortableAdd{
    .name = "cuda.portable.add",
    .only_if_forced = false,
    .takes = kHostTypes | Features{Feature::device_memory},
    .declines = cuda::portable_declines<AddProblem>,
    .launch = cuda::launch_add,
};

}  // namespace attend
