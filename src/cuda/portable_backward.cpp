// cuda.portable.backward: every type and option on any NVIDIA GPU from sm_80 on.
#include "cuda/portable_backward.h"

#include "core/kernel.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"

#include <algorithm>

namespace attend {
namespace cuda {
namespace {

constexpr std::string_view kBackwardModule = "portable_backward", kBiasModule = "portable_bias";
constexpr std::int64_t kWarps = kPortableThreads / kPortableLanes;

}  // namespace

Status launch_portable_backward(const BackwardProblem& p, const BackwardCall& given,
                                Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  Loans loans(*queue);
  PortableBackward a{p, given, nullptr, blocks_of(p.q_length, kPortableRows), 0, 0, 0};
  ATTEND_TRY(clamp_integers(p, a.call, Integers::i64, kFarthestPosition, loans, *queue));
  a.rows = loans.take<RowStatistics>(p.batch * p.heads * p.q_length);
  if (loans.failed()) return loans.status();
  a.d_columns = std::max<std::int64_t>(blocks_of(p.d, kPortableColumns), 1);
  a.v_columns = blocks_of(p.dv, kPortableColumns);
  const bool paged = p.keys == KeyAddressing::paged, wide = p.type == DType::f64;
  a.key_blocks = blocks_of(paged ? p.page_size : p.k_length, kPortableRows);
  const auto start = [&](const char* f32, const char* f64, std::int64_t blocks,
                         std::string_view module = kBackwardModule) {
    return queue->start_round({module, wide ? f64 : f32, blocks, kPortableThreads}, &a);
  };
  const std::int64_t row_blocks = p.batch * p.heads * a.row_blocks;
  ATTEND_TRY(start("attend_backward_rows_float", "attend_backward_rows_double", row_blocks));
  if (p.dq || p.dalibi)
    ATTEND_TRY(start("attend_backward_queries_float", "attend_backward_queries_double",
                     row_blocks * a.d_columns));
  if (p.dk || p.dv_gradient)
    ATTEND_TRY(start(
        "attend_backward_keys_float", "attend_backward_keys_double",
        (paged ? p.pages : p.batch) * p.kv_heads * a.key_blocks * (a.d_columns + a.v_columns)));
  if (p.dbias)
    ATTEND_TRY(start("attend_backward_bias_float", "attend_backward_bias_double",
                     blocks_of(p.dbias_batch * p.dbias_heads * p.dbias_queries *
                                   blocks_of(p.dbias_keys, kPortableLanes),
                               kWarps),
                     kBiasModule));
  if (p.dalibi || p.dsinks)
    ATTEND_TRY(start("attend_backward_heads", "attend_backward_heads", p.heads, kBiasModule));
  return {};
}

}  // namespace cuda

extern constinit const Kernel<Backward> kCudaPortableBackward{
    .name = "cuda.portable.backward",
    .only_if_forced = false,
    .takes = cuda::kTakenByPortable | Features{Feature::dlse, Feature::dq, Feature::dk, Feature::dv,
                                               Feature::dbias, Feature::dsinks, Feature::dalibi},
    .declines = cuda::portable_declines<BackwardProblem>,
    .launch = cuda::launch_portable_backward,
};

}  // namespace attend
