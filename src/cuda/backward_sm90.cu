// Attention backward on Hopper (sm_90a), bf16 and f16, d 64 and 128: deterministic, without
// atomics, with two numbers a row as workspace.
//
//   attend_backward_rows      delta = dout . out of each row
//   attend_backward_keys      a block of threads owns keys: dk and dv stay in registers
//   attend_backward_queries   a block of threads owns queries: dq stays in registers
//
// Scores and dp are thus made twice: seven products instead of five, but no sum is shared between
// blocks of threads, and nothing depends on their order. In the second kernel scores are transposed
// (rows are keys), so that P^T and dS^T are operands where they are; in the third dS is.
//
//   one thread copies; two warpgroups compute, 64 rows each:
//     matrix units   S_j | dP_j | dK += dS_j-1^T Q_j-1 | dV += P_j^T dO_j |  S_j+1 ...
//     threads            |  P_j                        |  dS_j
//
// Hidden weights and their gradients are selected to 0; NaN in a row of q or dout still reaches
// every key of its tile (0 * NaN).
#include "backward_sm90.h"
#include "forward_work.cuh"
#include "pipeline.cuh"
#include "softmax.cuh"

namespace attend::cuda {
namespace {

constexpr int kBlock = kBackwardBlock, kConsumers = kBlock / kWarpgroupRows;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;

// Positions of one batch element: as Item, without rows.
struct Positions {
  int k_length, offset, left, right;

  __device__ __forceinline__ Positions(const BackwardParameters& p, int batch)
      : left(p.left), right(p.right) {
    k_length = p.key_lengths == nullptr ? p.k_length : p.key_lengths[batch];
    offset = p.offset_given != 0 ? p.offset : k_length - p.q_length;
  }
  // Keys that query i sees, and queries that see key j.
  __device__ __forceinline__ KeyRange seen_by(int i) const {
    return {i + offset - left, min(k_length, i + offset + right + 1)};
  }
  __device__ __forceinline__ KeyRange that_see(int j) const {
    return {j < k_length ? j - offset - right : 2 * kNoLimit, j - offset + left + 1};
  }
  __device__ __forceinline__ bool sees(int i, int j) const {
    return j >= seen_by(i).begin && j < seen_by(i).end;
  }
  // Whether each of so many queries sees each of so many keys.
  __device__ __forceinline__ bool all_see(int i, int queries, int j, int keys) const {
    return sees(i, j + keys - 1) && sees(i + queries - 1, j);
  }
  // Tiles of keys that queries [i, i + rows) see, and of queries that see keys [j, j + rows).
  __device__ __forceinline__ KeyRange key_tiles(int i, int rows, int q_length, int tile) const {
    const int last = min(i + rows, q_length) - 1;
    const int begin = max(0, seen_by(i).begin), end = seen_by(last).end;
    if (end <= begin) return {0, 0};
    return {begin / tile, (end + tile - 1) / tile};
  }
  __device__ __forceinline__ KeyRange query_tiles(int j, int rows, int q_length, int tile) const {
    const int last = min(j + rows, k_length) - 1;
    const int begin = max(0, that_see(j).begin), end = min(q_length, that_see(last).end);
    if (last < j || end <= begin) return {0, 0};
    return {begin / tile, (end + tile - 1) / tile};
  }
};

template <class T, int kD, int kTile>
struct alignas(1024) Pair {
  SharedTile<T, kTile, kD> a, b;        // q and dout, or k and v
  float lse_log2[kTile], delta[kTile];  // of q
};

template <class T, int kD, int kTile_>
struct Shared {
  static constexpr int kTile = kTile_;
  using Tiles = Pair<T, kD, kTile>;
  static constexpr int kFit = (kBackwardSharedBytes - 2 * kBlock * kD * 2 - 2048) / sizeof(Tiles);
  static constexpr int kStages = kFit < 4 ? kFit : 4;

