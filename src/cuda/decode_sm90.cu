// Few queries against many keys on Hopper (sm_90a), bf16 and f16.
//
//   attend_decode_parts   an item is a chunk of 256 keys of one key head, or a run of them: the
//                         queries of all heads of its group are the rows of one product, so each
//                         key is read once. Memory is the limit: two blocks of threads an SM hide
//                         each other's waiting
//   attend_decode_paged   the same with keys and values on pages
//   attend_decode_join    the parts of a row, joined in ascending order (decode_join.cuh)
//
// Chunks lie at fixed places: a row's bits depend on its own keys alone, not on where they are.
//
// Rows of V that no query of the tile sees are overwritten with zeros (0 * NaN is NaN). With one
// query a head these are all that are hidden; with several, what is not finite in the tiles that
// hide keys from some of them is added row by row (careful.cuh).
#include "careful.cuh"
#include "decode_copy.cuh"
#include "decode_join.cuh"

namespace attend::cuda {
namespace {

constexpr int kThreads = 2 * kWarpgroup;  // one warpgroup computes, a warp of the other copies

template <class T, int kD>
struct Consumer {
  using S = DecodeShared<T, kD>;
  static constexpr int kTile = S::kTile;
  static constexpr bool kJoins = kD != 256;  // else one chunk at a time: registers are full
  static constexpr int kAtOnce =
      kD < 128 ? kD : 128;  // columns: a thread begins with 128 registers
  using Item = DecodeItem<kTile>;
  using Keys = SharedTile<T, kTile, kD>;
  using Queries = SharedTile<T, kDecodeRows, kD>;
  const DecodeParameters& p;
  S& shared;
  Place<S::kQueryStages> q_place{};
  Place<S::kStages> k_place{}, v_place{};

  RegisterTile<kTile> s;
  Operand<T, kTile> weights;
  RegisterTile<kD> o;                    // of a chunk
  RegisterTile<kJoins ? kD : 8> joined;  // of those before it
  float reference[2], sum[2];            // of those before it

  __device__ __forceinline__ void run(const Item& item) {
    joined.fill(0);
    reference[0] = reference[1] = kMinusInfinity;
    sum[0] = sum[1] = 0;
    if (!item.is_empty()) run(item, item.tiles());
    store(item);
  }

  // The values of a tile are added while the weights of the next are made, of the next chunk too.
  __device__ __forceinline__ void run(const Item& item, KeyRange tiles) {
    const Queries& q = shared.q.wait(q_place);
    Softmax<T> softmax{p.scale * kLog2E};
    float rescale[2];
    o.fill(0);
    const Keys& first_k = shared.k.wait(k_place);
    begin_products();
    product_of_rows(s, q, 0, first_k);  // 1 scores
    commit_products();
    wait_for_products<0>();
    s.pin();
    release_keys(tiles.begin, tiles);
    if (item.hides_some(p, tiles.begin)) mask(item, tiles.begin);  // 2 mask
    softmax.step(s, rescale);                                      // 3 softmax
    weights.round(s);
    for (int j = tiles.begin + 1; j < tiles.end; ++j) {
      const Keys& k = shared.k.wait(k_place);
      Keys& v = shared.v.wait(v_place);
      if (item.hides_some(p, j - 1)) clear_hidden(item, j - 1, v);
      begin_products();
      product_of_rows(s, q, 0, k);  // 1 scores
      commit_products();
      add_product_in_parts<kAtOnce>(o, weights, v);  // 4 values, of j - 1
      commit_products();
      wait_for_products<1>();
      s.pin();
      release_keys(j, tiles);
      if (item.hides_some(p, j)) mask(item, j);  // 2 mask
      const bool begins_chunk = kJoins && j % (kDecodeChunk / kTile) == 0;
      const Softmax<T> before = softmax;
      if (begins_chunk) softmax = Softmax<T>{p.scale * kLog2E};
      softmax.step(s, rescale);  // 3 softmax
      wait_for_products<0>();
      o.pin();
      shared.v.release(v_place);
      if (begins_chunk) {
        join(before);
        o.fill(0);
      } else if (__any_sync(~0U, rescale[0] != 1 || rescale[1] != 1)) {
        o.multiply_rows(rescale);
      }
      weights.round(s);
    }
    Keys& last_v = shared.v.wait(v_place);
    if (item.hides_some(p, tiles.end - 1)) clear_hidden(item, tiles.end - 1, last_v);
    begin_products();
    add_product_in_parts<kAtOnce>(o, weights, last_v);  // 4 values
    commit_products();
    wait_for_products<0>();
    o.pin();
    shared.v.release(v_place);
    join(softmax);
  }

  // And the queries after the last of them.
  __device__ __forceinline__ void release_keys(int tile, KeyRange tiles) {
    shared.k.release(k_place);
    if (tile + 1 == tiles.end) shared.q.release(q_place);
  }

