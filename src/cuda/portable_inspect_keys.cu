// Statistics of the weights on any NVIDIA GPU, of keys and of the map, once the softmax of every
// row is known (portable_inspect.cu). Every sum has one owner and one order:
//
//   keys     the mass of 32 keys, over all queries in ascending order, and what they add to metrics
//   map      some tiles, or one
#include "portable_inspect.cuh"

namespace attend::cuda {
namespace {

// ---- Keys --------------------------------------------------------------------------------------

// The tokens of a lane's key, and of the one before it.
struct KeyTokens {
  std::int64_t own = kNoToken - 1, left = kNoToken - 1;
};

// The metrics of one weight: a query at `position`, key j.
__device__ __forceinline__ void measure(HeadSums& sums, const InspectProblem& p, double w,
                                        std::int64_t position, std::int64_t j, std::int64_t token,
                                        const KeyTokens& key) {
  const std::int64_t ahead = position - j, distance = ahead < 0 ? -ahead : ahead;
  sums.distance += w * static_cast<double>(distance);
  if (distance <= p.local_width) sums.local += w;
  if (ahead == 1) sums.previous += w;
  if (ahead == 0) sums.diagonal += w;
  if (j == 0) sums.first += w;
  if (!p.tokens || ahead < 0) return;
  if (ahead > 0 && key.own == token) sums.duplicate += w;
  if (key.left == token) sums.induction += w;
}

__device__ HeadSums sum_over_warp(const HeadSums& own) {
  HeadSums sums;
  sums.distance = warp_sum(own.distance);
  sums.previous = warp_sum(own.previous);
  sums.first = warp_sum(own.first);
  sums.diagonal = warp_sum(own.diagonal);
  sums.local = warp_sum(own.local);
  sums.duplicate = warp_sum(own.duplicate);
  sums.induction = warp_sum(own.induction);
  return sums;
}

template <class Real>
struct KeyShared : WeightShared<Real> {
  static constexpr int kWarps = kPortableThreads / kLanes;
  double mass[kWarps][kLanes];
  double sums[kWarps][kSums];
};

template <class Real>
__device__ __forceinline__ void add_keys(const PortableInspect& a, KeyShared<Real>& shared,
                                         std::int64_t index) {
  const InspectProblem& p = a.problem;
  const InspectCall& call = a.call;
  const InspectedHead head(p, call, index / a.key_blocks);
  const Sequence& s = head.sequence;
  const std::int64_t j0 = index % a.key_blocks * kLanes, j = j0 + lane();
  double mass = 0;
  HeadSums sums;
  if (j0 < s.k_length) {
    const double k_scale = take_keys(a, shared, head, j0);
    KeyTokens tokens;
    if (p.tokens && j < s.k_stored) {
      tokens.own = token_of(p, call, s, j);
      if (j > 0) tokens.left = token_of(p, call, s, j - 1);
    }
    for (std::int64_t i0 = 0; i0 < s.q_length; i0 += kRows) {
      double w[kWarpRows];
      bool seen[kWarpRows];
      if (!weigh(a, shared, head, i0, j0, k_scale, w, seen)) continue;
#pragma unroll
      for (int n = 0; n < kWarpRows; ++n) {
        if (!seen[n]) continue;
        const int r = warp() * kWarpRows + n;
        mass += w[n];
        if (p.metrics) measure(sums, p, w[n], i0 + r + s.offset, j, shared.token[r], tokens);
      }
    }
  }
  __syncthreads();
  shared.mass[warp()][lane()] = mass;
  sums = sum_over_warp(sums);
  if (lane() == 0) *reinterpret_cast<HeadSums*>(shared.sums[warp()]) = sums;
  __syncthreads();
  if (p.key_mass && warp() == 0 && j < listed_keys(p, s)) {
    for (int n = 1; n < KeyShared<Real>::kWarps; ++n) mass += shared.mass[n][lane()];
    store(call.key_mass, mass_row(p, call, s, head.h) + j, mass);
  }
  if (!p.metrics || threadIdx.x >= kSums) return;
  double sum = 0;
  for (const auto& one : shared.sums) sum += one[threadIdx.x];
  reinterpret_cast<double*>(&a.key_sums[index])[threadIdx.x] = sum;
}

template <class Real>
__device__ void keys(const PortableInspect& a) {
  __shared__ KeyShared<Real> shared;
  for (std::int64_t index = blockIdx.x; index < a.items; index += gridDim.x) {
    __syncthreads();
    add_keys(a, shared, index);
  }
}

// ---- Map ---------------------------------------------------------------------------------------

struct Cell {
  double sum, most, visible;
  __device__ __forceinline__ void join(const Cell& other) {
    sum += other.sum;
    most = fmax(most, other.most);
    visible += other.visible;
  }
};

template <class Real>
struct MapShared : WeightShared<Real> {
  Cell cells[kRows][kLanes];  // of each row, the tiles side by side
};

// All lanes of a tile get what they have together.
__device__ __forceinline__ Cell over_lanes(Cell own, int lanes) {
  for (int other = 1; other < lanes; other *= 2)
    own.join({__shfl_xor_sync(kAll, own.sum, other), __shfl_xor_sync(kAll, own.most, other),
              __shfl_xor_sync(kAll, own.visible, other)});
  return own;
}

// A region of the map is a tile or, if that is less than 16 queries or 32 keys, several.
template <class Real>
__device__ __forceinline__ void map_region(const PortableInspect& a, MapShared<Real>& shared,
                                           std::int64_t index) {
  const InspectProblem& p = a.problem;
  const std::int64_t c = index % a.region_columns, r = index / a.region_columns % a.region_rows;
  const std::int64_t number = index / a.region_columns / a.region_rows;
  const InspectedHead head(p, a.call, number);
  const Sequence& s = head.sequence;
  Cell own[kWarpRows] = {};
  for (std::int64_t j0 = c * a.wide; j0 < min((c + 1) * a.wide, s.k_length); j0 += kLanes) {
    const double k_scale = take_keys(a, shared, head, j0);
    for (std::int64_t i0 = r * a.tall; i0 < min((r + 1) * a.tall, s.q_length); i0 += kRows) {
      double w[kWarpRows];
      bool seen[kWarpRows];
      if (!weigh(a, shared, head, i0, j0, k_scale, w, seen)) continue;
#pragma unroll
      for (int n = 0; n < kWarpRows; ++n)
        if (seen[n]) own[n].join({w[n], w[n], 1});
    }
  }
  const int columns = static_cast<int>(a.wide / p.tile_keys), lanes = kLanes / columns;
  const int tile_rows = static_cast<int>(a.tall / p.tile_queries), rows = kRows / tile_rows;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kWarpRows; ++n) {
    const Cell cell = over_lanes(own[n], lanes);
    if (lane() % lanes == 0) shared.cells[warp() * kWarpRows + n][lane() / lanes] = cell;
  }
  __syncthreads();
  for (int n = static_cast<int>(threadIdx.x); n < tile_rows * columns; n += kPortableThreads) {
    const std::int64_t row = r * tile_rows + n / columns, column = c * columns + n % columns;
    if (row >= p.map_rows() || column >= p.map_columns()) continue;
    Cell tile{};
    for (int x = 0; x < rows; ++x) tile.join(shared.cells[n / columns * rows + x][n % columns]);
    const std::int64_t to = (number * p.map_rows() + row) * p.map_columns() + column;
    const bool none = tile.visible == 0, nan = tile.sum != tile.sum;
    store(a.call.tile_mean, to, none ? -1 : tile.sum / tile.visible);
    store(a.call.tile_maximum, to, none ? -1 : nan ? tile.sum : tile.most);
  }
}

template <class Real>
__device__ void map(const PortableInspect& a) {
  __shared__ MapShared<Real> shared;
  for (std::int64_t index = blockIdx.x; index < a.items; index += gridDim.x) {
    __syncthreads();
    map_region(a, shared, index);
  }
}

}  // namespace
}  // namespace attend::cuda

using attend::cuda::PortableInspect;

extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_inspect_keys_f32(const __grid_constant__ PortableInspect a) {
  attend::cuda::keys<float>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_inspect_keys_f64(const __grid_constant__ PortableInspect a) {
  attend::cuda::keys<double>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_inspect_map_f32(const __grid_constant__ PortableInspect a) {
  attend::cuda::map<float>(a);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::kPortableThreads)
    attend_inspect_map_f64(const __grid_constant__ PortableInspect a) {
  attend::cuda::map<double>(a);
}
