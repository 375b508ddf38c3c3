// Attention forward on Hopper (sm_90a), bf16 and f16.
//
//   one block of threads an SM, which takes blocks of queries one after the other
//
//     warpgroup 0    one thread copies: Q, then K and V tile by tile, into rings of tiles
//     warpgroup 1..  compute, 64 rows of queries each:
//
//       matrix units   S_j = Q K_j^T | O += P_j-1 V_j-1 |   the others'  ...
//       threads              ...     | 2 mask and 3 softmax of S_j  | rescale O, round P_j
//
// Keys come in ascending order in tiles at fixed places, and a row's reference score is its own
// (softmax.cuh): the bits of a row do not depend on its block, batch or neighbours.
//
// Hidden keys weigh exactly 0, but 0 * NaN is NaN. Rows of V past the end of the tensor are zeros
// by the copy engine, rows behind key_lengths are overwritten with zeros. What is left are keys
// that other rows of the same tile see (causal, window). An item whose results are not all finite
// is done again, with the sums of such values made apart (run_carefully).
//
// Keys and values of 8 bits become bf16 in their places, by other warps (forward_copy.cuh); a score
// is multiplied by its key's scale, and a weight, when it has been summed, by its value's
// (bytes.cuh).
#include "careful.cuh"
#include "forward_copy.cuh"

namespace attend::cuda {
namespace {

enum NamedBarrier { kOwnWarpgroup = 1, kTurn = 4, kConsumersMeet = 7 };

// ---- The computing warpgroups ------------------------------------------------------------------

template <class T, class S>
struct Consumer {
  static constexpr int kKeys = S::kKeys, kD = S::kD;
  using Queries = typename S::Queries;
  using Keys = typename S::Keys;

  const ForwardParameters& p;
  typename S::Shared& shared;
  const int warpgroup;  // 0 is the first that computes
  const Turns<S::kConsumers> turns;
  Place<S::kQueryStages> q_place{};
  Place<S::kStages> k_place{}, v_place{};
  bool has_previous = false;

  RegisterTile<kKeys> s;
  Operand<T, kKeys> weights;
  RegisterTile<kD> o;

  __device__ __forceinline__ void run() {
    turns.begin();
    while (true) {
      const Queries& q = shared.q.wait(q_place);
      const Work work = shared.q.notes[q_place.stage];
      if (work.kind == Work::stop) return;
      if (work.kind == Work::plain) run(q, work.item);
      else if (work.kind == Work::careful) run_carefully(q, work.item);
      else pass_over_note();
      q_place.advance();
      has_previous = true;
    }
  }

 private:
  __device__ __forceinline__ int place() const { return warpgroup * kWarpgroupRows; }

  // The values of a tile are added while the weights of the next are made.
  __device__ __forceinline__ void run(const Queries& q, const Item& item) {
    const KeyRange all = item.tiles(p, item.row, S::kQueries, kKeys);
    KeyRange mine = item.tiles(p, item.row + place(), kWarpgroupRows, kKeys);
    if (mine.begin >= mine.end) mine = {all.end, all.end};
    const KeyRange whole = item.whole_tiles(p, item.row + place(), kWarpgroupRows, kKeys);
    Softmax<T> softmax{p.scale * kLog2E};
    float rescale[2];
    o.fill(0);
    for (int j = all.begin; j < mine.begin; ++j) pass_over();
    if (mine.begin >= mine.end) {
      release_previous();
    } else {
      const Keys& first_k = shared.k.wait(k_place);
      turns.wait();
      begin_products();
      product_of_rows(s, q, place(), first_k);  // 1 scores
      commit_products();
      turns.pass();
      release_previous();
      wait_for_products<0>();
      s.pin();
      end_scores();
      if (mine.begin < whole.begin || mine.begin >= whole.end) mask(item, mine.begin);  // 2 mask
      softmax.step(s, rescale);                                                         // 3 softmax
      round_weights();
      for (int j = mine.begin + 1; j < mine.end; ++j) {
        const Keys& k = shared.k.wait(k_place);
        const Keys& v = shared.v.wait(v_place);
        turns.wait();
        begin_products();
        product_of_rows(s, q, place(), k);  // 1 scores
        commit_products();
        add_product(o, weights, v);  // 4 values, of j - 1
        commit_products();
        turns.pass();
        wait_for_products<1>();
        s.pin();
        end_scores();
        if (j < whole.begin || j >= whole.end) mask(item, j);  // 2 mask
        softmax.step(s, rescale);                              // 3 softmax
        wait_for_products<0>();
        o.pin();
        shared.v.release(v_place);
        rescale_out(rescale);
        round_weights();
      }
      Keys& last_v = shared.v.wait(v_place);
      clear_behind_lengths(item, mine.end - 1, last_v);
      begin_products();
      add_product(o, weights, last_v);  // 4 values
      commit_products();
      wait_for_products<0>();
      o.pin();
      shared.v.release(v_place);
    }
    for (int j = mine.end; j < all.end; ++j) pass_over();
    finish(item, softmax);
  }

