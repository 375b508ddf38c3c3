// One query a head: scores over keys of 8 bits. The product is turned, K Q^T: keys are its rows,
// widened from bytes on their way into registers, and heads its columns, eight at a time.
#pragma once

#include "byte_tiles.cuh"
#include "one_query_scores.cuh"

namespace attend::cuda {

inline constexpr int kBringing = 4;  // warps that start copies

template <class T, int kD>
struct ByteScoreShared {
  static constexpr int kKeys = forward_tiles(kD).keys;
  static constexpr int kStages = score_stages(kD, true), kQueryStages = score_query_stages(kD);
  struct alignas(16) Scales {
    float of_keys[kKeys], of_values[kKeys];
  };
  Ring<SharedTile<T, kOneQueryRows, kD>, kQueryStages> q;
  Ring<ByteTile<kKeys, kD>, kStages, Scales> k;
  float largest[2][kWarpgroup / 32][kHeadsAtOnce];  // of the warps, of two tiles in turn
};

// By a warp. The rows of the next tile are looked up before there is room for it.
template <class T, int kD>
__device__ __forceinline__ void bring_scores(const OneQueryParameters& p,
                                             ByteScoreShared<T, kD>& shared, int warp) {
  using S = ByteScoreShared<T, kD>;
  struct Rows : LaneRows<S::kKeys, kBringing> {
    const float *of_keys[Rows::kEach], *of_values[Rows::kEach];
  };
  Place<S::kQueryStages> q;
  Place<S::kStages> k;
  Rows next;
  const auto find = [&](const HeadKeys& keys, int tile) {
    const auto scale_in = [&](const ByteKeys& from, int batch, int in) {
      return from.scales +
             (batch * from.scale_batch + keys.head * from.scale_head + in * from.scale_row);
    };
    next.find_rows(p.k_bytes, p.pages, keys, tile * S::kKeys, warp, [&](int n, int batch, int in) {
      next.of_keys[n] = scale_in(p.k_bytes, batch, in);
      next.of_values[n] = scale_in(p.v_bytes, batch, in);
    });
  };
  const auto bring = [&](const auto& seen, int batch, int kv_head, int j, bool first, bool last) {
    const HeadKeys keys{batch, 0, kv_head, seen.keys.end};
    if (first) find(keys, j);
    const Rows now = next;
    if (!last) find(keys, j + 1);
    shared.k.wait_until_empty(k);
    start_rows(shared.k.tiles[k.stage], now, p.k_bytes, 0, warp);
    auto& scales = shared.k.notes[k.stage];
    for (int n = 0; n < Rows::kEach; ++n) {
      const int row = Rows::row(warp, n);
      if (row >= S::kKeys) continue;
      const bool given = now.at[n] != nullptr;
      copy_async<4>(&scales.of_keys[row], given ? now.of_keys[n] : p.k_bytes.scales, given);
      copy_async<4>(&scales.of_values[row], given ? now.of_values[n] : p.v_bytes.scales, given);
    }
    shared.k.full[k.stage].arrive_when_copied();
    k.advance();
    if (first && warp == 0 && threadIdx.x % 32 == 0) load_queries(p, shared, q, kv_head, batch);
    __syncwarp();
  };
  for_each_tile<S::kKeys>(p, bring);
}

template <class T, int kD>
struct ByteScores {
  using S = ByteScoreShared<T, kD>;
  using Queries = SharedTile<T, kOneQueryRows, kD>;
  static constexpr int kKeys = S::kKeys;
  static constexpr int kBlocks = (kKeys + kWarpgroupRows - 1) / kWarpgroupRows;
  const OneQueryParameters& p;
  S& shared;
  Place<S::kQueryStages> q_place{};
  Place<S::kStages> k_place{};
  int turn = 0;

