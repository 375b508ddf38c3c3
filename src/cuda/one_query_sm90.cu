// One query a head against many keys on Hopper (sm_90a), bf16 and f16, with the bits of
// forward_sm90.cu: a row has them in a prompt and alone.
//
// There a row's sums go through the tiles of keys in ascending order, one after the other. The order
// of these sums cannot be cut, but what they are made of can be had in any order, and sums of
// different features do not meet:
//
//   attend_one_query_scores    1 scores and 2 mask, tile by tile, all at the same time: the heads of
//                              a group are the rows of one product, so each key is read once
//   attend_one_query_weights   3 softmax: the reference score at a tile follows from the largest
//                              scores of the tiles before it, and then its weights from its scores
//   attend_one_query_values    4 values: a block of threads sums 64 features over all keys
//
// Scores and weights go through memory: 6 bytes for each, where a key and its value are 4 d bytes.
#include "one_query_sm90.h"

#include "pipeline.cuh"
#include "softmax.cuh"

namespace attend::cuda {
namespace {

constexpr int kThreads = 2 * kWarpgroup;  // one warpgroup computes, a thread of the other copies

// Keys that the query of a sequence sees, and the tiles that they are in.
template <int kKeys>
struct Seen {
  KeyRange keys, tiles;

  __device__ __forceinline__ Seen(const OneQueryParameters& p, int batch) {
    const int length = p.key_lengths != nullptr ? p.key_lengths[batch] : p.k_length;
    const int offset = p.offset_given         ? p.offset
                       : p.offsets != nullptr ? p.offsets[batch]
                                              : length - 1;
    keys = {max(0, offset - p.left), min(length, offset + p.right + 1)};
    tiles = keys.begin < keys.end ? KeyRange{keys.begin / kKeys, (keys.end + kKeys - 1) / kKeys}
                                  : KeyRange{0, 0};
  }
  __device__ __forceinline__ bool has(int tile) const {
    return tile >= tiles.begin && tile < tiles.end;
  }
  __device__ __forceinline__ bool hides_some(int tile) const {
    return keys.begin > tile * kKeys || keys.end < (tile + 1) * kKeys;
  }
};

// ---- Scores ------------------------------------------------------------------------------------

// The tiles of all key heads, divided evenly among the blocks of threads.
struct TileRange {
  long long begin, end;

