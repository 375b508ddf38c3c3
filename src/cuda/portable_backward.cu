// Attention backward on any NVIDIA GPU, every type and option, as the reference does it: no result
// is added to by two blocks of threads, so the bits are always the same, and the workspace is four
// numbers a row.
//
//   rows      forward again, in f64: of each row the softmax's state, and delta = sum of p dp
//   queries   dq of 16 queries, 128 columns at a time, over the keys; of each row dalibi
//   keys      dk or dv of 16 keys, 128 columns at a time, over the queries of all heads of the
//   group bias      dbias of 32 keys in a row, over all rows that share it heads     dsinks and
//   dalibi of a head, over its rows
#include "portable_backward.cuh"

namespace attend::cuda {
namespace {

// ---- Rows --------------------------------------------------------------------------------------

template <class Real>
__device__ void rows_of_block(const PortableBackward& a, BackwardShared<Real>& shared,
                              std::int64_t index) {
  QueryBlock<Real> block(a, shared, index);
  const BackwardProblem& p = a.problem;
  const BackwardCall& call = a.call;
  if (block.first >= block.s.q_length) return;
  block.begin();
  SoftmaxState total[kWarpRows], part[kWarpRows];
  double sum[kWarpRows] = {}, chunk[kWarpRows] = {};  // of weight times dp
  if (p.sinks) {
    const double sink = load(call.sinks, call.sinks.offset(0, block.h, 0));
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n)
      if (sink != kMinusInfinity) total[n].add(sink);
  }
  const KeyRange keys = shared.ranges.all();
  for (std::int64_t j0 = keys.begin / kLanes * kLanes; j0 < keys.end; j0 += kLanes) {
    const std::int64_t j = j0 + lane();
    double q_k[kWarpRows], dout_v[kWarpRows];
    block.products(j0, q_k, dout_v);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const std::int64_t i = block.row(n);
      double score = kMinusInfinity;
      if (is_visible(p, call, block.s, shared.ranges.of(warp() * kWarpRows + n), block.h, i, j))
        score = score_of(p, call, block.s, block.h, i, j, q_k[n]).masked;
      const double largest = warp_maximum(score), before = part[n].top;
      if (largest > before) part[n].top = largest;
      const double rescale = rescale_of(before, part[n].top);
      const bool counts = score != kMinusInfinity;
      const double w = counts ? weight_of<Real>(score, part[n].top) : 0;
      const double keep = counts ? drop(p, call, block.s.b, block.h, i, j) : 0;
      part[n].l = part[n].l * rescale + w;                                  // of this lane's keys
      chunk[n] = chunk[n] * rescale + (counts ? w * keep * dout_v[n] : 0);  // dropped: 0 * NaN too
      if ((j0 + kLanes) % kChunk != 0 && j0 + kLanes < keys.end) continue;
      part[n].l = warp_sum(part[n].l);
      chunk[n] = warp_sum(chunk[n]);
      if (part[n].l != 0) {
        const Joined joined = join(total[n], part[n].top, part[n].l);
        sum[n] = sum[n] * joined.mine + chunk[n] * joined.other;
      }
      part[n] = {};
      chunk[n] = 0;
    }
  }
#pragma unroll
  for (int n = 0; n < kWarpRows; ++n) {
    const std::int64_t i = block.row(n);
    if (lane() > 0 || i >= block.s.q_length) continue;
    const double dlse = p.dlse ? load(call.dlse, query_row(p, call.dlse, block.s, block.h, i)) : 0;
    const double delta = total[n].l == 0 ? 0 : sum[n] / total[n].l;
    a.rows[row_index(p, block.s, block.h, i)] = {total[n].top, total[n].l, delta - dlse, 0};
  }
}

// ---- Queries -----------------------------------------------------------------------------------

