// Calls: where the tensors of one call live, a type for each operation. Sizes and options are in
// the Problem that goes with it.
#pragma once

#include "core/strided.h"

namespace attend {

// One partial result: (o, lse), which merge() joins, or a row of sums in o (core/partial_state.h),
// which the sums of a forward call begin with.
struct Part {
  Strided o, lse;
};

// Which draws of dropout's generator a call uses; how many of them drop is in the Problem.
struct Draws {
  std::uint64_t seed = 0;
  std::uint32_t offset = 0;
  std::int64_t b = 0, h = 0, i = 0, j = 0;  // the origin in the larger problem, and
  std::int64_t heads = 0;                   // that problem's heads
};

// Queries [begin, end) of a sequence, which lie in rows from `row` on.
struct QueryRun {
  std::int64_t begin = 0, end = 0, row = 0;
};

// What inspect() finds of one head, as sums over its rows.
struct HeadSums {
  double rows = 0;       // that see a key
  double even_rows = 0;  // that see two or more
  double lse = 0, entropy = 0, evenness = 0, maximum = 0;
  double distance = 0, previous = 0, first = 0, diagonal = 0, local = 0;
  double duplicate = 0, induction = 0;
};

// Where a window of weights begins.
struct WindowOrigin {
  std::int64_t b = 0, h = 0, i = 0, j = 0;
};

// What all operations on q and k read.
struct Call {
  Strided q, k, v;
  Strided k_scales, v_scales;  // key j of a key head, by key_row()
  Strided mask, bias, alibi, sinks, blocks;
  Strided query_offset, key_lengths, cu_seqlens_q, cu_seqlens_k, block_table;
  std::int64_t offset = 0;      // the one query_offset for all, if given so
  std::int64_t key_offset = 0;  // key j stands at position j + key_offset
  // Rows of packed tensors: a device, whose starts the host cannot read, stays within them.
  std::int64_t packed_queries = 0, packed_keys = 0;
  Draws draws;
  // Ascending; `row` counts all queries of the runs before.
  const QueryRun* query_runs = nullptr;
  std::int64_t query_run_count = 0;
};

struct ForwardCall : Call {
  Strided out, lse, weights, scores;
  const std::int64_t* weight_heads = nullptr;  // ForwardProblem::weight_heads of them
  Strided state;                               // a partial state (core/partial_state.h)
  const Part* parts = nullptr;                 // ForwardProblem::parts of them
  std::int64_t* visited_blocks = nullptr;
};

struct BackwardCall : Call {
  Strided out, lse, dout, dlse;  // read
  Strided dq, dk, dv, dbias, dsinks, dalibi;
  Strided sums;  // core/row_sums.h: read or written
};

struct MergeCall {
  Strided out, lse;
  const Part* parts = nullptr;  // MergeProblem::parts of them
};

struct InspectCall : Call {
  Strided lse, maximum, entropy, top_keys, top_weights, key_mass, tile_mean, tile_maximum;
  Strided tokens;             // i32: equal numbers are equal tokens
  HeadSums* heads = nullptr;  // [batch * heads]
};

struct WeightsCall : Call {
  Strided lse;  // read
  Strided weights;
  WindowOrigin window;
};

}  // namespace attend
