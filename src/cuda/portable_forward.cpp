// cuda.portable.forward: every type and option on any NVIDIA GPU from sm_80 on.
#include "cuda/portable_forward.h"

#include "core/kernel.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"

#include <algorithm>

namespace attend {
namespace cuda {
namespace {

constexpr std::string_view kForwardModule = "portable_forward";

const char* name_for(DType type, const char* f32, const char* f64) {
  return type == DType::f64 ? f64 : f32;
}

// Lists of the host that a kernel reads.
Status put_lists(const ForwardProblem& p, ForwardCall& call, Loans& loans,
                 StreamQueue& queue) noexcept {
  if (p.parts > 0) {
    auto* const parts = loans.take<Part>(p.parts);
    if (loans.failed()) return loans.status();
    ATTEND_TRY(put(parts, call.parts, static_cast<std::size_t>(p.parts) * sizeof(Part), queue));
    call.parts = parts;
  }
  if (p.weight_heads > 0) {
    auto* const heads = loans.take<std::int64_t>(p.weight_heads);
    if (loans.failed()) return loans.status();
    ATTEND_TRY(put(heads, call.weight_heads,
                   static_cast<std::size_t>(p.weight_heads) * sizeof(std::int64_t), queue));
    call.weight_heads = heads;
  }
  return {};
}

}  // namespace

Status launch_portable_forward(const ForwardProblem& p, const ForwardCall& given,
                               Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  if (p.visited_blocks) ATTEND_TRY(queue->fill(given.visited_blocks, 0, sizeof(std::int64_t)));
  const std::int64_t rows = p.batch * p.heads * p.q_length;
  if (rows == 0) return {};
  Loans loans(*queue);
  PortableForward a{p, given, nullptr, 0, blocks_of(p.q_length, kPortableRows), 0};
  ATTEND_TRY(clamp_integers(p, a.call, Integers::i64, kFarthestPosition, loans, *queue));
  ATTEND_TRY(put_lists(p, a.call, loans, *queue));
  if (p.weights) a.states = loans.take<double>(2 * rows);
  if (loans.failed()) return loans.status();
  a.columns = std::max<std::int64_t>(blocks_of(p.dv, kPortableColumns), 1);
  a.items = p.batch * p.heads * a.row_blocks * a.columns;
  ATTEND_TRY(
      queue->start({kForwardModule, name_for(p.type, "attend_forward_f32", "attend_forward_f64"),
                    a.items, kPortableThreads},
                   &a));
  if (p.weights || p.scores) {
    PortableForward pairs = a;
    pairs.columns = 1;
    pairs.items = p.batch * p.heads * a.row_blocks;
    ATTEND_TRY(
        queue->start({kForwardModule, name_for(p.type, "attend_pairs_f32", "attend_pairs_f64"),
                      pairs.items, kPortableThreads},
                     &pairs));
  }
  if (p.visited_blocks)
    ATTEND_TRY(queue->start({kForwardModule, "attend_visited_blocks",
                             std::min<std::int64_t>(blocks_of(rows, 256), 4096), 256},
                            &a));
  return {};
}

}  // namespace cuda

extern constinit const Kernel<Forward> kCudaPortableForward{
    .name = "cuda.portable.forward",
    .only_if_forced = false,
    .takes = cuda::kTakenByPortable |
             Features{Feature::lse, Feature::weights, Feature::weight_heads, Feature::scores,
                      Feature::visited_blocks, Feature::partial_states},
    .declines = cuda::portable_declines<ForwardProblem>,
    .launch = cuda::launch_portable_forward,
};

}  // namespace attend
