// A block of threads owns keys, at d 256: 64 keys, of which one warpgroup has dv in its registers
// and the other dk. They take turns at the matrix units, and weights go from the first to the
// second through shared memory, rounded: thread t of the one has the same scores as thread t of the
// other.
//
//   matrix units   dV += P_i-1^T dO_i-1 | S_i | dK += dS_i-1^T Q_i-1 | dP_i | dV += P_i^T ...
//   threads                   dS_i-1          |          P_i         -----> | dS_i
//
// What limits is when tiles arrive, a turn and a half after their places are free: dout is done
// with within a turn, and has two places; queries need three turns, and have two and a half.
#pragma once

#include "backward_keys.cuh"

namespace attend::cuda {

template <class T>
struct SharedOfKeys<T, 256> {
  static constexpr int kD = 256, kBlock = backward_key_block(kD),
                       kTile = backward_tiles(kD).queries;
  static constexpr int kHalf = kD / 2, kHalves = 5, kDouts = 2, kNumbers = 4;
  using Queries = Numbered<T, kD, kTile>;
  using HalfQueries = SharedTile<T, kTile, kHalf>;  // of the features
  struct Weights {
    uint4 x[kTile / 16][kWarpgroup];
  };

  SharedTile<T, kBlock, kD> k, v;  // in the end dv and dk
  Ring<HalfQueries, kHalves> q;
  Ring<Queries, kDouts> dout;
  Ring<Weights, 1> weights;
  alignas(16) float lse_log2[kNumbers][kTile];  // with the first half: more than tiles on their way
  Barrier full;                                 // k and v
  Vote vote;
  Block block;

  __device__ __forceinline__ void init() {
    full.init(1);
    q.init(kConsumers * 4);
    dout.init(kConsumers * 4);
    weights.full[0].init(4 * kArriving);
    weights.empty[0].init(4 * kArriving);
    vote.init(kConsumers * 4);
  }
};

template <class T>
struct KeysProducer<T, 256> {
  using S = SharedOfKeys<T, 256>;
  const BackwardParameters& p;
  S& shared;
  Place<S::kHalves> q_place{};
  Place<S::kDouts> dout_place{};
  Place<S::kNumbers> numbers_place{};

  // Two threads, so that neither tile waits for the other's place.
  template <bool kLoadsQueries>
  __device__ __forceinline__ void run(KeyRange tiles) {
    const Block& block = shared.block;
    const int first = block.positions.k_begin + block.row, batch = block.positions.tensor_batch;
    if (kLoadsQueries) {
      shared.full.arrive_and_expect(2 * shared.k.kBytes);
      load_tile(shared.k, p.k_block, first, block.head, batch, shared.full);
      load_tile(shared.v, p.v_block, first, block.head, batch, shared.full);
    }
    load<kLoadsQueries>(tiles);
    if (shared.vote.result()) load<kLoadsQueries>(tiles);
  }
  template <bool kLoadsQueries>
  __device__ __forceinline__ void load(KeyRange tiles) {
    const int first = shared.block.head * p.group;
    for (int head = first; head < first + p.group; ++head) {
      const long long numbers = Positions::workspace_row(p, shared.block.batch, head);
      for (int i = tiles.begin * S::kTile; i < tiles.end * S::kTile; i += S::kTile) {
        const int row = shared.block.positions.q_begin + i;
        if (kLoadsQueries) load_queries(head, row, p.lse_log2 + numbers + i);
        else load_dout(head, row, p.delta + numbers + i);
      }
    }
  }
  __device__ __forceinline__ void load_queries(int head, int row, const float* numbers) {
    load_half(0, S::kTile * 4, row, head);
    load_numbers<S::kTile>(shared.lse_log2[numbers_place.stage], numbers,
                           shared.q.full[q_place.stage]);
    numbers_place.advance();
    q_place.advance();
    load_half(S::kHalf, 0, row, head);
    q_place.advance();
  }
  __device__ __forceinline__ void load_dout(int head, int row, const float* numbers) {
    shared.dout.wait_until_empty(dout_place);
    Barrier& full = shared.dout.full[dout_place.stage];
    auto& dout = shared.dout.tiles[dout_place.stage];
    full.arrive_and_expect(S::Queries::kBytes);
    load_tile(dout.tile, p.dout, row, head, shared.block.positions.tensor_batch, full);
    load_numbers<S::kTile>(dout.numbers, numbers, full);
    dout_place.advance();
  }
  // Features from `column` on, and so many bytes that come with them.
  __device__ __forceinline__ void load_half(int column, int more, int row, int head) {
    shared.q.wait_until_empty(q_place);
    Barrier& full = shared.q.full[q_place.stage];
    full.arrive_and_expect(S::HalfQueries::kBytes + more);
    load_columns(shared.q.tiles[q_place.stage], p.q, column, row, head,
                 shared.block.positions.tensor_batch, full);
  }
};

template <class T, int kD>
struct ValuesConsumer : KeysStep<T, kD> {
  using Base = KeysStep<T, kD>;
  using Base::shared;
  using typename Base::Queries, typename Base::S;
  static constexpr int kTile = S::kTile;

