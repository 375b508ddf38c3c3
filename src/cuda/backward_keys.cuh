// A block of threads owns keys: dk and dv stay in registers, queries pass by.
#pragma once

#include <type_traits>

#include "backward_work.cuh"

namespace attend::cuda {

// A tile of queries or of their dout, and a number of each row.
template <class T, int kD, int kTile>
struct alignas(1024) Numbered {
  static constexpr int kBytes = SharedTile<T, kTile, kD>::kBytes + kTile * 4;
  SharedTile<T, kTile, kD> tile;
  float numbers[kTile];  // with q: lse_log2; with dout: delta
};

template <class T, int kD>
struct SharedOfKeys {
  static constexpr int kBlock = backward_key_block(kD), kTile = backward_tiles(kD).queries;
  using Queries = Numbered<T, kD, kTile>;
  static constexpr int kFit =
      (kBackwardSharedBytes - 2 * kBlock * kD * 2 - 1024) / (2 * static_cast<int>(sizeof(Queries)));
  static constexpr int kStages = kFit < 4 ? kFit : 4;

  SharedTile<T, kBlock, kD> k, v;  // in the end dk and dv
  Ring<Queries, kStages> q, dout;  // which come and go together, by q's barriers
  Barrier full;                    // k and v
  Vote vote;
  Block block;

  __device__ __forceinline__ void init() {
    full.init(1);
    q.init(kConsumers * 4);
    vote.init(kConsumers * 4);
  }
};

template <class T, int kD>
struct KeysProducer {
  using S = SharedOfKeys<T, kD>;
  const BackwardParameters& p;
  S& shared;
  Place<S::kStages> place{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    const Block& block = shared.block;
    const int first = block.positions.k_begin + block.row, batch = block.positions.tensor_batch;
    shared.full.arrive_and_expect(2 * shared.k.kBytes);
    load_tile(shared.k, p.k_block, first, block.head, batch, shared.full);
    load_tile(shared.v, p.v_block, first, block.head, batch, shared.full);
    load_queries(tiles);
    if (shared.vote.result()) load_queries(tiles);
  }
  __device__ __forceinline__ void load_queries(KeyRange tiles) {
    const int first = shared.block.head * p.group;
    for (int head = first; head < first + p.group; ++head) {
      const long long numbers = Positions::workspace_row(p, shared.block.batch, head);
      for (int i = tiles.begin * S::kTile; i < tiles.end * S::kTile; i += S::kTile) {
        shared.q.wait_until_empty(place);
        Barrier& full = shared.q.full[place.stage];
        full.arrive_and_expect(2 * S::Queries::kBytes);
        load(shared.q.tiles[place.stage], p.q, p.lse_log2 + numbers, head, i, full);
        load(shared.dout.tiles[place.stage], p.dout, p.delta + numbers, head, i, full);
        place.advance();
      }
    }
  }
  __device__ __forceinline__ void load(typename S::Queries& to, const TensorMap& map,
                                       const float* numbers, int head, int i, Barrier& full) {
    const Positions& positions = shared.block.positions;
    load_tile(to.tile, map, positions.q_begin + i, head, positions.tensor_batch, full);
    load_numbers<S::kTile>(to.numbers, numbers + i, full);
  }
};

// What the computing warpgroups share, at any d.
template <class T, int kD>
struct KeysStep {
  using S = SharedOfKeys<T, kD>;
  using Queries = typename S::Queries;
  using Tile = RegisterTile<S::kTile>;
  const BackwardParameters& p;
  S& shared;
  const int first;       // of the warpgroup's keys in the block
  const KeyRange whole;  // first queries of tiles that see all of them whole
  std::conditional_t<kD == 128, const Block&, const Block> block;  // at d 128 registers are full

