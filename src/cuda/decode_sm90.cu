// Few queries against many keys on Hopper (sm_90a), bf16 and f16.
//
//   attend_decode_parts   an item is a chunk of 256 keys of one key head: the queries of all heads
//                         of its group are the rows of one product, so each key is read once.
//                         Memory is the limit: two blocks of threads an SM hide each other's
//                         waiting
//   attend_decode_join    the chunks of a row, joined in ascending order in 16 runs
//
// Chunks lie at fixed places: a row's bits depend on its own keys alone.
//
// Rows of V that no query of the tile sees are overwritten with zeros (0 * NaN is NaN). With one
// query a head these are all that are hidden; with several, NaN in a value that a later query sees
// reaches the earlier ones of the same chunk.
#include "decode_sm90.h"
#include "key_range.h"
#include "pipeline.cuh"
#include "softmax.cuh"

namespace attend::cuda {
namespace {

constexpr int kTile = kDecodeTile;
constexpr int kThreads = kWarpgroup + 32;  // the last warp copies

template <class T, int kD>
struct Shared {
  static constexpr int kStages = decode_stages(kD);
  Ring<SharedTile<T, kDecodeRows, kD>, 2> q;
  Ring<SharedTile<T, kTile, kD>, kStages> k, v;
};

template <class T, int kD>
inline constexpr bool kFits = sizeof(Shared<T, kD>) <= decode_shared_bytes(kD);

struct Chunk {
  int batch, kv_head, index;
  int k_length, offset;
  KeyRange seen;  // of its keys, by some query

  __device__ __forceinline__ Chunk(const DecodeParameters& p, int item) {
    index = item % p.chunks;
    kv_head = item / p.chunks % (p.heads / p.group);
    batch = item / p.chunks / (p.heads / p.group);
    k_length = p.key_lengths == nullptr ? p.k_length : p.key_lengths[batch];
    offset = p.offset_given != 0 ? p.offset : k_length - p.q_length;
    seen = {max(index * kDecodeChunk, seen_by(p, 0).begin),
            min((index + 1) * kDecodeChunk, seen_by(p, p.q_length - 1).end)};
  }
  __device__ __forceinline__ KeyRange seen_by(const DecodeParameters& p, int i) const {
    return {max(0, i + offset - p.left), min(k_length, i + offset + p.right + 1)};
  }
  __device__ __forceinline__ bool is_empty() const { return seen.begin >= seen.end; }
  // Of a tile, from some query.
  __device__ __forceinline__ bool hides_some(const DecodeParameters& p, int tile) const {
    return seen_by(p, p.q_length - 1).begin > tile * kTile ||
           seen_by(p, 0).end < (tile + 1) * kTile;
  }
  __device__ __forceinline__ KeyRange tiles() const {
    return {seen.begin / kTile, (seen.end + kTile - 1) / kTile};
  }
};

__device__ __forceinline__ int items_of(const DecodeParameters& p) {
  return p.batch * (p.heads / p.group) * p.chunks;
}

template <class T, int kD>
__device__ __forceinline__ void load_chunks(const DecodeParameters& p, Shared<T, kD>& shared) {
  Place<2> q;
  Place<Shared<T, kD>::kStages> k, v;
  for (int item = blockIdx.x; item < items_of(p); item += gridDim.x) {
    const Chunk chunk(p, item);
    if (chunk.is_empty()) continue;
    shared.q.wait_until_empty(q);
    shared.q.full[q.stage].arrive_and_expect(p.q_length * p.group * kD * 2);
    load_tile(shared.q.tiles[q.stage], p.q, 0, chunk.kv_head * p.group, chunk.batch,
              shared.q.full[q.stage]);
    q.advance();
    for (int j = chunk.tiles().begin; j < chunk.tiles().end; ++j) {
      shared.k.wait_until_empty(k);
      shared.k.load(k, p.k, j * kTile, chunk.kv_head, chunk.batch);
      shared.v.wait_until_empty(v);
      shared.v.load(v, p.v, j * kTile, chunk.kv_head, chunk.batch);
    }
  }
}

template <class T, int kD>
struct Consumer {
  using Keys = SharedTile<T, kTile, kD>;
  const DecodeParameters& p;
  Shared<T, kD>& shared;
  Place<2> q_place{};
  Place<Shared<T, kD>::kStages> k_place{}, v_place{};