  __device__ __forceinline__ explicit TileRange(const OneQueryParameters& p) {
    const long long all = static_cast<long long>(p.batch) * (p.heads / p.group) * p.tiles;
    begin = all * blockIdx.x / gridDim.x;
    end = all * (blockIdx.x + 1) / gridDim.x;
  }
};

template <class T, int kD>
struct ScoreShared {
  static constexpr int kKeys = forward_tiles(kD).keys;
  static constexpr int kStages = score_stages(kD), kQueryStages = score_query_stages(kD);
  Ring<SharedTile<T, kOneQueryRows, kD>, kQueryStages> q;
  Ring<SharedTile<T, kKeys, kD>, kStages> k;
};
template <class T, int kD>
inline constexpr bool kScoresFit = sizeof(ScoreShared<T, kD>) <= score_shared_bytes(kD);

// body(batch, kv_head, tile, first of its head here, last of it) for the tiles that are seen.
template <int kKeys, class Body>
__device__ __forceinline__ void for_each_tile(const OneQueryParameters& p, const Body& body) {
  const TileRange range(p);
  for (long long head = range.begin / p.tiles; head * p.tiles < range.end; ++head) {
    const int kv_heads = p.heads / p.group, batch = static_cast<int>(head / kv_heads);
    const Seen<kKeys> seen(p, batch);
    const auto begin = static_cast<int>(max(range.begin - head * p.tiles, 0LL));
    const auto end = static_cast<int>(min(range.end - head * p.tiles, static_cast<long long>(p.tiles)));
    const int first = max(begin, seen.tiles.begin), last = min(end, seen.tiles.end) - 1;
    for (int j = first; j <= last; ++j)
      body(seen, batch, static_cast<int>(head % kv_heads), j, j == first, j == last);
  }
}

template <class T, int kD>
__device__ __forceinline__ void load_scores(const OneQueryParameters& p,
                                            ScoreShared<T, kD>& shared) {
  using S = ScoreShared<T, kD>;
  Place<S::kQueryStages> q;
  Place<S::kStages> k;
  for_each_tile<S::kKeys>(p, [&](const auto&, int batch, int kv_head, int j, bool first, bool) {
    shared.k.wait_until_empty(k);
    shared.k.load(k, p.k, j * S::kKeys, kv_head, batch);
    if (!first) return;
    shared.q.wait_until_empty(q);
    shared.q.full[q.stage].arrive_and_expect(p.group * kD * 2);
    load_tile(shared.q.tiles[q.stage], p.q, 0, kv_head * p.group, batch, shared.q.full[q.stage]);
    q.advance();
  });
}

template <class T, int kD>
__device__ __forceinline__ void compute_scores(const OneQueryParameters& p,
                                               ScoreShared<T, kD>& shared) {
  using S = ScoreShared<T, kD>;
  constexpr int kKeys = S::kKeys;
  Place<S::kQueryStages> q_place;
  Place<S::kStages> k_place;
  RegisterTile<kKeys> s;
  for_each_tile<kKeys>(p, [&](const auto& seen, int batch, int kv_head, int j, bool, bool last) {
    auto& q = shared.q.wait(q_place);
    auto& k = shared.k.wait(k_place);
    begin_products();
    product_of_rows(s, q, 0, k);  // 1 scores
    commit_products();
    wait_for_products<0>();
    s.pin();
    shared.k.release(k_place);
    if (last) shared.q.release(q_place);
    const int origin = j * kKeys + own_column();
    if (seen.hides_some(j)) {
#pragma unroll
      for (int n = 0; n < s.kCount; ++n)  // 2 mask
        if (s.column(n) < seen.keys.begin - origin || s.column(n) >= seen.keys.end - origin)
          s.x[n] = kMinusInfinity;
    }
    float most[2] = {s.x[0], s.x[2]};
#pragma unroll
    for (int n = 1; n < s.kCount; ++n) most[s.row(n)] = fmaxf(most[s.row(n)], s.x[n]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = row_maximum(most[r]);
      const int row = own_row() + 8 * r;
      if (row >= p.group) continue;
      const long long at =
          (static_cast<long long>(batch) * p.heads + kv_head * p.group + row) * p.tiles + j;
      if (threadIdx.x % 4 == 0) p.largest[at] = most[r];
      float* const to = p.scores + at * kKeys + own_column();
#pragma unroll
      for (int n = 0; n < s.kCount; n += 4)
        *reinterpret_cast<float2*>(to + s.column(n)) = float2{s.x[n + 2 * r], s.x[n + 2 * r + 1]};
    }
  });
}

template <class T, int kD>
__device__ __forceinline__ void scores(const OneQueryParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ScoreShared<T, kD>;
  static_assert(kScoresFit<T, kD>);
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.q.init(4);
    shared.k.init(4);
  }
  // Rows that no query is in: no numbers that are far from any.
  for (auto& tile : shared.q.tiles)
    for (int n = threadIdx.x; n < kOneQueryRows * kD / 8; n += kThreads)
      reinterpret_cast<uint4*>(tile.data)[n] = uint4{0, 0, 0, 0};
  publish_shared();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) compute_scores<T, kD>(p, shared);
  else if (threadIdx.x == kWarpgroup) load_scores<T, kD>(p, shared);
}

// ---- Weights -----------------------------------------------------------------------------------

// By a warp: the reference score of a row before tile `end`, from `begin` on.
template <class T>
__device__ __forceinline__ float reference_before(const Softmax<T>& softmax, const float* largest,
                                                  int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Softmax<T> now = softmax;
  for (int base = begin; base < end; base += 32) {
    const float mine = base + lane < end ? largest[base + lane] : kMinusInfinity;
    for (int from = 0; from < 32;) {  // to the next tile that changes it
      const unsigned changed =
          __ballot_sync(~0U, lane >= from && now.next_reference(0, mine) != now.reference[0]);
      if (changed == 0) break;
      from = __ffs(static_cast<int>(changed));
      now.reference[0] = __shfl_sync(~0U, mine, from - 1);
    }
  }
  return now.reference[0];
}

