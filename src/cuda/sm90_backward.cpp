// cuda.sm90.backward: bf16 and f16 on Hopper GPUs, by the copy engine and the matrix units.
#include "cuda/backward_sm90.h"

#include "cuda/rows.h"
#include "cuda/sm90.h"

#include <algorithm>

namespace attend {
namespace cuda {
namespace {

constexpr std::int64_t kPadding = 384;  // rows of the workspace: a multiple of all blocks and tiles

std::string declines(const BackwardProblem& p, const Machine&) { return sm90_declines(p); }

struct BackwardTensors {
  AlignedTensor q, k, v, out, dout, dq, dk, dv;

  Status prepare(const BackwardProblem& p, const BackwardCall& call,
                 Sm90Tensors& tensors) noexcept {
    ATTEND_TRY(tensors.queries(call.q, p.d, q));
    ATTEND_TRY(tensors.keys(call.k, p.d, k));
    ATTEND_TRY(tensors.keys(call.v, p.dv, v));
    ATTEND_TRY(tensors.queries(call.out, p.dv, out));
    ATTEND_TRY(tensors.queries(call.dout, p.dv, dout));
    ATTEND_TRY(tensors.query_result(p.dq ? call.dq : Strided{}, p.d, dq));
    ATTEND_TRY(tensors.key_result(p.dk ? call.dk : Strided{}, p.d, dk));
    return tensors.key_result(p.dv_gradient ? call.dv : Strided{}, p.dv, dv);
  }

