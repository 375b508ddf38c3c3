// Statistics of the weights, fused: three stages.
//
//   0  rows   lse, maximum, entropy, largest keys        tasks of rows      (inspect_rows.h)
//   1  keys   mass, map, metrics, if anybody asked       tasks of keys      (inspect_keys.h)
//   2  heads  the sums of the stages before              a task a head
//
// Cost: the scores of forward in stage 0, and once more in stage 1; no product with the values.
// Memory: a record for each row, the map's cells and a chunk of scores for each strand.
//
// It declines tokens and largest keys of sequences too long for their numbers to be exact in f32.
#pragma once

#include "cpu/inspect_keys.h"
#include "cpu/row.h"

namespace attend {
namespace {

template <class V>
class FusedInspect {
  using T = typename V::T;
  using RowStage = InspectRows<V>;
  using KeyStage = InspectKeys<V>;

  // What the stages leave to the next.
  struct Shared {
    RowRecord<T>* rows;   // [batch][heads][queries]
    HeadSums* task_sums;  // [batch][heads][tasks of keys]
    Shared(const InspectProblem& p, Scratch& scratch)
        : rows(scratch.take<RowRecord<T>>(saturating_count(p.batch * p.heads, p.q_length))),
          task_sums(scratch.take<HeadSums>(
              saturating_count(p.batch * p.heads, KeyStage::tasks_of_head(p)))) {}
  };

 public:
  using Operation = Inspect;
  static constexpr int kStages = 3;

  static Tiles tiles(const InspectProblem& p, const Machine&) {
    return {RowStage::kRows, KeyStage::keys_of_task(p)};
  }

  static std::int64_t tasks(const InspectProblem& p, const Tiles& tiles, int stage) {
    if (stage == 0) return p.batch * p.kv_heads * row_tasks(p, tiles);
    return p.batch * p.heads * (stage == 1 ? KeyStage::tasks_of_head(p) : 1);
  }

  static Workspace workspace(const InspectProblem& p, const Tiles&) {
    Scratch shared(nullptr);
    Shared sizes(p, shared);
    const std::size_t rows = RowStage::scratch_bytes(p);
    const std::size_t keys = KeyStage::needed(p) ? KeyStage::scratch_bytes(p) : 0;
    return {.shared = shared.used(), .per_strand = rows > keys ? rows : keys};
  }

  static void run(const InspectProblem& p, const Tiles& tiles, const InspectCall& call,
                  const Task& task) noexcept {
    Scratch scratch(task.shared);
    Shared shared(p, scratch);
    if (task.stage == 0) {
      const std::int64_t each = row_tasks(p, tiles), head = task.index / each;
      // Causal: the last rows see the most keys.
      RowStage::run(p, call, head / p.kv_heads, head % p.kv_heads,
                    (each - 1 - task.index % each) * tiles.queries, task, shared.rows);
    } else if (task.stage == 1) {
      const std::int64_t each = KeyStage::tasks_of_head(p), head = task.index / each;
      shared.task_sums[task.index] = KeyStage::run(p, call, head / p.heads, head % p.heads,
                                                   task.index % each, task, shared.rows);
    } else {
      call.heads[task.index] = head_sums(p, call, shared, task.index);
    }
  }

 private:
  static std::int64_t row_tasks(const InspectProblem& p, const Tiles& tiles) {
    return (p.group() * p.q_length + tiles.queries - 1) / tiles.queries;
  }

  static HeadSums head_sums(const InspectProblem& p, const InspectCall& call, const Shared& shared,
                            std::int64_t head) noexcept {
    HeadSums sums;
    const std::int64_t each = KeyStage::tasks_of_head(p);
    for (std::int64_t n = 0; n < each; ++n) {
      const HeadSums& task = shared.task_sums[head * each + n];
      sums.distance += task.distance;
      sums.previous += task.previous;
      sums.first += task.first;
      sums.diagonal += task.diagonal;
      sums.local += task.local;
      sums.duplicate += task.duplicate;
      sums.induction += task.induction;
    }
    const Sequence sequence = sequence_of(p, call, head / p.heads);
    for (std::int64_t i = 0; i < sequence.q_length; ++i) {
      const auto visible = static_cast<double>(shared.rows[head * p.q_length + i].visible);
      if (visible == 0) continue;
      const auto of_row = [&](const Strided& t) {
        return load(t, query_row(p, t, sequence, head % p.heads, i));
      };
      const double entropy = of_row(call.entropy);
      sums.rows += 1;
      sums.lse += of_row(call.lse);
      sums.entropy += entropy;
      sums.maximum += of_row(call.maximum);
      if (visible < 2) continue;
      sums.even_rows += 1;
      sums.evenness += entropy / std::log(visible);
    }
    return sums;
  }
};

}  // namespace
}  // namespace attend
