// A block of threads owns queries: dq stays in registers, keys pass by.
#pragma once

#include "backward_work.cuh"

namespace attend::cuda {

template <class T, int kD>
struct SharedOfQueries {
  static constexpr int kBlock = kBackwardQueryBlock, kTile = backward_tiles(kD).keys;
  using Keys = SharedTile<T, kTile, kD>;
  static constexpr int kFit = (kBackwardSharedBytes - 2 * kBlock * kD * 2 - 1024) / Keys::kBytes;
  static constexpr int kStagesK = kFit < 8 ? (kFit + 1) / 2 : 4, kStagesV = kFit < 8 ? kFit / 2 : 4;
  // Keys and values come and go together, if there are as many places for both.
  static constexpr bool kPairs = kStagesK == kStagesV;

  SharedTile<T, kBlock, kD> q, dout;  // in the end q is dq
  Ring<Keys, kStagesK> k;
  Ring<Keys, kStagesV> v;
  Barrier full;  // q and dout
  Vote vote;
  Block block;

  __device__ __forceinline__ void init() {
    full.init(1);
    k.init(kConsumers * 4);
    v.init(kConsumers * 4);
    vote.init(kConsumers * 4);
  }
};

template <class T, int kD>
struct QueriesProducer {
  using S = SharedOfQueries<T, kD>;
  const BackwardParameters& p;
  S& shared;
  Place<S::kStagesK> k{};
  Place<S::kStagesV> v{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    const Block& block = shared.block;
    const int first = block.positions.q_begin + block.row, batch = block.positions.tensor_batch;
    shared.full.arrive_and_expect(2 * shared.q.kBytes);
    load_tile(shared.q, p.q_block, first, block.head, batch, shared.full);
    load_tile(shared.dout, p.dout_block, first, block.head, batch, shared.full);
    load_keys(tiles);
    if (!shared.vote.result()) return;
    load_keys(tiles);
    load_keys(tiles);
  }
  __device__ __forceinline__ void load_keys(KeyRange tiles) {
    const int head = shared.block.head / p.group, batch = shared.block.positions.tensor_batch;
    for (int j = tiles.begin; j < tiles.end; ++j) {
      const int first = shared.block.positions.k_begin + j * S::kTile;
      shared.k.wait_until_empty(k);
      if constexpr (S::kPairs) {
        Barrier& full = shared.k.full[k.stage];
        full.arrive_and_expect(2 * S::Keys::kBytes);
        load_tile(shared.k.tiles[k.stage], p.k, first, head, batch, full);
        load_tile(shared.v.tiles[k.stage], p.v, first, head, batch, full);
        k.advance();
      } else {
        shared.k.load(k, p.k, first, head, batch);
        shared.v.wait_until_empty(v);
        shared.v.load(v, p.v, first, head, batch);
      }
    }
  }
};

template <class T, int kD>
struct QueriesConsumer {
  using S = SharedOfQueries<T, kD>;
  using Keys = typename S::Keys;
  static constexpr int kTile = S::kTile;
  // A tile's part of dq is added while the weights of the next are made. If there is no room for
  // three tiles of keys, it is the first product of the next tile: then its keys leave early.
  static constexpr bool kLater = S::kPairs;

  const BackwardParameters& p;
  S& shared;
  const int warpgroup;
  const KeyRange whole;  // first keys of tiles that all of its queries see whole
  const Block block;
  float lse[2], delta[2];
  const Turns<kConsumers> turns{!kLater, kTurn, warpgroup};

  RegisterTile<kTile> s, dp;
  Operand<T, kTile> ds;
  RegisterTile<kD> dq;
  Place<S::kStagesK> k_place{}, previous{};
  Place<S::kStagesV> v_place{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    dq.fill(0);
    turns.begin();
    shared.full.wait(0);
    if (tiles.begin < tiles.end) {
      if (!kLater && warpgroup != 0) go_through<!kLater>(tiles);
      else go_through<false>(tiles);
      begin_products();
      add_product(dq, ds, shared.k.tiles[previous.stage]);  // 1 reversed
      commit_products();
      wait_for_products<0>();
      dq.pin();
      shared.k.release(previous);
    }
    shared.vote.say(all_finite(dq));
    if (shared.vote.result()) run_carefully(tiles);
  }

