// A block of threads owns queries: dq stays in registers, keys pass by.
#pragma once

#include "backward_work.cuh"

namespace attend::cuda {

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

}  // namespace attend::cuda
