// cuda.portable.inspect and cuda.portable.weights: statistics of the weights, and windows of them,
// of every type and with every option on any NVIDIA GPU from sm_80 on. What they write is in memory
// of the device; bringing it to the host is the caller's.
#include "cuda/portable_inspect.h"

#include "core/kernel.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"

#include <algorithm>

namespace attend {
namespace cuda {
namespace {

// Weights are those before dropout.
constexpr Features kTakenByInspect = kTakenByPortable - Features{Feature::dropout};

constexpr std::string_view kRowsModule = "portable_inspect", kKeysModule = "portable_inspect_keys",
                           kWeightsModule = "portable_weights";

const char* of_type(DType type, const char* f32, const char* f64) {
  return type == DType::f64 ? f64 : f32;
}

// Rows of packed tensors that no sequence has are not written by any kernel.
Status clear_packed(const InspectProblem& p, const InspectCall& call, StreamQueue& queue) noexcept {
  const auto clear = [&](const Strided& t, std::int64_t count) {
    return t.given ? queue.fill(t.data, 0, static_cast<std::size_t>(count * size_of(t.type)))
                   : Status();
  };
  if (p.packed_queries) {
    const std::int64_t rows = p.heads * call.packed_queries;
    for (const Strided* t : {&call.lse, &call.maximum, &call.entropy}) ATTEND_TRY(clear(*t, rows));
    for (const Strided* t : {&call.top_keys, &call.top_weights})
      ATTEND_TRY(clear(*t, rows * p.top_k));
  }
  if (p.keys == KeyAddressing::packed) ATTEND_TRY(clear(call.key_mass, p.heads * call.packed_keys));
  return {};
}

Status start_map(PortableInspect a, StreamQueue& queue) noexcept {
  const InspectProblem& p = a.problem;
  a.tall = std::max(p.tile_queries, kPortableRows);
  a.wide = std::max(p.tile_keys, kPortableLanes);
  a.region_rows = blocks_of(p.q_length, a.tall);
  a.region_columns = blocks_of(p.k_length, a.wide);
  a.items = p.batch * p.heads * a.region_rows * a.region_columns;
  return queue.start_round(
      {kKeysModule, of_type(p.type, "attend_inspect_map_f32", "attend_inspect_map_f64"), a.items,
       kPortableThreads},
      &a);
}

Status launch_inspect(const InspectProblem& p, const InspectCall& given, Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const std::int64_t heads = p.batch * p.heads;
  Loans loans(*queue);
  PortableInspect a{};
  a.problem = p;
  a.call = given;
  a.row_blocks = blocks_of(p.q_length, kPortableRows);
  a.key_blocks = blocks_of(p.k_length, kPortableLanes);
  ATTEND_TRY(clear_packed(p, given, *queue));
  ATTEND_TRY(clamp_integers(p, a.call, Integers::i64, kFarthestPosition, loans, *queue));
  a.rows = loans.take<InspectedRow>(heads * p.q_length);
  const std::int64_t rows = p.packed_queries ? p.heads * given.packed_queries : heads * p.q_length;
  if (p.top_k > 0) a.top_scores = loans.take<double>(rows * p.top_k);
  if (p.metrics) a.key_sums = loans.take<HeadSums>(heads * a.key_blocks);
  if (loans.failed()) return loans.status();

  const auto start = [&](std::string_view module, const char* name, std::int64_t items) {
    a.items = items;
    return queue->start_round({module, name, items, kPortableThreads}, &a);
  };
  ATTEND_TRY(start(kRowsModule,
                   of_type(p.type, "attend_inspect_rows_f32", "attend_inspect_rows_f64"),
                   heads * a.row_blocks));
  if (p.key_mass || p.metrics)
    ATTEND_TRY(start(kKeysModule,
                     of_type(p.type, "attend_inspect_keys_f32", "attend_inspect_keys_f64"),
                     heads * a.key_blocks));
  if (p.tile_keys > 0) ATTEND_TRY(start_map(a, *queue));
  return start(kRowsModule, "attend_inspect_heads", heads);
}

Status launch_weights(const WeightsProblem& p, const WeightsCall& given, Queue& into) noexcept {
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  Loans loans(*queue);
  PortableWeights a{};
  a.problem = p;
  a.call = given;
  a.row_blocks = blocks_of(p.window_queries, kPortableRows);
  a.items = a.row_blocks * blocks_of(p.window_keys, kWindowKeys);
  ATTEND_TRY(clamp_integers(p, a.call, Integers::i64, kFarthestPosition, loans, *queue));
  return queue->start_round(
      {kWeightsModule, of_type(p.type, "attend_window_f32", "attend_window_f64"), a.items,
       kPortableThreads},
      &a);
}

}  // namespace
}  // namespace cuda

extern constinit const Kernel<Inspect> kCudaPortableInspect{
    .name = "cuda.portable.inspect",
    .only_if_forced = false,
    .takes = cuda::kTakenByInspect | Features{Feature::top_keys, Feature::key_mass,
                                              Feature::metrics, Feature::tokens, Feature::map},
    .declines = cuda::portable_declines<InspectProblem>,
    .launch = cuda::launch_inspect,
};

extern constinit const Kernel<Weights> kCudaPortableWeights{
    .name = "cuda.portable.weights",
    .only_if_forced = false,
    .takes = cuda::kTakenByInspect,
    .declines = cuda::portable_declines<WeightsProblem>,
    .launch = cuda::launch_weights,
};

}  // namespace attend