  // Of its queries in the block. At d 256 made anew for each product, or else the compiler keeps 32
  // addresses of operands over the loop, in registers that are not there.
  __device__ __forceinline__ int first() const {
    return (kLater ? warpgroup : uniform(warpgroup)) * kWarpgroupRows;
  }
  // Those of the keys at k_place.
  __device__ __forceinline__ const Keys& wait_for_values() {
    if constexpr (S::kPairs) return shared.v.tiles[k_place.stage];
    else return shared.v.wait(v_place);
  }
  __device__ __forceinline__ void release_values() {
    if constexpr (!S::kPairs) shared.v.release(v_place);
  }

  __device__ __forceinline__ void make_scores() {
    product_of_rows(s, shared.q, first(), shared.k.wait(k_place));  // 1 scores
    commit_products();
  }

  // At d 256 there is one place for values, and it is filled again while nobody multiplies by them:
  // the first warpgroup does so last, the second one before its scores.
  template <bool kValuesFirst>
  __device__ __forceinline__ void go_through(KeyRange tiles) {
    step<true, kValuesFirst>(tiles.begin * kTile);
    for (int j = tiles.begin + 1; j < tiles.end; ++j) step<false, kValuesFirst>(j * kTile);
  }

  template <bool kFirst, bool kValuesFirst>
  __device__ __forceinline__ void step(int j) {
    const float scale_log2 = p.scale * kLog2E;
    if (kLater) shared.k.wait(k_place);
    turns.wait();
    begin_products();
    if (!kLater && !kFirst) {
      add_product(dq, ds, shared.k.tiles[previous.stage]);  // 1 reversed
      commit_products();
    }
    if (!kValuesFirst) make_scores();
    product_of_rows(dp, shared.dout, first(), wait_for_values());  // 4 reversed
    commit_products();
    if (kValuesFirst) make_scores();
    turns.pass();
    if (kLater) {
      if (!kFirst) add_product(dq, ds, shared.k.tiles[previous.stage]);  // 1 reversed
      commit_products();
    }
    wait_for_products<2>();
    if (!kLater) {
      if (!kFirst) {
        dq.pin();
        shared.k.release(previous);
      }
      wait_for_products<1>();
    }
    if (kValuesFirst) {
      dp.pin();
      release_values();
      wait_for_products<0>();
    }
    s.pin();
#pragma unroll
    for (int n = 0; n < s.kCount; ++n)  // 3 softmax, again
      s.x[n] = exp2_fast(fmaf(s.x[n], scale_log2, -lse[s.row(n)]));
    if (!kValuesFirst) {
      wait_for_products<kLater ? 1 : 0>();
      dp.pin();
      release_values();
    }
#pragma unroll
    for (int n = 0; n < s.kCount; ++n)  // 3 reversed
      dp.x[n] = s.x[n] * (dp.x[n] - delta[s.row(n)]);
    if (j < whole.begin || j >= whole.end) hide(dp, j, 0);  // 2 reversed
    if (kLater) {
      wait_for_products<0>();
      dq.pin();
      if (!kFirst) shared.k.release(previous);
    }
    k_place.advance();
    ds.round(dp);
  }

  // The same bits, except that keys which are not finite reach the rows alone that see them, and
  // that rows whose scores are far from 0 have weights.
  __device__ __forceinline__ void run_carefully(KeyRange tiles) {
    float reference[2], rest[2];
    find_references(tiles, reference, rest);
    dq.fill(0);
    for (int j = tiles.begin; j < tiles.end; ++j) {
      Keys& k = shared.k.wait(k_place);
      begin_products();
      product_of_rows(s, shared.q, first(), k);  // 1
      commit_products();
      wait_for_products<0>();
      s.pin();
      begin_products();  // apart: together ptxas would serialise all products of the kernel (C7514)
      product_of_rows(dp, shared.dout, first(), wait_for_values());  // 4
      commit_products();
      wait_for_products<0>();
      dp.pin();
      release_values();
#pragma unroll
      for (int n = 0; n < s.kCount; ++n) {
        const int r = s.row(n);
        const bool nothing = s.x[n] == kMinusInfinity;
        s.x[n] = exp2_fast(fmaf(s.x[n] - reference[r], p.scale * kLog2E, -rest[r]));  // 3
        dp.x[n] = nothing ? kNothing : s.x[n] * (dp.x[n] - delta[r]);
      }
      hide(dp, j * kTile, 0);  // 2 reversed
      ds.round(dp);
      add_not_finite(dq, ds, k, [&](int r, int key) {
        return shared.block.positions.sees(row() + 8 * r, j * kTile + key);
      });
      sync_threads(kConsumersMeet, kConsumerThreads);
      clear_not_finite(k, warpgroup * kWarpgroup + thread_of_warpgroup(), kConsumerThreads);
      sync_threads(kConsumersMeet, kConsumerThreads);
      begin_products();
      add_product(dq, ds, k);  // 1 reversed
      commit_products();
      wait_for_products<0>();
      dq.pin();
      shared.k.release(k_place);
    }
  }

