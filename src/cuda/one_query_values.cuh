// One query a head: values. A block of threads sums some features of up to eight heads over all
// keys, ascending. The product is turned, V^T P^T: features are its rows and heads its columns, so
// that an instruction has eight columns instead of 64 rows that are mostly empty. Its sums have the
// bits of P V.
//
//   four warps          weights of a tile each (one_query_weights.cuh)
//   a warpgroup         values: the products of a tile start behind those of the one before
//   two threads of other warps, or of 8 bits a warpgroup, copy values and scores
#pragma once

#include "one_query_weights.cuh"

namespace attend::cuda {

// A tile of 32 features, as the copy engine writes it: 64 bytes of a row, whose 16-byte pieces are
// permuted by two bits of the row (64-byte swizzle).
template <class T, int kRows>
struct alignas(1024) NarrowTile {
  static constexpr int kBytes = kRows * kNarrowSlice * 2;
  T data[kRows][kNarrowSlice];

  __device__ __forceinline__ T* row(int n) { return data[n]; }
  __device__ __forceinline__ T* at(int row, int column) {
    return &data[row][(column / 8 ^ row / 2 % 4) * 8 + column % 8];
  }
  // A product has 64 of them: the same 32 twice.
  __device__ __forceinline__ std::uint64_t columns_from(int, int row) const {
    constexpr std::uint32_t kSwizzle64 = 2U << 30, kEightRows = 8 * 64 / 16;
    return std::uint64_t{kSwizzle64 | kEightRows} << 32 |
           (shared_address(this) / 16 + row * 64 / 16);
  }
};
template <class T, int kKeys, int kWidth, bool kBytes>
using ValueTile = std::conditional_t<
    kBytes, ByteTile<kKeys, kWidth>,
    std::conditional_t<kWidth == kNarrowSlice, NarrowTile<T, kKeys>, SharedTile<T, kKeys, kSlice>>>;

template <class T, int kD, int kWidth, bool kBytes>
struct ValueShared {
  static constexpr int kKeys = forward_tiles(kD).keys;
  static constexpr int kStages = value_stages(kD, kWidth, kBytes);
  struct alignas(16) Scales {
    float of[kKeys];
  };
  Ring<ValueTile<T, kKeys, kWidth, kBytes>, kStages, std::conditional_t<kBytes, Scales, Nothing>>
      values;
  ScoreRing<kD> scores;
  WeightRing<T, kD> weights;
};

inline constexpr int kLoading = 2 * kWarpgroup;  // the first thread of those that copy

// Registers of a thread: those that start copies need few.
inline constexpr struct { int values = 88, weights = 96, bring = 56; } kByteRegisters;

template <class T, int kD, int kWidth, bool kBytes>
struct ValueSums {
  using S = ValueShared<T, kD, kWidth, kBytes>;
  using Tile = ValueTile<T, S::kKeys, kWidth, kBytes>;
  using Weights = WeightTile<T, S::kKeys>;
  static constexpr int kKeys = S::kKeys;
  const OneQueryParameters& p;
  S& shared;
  const int batch, kv_head, head, column;  // head: the first one here of the group
  const Seen<kKeys> seen;
  Place<S::kStages> place{}, done{};  // done: of those that compute, up to where all is released
  Place<kWeightStages> weight_place{}, weight_done{};
  Place<kScoreTiles> score_place{};

  // By four warps. Of 8 bits, scales come with the values.
  __device__ __forceinline__ void make_weights(int warp) {
    const auto advance = [&](int tiles) {
      for (int n = 0; n < tiles; ++n) place.advance();
    };
    advance(warp);
    WeightMaker<T, kD, kBytes>{
        shared.scores, shared.weights, seen.tiles, heads(), {p.scale * kLog2E}}
        .run(warp, [&]() -> const float* {
          if constexpr (!kBytes) return nullptr;
          else {
            shared.values.wait(place);
            const float* const scales = shared.values.notes[place.stage].of;
            advance(kWeightStages);
            return scales;
          }
        });
  }

  // By one thread each: values, and scores.
  __device__ __forceinline__ void load() {
    for (int j = seen.tiles.begin; j < seen.tiles.end; ++j) {
      Barrier& full = shared.values.full[place.stage];
      auto& tile = shared.values.tiles[place.stage];
      shared.values.wait_until_empty(place);
      full.arrive_and_expect(Tile::kBytes);
      if (p.pages.table != nullptr) {
        for_each_piece(p.pages, batch, j * kKeys, kKeys, seen.keys.end,
                       [&](int row, int page, int in_page) {
                         load_box(tile.row(row), p.v, column, in_page, kv_head, page, full);
                       });
      } else {
        load_box(tile.row(0), p.v, column, j * kKeys, kv_head, batch, full);
      }
      place.advance();
    }
  }
  __device__ __forceinline__ void load_scores() {
    for (int j = seen.tiles.begin; j < seen.tiles.end; ++j) load_scores(j);
  }

