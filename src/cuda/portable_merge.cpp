// cuda.portable.merge: results over parts of the keys, joined.
#include "cuda/portable_merge.h"

#include "cuda/prepare.h"
#include "cuda/rows.h"

namespace attend {
namespace cuda {
namespace {

Status launch(const MergeProblem& p, const MergeCall& given, Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  Loans loans(*queue);
  PortableMerge a{p, given};
  auto* const parts = loans.take<Part>(p.parts);
  if (loans.failed()) return loans.status();
  ATTEND_TRY(put(parts, given.parts, static_cast<std::size_t>(p.parts) * sizeof(Part), *queue));
  a.call.parts = parts;
  return queue->start_round({"portable_merge", "attend_merge", p.batch * p.heads * p.q_length, 128},
                            &a);
}

}  // namespace
}  // namespace cuda

extern constinit const Kernel<Merge> kCudaPortableMerge{
    .name = "cuda.portable.merge",
    .only_if_forced = false,
    .takes = kHostTypes | Features{Feature::device_memory, Feature::other_types, Feature::lse},
    .declines = cuda::portable_declines<MergeProblem>,
    .launch = cuda::launch,
};

}  // namespace attend
