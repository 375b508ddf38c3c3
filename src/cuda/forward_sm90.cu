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
// Keys and values of 8 bits become bf16 on their way; a score is multiplied by its key's scale, and
// a weight, when it has been summed, by its value's (bytes.cuh).
//
// What hides keys one by one, and what is added to scores, is in a kernel of its own in the same
// module, attend_forward_general: the others have no instruction of it.
#include "careful.cuh"
#include "forward_copy.cuh"
#include "forward_options.cuh"

namespace attend::cuda {
namespace {

enum NamedBarrier { kOwnWarpgroup = 1, kTurn = 4, kConsumersMeet = 7 };

// ---- The computing warpgroups ------------------------------------------------------------------

template <class T, class S>
struct Consumer {
  static constexpr int kKeys = S::kKeys, kD = S::kD;
  // At d 64, where weights take as long as products, a last tile of which no row sees more than so
  // many keys has no others. 0: tiles are whole.
  static constexpr int kShort = kD == 64 && !S::kBytes && !S::kGeneral ? 64 : 0;
  using Queries = typename S::Queries;
  using Keys = typename S::Keys;

  const typename S::Parameters& p;
  typename S::Shared& shared;
  const int warpgroup;  // 0 is the first that computes
  const Turns<S::kConsumers> turns;
  Place<S::kQueryStages> q_place{};
  Place<S::kNotes> note{};
  Place<S::kStages> k_place{}, v_place{};
  bool has_previous = false;

  RegisterTile<kKeys> s;
  Operand<T, kKeys> weights;
  RegisterTile<kD> o;
  std::uint64_t hidden = 0;  // of the tile at hand, with options

  __device__ __forceinline__ void run() {
    turns.begin();
    while (true) {
      const Queries& q = shared.q.wait(q_place);
      const Work work = shared.q.notes[note.stage];
      if (work.kind == Work::stop) return;
      if (work.kind == Work::plain) run(q, work.item);
      else if (work.kind == Work::careful) run_carefully(q, work.item);
      else pass_over_note();
      q_place.advance();
      note.advance();
      has_previous = true;
    }
  }

 private:
  __device__ __forceinline__ int place() const { return warpgroup * kWarpgroupRows; }
  // What the scores in registers are to be multiplied by.
  __device__ __forceinline__ float scale() const { return S::kGeneral ? 1 : p.scale; }

  // The values of a tile are added while the weights of the next are made.
  __device__ __forceinline__ void run(const Queries& q, const Item& item) {
    const KeyRange all = item.tiles(p, item.row, S::kQueries, kKeys);
    KeyRange mine = item.tiles(p, item.row + place(), kWarpgroupRows, kKeys);
    if (mine.begin >= mine.end) mine = {all.end, all.end};
    const KeyRange whole = item.whole_tiles(p, item.row + place(), kWarpgroupRows, kKeys);
    Softmax<T> softmax{scale() * kLog2E};
    float rescale[2];
    o.fill(0);
    for (int j = all.begin; j < mine.begin; ++j) pass_over();
    if (mine.begin >= mine.end) {
      release_previous();
      leave_queries();
    } else {
      const bool is_short = ends_short(item, mine);
      const int last = mine.end - 1;
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
      if (mine.begin == last) leave_queries();
      mask_if(mine.begin < whole.begin || mine.begin >= whole.end, item, mine.begin);  // 2 mask
      softmax.step(s, rescale);                                                        // 3 softmax
      round_weights(item, mine.begin);
      for (int j = mine.begin + 1; j < mine.end - (is_short ? 1 : 0); ++j) {
        step(q, s, j == last);
        mask_if(j < whole.begin || j >= whole.end, item, j);  // 2 mask
        softmax.step(s, rescale);                             // 3 softmax
        end_values(rescale);
        round_weights(item, j);
      }
      if constexpr (kShort != 0) {
        if (is_short) {
          RegisterTile<kShort> some;
          Operand<T, kShort> some_weights;
          step(q, some, true);
          mask(some, item, last);       // 2 mask
          softmax.step(some, rescale);  // 3 softmax
          end_values(rescale);
          some_weights.round(some);
          add_last_values(item, last, some_weights);
        } else {
          add_last_values(item, last, weights);
        }
      } else {
        add_last_values(item, last, weights);
      }
    }
    for (int j = mine.end; j < all.end; ++j) pass_over();
    finish(item, softmax);
  }

  // Whether the last of several tiles has few keys that any row of the warpgroup sees.
  __device__ __forceinline__ bool ends_short(const Item& item, KeyRange mine) const {
    const int last = min(item.row + place() + kWarpgroupRows, item.q_length) - 1;
    return mine.end - mine.begin > 1 &&
           item.seen_by(p, last).end - (mine.end - 1) * kKeys <= kShort;
  }

