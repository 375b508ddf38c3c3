// What each head looks at, without storing the weights: statistics in O(length) memory, and the
// exact weights of any part of the matrix.
//
//   q [batch, heads, queries, d]     k [batch, key heads, keys, d]     p = the weights
//
// as attention() takes them, with every option; v does not affect the weights. Dropout is
// ignored: these are the weights before it. Definitions and thresholds: docs/inspect.md.
//
// q and k, and the options' tensors, may be on a device. The results are numbers for people, in
// host memory: such a call waits for the work of its queue.
#pragma once

#include <attend/attention.h>

#include <limits>
#include <string>
#include <vector>

namespace attend {

// What to compute besides lse, maximum and entropy of the rows, which are always computed.
struct InspectOptions {
  std::int64_t top_k = 0;        // keys of largest weight to list for each row; at most 1024
  bool key_mass = true;          // the sum of the weights that each key receives
  bool metrics = true;           // distance, previous, first, ... of each head
  std::int64_t local_width = 8;  // keys at most this far from the query are "local"
  // Token ids of the keys: [batch, keys], or [keys] for all sequences; [total] if keys are packed.
  // The metrics duplicate and induction need them. In the memory of q, or of the host.
  TensorOrView tokens{};
  // Both above 0: a map of the weights with at most this many tiles. The sides of a tile are the
  // smallest powers of two that suffice.
  std::int64_t tile_rows = 0, tile_columns = 0;
};

// Means over the rows of one head that see a key. Without metrics, NaN from `distance` on.
struct HeadStatistics {
  std::int64_t rows = 0;     // that see a key
  double lse = 0;            // log of the sum of exp(scores)
  double entropy = 0;        // nats
  double evenness = 0;       // entropy / log(visible keys), of the rows that see two or more
  double maximum = 0;        // the largest weight
  double distance = 0;       // sum over j of p |position - j|
  double previous = 0;       // weight on key position - 1
  double first = 0;          // on key 0
  double diagonal = 0;       // on key position
  double local = 0;          // on keys at most local_width away
  double local_uniform = 0;  // what local would be with uniform weights
  // Over the rows that have such a key within their positions; NaN without tokens.
  double duplicate = 0;  // on keys before the position that hold the query's token
  double induction = 0;  // on keys up to the position that come right after the query's token
  // Mean over the tokens of the norm of head_h W^O_h, its part of a layer's output; NaN unless
  // computed by a layer.
  double contribution = std::numeric_limits<double>::quiet_NaN();
};

// Tensors are f32 (f64 for f64). Rows are laid out as in q: [batch, heads, queries], packed [1,
// heads, total]. A row that sees no key: lse -inf (or the sink), maximum 0, entropy 0, keys -1.
struct Statistics {
  Tensor lse;       // log of the sum of exp of the scores, as attention() gives it
  Tensor maximum;   // the largest weight
  Tensor entropy;   // - sum of p log p over the keys, nats
  Tensor top_keys;  // [batch, heads, queries, top_k] i64, largest weight first, ties to the lower
  Tensor top_weights;  //   key; -1 and 0 where fewer are visible
  Tensor key_mass;     // [batch, heads, keys], packed keys [1, heads, total]
  // [batch, heads, rows of tiles, columns of tiles]: mean over the visible pairs of a tile, and the
  // largest weight; -1 where none is visible. Packed: a map for each sequence.
  Tensor tile_mean, tile_maximum;
  std::int64_t tile_queries = 0, tile_keys = 0;  // the size of a tile; the last ones may be smaller
  std::int64_t batch = 0;                        // or sequences
  std::vector<HeadStatistics> heads;             // [batch * heads]
};

ATTEND_API Statistics inspect(const ConstTensorView& q, const ConstTensorView& k,
                              const AttentionOptions& options = {},
                              const InspectOptions& inspect_options = {},
                              const Where& where = default_context());

// A part of one head's weights. Packed: batch is the index of the sequence, and query and key count
// within the sequence.
struct WeightsWindow {
  std::int64_t batch = 0, head = 0;
  std::int64_t query = 0, queries = 0;  // from, how many
  std::int64_t key = 0, keys = 0;
};

// p = exp(s - lse) of the window, [queries, keys], f32 (f64 for f64); 0 where hidden. lse is what
// attention() or inspect() gave for the same q, k and options, in the memory of q or of the host.
// Computed in f64, on a GPU from products in f32. From |lse| = 4096 in f32, 2^20 in f64, its
// rounding would show: then lse is not used, and the row is summed again over the keys of this call
// (docs/inspect.md).
ATTEND_API Tensor weights_of(const ConstTensorView& q, const ConstTensorView& k,
                             const ConstTensorView& lse, const WeightsWindow& window,
                             const AttentionOptions& options = {},
                             const Where& where = default_context());

// What a head mostly does, and how strongly: "previous token", 0.97.
struct HeadLabel {
  std::string name;        // "previous token", "first token", "current token", "induction",
                           // "duplicate token", "selective", "local", "uniform", "mixed"
  double score = 0;        // 0 to 1; 0 for the names "none" and "not finite"
  std::string definition;  // what the score is, one sentence
};
ATTEND_API HeadLabel label_of(const HeadStatistics& head);

}  // namespace attend
