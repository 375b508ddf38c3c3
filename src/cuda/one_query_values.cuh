// One query a head: values. A block of threads sums some features over all keys, ascending.
#pragma once

#include "one_query_weights.cuh"

namespace attend::cuda {

inline constexpr int kWidening =
    7;  // warps that widen values of 8 bits, beside one that brings them

// A tile of 32 features, as the copy engine writes it: 64 bytes of a row, whose 16-byte pieces are
// permuted by two bits of the row (64-byte swizzle). As the second factor of P V alone.
template <class T, int kRows>
struct alignas(1024) NarrowTile {
  static constexpr int kBytes = kRows * kNarrowSlice * 2;
  T data[kRows][kNarrowSlice];

  __device__ __forceinline__ T* row(int n) { return data[n]; }
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

template <class T, int kD, int kWidth, bool kBytes_>
struct ValueShape {
  static constexpr bool kBytes = kBytes_;
  static constexpr int kKeys = forward_tiles(kD).keys, kStages = value_stages(kWidth);
  static constexpr int kWords = weight_words(kKeys), kPairs = kKeys / 8;
  static constexpr int kRingBytes = value_ring_bytes(kD, kWidth);
  using Tile = typename ValueTileOf<T, kKeys, kWidth>::Type;
  using Values = Ring<Tile, kStages, std::conditional_t<kBytes, WrittenByWarps, char>>;
  using Bytes = ByteTile<kKeys, kWidth>;
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

template <class T, int kD, int kWidth, bool kBytes>
struct ValueSums {
  using S = ValueShape<T, kD, kWidth, kBytes>;
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
      Barrier& full = values.full[place.stage];
      auto& tile = values.tiles[place.stage];
      values.wait_until_empty(place);
      full.arrive_and_expect(S::Tile::kBytes + words * 4);
      if (p.pages.table != nullptr) {
        for_each_piece(p.pages, batch, j * kKeys, kKeys, seen.keys.end,
                       [&](int row, int page, int in_page) {
                         load_box(tile.row(row), p.v, column, in_page, kv_head, page, full);
                       });
      } else {
        load_box(tile.row(0), p.v, column, j * kKeys, kv_head, batch, full);
      }
      load_bytes(weights + place.stage * words, p.weights + weights_at<kKeys>(p, first_row(), j),
                 words * 4, full);
      place.advance();
    }
  }

  // By a warp: bytes of values of 8 bits.
  __device__ __forceinline__ void bring() {
    const int words = p.group * S::kWords, kv_heads = p.heads / p.group;
    const HeadKeys keys{batch, 0, kv_head, seen.keys.end};
    const unsigned* from =
        p.weights +
        ((static_cast<long long>(batch) * kv_heads + kv_head) * p.tiles + seen.tiles.begin) * words;
    for (int j = seen.tiles.begin; j < seen.tiles.end; ++j, from += words) {
      values.wait_until_empty(place);
      Barrier& bytes = values.notes[place.stage].bytes;
      S::Bytes::start(values.tiles[place.stage], bytes, p.v, p.v_bytes, p.pages, keys, j * kKeys,
                      column);
      if (threadIdx.x % 32 == 0) {
        Barrier& full = values.full[place.stage];
        full.arrive_and_expect(words * 4);
        load_bytes(weights + place.stage * words, from, words * 4, full);
      }
      arrive_with_copies(bytes);
      place.advance();
    }
  }
  // By the others: numbers of 16 bits. Their scales have been looked up a tile ahead.
  __device__ __forceinline__ void widen(int warp) {
    using Rows = Widening<typename S::Bytes, kWidening>;
    const float* scales =
        p.value_scales +
        ((static_cast<long long>(batch) * (p.heads / p.group) + kv_head) * p.tiles) * kKeys;
    float scale[Rows::kEach], next[Rows::kEach];
    const auto find = [&](int tile) {
#pragma unroll
      for (int n = 0; n < Rows::kEach; ++n) {
        const int key = tile * kKeys + Rows::row(warp, n);
        next[n] = Rows::row(warp, n) < kKeys && key < seen.keys.end ? scales[key] : 0;
      }
    };
    find(seen.tiles.begin);
    for (int j = seen.tiles.begin; j < seen.tiles.end; ++j) {
#pragma unroll
      for (int n = 0; n < Rows::kEach; ++n) scale[n] = next[n];
      find(j + 1);
      values.notes[place.stage].bytes.wait(place.parity);
      Rows::widen(values.tiles[place.stage], scale, true, warp);
      rows_are_there(values.full[place.stage]);
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
    for (int r = 0; r < 2; ++r) softmax.sum[r] = fmaf(softmax.sum[r], now.rescale[r], now.sum[r]);
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
    o.finish_rows(factor);
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

template <class T, int kD, int kWidth, bool kBytes>
__device__ __forceinline__ void values(const OneQueryParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ValueShape<T, kD, kWidth, kBytes>;
  auto& ring = *reinterpret_cast<typename S::Values*>(memory);
  if (threadIdx.x == 0) {
    ring.init(4, kBytes ? 1 + kWidening : 1);
    if constexpr (kBytes)
      for (auto& note : ring.notes) note.bytes.init(note.kArrivals);
  }
  publish_shared();
  __syncthreads();
  const int slices = (p.value_d + kWidth - 1) / kWidth, kv_heads = p.heads / p.group;
  const int index = static_cast<int>(blockIdx.x), head = index / slices;
  ValueSums<T, kD, kWidth, kBytes> sums{p,
                                        ring,
                                        reinterpret_cast<unsigned*>(memory + S::kRingBytes),
                                        head / kv_heads,
                                        head % kv_heads,
                                        index % slices * kWidth,
                                        Seen<S::kKeys>(p, head / kv_heads)};
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32) - kWarpgroup / 32;
  if (warp < 0) {
    if constexpr (kBytes) take_registers<160>();
    sums.compute();
  } else if constexpr (kBytes) {
    give_registers<40>();
    if (warp == 0) sums.bring();
    else sums.widen(warp - 1);
  } else if (threadIdx.x == kWarpgroup) {
    sums.load();
  }
}

}  // namespace attend::cuda