  // Scores of the next tile are there, and the values of the one before on their way.
  template <int kColumns>
  __device__ __forceinline__ void step(const Queries& q, RegisterTile<kColumns>& scores,
                                       bool is_last) {
    const Keys& k = shared.k.wait(k_place);
    const Keys& v = shared.v.wait(v_place);
    turns.wait();
    begin_products();
    product_of_rows(scores, q, place(), k);  // 1 scores
    commit_products();
    add_product(o, weights, v);  // 4 values, of the tile before
    commit_products();
    turns.pass();
    wait_for_products<1>();
    scores.pin();
    end_scores();
    if (is_last) leave_queries();
  }
  __device__ __forceinline__ void end_values(const float (&rescale)[2]) {
    wait_for_products<0>();
    o.pin();
    shared.v.release(v_place);
    rescale_out(rescale);
  }
  template <class Weights>
  __device__ __forceinline__ void add_last_values(const Item& item, int tile, const Weights& last) {
    Keys& v = shared.v.wait(v_place);
    clear_behind_lengths(item, tile, v);
    begin_products();
    add_product(o, last, v);  // 4 values
    commit_products();
    wait_for_products<0>();
    o.pin();
    shared.v.release(v_place);
  }

  // The same bits, except that values which are not finite reach the rows alone that see them.
  __device__ __forceinline__ void run_carefully(const Queries& q, const Item& item) {
    const KeyRange all = item.tiles(p, item.row, S::kQueries, kKeys);
    const KeyRange whole = item.whole_tiles(p, item.row, S::kQueries, kKeys);
    Softmax<T> softmax{scale() * kLog2E};
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
      const bool partial = S::kGeneral || j < whole.begin || j >= whole.end;
      mask_if(partial, item, j);  // 2 mask
      softmax.step(s, rescale);   // 3 softmax
      rescale_out(rescale);
      if constexpr (S::kGeneral) {
#pragma unroll
        for (int n = 0; n < s.kCount; ++n)
          if ((hidden >> n & 1) != 0) s.x[n] = kNothing;
      }
      round_weights(item, j);
      Keys& v = shared.v.wait(v_place);
      if (partial) add_those_not_finite(item, j, v);
      begin_products();
      add_product(o, weights, v);  // 4 values
      commit_products();
      wait_for_products<0>();
      o.pin();
      shared.v.release(v_place);
    }
    leave_queries();
    finish(item, softmax);
  }