  // With nothing before it a chunk keeps its bits.
  __device__ __forceinline__ void join(const Softmax<T>& softmax) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = row_sum(softmax.sum[r]);
      if constexpr (!kJoins) {
        reference[r] = softmax.reference[r];
        sum[r] = all;
        continue;
      }
      const JoinFactors factors(reference[r], softmax.reference[r], softmax.scale_log2);
      const bool empty = all == 0;
      reference[r] = factors.reference;
      sum[r] = factors.join(sum[r], all, empty);
#pragma unroll
      for (int n = 0; n < o.kCount; ++n)
        if (kJoins && o.row(n) == r) joined.x[n] = factors.join(joined.x[n], o.x[n], empty);
    }
  }

  __device__ __forceinline__ void mask(const Item& item, int tile) {
    const int origin = tile * kTile + own_column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange seen = item.seen_by(p, (own_row() + 8 * r) % p.q_length);
#pragma unroll
      for (int n = 0; n < s.kCount; ++n)
        if (s.row(n) == r &&
            (s.column(n) < seen.begin - origin || s.column(n) >= seen.end - origin))
          s.x[n] = kMinusInfinity;
    }
  }

  // Rows of v that no query sees; and of the others what is not finite, if some see it.
  __device__ __forceinline__ void clear_hidden(const Item& item, int tile, Keys& v) {
    const int begin = item.seen.begin - tile * kTile, end = item.seen.end - tile * kTile;
    constexpr int kPieces = kD / 8;
    bool found = false;
    for (int n = threadIdx.x; n < kTile * kPieces; n += kWarpgroup) {
      auto& piece = *reinterpret_cast<uint4*>(v.at(n / kPieces, n % kPieces * 8));
      if (n / kPieces < begin || n / kPieces >= end) {
        piece = uint4{0, 0, 0, 0};
      } else if (p.q_length > 1) {
        for (int m = 0; m < 8; ++m) found = found || !is_finite(reinterpret_cast<T*>(&piece)[m]);
      }
    }
    publish_shared();
    if (!any_of_threads(1, kWarpgroup, found)) return;
    add_not_finite(o, weights, v, [&](int r, int j) {
      const KeyRange keys = item.seen_by(p, (own_row() + 8 * r) % p.q_length);
      return tile * kTile + j >= keys.begin && tile * kTile + j < keys.end;
    });
    sync_threads(1, kWarpgroup);
    clear_not_finite(v, threadIdx.x, kWarpgroup);
    sync_threads(1, kWarpgroup);
  }

  __device__ __forceinline__ void store(const Item& item) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own_row() + 8 * r, head = item.kv_head * p.group + row / p.q_length;
      if (row >= p.group * p.q_length) continue;
      const long long at =
          ((static_cast<long long>(item.batch) * p.heads + head) * p.q_length + row % p.q_length) *
              p.parts +
          item.part;
      if (threadIdx.x % 4 == 0)
        reinterpret_cast<float2*>(p.partial)[at] = float2{reference[r], sum[r]};
      if (item.is_empty()) continue;
      float* out = p.partial_out + at * kD + own_column();
      const float* x = kJoins ? joined.x : o.x;
#pragma unroll
      for (int n = 0; n < o.kCount; n += 4)
        *reinterpret_cast<float2*>(out + o.column(n)) = float2{x[n + 2 * r], x[n + 2 * r + 1]};
    }
  }
};

template <class T, int kD, bool kPaged>
__device__ __forceinline__ void decode_parts(const DecodeParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = DecodeShared<T, kD>;
  static_assert(kFits<T, kD>);
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.q.init(4);
    shared.k.init(4);
    shared.v.init(4);
  }
  // Rows that no query is in: whatever they held would be scores, at worst far from 0.
  for (auto& tile : shared.q.tiles)
    for (int n = threadIdx.x; n < kDecodeRows * kD / 8; n += kThreads)
      reinterpret_cast<uint4*>(tile.data)[n] = uint4{0, 0, 0, 0};
  publish_shared();
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // they wait for all of this
  if (threadIdx.x >= kWarpgroup) {
    give_registers<kPaged ? 40 : 24>();
    if (kPaged && threadIdx.x < kWarpgroup + 32) load_pages(p, shared);
    if (!kPaged && threadIdx.x == kWarpgroup) load_items(p, shared);
  } else {
    take_registers<208>();
    Consumer<T, kD> consumer{p, shared};
    for (int index = blockIdx.x; index < items_of(p); index += gridDim.x)
      consumer.run(DecodeItem<S::kTile>(p, index));
  }
}

}  // namespace
}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128.
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 2)
    attend_decode_parts(const __grid_constant__ attend::cuda::DecodeParameters p) {
  attend::cuda::decode_parts<attend::cuda::ATTEND_TYPE, ATTEND_D, false>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads, 2)
    attend_decode_paged(const __grid_constant__ attend::cuda::DecodeParameters p) {
  attend::cuda::decode_parts<attend::cuda::ATTEND_TYPE, ATTEND_D, true>(p);
}
extern "C" __global__ void __launch_bounds__(32 * attend::cuda::kJoinWarps)
    attend_decode_join(const __grid_constant__ attend::cuda::DecodeParameters p) {
  attend::cuda::decode_join<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