  SharedTile<T, kBlock, kD> a, b;  // k and v, or q and dout; in the end the results
  Ring<Tiles, kStages> ring;
  Barrier full;
};
template <class T, int kD>
using SharedOfKeys = Shared<T, kD, backward_tiles(kD).queries>;
template <class T, int kD>
using SharedOfQueries = Shared<T, kD, backward_tiles(kD).keys>;

__device__ __forceinline__ int thread_of_warpgroup() { return threadIdx.x % kWarpgroup; }
__device__ __forceinline__ int own_row() {
  return thread_of_warpgroup() / 32 * 16 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int own_column() { return threadIdx.x % 4 * 2; }

// Selects 0 for the columns of row kRow outside of a range, of a tile that begins at `origin`.
template <int kRow, int kColumns>
__device__ __forceinline__ void hide_others(RegisterTile<kColumns>& x, KeyRange seen, int origin,
                                            bool ends) {
  const int begin = seen.begin - origin - own_column(), end = seen.end - origin - own_column();
#pragma unroll
  for (int n = 0; n < x.kCount; ++n)
    if (x.row(n) == kRow && x.column(n) < begin) x.x[n] = 0;
  if (!ends) return;
#pragma unroll
  for (int n = 0; n < x.kCount; ++n)
    if (x.row(n) == kRow && x.column(n) >= end) x.x[n] = 0;
}

template <int kCount>
__device__ __forceinline__ void load_numbers(float* to, const float* from, Barrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "n"(kCount * 4), "r"(shared_address(&full))
      : "memory");
}

template <class S>
__device__ __forceinline__ S& begin_kernel() {
  extern __shared__ __align__(1024) unsigned char memory[];
  static_assert(sizeof(S) <= kBackwardSharedBytes);
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.full.init(1);
    shared.ring.init(kConsumers * 4);
    publish_shared();
  }
  __syncthreads();
  return shared;
}

// Rounds 64 rows of results into the place of the warpgroup's own operand, and stores them.
template <class T, int kD>
__device__ __forceinline__ void store_result(RegisterTile<kD>& x, float factor,
                                             SharedTile<T, kBlock, kD>& place, int warpgroup,
                                             const CUtensorMap& map, int row, int length, int head,
                                             int batch) {
  const float both[2] = {factor, factor};
  x.multiply_rows(both);
  const int first = warpgroup * kWarpgroupRows;
  sync_threads(1 + warpgroup, kWarpgroup);  // its products with the operand are done
  store_rows(x, place, first + thread_of_warpgroup() / 32 * 16);
  publish_shared();
  sync_threads(1 + warpgroup, kWarpgroup);
  if (thread_of_warpgroup() == 0 && row + first < length)
    store_rows_of(place, first, map, row + first, head, batch);
}

// ---- Keys --------------------------------------------------------------------------------------

template <class S>
__device__ __forceinline__ void load_for_keys(const BackwardParameters& p, S& shared, int batch,
                                              int kv_head, int row, KeyRange tiles) {
  shared.full.arrive_and_expect(2 * shared.a.kBytes);
  load_tile(shared.a, p.k_block, row, kv_head, batch, shared.full);
  load_tile(shared.b, p.v_block, row, kv_head, batch, shared.full);
  Place<S::kStages> place;
  for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head) {
    const long long numbers = (static_cast<long long>(batch) * p.heads + head) * p.padded;
    for (int i = tiles.begin; i < tiles.end; ++i) {
      shared.ring.wait_until_empty(place);
      auto& pair = shared.ring.tiles[place.stage];
      Barrier& full = shared.ring.full[place.stage];
      full.arrive_and_expect(2 * pair.a.kBytes + 2 * S::kTile * 4);
      load_tile(pair.a, p.q, i * S::kTile, head, batch, full);
      load_tile(pair.b, p.dout, i * S::kTile, head, batch, full);
      load_numbers<S::kTile>(pair.lse_log2, p.lse_log2 + numbers + i * S::kTile, full);
      load_numbers<S::kTile>(pair.delta, p.delta + numbers + i * S::kTile, full);
      place.advance();
    }
  }
}

template <class T, int kD>
struct KeysConsumer {
  // A tile's part of dk is added while the weights of the next are made, if there are registers for
  // one more operand.
  using S = SharedOfKeys<T, kD>;
  static constexpr int kTile = S::kTile;
  static constexpr bool kLater = kD == 64;
  const BackwardParameters& p;
  S& shared;
  const Positions& positions;
  const int warpgroup, row;  // the first of its keys

