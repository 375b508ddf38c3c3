// One query a head: scores of keys of 8 bits. A product's rows are keys here, and its columns the
// heads of a group, so keys become bf16 on their way from shared memory into registers and no tile
// of them is written. A warp copies its own keys, some steps ahead, and waits for nobody else's.
// A score is the sum that it is in a prompt, in the same order: the factors change places.
#pragma once

#include "bytes.cuh"
#include "one_query_scores.cuh"

namespace attend::cuda {

// Tiles that a warpgroup makes scores of, those that are seen. Twice: the next to be copied, and
// the next to be computed.
template <int kKeys>
struct SeenTiles {
  long long at, end, first_of_head = -1;  // of all tiles of all key heads
  int batch, kv_head, tile;
  Seen<kKeys> seen;

  __device__ __forceinline__ SeenTiles(const OneQueryParameters& p, int part, int parts)
      : batch(0), kv_head(0), tile(0), seen(p, 0) {
    const long long all = static_cast<long long>(p.batch) * (p.heads / p.group) * p.tiles;
    at = all * part / parts;
    end = all * (part + 1) / parts;
    find(p);
  }
  __device__ __forceinline__ bool over() const { return at >= end; }
  __device__ __forceinline__ void advance(const OneQueryParameters& p) {
    ++at;
    if (++tile >= seen.tiles.end || at >= end) find(p);
  }

 private:
  // The first one from `at` on.
  __device__ __forceinline__ void find(const OneQueryParameters& p) {
    const int kv_heads = p.heads / p.group;
    while (at < end) {
      const long long head = at / p.tiles;
      if (head * p.tiles != first_of_head) {
        first_of_head = head * p.tiles;
        batch = static_cast<int>(head / kv_heads);
        kv_head = static_cast<int>(head % kv_heads);
        seen = Seen<kKeys>(p, batch);
      }
      tile = static_cast<int>(at - first_of_head);
      if (seen.has(tile)) return;
      at = tile < seen.tiles.begin ? first_of_head + seen.tiles.begin : first_of_head + p.tiles;
    }
  }
};

template <int kD_>
struct ByteScoreShape {
  static constexpr int kD = kD_, kKeys = forward_tiles(kD).keys, kSteps = score_steps(kD);
  static constexpr int kRowBytes = kD == 64 ? 64 : 128, kPanels = kD / kRowBytes;
  using Queries = SharedTile<bf16, kOneQueryRows, kD>;
  struct Warp {
    // As the copy engine writes them: 16-byte pieces of a row are permuted by its place, and those
    // of 8 rows at one place are in all banks.
    alignas(1024) signed char keys[kSteps][kPanels][16][kRowBytes];
    float scales[kSteps][16], value_scales[kSteps][16];
    Barrier there[kSteps];
  };
  struct Warpgroup {
    Queries q;
    float largest[2][4][kOneQueryRows];  // of a tile, and the next: of each warp's keys
    Barrier full;
  };
  struct Shared {
    Warpgroup warpgroups[2];
    Warp warps[8];
  };
  static_assert(sizeof(Shared) <= score_shared_bytes(kD, true));
};

// A tile's keys in two steps: 64, and 64 or 16, which are one warp's, each time another one's.
template <int kD>
struct ByteScores {
  using S = ByteScoreShape<kD>;
  static constexpr int kKeys = S::kKeys, kSteps = S::kSteps;
  const OneQueryParameters& p;
  typename S::Warpgroup& shared;
  typename S::Warp& own;
  const int warpgroup, warp;  // in the warpgroup
  SeenTiles<kKeys> next, now;
  int next_step = 0;     // where the next keys go
  Place<kSteps> from{};  // where those are that are computed
  std::uint32_t parity = 0;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  // Of a row, 16 bytes.
  __device__ __forceinline__ static int place_of(int row, int piece) {
    return piece / 8 * 16 * S::kRowBytes + row * S::kRowBytes +
           (piece % 8 ^ (kD == 64 ? row / 2 % 4 : row % 8)) * 16;
  }
  // The first of the warp's 16 rows of a tile, or -1.
  __device__ __forceinline__ int first_row(int tile, int step) const {
    if (step == 0) return 16 * warp;
    return kKeys == 128 ? 64 + 16 * warp : tile % 4 == warp ? 64 : -1;
  }