  RegisterTile<kTile> s;
  Operand<T, kTile> weights;
  RegisterTile<kD> o;

  __device__ __forceinline__ static int own_row() {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ static int own_column() { return threadIdx.x % 4 * 2; }

  __device__ __forceinline__ void run(const Chunk& chunk) {
    Softmax<T> softmax{p.scale * kLog2E};
    float rescale[2];
    o.fill(0);
    if (!chunk.is_empty()) {
      const auto& q = shared.q.wait(q_place);
      for (int j = chunk.tiles().begin; j < chunk.tiles().end; ++j) {
        const Keys& k = shared.k.wait(k_place);
        begin_products();
        product_of_rows(s, q, 0, k);  // 1 scores
        commit_products();
        wait_for_products<0>();
        s.pin();
        shared.k.release(k_place);
        if (chunk.hides_some(p, j)) mask(chunk, j);  // 2 mask
        softmax.step(s, rescale);                    // 3 softmax
        if (__any_sync(~0U, rescale[0] != 1 || rescale[1] != 1)) o.multiply_rows(rescale);
        weights.round(s);
        Keys& v = shared.v.wait(v_place);
        clear_hidden(chunk, j, v);
        begin_products();
        add_product(o, weights, v);  // 4 values
        commit_products();
        wait_for_products<0>();
        o.pin();
        shared.v.release(v_place);
      }
      shared.q.release(q_place);
    }
    store(chunk, softmax);
  }

  __device__ __forceinline__ void mask(const Chunk& chunk, int tile) {
    const int origin = tile * kTile + own_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange seen = chunk.seen_by(p, (own_row() + 8 * r) % p.q_length);
#pragma unroll
      for (int n = 0; n < s.kCount; ++n)
        if (s.row(n) == r &&
            (s.column(n) < seen.begin - origin || s.column(n) >= seen.end - origin))
          s.x[n] = kMinusInfinity;
    }
  }

  __device__ __forceinline__ void clear_hidden(const Chunk& chunk, int tile, Keys& v) {
    const int begin = chunk.seen.begin - tile * kTile, end = chunk.seen.end - tile * kTile;
    if (begin <= 0 && end >= kTile) return;
    constexpr int kPieces = kD / 8;
    for (int n = threadIdx.x; n < kTile * kPieces; n += kWarpgroup)
      if (n / kPieces < begin || n / kPieces >= end)
        *reinterpret_cast<uint4*>(v.at(n / kPieces, n % kPieces * 8)) = uint4{0, 0, 0, 0};
    publish_shared();
    sync_threads(1, kWarpgroup);
  }

  __device__ __forceinline__ void store(const Chunk& chunk, const Softmax<T>& softmax) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(softmax.sum[r]);
      const int row = own_row() + 8 * r, head = chunk.kv_head * p.group + row / p.q_length;
      if (row >= p.group * p.q_length) continue;
      const long long at =
          ((static_cast<long long>(chunk.batch) * p.heads + head) * p.q_length + row % p.q_length) *
              p.chunks +
          chunk.index;
      if (threadIdx.x % 4 == 0)
        reinterpret_cast<float2*>(p.partial)[at] = float2{softmax.reference[r], sum};
      if (chunk.is_empty()) continue;
      float* out = p.partial_out + at * kD + own_column();
#pragma unroll
      for (int n = 0; n < o.kCount; n += 4)
        *reinterpret_cast<float2*>(out + o.column(n)) = float2{o.x[n + 2 * r], o.x[n + 2 * r + 1]};
    }
  }
};