  RegisterTile<kTile> s, dp;
  Operand<T, kTile> weights, ds;
  RegisterTile<kD> dk, dv;
  Place<S::kStages> place{}, previous{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    dk.fill(0);
    dv.fill(0);
    shared.full.wait(0);
    if (tiles.begin >= tiles.end) return;
    step<true>(tiles.begin * kTile);
    int i = tiles.begin + 1;
    for (int head = 0; head < p.group; ++head, i = tiles.begin)
      for (; i < tiles.end; ++i) step<false>(i * kTile);
    if (kLater) add_to_dk(ds, shared.ring.tiles[previous.stage]);
  }

  __device__ __forceinline__ void add_to_dk(const Operand<T, kTile>& x,
                                            const typename S::Tiles& pair) {
    begin_products();
    add_product(dk, x, pair.a);  // 1 reversed
    commit_products();
    wait_for_products<0>();
    dk.pin();
  }

  template <bool kFirst>
  __device__ __forceinline__ void step(int i) {
    const typename S::Tiles& pair = shared.ring.wait(place);
    const float scale_log2 = p.scale * kLog2E;
    begin_products();
    product_of_rows(s, shared.a, warpgroup * kWarpgroupRows, pair.a);  // 1 scores, transposed
    commit_products();
    product_of_rows(dp, shared.b, warpgroup * kWarpgroupRows, pair.b);  // 4 reversed
    commit_products();
    if (kLater && !kFirst) add_product(dk, ds, shared.ring.tiles[previous.stage].a);  // 1 reversed
    commit_products();
    wait_for_products<2>();
    s.pin();
    const bool partial = !positions.all_see(i, kTile, row, kWarpgroupRows);
#pragma unroll
    for (int n = 0; n < s.kCount; n += 4) {  // 3 softmax, again
      const float2 lse = numbers_of_column(pair.lse_log2, s.column(n));
      s.x[n] = exp2_fast(fmaf(s.x[n], scale_log2, -lse.x));
      s.x[n + 1] = exp2_fast(fmaf(s.x[n + 1], scale_log2, -lse.y));
      s.x[n + 2] = exp2_fast(fmaf(s.x[n + 2], scale_log2, -lse.x));
      s.x[n + 3] = exp2_fast(fmaf(s.x[n + 3], scale_log2, -lse.y));
    }
    if (partial) hide(s, i);  // 2 mask
    weights.round(s);
    begin_products();
    add_product(dv, weights, pair.b);  // 4 reversed
    commit_products();
    wait_for_products<2>();
    dp.pin();
#pragma unroll
    for (int n = 0; n < s.kCount; n += 4) {  // 3 reversed
      const float2 delta = numbers_of_column(pair.delta, s.column(n));
      dp.x[n] = s.x[n] * (dp.x[n] - delta.x);
      dp.x[n + 1] = s.x[n + 1] * (dp.x[n + 1] - delta.y);
      dp.x[n + 2] = s.x[n + 2] * (dp.x[n + 2] - delta.x);
      dp.x[n + 3] = s.x[n + 3] * (dp.x[n + 3] - delta.y);
    }
    if (partial) hide(dp, i);  // 2 reversed
    wait_for_products<0>();
    dk.pin();
    dv.pin();
    if (kLater) {
      if (!kFirst) shared.ring.release(previous);
      ds.round(dp);
      place.advance();
    } else {
      weights.round(dp);
      add_to_dk(weights, pair);
      shared.ring.release(place);
    }
  }

  __device__ __forceinline__ static float2 numbers_of_column(const float* numbers, int column) {
    return *reinterpret_cast<const float2*>(numbers + column + own_column());
  }
  __device__ __forceinline__ void hide(RegisterTile<kTile>& x, int i) const {
    hide_others<0>(x, positions.that_see(row + own_row()), i, p.left < kNoLimit);
    hide_others<1>(x, positions.that_see(row + own_row() + 8), i, p.left < kNoLimit);
  }
};