  // f(head, i) for each tile of queries of each head.
  template <class F>
  __device__ __forceinline__ void for_tiles(KeyRange tiles, const F& f) const {
    const int any = shared.block.head * p.group;
    for (int head = any; head < any + p.group; ++head)
      for (int i = tiles.begin * S::kTile; i < tiles.end * S::kTile; i += S::kTile) f(head, i);
  }
  // The thread's first key.
  __device__ __forceinline__ int row() const { return block.row + first + own_row(); }
  __device__ __forceinline__ static float2 numbers_of_column(const float* numbers, int column) {
    return *reinterpret_cast<const float2*>(numbers + column + own_column());
  }
  __device__ __forceinline__ bool is_partial(int i) const {
    return i < whole.begin || i >= whole.end;
  }
  __device__ __forceinline__ void hide(Tile& x, int i) const {
    const bool ends = p.left < kNoLimit || p.q_starts != nullptr;
    hide_others<0>(x, block.positions.that_see(row()), i, ends);
    hide_others<1>(x, block.positions.that_see(row() + 8), i, ends);
  }
  // 3 softmax, again
  __device__ __forceinline__ void weigh(Tile& s, const float* lse_log2) const {
    const float scale_log2 = p.scale * kLog2E;
#pragma unroll
    for (int n = 0; n < s.kCount; n += 4) {
      const float2 lse = numbers_of_column(lse_log2, s.column(n));
      s.x[n] = exp2_fast(fmaf(s.x[n], scale_log2, -lse.x));
      s.x[n + 1] = exp2_fast(fmaf(s.x[n + 1], scale_log2, -lse.y));
      s.x[n + 2] = exp2_fast(fmaf(s.x[n + 2], scale_log2, -lse.x));
      s.x[n + 3] = exp2_fast(fmaf(s.x[n + 3], scale_log2, -lse.y));
    }
  }
  // The same bits, and weights for rows far from 0.
  __device__ __forceinline__ void weigh_carefully(Tile& s, int head, int i) const {
    const long long at = Positions::workspace_row(p, shared.block.batch, head) + i;
#pragma unroll
    for (int n = 0; n < s.kCount; ++n) {
      const int column = s.column(n) + own_column();
      const float w = exp2_fast(
          fmaf(s.x[n] - p.reference[at + column], p.scale * kLog2E, -p.rest[at + column]));
      s.x[n] = s.x[n] == kMinusInfinity ? kNothing : w;
    }
    hide(s, i);  // 2 mask
  }
  __device__ __forceinline__ static void leave_nothing(Tile& ds, const Tile& weights) {
#pragma unroll
    for (int n = 0; n < ds.kCount; ++n)
      if (is_nothing(weights.x[n])) ds.x[n] = kNothing;
  }
  // 3 reversed: dp becomes ds.
  __device__ __forceinline__ static void differentiate(Tile& dp, const Tile& weights,
                                                       const float* deltas) {
#pragma unroll
    for (int n = 0; n < dp.kCount; n += 4) {
      const float2 delta = numbers_of_column(deltas, dp.column(n));
      dp.x[n] = weights.x[n] * (dp.x[n] - delta.x);
      dp.x[n + 1] = weights.x[n + 1] * (dp.x[n + 1] - delta.y);
      dp.x[n + 2] = weights.x[n + 2] * (dp.x[n + 2] - delta.x);
      dp.x[n + 3] = weights.x[n + 3] * (dp.x[n + 3] - delta.y);
    }
  }
  __device__ __forceinline__ auto seen_from(int i) const {
    return [this, i](int r, int query) {
      return shared.block.positions.sees(i + query, row() + 8 * r);
    };
  }
  // Between the sums of what is not finite and the products with what is.
  template <class... Tiles>
  __device__ __forceinline__ void clear_tiles(Tiles&... tiles) const {
    const int thread = own_warpgroup() * kWarpgroup + thread_of_warpgroup();
    meet_threads(kConsumersMeet, kConsumerThreads);  // at d 256 the code of each is its own
    (clear_not_finite(tiles, thread, kConsumerThreads), ...);
    meet_threads(kConsumersMeet, kConsumerThreads);
  }
  __device__ __forceinline__ Destination to(const TensorMap& map, const Rows& rows,
                                            int columns) const {
    const Positions& positions = shared.block.positions;
    return {map, rows, columns, positions.k_rows, positions.k_begin, p.k_starts != nullptr};
  }
};

// Each warpgroup has dk and dv of 64 keys.
template <class T, int kD>
struct KeysConsumer : KeysStep<T, kD> {
  using Base = KeysStep<T, kD>;
  using Base::first, Base::shared;
  using typename Base::Queries, typename Base::S;
  static constexpr int kTile = S::kTile;
  // A tile's part of dk is added while the weights of the next are made, if there are registers for
  // one more operand.
  static constexpr bool kLater = kD == 64;

