// Call: where the tensors of one call live. Sizes and options are in the Problem that goes with it.
#pragma once

#include "core/strided.h"

namespace attend {

// One partial result that merge() joins.
struct Part {
  Strided o, lse;
};

struct Call {
  Strided q, k, v, out, lse;  // backward reads out and lse
  Strided mask, bias, alibi, sinks, blocks;
  Strided query_offset, key_lengths, cu_seqlens_q, cu_seqlens_k, block_table;
  Strided weights, scores;
  std::int64_t* visited_blocks = nullptr;
  Strided dout, dlse, dq, dk, dv, dbias, dsinks, dalibi;
  const Part* parts = nullptr;  // Problem::parts of them
};

}  // namespace attend
