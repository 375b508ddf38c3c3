// A block of threads owns keys, at d 256: 64 keys, of which one warpgroup has dv in its registers
// and the other dk. Weights go from the first to the second through shared memory, rounded: thread
// t of the one has the same scores as thread t of the other.
//
//   matrix units   S_i+1 | dV += P_i^T dO_i       dK += dS_i^T Q_i | dP_i+1
//   threads        P_i+1 ----------------------------------------->  dS_i+1
//
// Of q and dout there are two tiles each: dk is added first, so that its queries leave early.
#pragma once

#include "backward_keys.cuh"

namespace attend::cuda {

template <class T, int kD>
struct ValuesConsumer : KeysStep<T, kD> {
  using Base = KeysStep<T, kD>;
  using Base::shared;
  using typename Base::Queries, typename Base::S;
  static constexpr int kTile = S::kTile;

  RegisterTile<kTile> s;
  Operand<T, kTile> weights;
  RegisterTile<kD> dv;
  Place<S::kStages> q_place{}, dout_place{};
  Place<2> sent{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    dv.fill(0);
    shared.full.wait(0);
    if (tiles.begin < tiles.end) {
      step<true>(tiles.begin * kTile);
      int i = tiles.begin + 1;
      for (int head = 0; head < this->p.group; ++head, i = tiles.begin)
        for (; i < tiles.end; ++i) step<false>(i * kTile);
      const Queries& dout = shared.dout.wait(dout_place);
      begin_products();
      add_product(dv, weights, dout.tile);  // 4 reversed
      commit_products();
      wait_for_products<0>();
      dv.pin();
      shared.dout.release(dout_place);
    }
    shared.vote.say(all_finite(dv));
    if (!shared.vote.result()) return;
    dv.fill(0);
    this->for_tiles(tiles, [&](int head, int i) { step_carefully(head, i); });
  }

  template <bool kFirst>
  __device__ __forceinline__ void step(int i) {
    const Queries& q = shared.q.wait(q_place);
    if (!kFirst) shared.dout.wait(dout_place);
    begin_products();
    product_of_rows(s, shared.k, 0, q.tile);  // 1 scores, transposed
    commit_products();
    if (!kFirst) {
      add_product(dv, weights, shared.dout.tiles[dout_place.stage].tile);  // 4 reversed, of i - 1
      commit_products();
    }
    wait_for_products<kFirst ? 0 : 1>();
    s.pin();
    this->weigh(s, q.numbers);
    __syncwarp();  // all lanes have read the numbers
    shared.q.release(q_place);
    if (this->is_partial(i)) this->hide(s, i);  // 2 mask
    send();
    wait_for_products<0>();
    dv.pin();
    if (!kFirst) shared.dout.release(dout_place);
    weights.round(s);
  }

  // Rounds by itself, the high number of a pair first: the registers of `weights` are still read by
  // the last product, and were the pairs the same, the compiler would make them once, and wait.
  __device__ __forceinline__ void send() {
    shared.weights.wait_until_empty(sent);
    auto& to = shared.weights.tiles[sent.stage];
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      const float* x = s.x + 8 * n;
      to.x[n][thread_of_warpgroup()] = uint4{pack(T{}, x[1], x[0]), pack(T{}, x[3], x[2]),
                                             pack(T{}, x[5], x[4]), pack(T{}, x[7], x[6])};
    }
    __syncwarp();
    if (arrives()) shared.weights.full[sent.stage].arrive();
    sent.advance();
  }

  __device__ __forceinline__ void step_carefully(int head, int i) {
    Queries& q = shared.q.wait(q_place);
    Queries& dout = shared.dout.wait(dout_place);
    begin_products();
    product_of_rows(s, shared.k, 0, q.tile);  // 1 scores, transposed
    commit_products();
    wait_for_products<0>();
    s.pin();
    this->weigh_carefully(s, head, i);
    send();
    weights.round(s);
    add_not_finite(dv, weights, dout.tile, this->seen_from(i));
    this->clear_tiles(q, dout);
    begin_products();
    add_product(dv, weights, dout.tile);  // 4 reversed
    commit_products();
    wait_for_products<0>();
    dv.pin();
    shared.q.release(q_place);
    shared.dout.release(dout_place);
  }
};