template <class Real>
__device__ void queries_of_block(const PortableBackward& a, BackwardShared<Real>& shared,
                                 std::int64_t index) {
  const BackwardProblem& p = a.problem;
  const BackwardCall& call = a.call;
  QueryBlock<Real> block(a, shared, index / a.d_columns);
  const std::int64_t column = index % a.d_columns * kColumns + threadIdx.x;
  if (block.first >= block.s.q_length) return;
  block.begin();
  double dq[kRows] = {}, dalibi[kWarpRows] = {};
  Real sum[kRows] = {};
  const KeyRange keys = shared.ranges.all();
  for (std::int64_t j0 = keys.begin / kLanes * kLanes; j0 < keys.end; j0 += kLanes) {
    const std::int64_t j = j0 + lane();
    double q_k[kWarpRows], dout_v[kWarpRows];
    block.products(j0, q_k, dout_v);
    const double k_scale = key_scale(p, call, call.k_scales, block.s, block.h / p.group(), j);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const std::int64_t i = block.row(n);
      PairGradient g{false, 0, 0, 0};
      if (block.in_range(n, j))
        g = pair_gradient<Real>(p, call, block.s, a.rows[row_index(p, block.s, block.h, i)],
                                block.h, i, j, q_k[n], dout_v[n]);
      dalibi[n] += g.counts ? g.dadded * fabs(static_cast<double>(i + block.s.offset - j)) : 0;
      shared.factors.of[lane()][warp() * kWarpRows + n] = static_cast<Real>(g.ds * k_scale);
      const unsigned seen = __ballot_sync(kAll, g.counts);
      if (lane() == 0) shared.factors.seen[warp() * kWarpRows + n] = seen;
    }
    __syncthreads();
    add_columns(sum, shared.factors, call.k, shared.k_at, column, column < p.d);  // 1 reversed
    if ((j0 + kLanes) % kChunk != 0 && j0 + kLanes < keys.end) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) dq[r] += sum[r], sum[r] = 0;
  }
#pragma unroll
  for (int n = 0; n < kWarpRows; ++n) {
    const double all = warp_sum(dalibi[n]);
    if (lane() == 0 && block.row(n) < block.s.q_length && index % a.d_columns == 0)
      a.rows[row_index(p, block.s, block.h, block.row(n))].dalibi = all;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (p.dq && column < p.d && block.first + r < block.s.q_length)
      store(call.dq,
            query_row(p, call.dq, block.s, block.h, block.first + r) + column * call.dq.stride[3],
            dq[r]);
}

// ---- Keys --------------------------------------------------------------------------------------

// 16 keys of a key head, which stand in one sequence or, on pages, in any number of them.
template <class Real>
struct KeyBlock {
  const PortableBackward& a;
  const BackwardProblem& p;
  const BackwardCall& call;
  BackwardShared<Real>& shared;
  const bool of_k;  // dk, else dv
  const std::int64_t column, kv_head;
  const std::int64_t batch;  // or page
  const std::int64_t first;  // the first key, or its place in the page
  double result[kRows] = {};
  Real sum[kRows] = {};

  __device__ __forceinline__ KeyBlock(const PortableBackward& arguments,
                                      BackwardShared<Real>& memory, std::int64_t block,
                                      std::int64_t columns)
      : a(arguments), p(a.problem), call(a.call), shared(memory), of_k(columns < a.d_columns),
        column((of_k ? columns : columns - a.d_columns) * kColumns + threadIdx.x),
        kv_head(block / a.key_blocks % p.kv_heads), batch(block / a.key_blocks / p.kv_heads),
        first(block % a.key_blocks * kRows) {}