  // The same bits, except that values which are not finite reach the rows alone that see them.
  __device__ __forceinline__ void run_carefully(const Queries& q, const Item& item) {
    const KeyRange all = item.tiles(p, item.row, S::kQueries, kKeys);
    const KeyRange whole = item.whole_tiles(p, item.row, S::kQueries, kKeys);
    Softmax<T> softmax{p.scale * kLog2E};
    float rescale[2];
    o.fill(0);
    if (thread_of_warpgroup() == 0) wait_for_stores();  // of the same rows of out
    release_previous();
    for (int j = all.begin; j < all.end; ++j) {
      const Keys& k = shared.k.wait(k_place);
      begin_products();
      product_of_rows(s, q, place(), k);  // 1 scores
      commit_products();
      wait_for_products<0>();
      s.pin();
      end_scores();
      const bool partial = j < whole.begin || j >= whole.end;
      if (partial) mask(item, j);  // 2 mask
      softmax.step(s, rescale);    // 3 softmax
      rescale_out(rescale);
      round_weights();
      Keys& v = shared.v.wait(v_place);
      if (partial) add_those_not_finite(item, j, v);
      begin_products();
      add_product(o, weights, v);  // 4 values
      commit_products();
      wait_for_products<0>();
      o.pin();
      shared.v.release(v_place);
    }
    finish(item, softmax);
  }

  // A note without queries. Its place is released by one thread: all have read it by then.
  __device__ __forceinline__ void pass_over_note() {
    sync_threads(kOwnWarpgroup + warpgroup, kWarpgroup);
    release_previous();
  }

  // A tile that only other warpgroups see.
  __device__ __forceinline__ void pass_over() {
    shared.k.wait(k_place);
    turns.wait();
    turns.pass();
    shared.k.release(k_place);
    shared.v.wait(v_place);
    shared.v.release(v_place);
  }

  // A place for queries and results is free when the results have left it. If there are two, that
  // is during the next item: nobody waits.
  __device__ __forceinline__ void release_previous() {
    if (S::kQueryStages == 2 && has_previous) release_queries(q_place.stage ^ 1);
  }
  __device__ __forceinline__ void release_queries(int stage) {
    if (thread_of_warpgroup() == 0) wait_for_reading_stores();
    if (thread_of_warpgroup() == 0 || kArriving > 1) shared.q.empty[stage].arrive();
  }

  // Of 8 bits: times the scales of the keys; and of the values, which are waited for.
  __device__ __forceinline__ void end_scores() {
    if constexpr (S::kBytes) {
      multiply_columns(s, shared.k.notes[k_place.stage].of);
      __syncwarp();
    }
    shared.k.release(k_place);
  }
  __device__ __forceinline__ void round_weights() {
    if constexpr (S::kBytes) {
      shared.v.wait(v_place);
      multiply_columns(s, shared.v.notes[v_place.stage].of);
    }
    weights.round(s);
  }

  __device__ __forceinline__ void rescale_out(const float (&rescale)[2]) {
    if (__any_sync(~0U, rescale[0] != 1 || rescale[1] != 1)) o.multiply_rows(rescale);
  }

  __device__ __forceinline__ KeyRange seen(const Item& item, int r) const {
    return item.seen_by(p, item.row + place() + own_row() + 8 * r);
  }

  // Selects, so that a NaN of a hidden key is gone.
  __device__ __forceinline__ void mask(const Item& item, int tile) {
    const int origin = tile * kKeys + own_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = seen(item, r).begin - origin, end = seen(item, r).end - origin;
#pragma unroll
      for (int n = 0; n < s.kCount; ++n)
        if (s.row(n) == r && s.column(n) >= end) s.x[n] = kMinusInfinity;
      if (p.left >= kNoLimit) continue;
#pragma unroll
      for (int n = 0; n < s.kCount; ++n)
        if (s.row(n) == r && s.column(n) < begin) s.x[n] = kMinusInfinity;
    }
  }

  // Rows of v behind key_lengths, or of the next sequence, that may hold NaN.
  __device__ __forceinline__ void clear_behind_lengths(const Item& item, int tile, Keys& v) {
    const int rows = item.k_length - tile * kKeys;
    if (rows >= kKeys || (p.q_starts == nullptr && item.k_length == p.k_length)) return;
    constexpr int kPieces = kD / 8;
    for (int n = rows * kPieces + thread_of_warpgroup(); n < kKeys * kPieces; n += kWarpgroup)
      *reinterpret_cast<uint4*>(v.at(n / kPieces, n % kPieces * 8)) = uint4{0, 0, 0, 0};
    publish_shared();
    sync_threads(kOwnWarpgroup + warpgroup, kWarpgroup);
  }