  RegisterTile<kTile> s;
  Operand<T, kTile> weights;
  RegisterTile<kD> dv;
  Place<S::kHalves> q_place{};
  Place<S::kDouts> dout_place{};
  Place<S::kNumbers> numbers_place{};
  Place<1> sent{};
  const Turns<kConsumers> turns{true, kTurn, 0};

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
    if (!kFirst) shared.dout.wait(dout_place);
    turns.wait();
    begin_products();
    if (!kFirst) {
      add_product(dv, weights, shared.dout.tiles[dout_place.stage].tile);  // 4 reversed, of i - 1
      commit_products();
    }
    product_of_part<0>(s, shared.k, 0, shared.q.wait(q_place));  // 1 scores, transposed
    product_of_part<S::kHalf>(s, shared.k, 0, wait_for_second_half());
    commit_products();
    turns.pass();
    if (!kFirst) {
      wait_for_products<1>();
      dv.pin();
      shared.dout.release(dout_place);
    }
    wait_for_products<0>();
    s.pin();
    shared.q.release(q_place);
    shared.q.release(q_place);
    this->weigh(s, shared.lse_log2[numbers_place.stage]);
    numbers_place.advance();
    if (this->is_partial(i)) this->hide(s, i);  // 2 mask
    weights.round(s);
    send();
  }

  __device__ __forceinline__ auto& wait_for_second_half() {
    Place<S::kHalves> second = q_place;
    second.advance();
    return shared.q.wait(second);
  }

  __device__ __forceinline__ void send() {
    shared.weights.wait_until_empty(sent);
    auto& to = shared.weights.tiles[sent.stage];
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      const std::uint32_t* x = weights.x + 4 * n;
      to.x[n][thread_of_warpgroup()] = uint4{x[0], x[1], x[2], x[3]};
    }
    __syncwarp();
    if (arrives()) shared.weights.full[sent.stage].arrive();
    sent.advance();
  }

  __device__ __forceinline__ void step_carefully(int head, int i) {
    auto &first_half = shared.q.wait(q_place), &second_half = wait_for_second_half();
    Queries& dout = shared.dout.wait(dout_place);
    begin_products();
    product_of_part<0>(s, shared.k, 0, first_half);  // 1 scores, transposed
    product_of_part<S::kHalf>(s, shared.k, 0, second_half);
    commit_products();
    wait_for_products<0>();
    s.pin();
    this->weigh_carefully(s, head, i);
    weights.round(s);
    send();
    add_not_finite(dv, weights, dout.tile, this->seen_from(i));
    this->clear_tiles(first_half, second_half, dout.tile);
    begin_products();
    add_product(dv, weights, dout.tile);  // 4 reversed
    commit_products();
    wait_for_products<0>();
    dv.pin();
    shared.q.release(q_place);
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
  Place<S::kHalves> q_place{};
  Place<S::kDouts> dout_place{};
  Place<1> received{};
  const Turns<kConsumers> turns{true, kTurn, 1};

  __device__ __forceinline__ void run(KeyRange tiles) {
    dk.fill(0);
    turns.begin();
    shared.full.wait(0);
    if (tiles.begin < tiles.end) {
      step<true>(tiles.begin * kTile);
      int i = tiles.begin + 1;
      for (int head = 0; head < this->p.group; ++head, i = tiles.begin)
        for (; i < tiles.end; ++i) step<false>(i * kTile);
      begin_products();
      add_to_dk();
      release_queries<0>();
    }
    shared.vote.say(all_finite(dk));
    if (!shared.vote.result()) return;
    dk.fill(0);
    this->for_tiles(tiles, [&](int, int i) { step_carefully(i); });
  }

  template <bool kFirst>
  __device__ __forceinline__ void step(int i) {
    turns.wait();
    begin_products();
    if (!kFirst) add_to_dk();  // of i - 1
    const Queries& dout = shared.dout.wait(dout_place);
    product_of_rows(dp, shared.v, 0, dout.tile);  // 4 reversed
    commit_products();
    turns.pass();
    if (!kFirst) release_queries<1>();
    receive();
    wait_for_products<0>();
    dp.pin();
    this->differentiate(dp, weights, dout.numbers);
    __syncwarp();  // all lanes have read the numbers
    shared.dout.release(dout_place);
    if (this->is_partial(i)) this->hide(dp, i);  // 2 reversed
    ds.round(dp);
  }

  // 1 reversed: both halves of the queries at q_place, which have arrived.
  __device__ __forceinline__ void add_to_dk() {
    Place<S::kHalves> second = q_place;
    second.advance();
    add_product_of_part<0>(dk, ds, shared.q.wait(q_place));
    commit_products();
    add_product_of_part<S::kHalf>(dk, ds, shared.q.wait(second));
    commit_products();
  }
  // Each of them when its products are done. So many others run behind them.
  template <int kRunning>
  __device__ __forceinline__ void release_queries() {
    wait_for_products<kRunning + 1>();
    shared.q.release(q_place);
    wait_for_products<kRunning>();
    dk.pin();
    shared.q.release(q_place);
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
        weights.x[8 * n + 2 * m] = both.x;
        weights.x[8 * n + 2 * m + 1] = both.y;
      }
    }
    __syncwarp();
    shared.weights.release(received);
  }

  __device__ __forceinline__ void step_carefully(int i) {
    Place<S::kHalves> second = q_place;
    second.advance();
    auto &first_half = shared.q.wait(q_place), &second_half = shared.q.wait(second);
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
    add_not_finite<0>(dk, ds, first_half, this->seen_from(i));
    add_not_finite<S::kHalf>(dk, ds, second_half, this->seen_from(i));
    this->clear_tiles(first_half, second_half, dout.tile);
    begin_products();
    add_to_dk();
    release_queries<0>();
    shared.dout.release(dout_place);
  }
};

}  // namespace attend::cuda