template <class T, int kD>
__device__ __forceinline__ void backward_keys(const BackwardParameters& p) {
  using S = SharedOfKeys<T, kD>;
  S& shared = begin_kernel<S>();
  const int blocks = (p.k_length + kBlock - 1) / kBlock, any_head = blockIdx.x / blocks;
  const int kv_heads = p.heads / p.group, batch = any_head / kv_heads;
  const int kv_head = any_head % kv_heads;
  const int row = blockIdx.x % blocks * kBlock;  // causal: the first are seen by the most queries
  const Positions positions(p, batch);
  const KeyRange tiles = positions.query_tiles(row, kBlock, p.q_length, S::kTile);
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  if (warpgroup < 0) {
    give_registers<24>();
    if (threadIdx.x == 0) load_for_keys(p, shared, batch, kv_head, row, tiles);
  } else {
    take_registers<240>();
    KeysConsumer<T, kD> consumer{p, shared, positions, warpgroup, row + warpgroup * kWarpgroupRows};
    consumer.run(tiles);
    store_result(consumer.dk, p.scale, shared.a, warpgroup, p.dk, row, p.k_length, kv_head, batch);
    store_result(consumer.dv, 1, shared.b, warpgroup, p.dv, row, p.k_length, kv_head, batch);
    if (thread_of_warpgroup() == 0) wait_for_stores();
  }
}

// ---- Queries -----------------------------------------------------------------------------------

template <class S>
__device__ __forceinline__ void load_for_queries(const BackwardParameters& p, S& shared, int batch,
                                                 int head, int row, KeyRange tiles) {
  shared.full.arrive_and_expect(2 * shared.a.kBytes);
  load_tile(shared.a, p.q_block, row, head, batch, shared.full);
  load_tile(shared.b, p.dout_block, row, head, batch, shared.full);
  Place<S::kStages> place;
  for (int j = tiles.begin; j < tiles.end; ++j) {
    shared.ring.wait_until_empty(place);
    auto& pair = shared.ring.tiles[place.stage];
    Barrier& full = shared.ring.full[place.stage];
    full.arrive_and_expect(2 * pair.a.kBytes);
    load_tile(pair.a, p.k, j * S::kTile, head / p.group, batch, full);
    load_tile(pair.b, p.v, j * S::kTile, head / p.group, batch, full);
    place.advance();
  }
}

template <class T, int kD>
struct QueriesConsumer {
  using S = SharedOfQueries<T, kD>;
  static constexpr int kTile = S::kTile;

  const BackwardParameters& p;
  S& shared;
  const Positions& positions;
  const int warpgroup, row;  // the first of its queries
  float lse[2], delta[2];

  RegisterTile<kTile> s, dp;
  Operand<T, kTile> ds;
  RegisterTile<kD> dq;
  Place<S::kStages> place{}, previous{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    dq.fill(0);
    shared.full.wait(0);
    if (tiles.begin >= tiles.end) return;
    step<true>(tiles.begin * kTile);
    for (int j = tiles.begin + 1; j < tiles.end; ++j) step<false>(j * kTile);
    begin_products();
    add_product(dq, ds, shared.ring.tiles[previous.stage].a);  // 1 reversed
    commit_products();
    wait_for_products<0>();
    dq.pin();
  }

  // The queries' gradients are added a tile later, while the weights are made.
  template <bool kFirst>
  __device__ __forceinline__ void step(int j) {
    const typename S::Tiles& pair = shared.ring.wait(place);
    const float scale_log2 = p.scale * kLog2E;
    begin_products();
    product_of_rows(s, shared.a, warpgroup * kWarpgroupRows, pair.a);  // 1 scores
    commit_products();
    product_of_rows(dp, shared.b, warpgroup * kWarpgroupRows, pair.b);  // 4 reversed
    commit_products();
    if (!kFirst) add_product(dq, ds, shared.ring.tiles[previous.stage].a);  // 1 reversed
    commit_products();
    wait_for_products<2>();
    s.pin();
#pragma unroll
    for (int n = 0; n < s.kCount; ++n)  // 3 softmax, again
      s.x[n] = exp2_fast(fmaf(s.x[n], scale_log2, -lse[s.row(n)]));
    wait_for_products<1>();
    dp.pin();
#pragma unroll
    for (int n = 0; n < s.kCount; ++n)  // 3 reversed
      dp.x[n] = s.x[n] * (dp.x[n] - delta[s.row(n)]);
    if (!positions.all_see(row, kWarpgroupRows, j, kTile)) {  // 2 reversed
      hide_others<0>(dp, positions.seen_by(row + own_row()), j, true);
      hide_others<1>(dp, positions.seen_by(row + own_row() + 8), j, true);
    }
    wait_for_products<0>();
    dq.pin();
    if (!kFirst) shared.ring.release(previous);
    place.advance();
    ds.round(dp);
  }
};