// Where the weights of a row and a tile are.
template <int kKeys>
__device__ __forceinline__ long long weights_at(const OneQueryParameters& p, long long row,
                                                int tile) {
  constexpr int kWords = kKeys / 2 + 8;
  return ((row / p.group * p.tiles + tile) * p.group + row % p.group) * kWords;
}

// A warp makes the weights of some tiles of a row, four threads each: pairs of keys of every eight.
template <class T, int kD>
__device__ __forceinline__ void weights(const OneQueryParameters& p) {
  constexpr int kKeys = ScoreShared<T, kD>::kKeys, kPairs = kKeys / 8;
  const int lane = static_cast<int>(threadIdx.x % 32), t = lane % 4;
  const int groups = (p.tiles + kOneQueryTiles - 1) / kOneQueryTiles;
  const long long index = static_cast<long long>(blockIdx.x) * kOneQueryWarps + threadIdx.x / 32;
  const long long row = index / groups;
  if (row >= static_cast<long long>(p.batch) * p.heads) return;
  const Seen<kKeys> seen(p, static_cast<int>(row / p.heads));
  const int first = static_cast<int>(index % groups) * kOneQueryTiles, tile = first + lane / 4;
  if (first + kOneQueryTiles <= seen.tiles.begin || first >= seen.tiles.end) return;
  float2 s[kPairs];  // all on their way at once
  const float* const from =
      p.scores + (row * p.tiles + min(tile, p.tiles - 1)) * kKeys + 2 * t;
#pragma unroll
  for (int n = 0; n < kPairs; ++n) s[n] = *reinterpret_cast<const float2*>(from + 8 * n);

  const float* const largest = p.largest + row * p.tiles;
  const float mine =
      lane < kOneQueryTiles && seen.has(first + lane) ? largest[first + lane] : kMinusInfinity;
  Softmax<T> softmax{p.scale * kLog2E};
  softmax.reference[0] = reference_before(softmax, largest, seen.tiles.begin, first);
  float rescale = 1, below = 0, shift = 0;
  for (int n = 0; n < kOneQueryTiles; ++n) {
    const float most = __shfl_sync(~0U, mine, n);
    if (first + n <= tile && seen.has(first + n))
      softmax.move_reference(0, most, below, rescale, shift);
  }
  if (!seen.has(tile)) return;

  unsigned* const to = p.weights + weights_at<kKeys>(p, row, tile);
  float part[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kPairs; n += 2) {
    unsigned both[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float low = exp2_fast(fmaf(s[n + m].x - shift, softmax.scale_log2, -below));
      const float high = exp2_fast(fmaf(s[n + m].y - shift, softmax.scale_log2, -below));
      part[0] += low;
      part[1] += high;
      both[m] = pack(T{}, low, high);
    }
    *reinterpret_cast<uint2*>(to + t * kPairs + n) = uint2{both[0], both[1]};
  }
  to[4 * kPairs + t] = __float_as_uint(part[0] + part[1]);
  if (t != 0) return;
  to[4 * kPairs + 4] = __float_as_uint(rescale);
  if (tile + 1 == seen.tiles.end) p.references[row] = softmax.reference[0];
}

// ---- Values ------------------------------------------------------------------------------------

// A tile of 32 features, as the copy engine writes it: 64 bytes of a row, whose 16-byte pieces are
// permuted by two bits of the row (64-byte swizzle). As the second factor of P V alone.
template <class T, int kRows>
struct alignas(1024) NarrowTile {
  static constexpr int kBytes = kRows * kNarrowSlice * 2;
  T data[kRows][kNarrowSlice];

  __device__ __forceinline__ T* at(int row, int column) {
    return &data[row][(column / 8 ^ row / 2 % 4) * 8 + column % 8];
  }
  __device__ __forceinline__ std::uint64_t columns_from(int, int row) const {
    constexpr std::uint32_t kSwizzle64 = 2U << 30, kEightRows = 8 * 64 / 16;
    constexpr std::uint32_t kPanel = kBytes / 16 << 16;  // there is no other
    return std::uint64_t{kSwizzle64 | kEightRows} << 32 |
           (shared_address(this) / 16 + (kPanel + row * 64 / 16));
  }
};
template <class T, int kKeys, int kWidth>
struct ValueTileOf {
  using Type = SharedTile<T, kKeys, kSlice>;
};
template <class T, int kKeys>
struct ValueTileOf<T, kKeys, kNarrowSlice> {
  using Type = NarrowTile<T, kKeys>;
};