  // Starts copying the warp's keys of a step, and the scales of keys and values.
  __device__ __forceinline__ void copy(int step) {
    if (next.over()) return;
    Barrier& there = own.there[next_step];
    const int first = first_row(next.tile, step), begin = next.tile * kKeys + first;
    if (first >= 0) {
      const HeadKeys keys{next.batch, 0, next.kv_head, next.seen.keys.end};
      const KeyPlace at(p.pages, keys, begin + lane() % 16);
      const ByteKeys& of = lane() < 16 ? p.k_bytes : p.v_bytes;
      float* const scales = lane() < 16 ? own.scales[next_step] : own.value_scales[next_step];
      copy_async<4>(shared_address(scales + lane() % 16),
                    of.scales + (at.batch * of.scale_batch + keys.head * of.scale_head +
                                 at.row * of.scale_row),
                    begin + lane() % 16 < keys.end);
      if (p.k_bytes.boxes == 0) {
        copy_rows(keys, begin);
        if (lane() == 0) there.arrive();
      } else if (lane() == 0) {
        there.arrive_and_expect(16 * kD);
#pragma unroll
        for (int n = 0; n < S::kPanels; ++n)
          load_box(own.keys[next_step][n], p.k, n * S::kRowBytes, at.row, keys.head, at.batch,
                   there);
      }
    } else if (lane() == 0) {
      there.arrive();
    }
    arrive_with_copies(there);
    next_step = next_step + 1 == kSteps ? 0 : next_step + 1;
    if (step == 1) next.advance(p);
  }
  __device__ __forceinline__ void copy_rows(const HeadKeys& keys, int begin) {
    const ByteKeys& of = p.k_bytes;
#pragma unroll 1
    for (int n = lane(); n < 16 * kD / 8; n += 32) {
      const int row = n / (kD / 8), x = n % (kD / 8) * 8;
      const KeyPlace at(p.pages, keys, begin + row);
      copy_async<8>(shared_address(own.keys[next_step]) + place_of(row, x / 16) + x % 16,
                    of.data + at.batch * of.batch + keys.head * of.head + at.row * of.row + x,
                    begin + row < keys.end && x < of.d);
    }
  }

  template <int kN>
  __device__ __forceinline__ void run() {
    for (int n = 0; n < kSteps - 1; ++n) copy(n % 2);
    long long head = -1;
    for (int n = 0; !now.over(); ++n, now.advance(p)) {
      if (now.first_of_head != head) load_queries();
      head = now.first_of_head;
      float most[kN / 4];
#pragma unroll
      for (float& x : most) x = kMinusInfinity;
      for (int step = 0; step < 2; ++step) {
        __syncwarp();
        copy((step + kSteps - 1) % 2);
        own.there[from.stage].wait(from.parity);
        if (const int first = first_row(now.tile, step); first >= 0 && lane() < 16)
          p.value_scales[now.at * kKeys + first + lane()] = own.value_scales[from.stage][lane()];
        compute<kN>(step, most);
        from.advance();
      }
      store_largest<kN>(n % 2, most);
    }
  }

 private:
  __device__ __forceinline__ void meet() { sync_threads(1 + warpgroup, kWarpgroup); }

  __device__ __forceinline__ void load_queries() {
    meet();  // nobody reads the ones before
    if (thread_of_warpgroup() == 0) {
      shared.full.arrive_and_expect(p.group * kD * 2);
      load_tile(shared.q, p.q, 0, now.kv_head * p.group, now.batch, shared.full);
    }
    shared.full.wait(parity);
    parity ^= 1;
  }

  // As the first factor of a product: of two rows, which are 8 apart, two neighbours and the two
  // that are 8 to the right of them.
  __device__ __forceinline__ void load_keys(const float (&scale)[2],
                                            std::uint32_t (&keys)[kD / 4]) const {
    const int row = lane() / 4;
    const std::uint32_t at =
        shared_address(own.keys[from.stage]) + place_of(row, 0) + lane() % 4 * 2;
    const bool takes = row_takes(scale[0], false) || row_takes(scale[1], false);
#pragma unroll
    for (int k = 0; k < kD / 16; ++k)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        keys[4 * k + n] = load_2((at ^ k % 8 * 16) + k / 8 * 16 * S::kRowBytes +
                                 n % 2 * 8 * S::kRowBytes + n / 2 * 8);
    if (__any_sync(~0U, takes)) {
#pragma unroll
      for (int n = 0; n < kD / 4; ++n)
        keys[n] =
            row_takes(scale[n % 2], false) ? times(keys[n], scale[n % 2]).x : widened_pair(keys[n]);
    } else {
#pragma unroll
      for (int n = 0; n < kD / 4; ++n) keys[n] = widened_pair(keys[n]);
    }
  }