  Status map(int size, BackwardParameters& a) const noexcept {
    const BackwardTiles tiles = backward_tiles(size);
    const int key_block = backward_key_block(size);
    ATTEND_TRY(q.map({.rows = tiles.queries}, a.q));
    ATTEND_TRY(k.map({.rows = tiles.keys}, a.k));
    ATTEND_TRY(v.map({.rows = tiles.keys}, a.v));
    ATTEND_TRY(dout.map({.rows = tiles.queries}, a.dout));
    ATTEND_TRY(q.map({.rows = kBackwardQueryBlock}, a.q_block));
    ATTEND_TRY(k.map({.rows = key_block}, a.k_block));
    ATTEND_TRY(v.map({.rows = key_block}, a.v_block));
    ATTEND_TRY(dout.map({.rows = kBackwardQueryBlock}, a.dout_block));
    ATTEND_TRY(dq.map({.rows = 64}, a.dq));
    ATTEND_TRY(dk.map({.rows = 64}, a.dk));
    ATTEND_TRY(dv.map({.rows = 64}, a.dv));
    a.out = out.rows();
    a.dout_rows = dout.rows();
    a.dq_rows = dq.rows();
    a.dk_rows = dk.rows();
    a.dv_rows = dv.rows();
    return {};
  }
};

void fill_in(const BackwardProblem& p, const BackwardCall& call, std::int64_t padded,
             BackwardParameters& a) noexcept {
  const Sm90Positions positions = sm90_positions(p, call);
  a.lse = {call.lse.data, call.lse.stride[0], call.lse.stride[1], call.lse.stride[2]};
  a.key_lengths = integers(call.key_lengths, p.key_lengths);
  a.q_starts = integers(call.cu_seqlens_q, p.packed_queries);
  a.k_starts = integers(call.cu_seqlens_k, p.keys == KeyAddressing::packed);
  a.batch = static_cast<int>(p.batch);
  a.heads = static_cast<int>(p.heads);
  a.group = static_cast<int>(p.group());
  a.q_length = static_cast<int>(p.q_length);
  a.k_length = static_cast<int>(p.k_length);
  a.padded = static_cast<int>(padded);
  a.left = positions.left;
  a.right = positions.right;
  a.offset = positions.offset;
  a.offset_given = positions.offset_given;
  a.d = static_cast<int>(p.d);
  a.value_d = static_cast<int>(p.dv);
  a.scale = static_cast<float>(p.scale);
}

// Rows of the workspace of a head.
std::int64_t padded_rows(const BackwardProblem& p, const BackwardCall& call) noexcept {
  if (!p.packed_queries) return blocks_of(p.q_length, kPadding) * kPadding;
  return blocks_of(call.packed_queries, 4) * 4 + 4 * (p.batch + 1) + kPadding;
}

// The three kernels. A block of threads has its place in the grid and no other; packed sequences go
// in so many at a time that each grid is small enough, and use the workspace again.
Status start(const BackwardProblem& p, int size, const BackwardParameters& of_all,
             StreamQueue& queue) noexcept {
  BackwardParameters a = of_all;
  const char* const module = sm90_module(Sm90Kernel::backward, p.type, size);
  const std::int64_t rows = p.packed_queries ? p.q_length : a.padded;
  const std::int64_t row_threads = p.heads * rows * (size / 8);
  const std::int64_t query_blocks = p.heads * blocks_of(p.q_length, kBackwardQueryBlock);
  const std::int64_t key_blocks = p.kv_heads * blocks_of(p.k_length, backward_key_block(size));
  const std::int64_t most = std::max({blocks_of(row_threads, 256), query_blocks, key_blocks});
  const std::int64_t at_once =
      p.packed_queries ? std::clamp<std::int64_t>(kMostBlocks / most, 1, p.batch) : p.batch;
  for (std::int64_t begin = 0; begin < p.batch; begin += at_once) {
    const std::int64_t count = std::min(at_once, p.batch - begin);
    a.batch = static_cast<int>(count);
    ATTEND_TRY(queue.start(
        {module, "attend_backward_rows", blocks_of(count * row_threads, 256), 256}, &a));
    ATTEND_TRY(queue.start(
        {module, "attend_backward_queries", count * query_blocks, 384, kBackwardSharedBytes}, &a));
    ATTEND_TRY(queue.start(
        {module, "attend_backward_keys", count * key_blocks, 384, kBackwardSharedBytes}, &a));
    for (const int** list : {&a.q_starts, &a.k_starts, &a.key_lengths})
      if (*list != nullptr) *list += count;
  }
  return {};
}

Status launch(const BackwardProblem& p, const BackwardCall& given, Queue& into) noexcept {
  const std::int64_t padded = padded_rows(p, given);
  if (p.k_length == 0 || p.batch * p.heads * p.q_length == 0 || has_too_many_rows(p, given) ||
      padded >= kMostPackedRows)
    return launch_portable_backward(p, given, into);
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const InContext in(queue->gpu());  // of which tensor maps are made
  const int size = kernel_size(p);
  Loans loans(*queue);
  BackwardCall call = given;
  ATTEND_TRY(clamp_integers(p, call, Integers::i32, kFarthestOffset, loans, *queue));
  BackwardParameters a{};
  Sm90Tensors tensors(p, call, loans, *queue);
  BackwardTensors all;
  ATTEND_TRY(all.prepare(p, call, tensors));
  ATTEND_TRY(all.map(size, a));
  fill_in(p, call, padded, a);
  const std::int64_t numbers = (p.packed_queries ? 1 : p.batch) * p.heads * padded;
  float* const workspace = loans.take<float>(4 * numbers);
  if (loans.failed()) return loans.status();
  a.lse_log2 = workspace;
  a.delta = workspace + numbers;
  a.reference = workspace + 2 * numbers;
  a.rest = workspace + 3 * numbers;
  ATTEND_TRY(start(p, size, a, *queue));
  ATTEND_TRY(tensors.finish(all.dq));
  ATTEND_TRY(tensors.finish(all.dk));
  return tensors.finish(all.dv);
}

}  // namespace
}  // namespace cuda

extern constinit const Kernel<Backward> kCudaSm90Backward{
    .name = "cuda.sm90.backward",
    .only_if_forced = false,
    .takes = Features{Feature::device_memory, Feature::bf16, Feature::f16, Feature::grouped_heads,
                      Feature::own_value_size, Feature::packed_queries, Feature::packed_keys,
                      Feature::key_lengths, Feature::causal, Feature::window, Feature::query_offset,
                      Feature::key_offset, Feature::dq, Feature::dk, Feature::dv},
    .declines = cuda::declines,
    .launch = cuda::launch,
};

}  // namespace attend