template <class T, int kD>
struct GradientsConsumer : KeysStep<T, kD> {
  using Base = KeysStep<T, kD>;
  using Base::shared;
  using typename Base::Queries, typename Base::S;
  static constexpr int kTile = S::kTile;

  RegisterTile<kTile> weights, dp;
  Operand<T, kTile> ds;
  RegisterTile<kD> dk;
  Place<S::kStages> q_place{}, dout_place{};
  Place<2> received{};

  __device__ __forceinline__ void run(KeyRange tiles) {
    dk.fill(0);
    shared.full.wait(0);
    if (tiles.begin < tiles.end) {
      step<true>(tiles.begin * kTile);
      int i = tiles.begin + 1;
      for (int head = 0; head < this->p.group; ++head, i = tiles.begin)
        for (; i < tiles.end; ++i) step<false>(i * kTile);
      const Queries& q = shared.q.wait(q_place);
      begin_products();
      add_product(dk, ds, q.tile);  // 1 reversed
      commit_products();
      wait_for_products<0>();
      dk.pin();
      shared.q.release(q_place);
    }
    shared.vote.say(all_finite(dk));
    if (!shared.vote.result()) return;
    dk.fill(0);
    this->for_tiles(tiles, [&](int, int i) { step_carefully(i); });
  }

  template <bool kFirst>
  __device__ __forceinline__ void step(int i) {
    if (!kFirst) shared.q.wait(q_place);
    const Queries& dout = shared.dout.wait(dout_place);
    begin_products();
    if (!kFirst) {
      add_product(dk, ds, shared.q.tiles[q_place.stage].tile);  // 1 reversed, of i - 1
      commit_products();
    }
    product_of_rows(dp, shared.v, 0, dout.tile);  // 4 reversed
    commit_products();
    if (!kFirst) {
      wait_for_products<1>();
      dk.pin();
      shared.q.release(q_place);
    }
    receive();
    wait_for_products<0>();
    dp.pin();
    this->differentiate(dp, weights, dout.numbers);
    __syncwarp();  // all lanes have read the numbers
    shared.dout.release(dout_place);
    if (this->is_partial(i)) this->hide(dp, i);  // 2 reversed
    ds.round(dp);
  }

  __device__ __forceinline__ void receive() {
    const auto& from = shared.weights.wait(received);
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      const uint4 x = from.x[n][thread_of_warpgroup()];
      const std::uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float2 both = unpack(T{}, pairs[m]);
        weights.x[8 * n + 2 * m] = both.y;
        weights.x[8 * n + 2 * m + 1] = both.x;
      }
    }
    __syncwarp();
    shared.weights.release(received);
  }

  __device__ __forceinline__ void step_carefully(int i) {
    Queries& q = shared.q.wait(q_place);
    Queries& dout = shared.dout.wait(dout_place);
    begin_products();
    product_of_rows(dp, shared.v, 0, dout.tile);  // 4 reversed
    commit_products();
    wait_for_products<0>();
    dp.pin();
    receive();
    this->differentiate(dp, weights, dout.numbers);
    this->leave_nothing(dp, weights);
    this->hide(dp, i);  // 2 reversed
    ds.round(dp);
    add_not_finite(dk, ds, q.tile, this->seen_from(i));
    this->clear_tiles(q, dout);
    begin_products();
    add_product(dk, ds, q.tile);  // 1 reversed
    commit_products();
    wait_for_products<0>();
    dk.pin();
    shared.q.release(q_place);
    shared.dout.release(dout_place);
  }
};

}  // namespace attend::cuda