  template <int kN>
  __device__ __forceinline__ void compute(int step, float (&most)[kN / 4]) {
    const int first = first_row(now.tile, step), row = lane() / 4;
    const float scale[2] = {own.scales[from.stage][row], own.scales[from.stage][row + 8]};
    std::uint32_t keys[kD / 4] = {};
    if (first >= 0) load_keys(scale, keys);
    float s[kN / 2];
    begin_products();
#pragma unroll
    for (int k = 0; k < kD / 16; ++k)  // 1 scores
      Wgmma<bf16, kN>::of_registers(s, keys + 4 * k, shared.q.rows_from(0, 16 * k), k != 0);
    commit_products();
    wait_for_products<0>();
#pragma unroll
    for (float& x : s) asm volatile("" : "+f"(x)::"memory");
    if (first < 0) return;
    const long long to_row = static_cast<long long>(now.batch) * p.heads + now.kv_head * p.group;
#pragma unroll
    for (int n = 0; n < kN / 2; ++n) {
      const int query = n / 4 * 8 + lane() % 4 * 2 + n % 2, r = first + row + n / 2 % 2 * 8;
      const int key = now.tile * kKeys + r;
      float x = __fmul_rn(s[n], others_scale(scale[n / 2 % 2], false));
      if (key < now.seen.keys.begin || key >= now.seen.keys.end) x = kMinusInfinity;  // 2 mask
      most[n / 4 * 2 + n % 2] = fmaxf(most[n / 4 * 2 + n % 2], x);
      if (query < p.group) p.scores[((to_row + query) * p.tiles + now.tile) * kKeys + r] = x;
    }
  }

  template <int kN>
  __device__ __forceinline__ void store_largest(int turn, const float (&most)[kN / 4]) {
#pragma unroll
    for (int n = 0; n < kN / 4; ++n) {
      float x = most[n];
#pragma unroll
      for (int other = 4; other < 32; other *= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, other));
      if (lane() < 4) shared.largest[turn][warp][n / 2 * 8 + lane() * 2 + n % 2] = x;
    }
    meet();
    const int query = thread_of_warpgroup();
    if (query >= p.group) return;
    const auto& all = shared.largest[turn];
    p.largest[(static_cast<long long>(now.batch) * p.heads + now.kv_head * p.group + query) *
                  p.tiles +
              now.tile] =
        fmaxf(fmaxf(all[0][query], all[1][query]), fmaxf(all[2][query], all[3][query]));
  }
};

template <int kD>
__device__ __forceinline__ void byte_scores(const OneQueryParameters& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = ByteScoreShape<kD>;
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const int warp = uniform(thread_of_warpgroup() / 32);
  auto& own = shared.warpgroups[warpgroup];
  auto& of_warp = shared.warps[4 * warpgroup + warp];
  if (thread_of_warpgroup() == 0) own.full.init(1);
  if (threadIdx.x % 32 == 0)
    for (Barrier& there : of_warp.there) there.init(WrittenByWarps::kArrivals);
  // Rows that no query is in: no numbers that are far from any.
  for (int n = thread_of_warpgroup(); n < kOneQueryRows * kD / 8; n += kWarpgroup)
    reinterpret_cast<uint4*>(own.q.data)[n] = uint4{0, 0, 0, 0};
  publish_shared();
  __syncthreads();
  const int part = static_cast<int>(blockIdx.x) * 2 + warpgroup;
  const SeenTiles<S::kKeys> tiles(p, part, static_cast<int>(gridDim.x) * 2);
  ByteScores<kD> scores{p, own, of_warp, warpgroup, warp, tiles, tiles};
  if (p.group <= 8) scores.template run<8>();
  else scores.template run<kOneQueryRows>();
}

}  // namespace attend::cuda