  // A note without queries. Its place is released by one thread: all have read it by then.
  __device__ __forceinline__ void pass_over_note() {
    sync_threads(kOwnWarpgroup + warpgroup, kWarpgroup);
    release_previous();
    leave_queries();
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

  // A place for queries and results is free when the results have left it, which is during the next
  // item: nobody waits. One for queries alone is free after the last scores.
  __device__ __forceinline__ void release_previous() {
    if (S::kLeaveEarly || !has_previous) return;
    if (thread_of_warpgroup() == 0) wait_for_reading_stores();
    const int previous = (q_place.stage == 0 ? S::kQueryStages : q_place.stage) - 1;
    if (thread_of_warpgroup() == 0 || kArriving > 1) shared.q.empty[previous].arrive();
  }
  __device__ __forceinline__ void leave_queries() {
    if (!S::kLeaveEarly) return;
    __syncwarp();  // what all said of the item before is there
    if (arrives()) shared.q.empty[q_place.stage].arrive();
  }

  // Of 8 bits: times the scales of the keys; and of the values, which are waited for.
  __device__ __forceinline__ void end_scores() {
    if constexpr (S::kBytes) {
      multiply_columns(s, shared.k.notes[k_place.stage].of);
      __syncwarp();
    }
    shared.k.release(k_place);
  }
  __device__ __forceinline__ void round_weights(const Item& item, int tile) {
    if constexpr (S::kGeneral) options(item, tile).drop(s);
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

  __device__ __forceinline__ ScoreOptions<kKeys> options(const Item& item, int tile) const {
    return {p, item, item.row + place(), tile * kKeys};
  }
  __device__ __forceinline__ void mask_if(bool partial, const Item& item, int tile) {
    if constexpr (S::kGeneral) {
      auto all = options(item, tile);
      all.apply(s);
      hidden = all.hidden;
    } else if (partial) {
      mask(s, item, tile);
    }
  }

  // Selects, so that a NaN of a hidden key is gone.
  template <int kColumns>
  __device__ __forceinline__ void mask(RegisterTile<kColumns>& scores, const Item& item,
                                       int tile) const {
    const int origin = tile * kKeys + own_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = seen(item, r).begin - origin, end = seen(item, r).end - origin;
#pragma unroll
      for (int n = 0; n < scores.kCount; ++n)
        if (scores.row(n) == r && scores.column(n) >= end) scores.x[n] = kMinusInfinity;
      if (p.left >= kNoLimit) continue;
#pragma unroll
      for (int n = 0; n < scores.kCount; ++n)
        if (scores.row(n) == r && scores.column(n) < begin) scores.x[n] = kMinusInfinity;
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
    const int first = item.row + place();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = row_sum(softmax.sum[r]);
      factor[r] = all == 0 ? 0 : 1 / all;
      float lse = softmax.lse(r, all, scale());
      if constexpr (S::kGeneral) {
        if (p.sinks.given) add_sink(item, softmax.reference[r], all, factor[r], lse);
        if (p.drop_below != 0) factor[r] *= p.kept;
      }
      const int i = first + own_row() + 8 * r;
      if (p.lse.data != nullptr && thread_of_warpgroup() % 4 == 0 && i >= 0 && i < item.q_length)
        static_cast<float*>(p.lse.data)[item.tensor_batch * p.lse.batch + item.head * p.lse.head +
                                        (item.q_begin + i) * p.lse.row] = lse;
    }
    o.finish_rows(factor);
    if (!all_finite(o)) shared.q.notes[note.stage].not_finite = 1;
    if constexpr (S::kLeaveEarly) {
      write_row<0>(o, row_of_out(item, first + own_row()), p.value_d);
      write_row<1>(o, row_of_out(item, first + own_row() + 8), p.value_d);
    } else if (first >= 0) {
      store(item, first);
    }
  }

  // The head's sink is one more score, without a value.
  __device__ __forceinline__ void add_sink(const Item& item, float reference, float all,
                                           float& factor, float& lse) const {
    const auto sink = static_cast<float>(load(p.sinks, p.sinks.offset(0, item.head, 0)));
    if (all == 0) {
      lse = sink;
      return;
    }
    const float most = fmaxf(reference, sink);
    const float keys = exp2_fast((reference - most) * kLog2E);
    const float sum = fmaf(all, keys, exp2_fast(fmaf(sink - most, kLog2E, kLift<T>)));
    factor = keys / sum;
    lse = most + (logf(sum) - kLift<T> * kLn2);
  }

  // Null: there is none.
  __device__ __forceinline__ T* row_of_out(const Item& item, int i) const {
    if (i < 0 || i >= item.q_length) return nullptr;
    return static_cast<T*>(p.out_rows.data) + item.tensor_batch * p.out_rows.batch +
           item.head * p.out_rows.head + (item.q_begin + i) * p.out_rows.row;
  }

  // By the copy engine, from the place of the queries.
  __device__ __forceinline__ void store(const Item& item, int first) {
    const int barrier = kOwnWarpgroup + warpgroup;
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
  }
};

// ---- The kernel --------------------------------------------------------------------------------

template <class T, class S>
__device__ __forceinline__ void forward(const typename S::Parameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  if (threadIdx.x == 0) {
    constexpr int kFills = S::kBytes ? S::kBringing * kArriving : 1;
    const bool by_warps = S::kLeaveEarly || kArriving > 1;
    shared.q.init((by_warps ? S::kConsumers * 4 : S::kConsumers) + S::kBringing);
    shared.k.init(S::kConsumers * 4, kFills);
    shared.v.init(S::kConsumers * 4, kFills);
    for (Work& work : shared.q.notes) work.kind = Work::none;
    publish_shared();
  }
  __syncthreads();
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup) - 1;
  if (warpgroup < 0) {
    give_registers<S::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<S>{p, shared}.run();
    if constexpr (S::kBytes) {
      const int warp = uniform(static_cast<int>(threadIdx.x) / 32) - 1;
      if (warp >= 0) Bringer<S>{p, shared, warp}.run();
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
namespace {
using Type = attend::cuda::ATTEND_TYPE;
using Fast = attend::cuda::Shape<Type, ATTEND_D, ATTEND_BYTES>;
using General = attend::cuda::Shape<Type, ATTEND_D, false, true>;
}  // namespace

extern "C" __global__ void __launch_bounds__(Fast::kThreads, 1)
    attend_forward(const __grid_constant__ attend::cuda::ForwardParameters p) {
  attend::cuda::forward<Type, Fast>(p);
}
extern "C" __global__ void __launch_bounds__(General::kThreads, 1)
    attend_forward_general(const __grid_constant__ attend::cuda::GeneralParameters p) {
  if constexpr (!ATTEND_BYTES) attend::cuda::forward<Type, General>(p);
}