template <class T, int kD, int kWidth>
struct ValueShape {
  static constexpr int kKeys = forward_tiles(kD).keys, kStages = value_stages(kWidth);
  static constexpr int kWords = weight_words(kKeys), kPairs = kKeys / 8;
  static constexpr int kRingBytes = value_ring_bytes(kD, kWidth);
  using Tile = typename ValueTileOf<T, kKeys, kWidth>::Type;
  using Values = Ring<Tile, kStages>;
  static_assert(sizeof(Values) <= kRingBytes);
};

// What a thread takes part in a tile with.
template <class T, class S>
struct TileWeights {
  Operand<T, S::kKeys> weights;
  float rescale[2], sum[2];

  // From those of the rows of a group.
  __device__ __forceinline__ void load(const unsigned* from, int group) {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own_row() + 8 * r;
      const bool given = row < group;
      const unsigned* const own = from + (given ? row : 0) * S::kWords;
      rescale[r] = given ? __uint_as_float(own[4 * S::kPairs + 4]) : 1;
      sum[r] = given ? __uint_as_float(own[4 * S::kPairs + t]) : 0;
#pragma unroll
      for (int n = 0; n < S::kPairs; n += 2) {
        const uint2 both = *reinterpret_cast<const uint2*>(own + t * S::kPairs + n);
        weights.x[2 * n + r] = given ? both.x : 0;
        weights.x[2 * n + 2 + r] = given ? both.y : 0;
      }
    }
#pragma unroll
    for (auto& x : weights.x) asm volatile("" : "+r"(x));  // all there before the first product
  }
};

template <class T, int kD, int kWidth>
struct ValueSums {
  using S = ValueShape<T, kD, kWidth>;
  static constexpr int kKeys = S::kKeys;
  const OneQueryParameters& p;
  typename S::Values& values;
  unsigned* const weights;  // [stages, group, words]
  const int batch, kv_head, column;
  const Seen<kKeys> seen;
  Place<S::kStages> place{}, done{};  // of the thread that copies, or of those that compute
  Softmax<T> softmax{p.scale * kLog2E};

  __device__ __forceinline__ long long first_row() const {
    return static_cast<long long>(batch) * p.heads + kv_head * p.group;
  }

  __device__ __forceinline__ void load() {
    const int words = p.group * S::kWords;
    for (int j = seen.tiles.begin; j < seen.tiles.end; ++j) {
      values.wait_until_empty(place);
      Barrier& full = values.full[place.stage];
      full.arrive_and_expect(S::Tile::kBytes + words * 4);
      load_box(&values.tiles[place.stage], p.v, column, j * kKeys, kv_head, batch, full);
      load_bytes(weights + place.stage * words, p.weights + weights_at<kKeys>(p, first_row(), j),
                 words * 4, full);
      place.advance();
    }
  }

  // The product of a tile runs while the next one's weights are fetched, into other registers.
  __device__ __forceinline__ void compute() {
    RegisterTile<kWidth> o;
    TileWeights<T, S> even, odd;
    o.fill(0);
    int j = seen.tiles.begin;
    if ((seen.tiles.end - j) % 2 != 0) step(j++, odd, o);
    for (; j < seen.tiles.end; j += 2) {
      step(j, even, o);
      step(j + 1, odd, o);
    }
    wait_for_products<0>();
    o.pin();
    finish(o);
  }

 private:
  __device__ __forceinline__ void step(int j, TileWeights<T, S>& now, RegisterTile<kWidth>& o) {
    auto& v = values.wait(place);
    now.load(weights + place.stage * p.group * S::kWords, p.group);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      softmax.sum[r] = fmaf(softmax.sum[r], now.rescale[r], now.sum[r]);
    wait_for_products<0>();
    o.pin();
    if (j > seen.tiles.begin) values.release(done);
    if (seen.hides_some(j)) clear_hidden(j, v);
    if (__any_sync(~0U, now.rescale[0] != 1 || now.rescale[1] != 1)) o.multiply_rows(now.rescale);
    begin_products();
#pragma unroll
    for (int k = 0; k < kKeys; k += kDepth)  // 4 values
      Wgmma<T, kWidth>::add_of_columns(o.x, now.weights.x + k / 4, v.columns_from(0, k));
    commit_products();
    place.advance();
  }