  // lse of a row far from 0 has too few digits: its reference score and sum are made again, and
  // left for the keys' half.
  __device__ __forceinline__ void find_references(KeyRange tiles, float (&reference)[2],
                                                  float (&rest)[2]) {
    Softmax<T> softmax{p.scale * kLog2E};
    float rescale[2];
    for (int j = tiles.begin; j < tiles.end; ++j) {
      begin_products();
      product_of_rows(s, shared.q, first(), shared.k.wait(k_place));
      commit_products();
      wait_for_products<0>();
      s.pin();
      wait_for_values();
      release_values();
      shared.k.release(k_place);
      hide(s, j * kTile, kMinusInfinity);
      softmax.step(s, rescale);
    }
    const long long at = Positions::workspace_row(p, shared.block.batch, shared.block.head) + row();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(softmax.sum[r]);
      reference[r] = p.reference[at + 8 * r];
      rest[r] = p.rest[at + 8 * r];
      if (reference[r] == reference[r]) continue;
      reference[r] = softmax.reference[r];
      rest[r] = log2f(sum) - kLift<T>;
    }
    __syncwarp();  // all have read
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row() + 8 * r >= shared.block.positions.q_length) continue;
      p.reference[at + 8 * r] = reference[r];
      p.rest[at + 8 * r] = rest[r];
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void hide(RegisterTile<kColumns>& x, int j, float value) const {
    hide_others<0>(x, block.positions.seen_by(row()), j, true, value);
    hide_others<1>(x, block.positions.seen_by(row() + 8), j, true, value);
  }
  // The thread's first.
  __device__ __forceinline__ int row() const {
    return block.row + warpgroup * kWarpgroupRows + own_row();
  }
};

template <class T, int kD>
__device__ __forceinline__ void backward_queries(const BackwardParameters& p) {
  using S = SharedOfQueries<T, kD>;
  const int blocks = (p.q_length + S::kBlock - 1) / S::kBlock, any_head = blockIdx.x / blocks;
  const int batch = any_head / p.heads, head = any_head % p.heads;
  const int row =
      (blocks - 1 - blockIdx.x % blocks) * S::kBlock;  // causal: the last see the most keys
  const Positions positions(p, batch);
  if (row >= positions.q_length) return;
  S& shared = begin_kernel<S>({positions, batch, head, row});
  const KeyRange tiles = positions.key_tiles(row, S::kBlock, S::kTile);
  const int warpgroup = own_warpgroup();
  if (warpgroup < 0) {
    give_registers<24>();
    if (threadIdx.x == 0) QueriesProducer<T, kD>{p, shared}.run(tiles);
  } else {
    take_registers<240>();
    const int first = warpgroup * kWarpgroupRows;
    const long long at = Positions::workspace_row(p, batch, head) + row + first + own_row();
    QueriesConsumer<T, kD> consumer{
        p,
        shared,
        warpgroup,
        positions.whole_from_keys(S::kTile, row + first, kWarpgroupRows),
        {positions, batch, head, row},
        {p.lse_log2[at], p.lse_log2[at + 8]},
        {p.delta[at], p.delta[at + 8]}};
    consumer.run(tiles);
    const Positions& stored = shared.block.positions;
    store_result(consumer.dq, p.scale, shared.q, first, shared.block,
                 {p.dq, p.dq_rows, p.d, stored.q_length, stored.q_begin, p.q_starts != nullptr});
    if (thread_of_warpgroup() == 0) wait_for_stores();
  }
}

}  // namespace attend::cuda
