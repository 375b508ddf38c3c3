// cuda.portable.forward: every type and option on any NVIDIA GPU from sm_80 on.
#include "cuda/portable_forward.h"

#include "core/kernel.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"

#include <algorithm>

namespace attend {
namespace cuda {
namespace {

constexpr std::string_view kForwardModule = "portable_forward", kPairsModule = "portable_pairs";
constexpr std::int64_t kChunkOfKeys = 256;  // core/softmax_state.h

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

// Few rows and many keys: a block of threads for each chunk, where their sums fit into some memory.
// Whether it is so changes no bit.
bool goes_by_chunks(const PortableForward& a, int processors) noexcept {
  constexpr std::int64_t kMostBytes = std::int64_t{512} << 20;
  const ForwardProblem& p = a.problem;
  const std::int64_t blocks = p.batch * p.heads * a.row_blocks * a.columns;
  const std::int64_t rows = p.batch * p.heads * p.q_length;
  return p.parts == 0 && a.chunks > 1 && blocks < 2 * processors &&
         blocks * a.chunks < kMostBytes && rows * a.chunks * (p.dv + 2) * 8 < kMostBytes;
}

Status start_rows(PortableForward a, Loans& loans, StreamQueue& queue) noexcept {
  const ForwardProblem& p = a.problem;
  const char* name = name_for(p.type, "attend_forward_f32", "attend_forward_f64");
  a.columns = a.writes_out ? std::max<std::int64_t>(blocks_of(p.dv, kPortableColumns), 1) : 1;
  a.chunks = blocks_of(p.k_length, kChunkOfKeys);
  a.items = p.batch * p.heads * a.row_blocks * a.columns;
  if (goes_by_chunks(a, queue.gpu().processors())) {
    const std::int64_t chunks = p.batch * p.heads * p.q_length * a.chunks;
    a.chunk_sums = loans.take<double>(chunks * p.dv);
    a.chunk_states = loans.take<double>(chunks * 2);
    if (loans.failed()) return loans.status();
    a.apart = true;
    a.items *= a.chunks;
    ATTEND_TRY(queue.start_round({kForwardModule, name, a.items, kPortableThreads}, &a));
    a.items /= a.chunks;
    a.apart = false;
    name = name_for(p.type, "attend_forward_join_f32", "attend_forward_join_f64");
  }
  return queue.start_round({kForwardModule, name, a.items, kPortableThreads}, &a);
}

Status launch(const ForwardProblem& p, const ForwardCall& given, bool writes_out,
              Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  if (p.visited_blocks) ATTEND_TRY(queue->fill(given.visited_blocks, 0, sizeof(std::int64_t)));
  const std::int64_t rows = p.batch * p.heads * p.q_length;
  if (rows == 0) return {};
  Loans loans(*queue);
  PortableForward a{};
  a.problem = p;
  a.call = given;
  a.writes_out = writes_out;
  a.row_blocks = blocks_of(p.q_length, kPortableRows);
  ATTEND_TRY(clamp_integers(p, a.call, Integers::i64, kFarthestPosition, loans, *queue));
  ATTEND_TRY(put_lists(p, a.call, loans, *queue));
  if (p.weights) a.states = loans.take<double>(2 * rows);
  if (loans.failed()) return loans.status();
  ATTEND_TRY(start_rows(a, loans, *queue));
  if (p.weights || p.scores) {
    a.columns = 1;
    a.items = p.batch * p.heads * a.row_blocks;
    ATTEND_TRY(
        queue->start_round({kPairsModule, name_for(p.type, "attend_pairs_f32", "attend_pairs_f64"),
                            a.items, kPortableThreads},
                           &a));
  }
  if (p.visited_blocks)
    ATTEND_TRY(queue->start_round({kPairsModule, "attend_visited_blocks",
                                   std::min<std::int64_t>(blocks_of(rows, 256), 4096), 256},
                                  &a));
  return {};
}

}  // namespace

Status launch_portable_forward(const ForwardProblem& p, const ForwardCall& call,
                               Queue& queue) noexcept {
  return launch(p, call, true, queue);
}

Status launch_portable_statistics(const ForwardProblem& p, const ForwardCall& call,
                                  Queue& queue) noexcept {
  return launch(p, call, false, queue);
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