  // Rows of v that the query does not see: they weigh 0, but 0 * NaN is NaN.
  __device__ __forceinline__ void clear_hidden(int tile, typename S::Tile& v) {
    constexpr int kPieces = kWidth / 8;
    for (int n = threadIdx.x; n < kKeys * kPieces; n += kWarpgroup) {
      const int key = tile * kKeys + n / kPieces;
      if (key < seen.keys.begin || key >= seen.keys.end)
        *reinterpret_cast<uint4*>(v.at(n / kPieces, n % kPieces * 8)) = uint4{0, 0, 0, 0};
    }
    publish_shared();
    sync_threads(1, kWarpgroup);
  }

  __device__ __forceinline__ void finish(RegisterTile<kWidth>& o) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float all = row_sum(softmax.sum[r]);
      factor[r] = all == 0 ? 0 : 1 / all;
      const int row = own_row() + 8 * r;
      if (row >= p.group || p.lse.data == nullptr || column != 0 || threadIdx.x % 4 != 0) continue;
      softmax.reference[r] = p.references[first_row() + row];
      static_cast<float*>(
          p.lse.data)[batch * p.lse.batch + (kv_head * p.group + row) * p.lse.head] =
          softmax.lse(r, all, p.scale);
    }
    o.multiply_rows(factor);
#pragma unroll
    for (int n = 0; n < o.kCount; n += 2) {
      const int row = own_row() + 8 * o.row(n), at = column + o.column(n) + own_column();
      if (row >= p.group || at >= p.value_d) continue;
      T* const out = static_cast<T*>(p.out.data) + batch * p.out.batch +
                     (kv_head * p.group + row) * p.out.head + at;
      *reinterpret_cast<std::uint32_t*>(out) = pack(T{}, o.x[n], o.x[n + 1]);
    }
  }
};

template <class T, int kD, int kWidth>
__device__ __forceinline__ void values(const OneQueryParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ValueShape<T, kD, kWidth>;
  auto& ring = *reinterpret_cast<typename S::Values*>(memory);
  if (threadIdx.x == 0) ring.init(4);
  publish_shared();
  __syncthreads();
  const int slices = (p.value_d + kWidth - 1) / kWidth, kv_heads = p.heads / p.group;
  const int index = static_cast<int>(blockIdx.x), head = index / slices;
  ValueSums<T, kD, kWidth> sums{p,
                                ring,
                                reinterpret_cast<unsigned*>(memory + S::kRingBytes),
                                head / kv_heads,
                                head % kv_heads,
                                index % slices * kWidth,
                                Seen<S::kKeys>(p, head / kv_heads)};
  if (threadIdx.x < kWarpgroup) sums.compute();
  else if (threadIdx.x == kWarpgroup) sums.load();
}

}  // namespace
}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128.
extern "C" __global__ void __launch_bounds__(attend::cuda::kThreads,
                                             attend::cuda::score_blocks_each(ATTEND_D))
    attend_one_query_scores(const __grid_constant__ attend::cuda::OneQueryParameters p) {
  attend::cuda::scores<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(32 * attend::cuda::kOneQueryWarps)
    attend_one_query_weights(const __grid_constant__ attend::cuda::OneQueryParameters p) {
  attend::cuda::weights<attend::cuda::ATTEND_TYPE, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kValueThreads, 2)
    attend_one_query_values(const __grid_constant__ attend::cuda::OneQueryParameters p) {
  attend::cuda::values<attend::cuda::ATTEND_TYPE, ATTEND_D, attend::cuda::kSlice>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kValueThreads, 2)
    attend_one_query_values_narrow(const __grid_constant__ attend::cuda::OneQueryParameters p) {
  attend::cuda::values<attend::cuda::ATTEND_TYPE, ATTEND_D, attend::cuda::kNarrowSlice>(p);
}