  RegisterTile<kTile> s, dp;
  Operand<T, kTile> weights, ds;
  RegisterTile<kD> dk, dv;
  Place<S::kStages> place{}, previous{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    dk.fill(0);
    dv.fill(0);
    shared.full.wait(0);
    if (tiles.begin < tiles.end) {
      step<true>(tiles.begin * kTile);
      int i = tiles.begin + 1;
      for (int head = 0; head < this->p.group; ++head, i = tiles.begin)
        for (; i < tiles.end; ++i) step<false>(i * kTile);
      if (kLater) {
        add_to_dk(ds, shared.q.tiles[previous.stage].tile);
        shared.q.release(previous);
      }
    }
    shared.vote.say(all_finite(dk) && all_finite(dv));
    if (!shared.vote.result()) return;
    dk.fill(0);
    dv.fill(0);
    this->for_tiles(tiles, [&](int head, int i) { step_carefully(head, i); });
  }

  __device__ __forceinline__ void add_to_dk(const Operand<T, kTile>& x,
                                            const SharedTile<T, kTile, kD>& q) {
    begin_products();
    add_product(dk, x, q);  // 1 reversed
    commit_products();
    wait_for_products<0>();
    dk.pin();
  }

  template <bool kFirst>
  __device__ __forceinline__ void step(int i) {
    const Queries& q = shared.q.wait(place);
    const Queries& dout = shared.dout.tiles[place.stage];
    begin_products();
    product_of_rows(s, shared.k, first, q.tile);  // 1 scores, transposed
    commit_products();
    product_of_rows(dp, shared.v, first, dout.tile);  // 4 reversed
    commit_products();
    if (kLater && !kFirst) add_product(dk, ds, shared.q.tiles[previous.stage].tile);  // 1 reversed
    commit_products();
    wait_for_products<2>();
    s.pin();
    const bool partial = this->is_partial(i);
    this->weigh(s, q.numbers);
    if (partial) this->hide(s, i);  // 2 mask
    weights.round(s);
    begin_products();
    add_product(dv, weights, dout.tile);  // 4 reversed
    commit_products();
    wait_for_products<2>();
    dp.pin();
    this->differentiate(dp, s, dout.numbers);
    if (partial) this->hide(dp, i);  // 2 reversed
    wait_for_products<0>();
    dk.pin();
    dv.pin();
    if (kLater) {
      if (!kFirst) shared.q.release(previous);
      ds.round(dp);
      place.advance();
    } else {
      weights.round(dp);
      add_to_dk(weights, q.tile);
      shared.q.release(place);
    }
  }

  // The same bits, except that rows of q and dout which are not finite reach the keys alone that
  // they see, and that rows whose scores are far from 0 have weights.
  __device__ __forceinline__ void step_carefully(int head, int i) {
    Queries& q = shared.q.wait(place);
    Queries& dout = shared.dout.tiles[place.stage];
    begin_products();
    product_of_rows(s, shared.k, first, q.tile);      // 1 scores, transposed
    product_of_rows(dp, shared.v, first, dout.tile);  // 4 reversed
    commit_products();
    wait_for_products<0>();
    s.pin();
    dp.pin();
    this->weigh_carefully(s, head, i);
    this->differentiate(dp, s, dout.numbers);
    this->leave_nothing(dp, s);
    this->hide(dp, i);  // 2 reversed
    weights.round(s);
    ds.round(dp);
    add_not_finite(dv, weights, dout.tile, this->seen_from(i));
    add_not_finite(dk, ds, q.tile, this->seen_from(i));
    this->clear_tiles(q.tile, dout.tile);
    begin_products();
    add_product(dv, weights, dout.tile);  // 4 reversed
    add_product(dk, ds, q.tile);          // 1 reversed
    commit_products();
    wait_for_products<0>();
    dk.pin();
    dv.pin();
    shared.q.release(place);
  }
};

}  // namespace attend::cuda