  // By a warp of four: values of 8 bits.
  __device__ __forceinline__ void bring(int warp) {
    const HeadKeys keys{batch, 0, kv_head, seen.keys.end};
    LaneRows<kKeys, kBringing> next;
    const auto find = [&](int tile) {
      next.find_rows(p.v_bytes, p.pages, keys, tile * kKeys, warp, [](int, int, int) {});
    };
    if (seen.tiles.begin < seen.tiles.end) find(seen.tiles.begin);
    for (int j = seen.tiles.begin; j < seen.tiles.end; ++j) {
      const auto now = next;
      if (j + 1 < seen.tiles.end) find(j + 1);
      shared.values.wait_until_empty(place);
      start_rows(shared.values.tiles[place.stage], now, p.v_bytes, column, warp);
      float* const to = shared.values.notes[place.stage].of;
      const long long head = static_cast<long long>(batch) * (p.heads / p.group) + kv_head;
      const float* const scales = p.value_scales + (head * p.tiles + j) * kKeys;
      if (const int n = static_cast<int>(threadIdx.x % 32) * 4; warp == 0 && n < kKeys)
        copy_async<16>(to + n, scales + n, true);
      shared.values.full[place.stage].arrive_when_copied();
      place.advance();
      if (threadIdx.x == kLoading) load_scores(j);
      __syncwarp();
    }
  }

  // By a warpgroup. Between two tiles that rescale the sums nothing but products touches them, so
  // that these follow each other without a wait: the next tile is looked for while those of two
  // run.
  __device__ __forceinline__ void compute() {
    RegisterTile<kHeadsAtOnce> o;
    Operands operands;
    o.fill(0);
    Softmax<T> softmax{p.scale * kLog2E};  // lane n has the sums of head n / 4
    int j = seen.tiles.begin;
    if (j < seen.tiles.end) look_for_next(softmax);
    while (j < seen.tiles.end) {
      const WeightNote& note = shared.weights.notes[weight_place.stage];
#pragma unroll
      for (int n = 0; n < o.kCount; ++n) o.x[n] *= note.rescale[own_column() + n % 2];
      bool rescales = false;
      do {
        start_values(j, operands, o);
        weight_place.advance();
        place.advance();
        if (++j < seen.tiles.end) rescales = look_for_next(softmax);
        wait_for_products<1>();
        if constexpr (kBytes) operands.pin(0);
        if (j > seen.tiles.begin + 1) release_one();
      } while (j < seen.tiles.end && !rescales);
      wait_for_products<0>();
      o.pin();
    }
    finish(softmax, o);
  }

 private:
  __device__ __forceinline__ int heads() const { return min(p.group - head, kHeadsAtOnce); }

  __device__ __forceinline__ void load_scores(int tile) {
    Barrier& full = shared.scores.full[score_place.stage];
    auto& scores = shared.scores.tiles[score_place.stage].of;
    const int bytes = heads() * static_cast<int>(sizeof(scores[0]));
    shared.scores.wait_until_empty(score_place);
    full.arrive_and_expect(bytes);
    load_bytes(scores, scores_at<kD>(p, batch, kv_head, tile) + head * score_row(kD), bytes, full);
    score_place.advance();
  }

  // Of 8 bits: values of half a tile, while the products of the other half run.
  struct Operands {
    static constexpr int kFirst = (kKeys / kDepth + 1) / 2 * kDepth;  // keys of the first half
    std::uint32_t x[2][kBytes ? kFirst / 4 : 1];

    __device__ __forceinline__ void pin(int half) {
#pragma unroll
      for (auto& word : x[half]) asm volatile("" : "+r"(word));
    }
  };

  // When it is there; whether the sums of values have to be rescaled before.
  __device__ __forceinline__ bool look_for_next(Softmax<T>& softmax) {
    shared.weights.wait(weight_place);
    const WeightNote& note = shared.weights.notes[weight_place.stage];
    const int lane = static_cast<int>(threadIdx.x % 32);
    softmax.sum[0] = fmaf(softmax.sum[0], note.rescale[lane / 4], note.sum[lane]);
    softmax.reference[0] = note.reference[lane / 4];
    shared.values.wait(place);
    return note.rescales != 0;
  }
  __device__ __forceinline__ void release_one() {
    if constexpr (!kBytes) shared.values.release(done);
    shared.weights.release(weight_done);
  }

  // 4 values
  __device__ __forceinline__ void start_values(int j, Operands& operands,
                                               RegisterTile<kHeadsAtOnce>& o) {
    Tile& v = shared.values.tiles[place.stage];
    const Weights& weights = shared.weights.tiles[weight_place.stage];
    if constexpr (kBytes) {
      if (shared.weights.notes[weight_place.stage].takes == 0)
        return start_bytes<false>(j, weights, v, operands, o);
      return start_bytes<true>(j, weights, v, operands, o);
    } else {
      if (seen.hides_some(j)) clear_hidden(j, v);
      begin_products();
#pragma unroll
      for (int k = 0; k < kKeys; k += kDepth)
        Wgmma<T, kHeadsAtOnce>::add_turned(o.x, v.columns_from(0, k), weights.rows_from(k));
      commit_products();
    }
  }