  __device__ __forceinline__ void add_those_not_finite(const Item& item, int tile, Keys& v) {
    add_not_finite(o, weights, v, [&](int r, int j) {
      const KeyRange keys = seen(item, r);
      return tile * kKeys + j >= keys.begin && tile * kKeys + j < keys.end;
    });
    constexpr int kThreads = S::kConsumers * kWarpgroup;
    sync_threads(kConsumersMeet, kThreads);
    clear_not_finite(v, warpgroup * kWarpgroup + thread_of_warpgroup(), kThreads);
    sync_threads(kConsumersMeet, kThreads);
  }

  // Divides by the sums, and stores out and lse.
  __device__ __forceinline__ void finish(const Item& item, const Softmax<T>& softmax) {
    const int barrier = kOwnWarpgroup + warpgroup, first = item.row + place();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = row_sum(softmax.sum[r]);
      factor[r] = all == 0 ? 0 : 1 / all;
      const int i = first + own_row() + 8 * r;
      if (p.lse.data != nullptr && thread_of_warpgroup() % 4 == 0 && i < item.q_length)
        static_cast<float*>(p.lse.data)[item.tensor_batch * p.lse.batch + item.head * p.lse.head +
                                        (item.q_begin + i) * p.lse.row] =
            softmax.lse(r, all, p.scale);
    }
    o.multiply_rows(factor);
    if (!all_finite(o)) shared.q.notes[q_place.stage].not_finite = 1;
    Queries& out = shared.q.tiles[q_place.stage];
    sync_threads(barrier, kWarpgroup);  // its products with q are done
    store_rows(o, out, place() + thread_of_warpgroup() / 32 * 16);
    publish_shared();
    sync_threads(barrier, kWarpgroup);
    if (p.q_starts != nullptr && first + kWarpgroupRows > item.q_length) {
      // The copy engine would write past the end of the sequence.
      copy_rows(out, place(), item.q_length - first,
                static_cast<T*>(p.out_rows.data) + item.head * p.out_rows.head +
                    (item.q_begin + first) * p.out_rows.row,
                p.out_rows.row, p.value_d);
      sync_threads(barrier, kWarpgroup);
    } else if (thread_of_warpgroup() == 0 && first < item.q_length) {
      store_rows_of(out, place(), p.out, item.q_begin + first, item.head, item.tensor_batch);
    }
    if (S::kQueryStages == 1) release_queries(0);
  }
};

// ---- The kernel --------------------------------------------------------------------------------

template <class T, int kD, bool kBytes>
__device__ __forceinline__ void forward(const ForwardParameters& p) {
  using S = Shape<T, kD, kBytes>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  if (threadIdx.x == 0) {
    constexpr int kFills = kBytes ? S::kWidening : 1;
    shared.q.init((kArriving > 1 ? S::kConsumers * 4 : S::kConsumers) + S::kFollowing);
    shared.k.init(S::kConsumers * 4, kFills);
    shared.v.init(S::kConsumers * 4, kFills);
    for (Work& work : shared.q.notes) work.kind = Work::none;
    if constexpr (kBytes) {
      for (auto& note : shared.k.notes) note.bytes.init(note.kArrivals);
      for (auto& note : shared.v.notes) note.bytes.init(note.kArrivals);
    }
    publish_shared();
  }
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup) - 1;
  if (warpgroup < 0 || warpgroup == S::kConsumers) {
    give_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<S>{p, shared}.run();
    if constexpr (kBytes) {
      // Warp 0 of the first has the copying thread, warp 1 brings bytes, the others widen.
      const int in = uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 32);
      const int warp = warpgroup < 0 ? in - 2 : in + 2;
      if (warp >= -1) Bringer<S>{p, shared, warp}.run();
    }
  } else {
    take_registers<S::kConsumerRegisters>();
    Consumer<T, S>{p, shared, warpgroup, {p.turns != 0, kTurn, warpgroup}}.run();
    if (threadIdx.x % kWarpgroup == 0) wait_for_stores();
  }
}

}  // namespace
}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128,
// and with -DATTEND_BYTES=true for keys and values of 8 bits.
extern "C" __global__ void __launch_bounds__(
    attend::cuda::Shape<attend::cuda::ATTEND_TYPE, ATTEND_D, ATTEND_BYTES>::kThreads, 1)
    attend_forward(const __grid_constant__ attend::cuda::ForwardParameters p) {
  attend::cuda::forward<attend::cuda::ATTEND_TYPE, ATTEND_D, ATTEND_BYTES>(p);
}