  __device__ __forceinline__ void run() {
    const bool paged = p.keys == KeyAddressing::paged;
    for (std::int64_t b = paged ? 0 : batch; b < (paged ? p.batch : batch + 1); ++b) {
      const Sequence s = sequence_of(p, call, b);
      const std::int64_t page = paged ? p.page_size : s.k_stored;  // or all keys at once
      if (first >= page) return;
      for (std::int64_t j = 0; j < s.k_length; j += page)
        if (!paged || page_of(p, call, s, j) == batch) add_sequence(s, j + first, page - first);
    }
    const Strided& to = of_k ? call.dk : call.dv;
    if (column >= (of_k ? p.d : p.dv)) return;
    const Sequence s = paged ? Sequence{} : sequence_of(p, call, batch);
    const std::int64_t end = paged ? p.page_size : s.k_stored;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= end) continue;
      const std::int64_t at = paged ? to.offset(batch, kv_head, first + r)
                                    : key_row(p, call, to, s, kv_head, first + r);
      store(to, at + column * to.stride[3], result[r]);
    }
  }

  // Over the queries of a sequence, in which the block's keys begin at j0.
  __device__ __forceinline__ void add_sequence(const Sequence& s, std::int64_t j0,
                                               std::int64_t most) {
    const int count = static_cast<int>(most < kRows ? most : kRows);
    __syncthreads();
    if (threadIdx.x < kRows) {
      const int r = static_cast<int>(threadIdx.x);
      const bool there = r < count && j0 + r < s.k_stored;
      shared.q_at[r] = there ? key_row(p, call, call.k, s, kv_head, j0 + r) : kNone;
      shared.dout_at[r] = there ? key_row(p, call, call.v, s, kv_head, j0 + r) : kNone;
    }
    for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h)
      for (std::int64_t i0 = 0; i0 < s.q_length; i0 += kLanes) {
        add_queries(s, h, i0, j0, count);
        if ((i0 + kLanes) % kChunk != 0 && i0 + kLanes < s.q_length) continue;
#pragma unroll
        for (int r = 0; r < kRows; ++r) result[r] += sum[r], sum[r] = 0;
      }
  }

  __device__ __forceinline__ void add_queries(const Sequence& s, std::int64_t h, std::int64_t i0,
                                              std::int64_t j0, int count) {
    const std::int64_t i = i0 + lane();
    const bool there = i < s.q_length;
    const KeyRange keys = there ? positions(p, s, i) : KeyRange{};
    if (__syncthreads_or(keys.begin < j0 + count && keys.end > j0 && keys.begin < keys.end) == 0)
      return;
    if (warp() == 0) shared.k_at[lane()] = there ? query_row(p, call.q, s, h, i) : kNone;
    if (warp() == 1) shared.v_at[lane()] = there ? query_row(p, call.dout, s, h, i) : kNone;
    __syncthreads();
    Real q_k[kWarpRows], dout_v[kWarpRows];
    multiply(shared.tiles, p.d, call.k, shared.q_at, call.q, shared.k_at, q_k);
    multiply(shared.tiles, p.dv, call.v, shared.dout_at, call.dout, shared.v_at, dout_v);
#pragma unroll
    for (int n = 0; n < kWarpRows; ++n) {
      const int r = warp() * kWarpRows + n;
      const std::int64_t j = j0 + r;
      const double k_scale = key_scale(p, call, call.k_scales, s, kv_head, j);
      const double v_scale = key_scale(p, call, call.v_scales, s, kv_head, j);
      PairGradient g{false, 0, 0, 0};
      if (r < count && j >= keys.begin && j < keys.end)
        g = pair_gradient<Real>(p, call, s, a.rows[row_index(p, s, h, i)], h, i, j,
                                k_scale * q_k[n], v_scale * dout_v[n]);
      shared.factors.of[lane()][r] = static_cast<Real>(of_k ? g.ds * k_scale : g.p * v_scale);
      const unsigned seen = __ballot_sync(kAll, g.counts);
      if (lane() == 0) shared.factors.seen[r] = seen;
    }
    __syncthreads();
    if (of_k) add_columns(sum, shared.factors, call.q, shared.k_at, column, column < p.d);
    else add_columns(sum, shared.factors, call.dout, shared.v_at, column, column < p.dv);
  }
};

// Calls use(n) for this block's share of n items.
template <class Use>
__device__ void for_items(std::int64_t items, Use use) {
  for (std::int64_t n = blockIdx.x; n < items; n += gridDim.x) {
    __syncthreads();
    use(n);
  }
}

template <class Real>
__device__ void rows(const PortableBackward& a) {
  __shared__ BackwardShared<Real> shared;
  for_items(a.problem.batch * a.problem.heads * a.row_blocks,
            [&](std::int64_t n) { rows_of_block(a, shared, n); });
}
template <class Real>
__device__ void queries(const PortableBackward& a) {
  __shared__ BackwardShared<Real> shared;
  for_items(a.problem.batch * a.problem.heads * a.row_blocks * a.d_columns,
            [&](std::int64_t n) { queries_of_block(a, shared, n); });
}
template <class Real>
__device__ void keys(const PortableBackward& a) {
  __shared__ BackwardShared<Real> shared;
  const BackwardProblem& p = a.problem;
  const std::int64_t columns = a.d_columns + a.v_columns;
  const std::int64_t heads = p.keys == KeyAddressing::paged ? p.pages : p.batch;
  for_items(heads * p.kv_heads * a.key_blocks * columns, [&](std::int64_t n) {
    const bool of_k = n % columns < a.d_columns;
    if (of_k ? p.dk : p.dv_gradient) KeyBlock<Real>(a, shared, n / columns, n % columns).run();
  });
}
}  // namespace
}  // namespace attend::cuda

ATTEND_PORTABLE(rows, float)
ATTEND_PORTABLE(rows, double)
ATTEND_PORTABLE(queries, float)
ATTEND_PORTABLE(queries, double)
ATTEND_PORTABLE(keys, float)
ATTEND_PORTABLE(keys, double)