  // The same of 8 bits. kTakes: a value that weights cannot be multiplied for takes its scale.
  template <bool kTakes>
  __device__ __forceinline__ void start_bytes(int j, const Weights& weights, Tile& v,
                                              Operands& operands, RegisterTile<kHeadsAtOnce>& o) {
    const auto scale_of = [&](int row) {
      const int key = j * kKeys + row;
      const bool is_seen = key >= seen.keys.begin && key < seen.keys.end;
      return is_seen ? own_scale(shared.values.notes[place.stage].of[row], true) : 0;
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = half == 0 ? 0 : Operands::kFirst,
                end = half == 0 ? first + Operands::kFirst : kKeys;
      std::uint32_t* const a = operands.x[half];
#pragma unroll
      for (int k = first; k < end; k += kDepth)
        load_turned_operand<kTakes>(a + (k - first) / 4, v, k, scale_of);
      if (half == 1) {
        __syncwarp();
        shared.values.release(done);
      }
      begin_products();
#pragma unroll
      for (int k = first; k < end; k += kDepth)
        Wgmma<T, kHeadsAtOnce>::of_rows(o.x, a + (k - first) / 4, weights.rows_from(k), true);
      commit_products();
      if (half == 1) return;
      wait_for_products<1>();
      operands.pin(1);
    }
  }

  // Rows of v that the query does not see: they weigh 0, but 0 * NaN is NaN.
  __device__ __forceinline__ void clear_hidden(int tile, Tile& v) {
    constexpr int kPieces = kWidth / 8;
    for (int n = threadIdx.x; n < kKeys * kPieces; n += kWarpgroup) {
      const int key = tile * kKeys + n / kPieces;
      if (key < seen.keys.begin || key >= seen.keys.end)
        *reinterpret_cast<uint4*>(v.at(n / kPieces, n % kPieces * 8)) = uint4{0, 0, 0, 0};
    }
    publish_shared();
    sync_threads(1, kWarpgroup);
  }

  __device__ __forceinline__ void finish(const Softmax<T>& softmax,
                                         const RegisterTile<kHeadsAtOnce>& o) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float all = row_sum(softmax.sum[0]), factor = all == 0 ? 0 : 1 / all;
    if (threadIdx.x < 32 && lane % 4 == 0 && lane / 4 < heads() && column == 0 &&
        p.lse.data != nullptr)
      static_cast<float*>(
          p.lse.data)[batch * p.lse.batch + (kv_head * p.group + head + lane / 4) * p.lse.head] =
          softmax.lse(0, all, p.scale);
#pragma unroll
    for (int n = 0; n < o.kCount; ++n) {
      const int own = own_column() + n % 2, row = own_row() + 8 * o.row(n);
      const float of_head = __shfl_sync(~0U, factor, own * 4);
      const int at = column + (kBytes ? column_of_row<kWidth>(row) : row);
      if (row >= kWidth || at >= p.value_d || own >= heads()) continue;
      T* const out = static_cast<T*>(p.out.data) + batch * p.out.batch +
                     (kv_head * p.group + head + own) * p.out.head + at;
      *out = T(fmaf(o.x[n], of_head, 0.F));
    }
  }
};

template <class T, int kD, int kWidth, bool kBytes>
__device__ __forceinline__ void values(const OneQueryParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ValueShared<T, kD, kWidth, kBytes>;
  static_assert(sizeof(S) <= value_shared_bytes(kD, kWidth, kBytes));
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    shared.values.init(4, kBytes ? 32 * kBringing : 1);
    shared.scores.init(kWeightStages);
    shared.weights.init(4, kArriving);
  }
  publish_shared();
  __syncthreads();
  const int slices = (p.value_d + kWidth - 1) / kWidth, kv_heads = p.heads / p.group;
  const int parts = (p.group + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int index = static_cast<int>(blockIdx.x), part = index / slices, kv = part / parts;
  ValueSums<T, kD, kWidth, kBytes> sums{p,
                                        shared,
                                        kv / kv_heads,
                                        kv % kv_heads,
                                        part % parts * kHeadsAtOnce,
                                        index % slices * kWidth,
                                        Seen<S::kKeys>(p, kv / kv_heads)};
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < 4) {
    if constexpr (kBytes) take_registers<kByteRegisters.values>();
    sums.compute();
  } else if (warp < 8) {
    if constexpr (kBytes) take_registers<kByteRegisters.weights>();
    sums.make_weights(warp - 4);
  } else if constexpr (kBytes) {
    give_registers<kByteRegisters.bring>();
    sums.bring(warp - 8);
  } else if (threadIdx.x == kLoading) {
    sums.load();
  } else if (threadIdx.x == kLoading + 32) {
    sums.load_scores();
  }
}

}  // namespace attend::cuda