  __device__ __forceinline__ void compute() {
    for_each_tile<kKeys>(
        p, [&](const auto& seen, int batch, int kv_head, int j, bool first, bool last) {
          auto& q = shared.q.wait(q_place);
          if (first) {
            order_as_bytes(q, (p.group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce);
            sync_threads(1, kWarpgroup);
          }
          auto& k = shared.k.wait(k_place);
          const auto& scales = shared.k.notes[k_place.stage];
          const long long kv = static_cast<long long>(batch) * (p.heads / p.group) + kv_head;
          if (const int key = thread_of_warpgroup(); key < kKeys)
            p.value_scales[(kv * p.tiles + j) * kKeys + key] = scales.of_values[key];
          for (int head = 0; head < p.group; head += kHeadsAtOnce) {
            float* const to = scores_at<kD>(p, batch, kv_head, j) + head * score_row(kD);
            score(seen, j, k, scales.of_keys, q, head, to);
          }
          __syncwarp();
          shared.k.release(k_place);
          if (last) shared.q.release(q_place);
        });
  }

 private:
  // Of eight heads of the group, from `head` on.
  template <class Seen, class Keys>
  __device__ __forceinline__ void score(const Seen& seen, int tile, Keys& k, const float* scales,
                                        const Queries& q, int head, float* to) {
    const bool whole = !seen.hides_some(tile);
    RegisterTile<kHeadsAtOnce> s[kBlocks];
    float scale[kBlocks][2], most[2] = {kMinusInfinity, kMinusInfinity};
    bool any_takes = false;
    for_each_own_key([&](int block, int r, int key) {
      scale[block][r] = key < kKeys ? scales[key] : 0;
      any_takes = any_takes || row_takes(scale[block][r], false);
    });
    if (__any_sync(~0U, any_takes)) multiply<true>(s, k, scale, q, head);
    else multiply<false>(s, k, scale, q, head);
    for_each_own_key([&](int block, int r, int key) {
      if (key >= kKeys) return;
      const int at = tile * kKeys + key;
      const bool hidden = !whole && (at < seen.keys.begin || at >= seen.keys.end);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float& x = s[block].x[2 * r + n];
        x = hidden ? kMinusInfinity : __fmul_rn(x, others_scale(scale[block][r], false));  // 2 mask
        most[n] = fmaxf(most[n], x);
        const int own = own_column() + n;
        if (head + own < p.group) to[own * score_row(kD) + key] = x;
      }
    });
    keep_largest(most, head, to);
  }

  // body(block of 64 keys, which of the thread's two, the key)
  template <class Body>
  __device__ __forceinline__ static void for_each_own_key(const Body& body) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int r = 0; r < 2; ++r) body(block, r, block * kWarpgroupRows + own_row() + 8 * r);
  }

  template <bool kTakes, class Keys>
  __device__ __forceinline__ void multiply(RegisterTile<kHeadsAtOnce> (&s)[kBlocks], Keys& k,
                                           const float (&scale)[kBlocks][2], const Queries& q,
                                           int head) {
    std::uint32_t a[kBlocks][kD / 4];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int x = 0; x < kD; x += kDepth)
        load_rows_operand<kTakes>(a[block] + x / 4, k, block * kWarpgroupRows, x, scale[block]);
      begin_products();
#pragma unroll
      for (int x = 0; x < kD; x += kDepth)  // 1 scores
        Wgmma<T, kHeadsAtOnce>::of_rows(s[block].x, a[block] + x / 4, q.rows_from(head, x), x != 0);
      commit_products();
    }
    wait_for_products<0>();
    for (auto& x : s) x.pin();
  }

  // The largest score of each head, of all warps.
  __device__ __forceinline__ void keep_largest(float (&most)[2], int head, float* to) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int other = 4; other < 32; other *= 2)
        most[n] = fmaxf(most[n], __shfl_xor_sync(~0U, most[n], other));
      if (lane < 4) shared.largest[turn][thread_of_warpgroup() / 32][own_column() + n] = most[n];
    }
    sync_threads(1, kWarpgroup);
    const int own = thread_of_warpgroup();
    if (own < kHeadsAtOnce && head + own < p.group) {
      const auto& warps = shared.largest[turn];
      to[own * score_row(kD) + kKeys] =
          fmaxf(fmaxf(warps[0][own], warps[1][own]), fmaxf(warps[2][own], warps[3][own]));
    }
    turn ^= 1;
  }
};

template <class T, int kD>
__device__ __forceinline__ void byte_scores(const OneQueryParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ByteScoreShared<T, kD>;
  static_assert(sizeof(S) <= score_shared_bytes(kD, true));
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.q.init(4);
    shared.k.init(4, 32 * kBringing);
  }
  clear_queries(shared.q);
  publish_shared();
  __syncthreads();
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32) - kWarpgroup / 32;
  constexpr bool kShares = score_blocks_each(kD) > 1;  // registers, with another block
  if (warp < 0) {
    if constexpr (kShares) take_registers<152>();
    ByteScores<T, kD>{p, shared}.compute();
  } else {
    if constexpr (kShares) give_registers<104>();
    bring_scores<T, kD>(p, shared, warp);
  }
}

}  // namespace attend::cuda
