// How backward's query rows are cut into tasks, and what tasks leave to each other.
//
// The rows of a key head are cut into segments where heads alone would leave processors idle. By
// the shape alone: dk and dv of a segment are summed in f32, and segments are added in f64,
// ascending. Who does it changes no bit:
//
//   apart      every segment is a task, leaves its sums in the shared memory, and stage 1 adds them
//   together   a task goes through the segments of a head and adds each one when it ends: nothing
//              passes through memory. Where heads are enough for the threads at hand
#pragma once

#include "core/kernel.h"
#include "core/scratch.h"
#include "cpu/score_gradients.h"

namespace attend {
namespace {

// Keys on pages may be shared by several sequences: their sums are those of the whole batch.
inline bool paged(const BackwardProblem& p) noexcept { return p.keys == KeyAddressing::paged; }

template <class V>
class Segments {
  using T = typename V::T;
  static constexpr std::int64_t kRows = ScoreGradients<V>::kRows;
  static constexpr std::int64_t kSummed = 1024 / kRows * kRows;  // rows whose sums are f32, at most

 public:
  std::int64_t heads;   // key heads that have sums of their own
  std::int64_t count;   // segments of each
  std::int64_t rows;    // of a segment; the last may have fewer
  std::int64_t summed;  // rows that are summed in f32 before they join the f64 sums
  bool apart;

  Segments(const BackwardProblem& problem, const Tiles& tiles) noexcept : p(problem) {
    heads = !p.dq && !p.dk && !p.dv_gradient && !p.dalibi && !p.dsinks && !p.sums_written ? 0
            : paged(p) ? p.kv_heads
                       : p.batch * p.kv_heads;
    const std::int64_t groups = (p.group() * p.cut_queries() + kRows - 1) / kRows;
    count = cuts(groups);
    rows = (groups + count - 1) / count * kRows;
    const bool few = heads < kTasksPerThread * tiles.threads;
    apart = count > 1 && (few || rows > kSummed || p.dalibi || p.dsinks);
    summed = count > 1 && !apart ? rows : kSummed;
  }

  // Rows whose sums of dk and dv one task forms.
  std::int64_t rows_of_task() const noexcept { return apart ? rows : p.group() * p.q_length; }
  std::int64_t tasks() const noexcept { return apart ? heads * count : heads; }

  // ---- what stage 0 leaves to stage 1 ----------------------------------------------------------

  struct PartialGradients {
    T *dk, *dv;               // [heads][segments][keys][width], where they are apart
    double *dalibi, *dsinks;  // [heads][segments][group]
  };
  PartialGradients take(Scratch& scratch) const noexcept {
    const std::int64_t each = heads * count;
    const std::int64_t keys = apart ? saturating_count(each, p.k_length) : 0;
    PartialGradients partial;
    partial.dk = scratch.take<T>(p.dk ? saturating_count(keys, width(p.d)) : 0);
    partial.dv = scratch.take<T>(p.dv_gradient ? saturating_count(keys, width(p.dv)) : 0);
    partial.dalibi = scratch.take<double>(p.dalibi ? each * p.group() : 0);
    partial.dsinks = scratch.take<double>(p.dsinks ? each * p.group() : 0);
    return partial;
  }
  static std::int64_t width(std::int64_t features) noexcept {
    return BackwardScores<V>::width(features);
  }

  // ---- stage 1: what segments and batch elements left, in ascending order ----------------------

  std::int64_t joins() const noexcept {
    return (apart ? heads * kParts : 0) + (p.dalibi || p.dsinks ? p.heads : 0);
  }

  void join(const BackwardCall& call, const Task& task) const noexcept {
    Scratch scratch(task.shared);
    const PartialGradients partial = take(scratch);
    const std::int64_t own = apart ? heads * kParts : 0;
    ATTEND_PATH(V, "segments joined");
    if (task.index < own) {
      if (p.dk) join_keys(call, task, call.dk, partial.dk, p.d, p.scale);
      if (p.dv_gradient) join_keys(call, task, call.dv, partial.dv, p.dv, 1);
      return;
    }
    if (p.dalibi) join_heads(task.index - own, call.dalibi, partial.dalibi);
    if (p.dsinks) join_heads(task.index - own, call.dsinks, partial.dsinks);
  }

 private:
  static constexpr std::int64_t kTasksPerThread = 4;  // enough to keep the threads evenly busy
  static constexpr std::int64_t kParts = 4;           // tasks that join a head's segments

  // A part of the keys of a head: the sum of what its segments have left.
  void join_keys(const BackwardCall& call, const Task& task, const Strided& to, const T* sums,
                 std::int64_t features, double scale) const noexcept {
    using D = typename V::Double;
    const std::int64_t head = task.index / kParts, part = task.index % kParts;
    const Sequence sequence = sequence_of(p, call, head / p.kv_heads);
    const std::int64_t wide_row = width(features), segment = p.k_length * wide_row;
    Scratch scratch(task.scratch);
    double* total = scratch.take<double>(wide_row);
    const std::int64_t end = sequence.k_stored * (part + 1) / kParts;
    for (std::int64_t j = sequence.k_stored * part / kParts; j < end; ++j) {
      const T* row = sums + head * count * segment + j * wide_row;
      for (std::int64_t x = 0; x < wide_row; x += V::kLanes) {
        D sum[V::kDoubles];
        unrolled<V::kDoubles>(ATTEND_EACH(k) { sum[k] = D::set(0); });
        for (std::int64_t s = 0; s < count; ++s) {
          const V v = V::load(row + s * segment + x);
          unrolled<V::kDoubles>(ATTEND_EACH(k) { sum[k] = sum[k] + wide<k>(v); });
        }
        unrolled<V::kDoubles>(ATTEND_EACH(k) { sum[k].store(total + x + k * D::kLanes); });
      }
      store_scaled<V>(to, key_row(p, call, to, sequence, head % p.kv_heads, j), features, total,
                      scale);
    }
  }

  // A number for each query head.
  void join_heads(std::int64_t h, const Strided& to, const double* sums) const noexcept {
    double total = 0;
    for (std::int64_t head = h / p.group(); head < heads; head += p.kv_heads)
      for (std::int64_t s = 0; s < count; ++s)
        total += sums[(head * count + s) * p.group() + h % p.group()];
    store(to, to.offset(0, h, 0), total);
  }

  // Every segment has its own sums of dk and dv: not more than kBytes of them a head, unless there
  // were fewer than kTasksAtLeast tasks. Narrow heads, whose bands are large beside those sums,
  // stay whole.
  std::int64_t cuts(std::int64_t groups) const noexcept {
    constexpr std::int64_t kEnough = 16, kTasks = 48, kTasksAtLeast = 8, kNarrow = 32;
    constexpr std::int64_t kBytes = 16 << 20;
    const std::int64_t all = paged(p) ? heads : p.cut_heads();  // of the undivided problem
    if (heads == 0 || all >= kEnough || paged(p) || p.d + p.dv < kNarrow || groups < 2) return 1;
    const auto each = saturating_count(p.cut_keys() + 1, (p.d + p.dv) * sizeof(T));
    const std::int64_t room = kBytes / each, least = (kTasksAtLeast + all - 1) / all;
    const std::int64_t many = (kTasks + all - 1) / all, most = room < least ? least : room;
    const std::int64_t wanted = many < most ? many : most;
    const std::int64_t size = (groups + wanted - 1) / wanted;
    return (groups + size - 1) / size;
  }

  const BackwardProblem& p;
};

}  // namespace
}  // namespace attend
