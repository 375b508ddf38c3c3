// A block of threads owns keys: dk and dv stay in registers, queries pass by.
#pragma once

#include "backward_work.cuh"

namespace attend::cuda {

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

}  // namespace attend::cuda