template <class T, int kD>
__device__ __forceinline__ void decode_parts(const DecodeParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  static_assert(kFits<T, kD>);
  auto& shared = *reinterpret_cast<Shared<T, kD>*>(memory);
  if (threadIdx.x == 0) {
    shared.q.init(4);
    shared.k.init(4);
    shared.v.init(4);
    publish_shared();
  }
  __syncthreads();
  if (threadIdx.x >= kWarpgroup) {
    if (threadIdx.x == kWarpgroup) load_chunks(p, shared);
  } else {
    Consumer<T, kD> consumer{p, shared};
    for (int item = blockIdx.x; item < items_of(p); item += gridDim.x) consumer.run(Chunk(p, item));
  }
}

// ---- Joining -----------------------------------------------------------------------------------

constexpr int kRuns = 16;  // warps

// The sums of some chunks of one row, every 32nd feature a lane.
template <int kD>
struct Joined {
  float reference = kMinusInfinity, sum = 0, o[kD / 32] = {};

  __device__ __forceinline__ void add(float other, float other_sum, const float* other_o,
                                      float scale_log2) {
    const bool empty = other == kMinusInfinity;  // nothing was summed, nor stored
    const float top = fmaxf(reference, other);
    const float mine = reference == top ? 1 : exp2_fast((reference - top) * scale_log2);
    const float theirs = other == top ? 1 : exp2_fast((other - top) * scale_log2);
    reference = top;
    sum = fmaf(sum, mine, empty ? 0 : other_sum * theirs);
#pragma unroll
    for (int n = 0; n < kD / 32; ++n) o[n] = fmaf(o[n], mine, empty ? 0 : other_o[n] * theirs);
  }
};

template <class T, int kD>
__device__ __forceinline__ void decode_join(const DecodeParameters& p) {
  __shared__ float references[kRuns], sums[kRuns], outs[kRuns][kD];
  const long long row = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float scale_log2 = p.scale * kLog2E;
  const float2* partial = reinterpret_cast<const float2*>(p.partial) + row * p.chunks;
  const float* partial_out = p.partial_out + row * p.chunks * kD;
  Joined<kD> joined;
  const int each = (p.chunks + kRuns - 1) / kRuns;
#pragma unroll 8  // so that many loads are on their way; those of empty chunks are not used
  for (int c = warp * each; c < min(p.chunks, (warp + 1) * each); ++c) {
    float o[kD / 32];
    const float2 part = partial[c];
#pragma unroll
    for (int n = 0; n < kD / 32; ++n)
      o[n] = partial_out[static_cast<long long>(c) * kD + n * 32 + lane];
    joined.add(part.x, part.y, o, scale_log2);
  }
#pragma unroll
  for (int n = 0; n < kD / 32; ++n) outs[warp][n * 32 + lane] = joined.o[n];
  if (lane == 0) {
    references[warp] = joined.reference;
    sums[warp] = joined.sum;
  }
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kRuns; ++w) {
    float o[kD / 32];
#pragma unroll
    for (int n = 0; n < kD / 32; ++n) o[n] = outs[w][n * 32 + lane];
    joined.add(references[w], sums[w], o, scale_log2);
  }
  const int i = static_cast<int>(row % p.q_length);
  const long long head = row / p.q_length % p.heads, batch = row / p.q_length / p.heads;
  T* out = static_cast<T*>(p.out) + batch * p.out_batch + head * p.out_head + i * p.out_row;
  const float factor = joined.sum == 0 ? 0 : 1 / joined.sum;
#pragma unroll
  for (int n = 0; n < kD / 32; ++n) out[n * 32 + lane] = T(joined.o[n] * factor);
  if (lane == 0 && p.lse != nullptr)
    p.lse[batch * p.lse_batch + head * p.lse_head + i * p.lse_row] =
        joined.sum == 0 ? kMinusInfinity
                        : fmaf(joined.reference, p.scale, logf(joined.sum) - kLift<T> * kLn2);
}

}  // namespace
}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128.
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, ATTEND_D == 256 ? 1 : 2)
    attend_decode_parts(const __grid_constant__ attend::cuda::DecodeParameters p) {
  attend::cuda::decode_parts<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(32 * attend::cuda::kRuns)
    attend_decode_join(const __grid_constant__ attend::cuda::DecodeParameters p) {
  attend::cuda::decode_join<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