template <class T, int kD>
__device__ __forceinline__ void backward_queries(const BackwardParameters& p) {
  using S = SharedOfQueries<T, kD>;
  S& shared = begin_kernel<S>();
  const int blocks = (p.q_length + kBlock - 1) / kBlock, any_head = blockIdx.x / blocks;
  const int batch = any_head / p.heads, head = any_head % p.heads;
  const int row =
      (blocks - 1 - blockIdx.x % blocks) * kBlock;  // causal: the last see the most keys
  const Positions positions(p, batch);
  const KeyRange tiles = positions.key_tiles(row, kBlock, p.q_length, S::kTile);
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  if (warpgroup < 0) {
    give_registers<24>();
    if (threadIdx.x == 0) load_for_queries(p, shared, batch, head, row, tiles);
  } else {
    take_registers<240>();
    const int first = row + warpgroup * kWarpgroupRows;
    const long long at =
        (static_cast<long long>(batch) * p.heads + head) * p.padded + first + own_row();
    QueriesConsumer<T, kD> consumer{p,
                                    shared,
                                    positions,
                                    warpgroup,
                                    first,
                                    {p.lse_log2[at], p.lse_log2[at + 8]},
                                    {p.delta[at], p.delta[at + 8]}};
    consumer.run(tiles);
    store_result(consumer.dq, p.scale, shared.a, warpgroup, p.dq, row, p.q_length, head, batch);
    if (thread_of_warpgroup() == 0) wait_for_stores();
  }
}

// ---- Rows --------------------------------------------------------------------------------------

// 16 bytes a thread.
template <class T, int kD>
__device__ __forceinline__ void backward_rows(const BackwardParameters& p) {
  constexpr int kEach = 8, kRowThreads = kD / kEach;
  const long long index =
      (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / kRowThreads;
  const int part = threadIdx.x % kRowThreads;
  const long long rows = static_cast<long long>(p.batch) * p.heads * p.padded;
  const long long any_head = min(index, rows - 1) / p.padded;
  const int i = static_cast<int>(min(index, rows - 1) % p.padded);
  const long long batch = any_head / p.heads, head = any_head % p.heads;
  float delta = 0, lse = kMinusInfinity;
  if (i < p.q_length) {
    const uint4 out =
        *reinterpret_cast<const uint4*>(static_cast<const T*>(p.out) + batch * p.out_batch +
                                        head * p.out_head + i * p.out_row + part * kEach);
    const uint4 dout =
        *reinterpret_cast<const uint4*>(static_cast<const T*>(p.dout_rows) + batch * p.dout_batch +
                                        head * p.dout_head + i * p.dout_row + part * kEach);
#pragma unroll
    for (int n = 0; n < kEach; ++n)
      delta = fmaf(static_cast<float>(reinterpret_cast<const T*>(&out)[n]),
                   static_cast<float>(reinterpret_cast<const T*>(&dout)[n]), delta);
    if (part == 0) lse = p.lse[batch * p.lse_batch + head * p.lse_head + i * p.lse_row];
  }
#pragma unroll
  for (int other = kRowThreads / 2; other > 0; other /= 2)
    delta += __shfl_xor_sync(~0U, delta, other);
  if (part != 0 || index >= rows) return;
  p.delta[index] = delta;
  p.lse_log2[index] = lse == kMinusInfinity ? -kMinusInfinity : lse * kLog2E;
}

}  // namespace
}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128.
extern "C" __global__ void __launch_bounds__(256)
    attend_backward_rows(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_rows<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 1)
    attend_backward_keys(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_keys<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 1)
    attend_backward_queries(const __grid_constant__ attend::cuda::BackwardParameters p) {
  attend::cuda::backward_queries<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
