// Problems: what is to be computed, one type for each operation. Sizes, types, options and which
// tensors take part, complete and checked, and no address: where the tensors live is the Call. Made
// by api/check.cpp, read by everybody, never changed. Two calls with equal Problems share a Plan.
// Those of layers' operations are in core/product.h and core/row_operations.h.
//
// A new member stops core/features.cpp from compiling, until somebody has looked whether it is a
// feature.
#pragma once

#include "core/host_device.h"

#include <attend/options.h>

#include <cstdint>

namespace attend {

// Where key j of batch element b lives.
enum class KeyAddressing : std::uint8_t {
  dense,   // k[b, h, j]
  packed,  // k[0, h, cu_seqlens_k[b] + j]
  paged,   // k[block_table[b, j / page_size], h, j % page_size]
};

// Of lse and other statistics of tensors of this type, unless they are asked for in another.
inline DType statistic_type(DType type) noexcept {
  return type == DType::f64 ? DType::f64 : DType::f32;
}

// What all operations on q and k share.
struct Problem {
  bool packed_queries = false;  // query i lives in q[0, h, cu_seqlens_q[b] + i], else q[b, h, i]
  // Queries are runs of a longer sequence: packed, and q_length is what the runs have together.
  // Which: the Call.
  bool query_runs = false;
  KeyAddressing keys = KeyAddressing::dense;
  Device device;
  DType type = DType::f32;  // of q, and of k and v unless they have their own
  bool own_k_type = false, own_v_type = false;
  // Of what is given or its own; of what is not, f32.
  DType k_type = DType::f32, v_type = DType::f32;
  DType bias_type = DType::f32, mask_type = DType::f32, blocks_type = DType::f32;

  // batch counts sequences when packed; q_length and k_length are then those of the longest.
  std::int64_t batch = 0, heads = 0, kv_heads = 0, q_length = 0, k_length = 0, d = 0;
  std::int64_t dv = 0;  // 0: no values take part
  std::int64_t page_size = 0, pages = 0;
  bool k_scales = false, v_scales = false;  // of each key and key head

  // Step 1
  double scale = 1;
  // Step 2
  double softcap = 0;
  bool bias_before_softcap = false;
  bool causal = false;
  std::int64_t window_left = kUnlimited, window_right = kUnlimited;
  bool mask = false, bias = false, alibi = false, sinks = false;
  bool blocks = false, key_lengths = false;
  std::int64_t mask_keys = 0, bias_keys = 0;       // keys from there on are hidden (short masks)
  std::int64_t block_queries = 0, block_keys = 0;  // the size of a block
  bool offset_given = false, offset_each = false;  // one for all, or one each; where: the Call
  bool key_offset = false;                         // where: the Call
  // The shape of dbias: each is 1 or the full size (the last may be shorter: bias_keys).
  std::int64_t dbias_batch = 0, dbias_heads = 0, dbias_queries = 0, dbias_keys = 0;
  // Step 4
  std::uint32_t drop_below = 0;  // a 16-bit draw below this drops the weight; 65536 drops all

  friend bool operator==(const Problem&, const Problem&) = default;

  ATTEND_HOST_DEVICE std::int64_t group() const noexcept {
    return kv_heads == 0 ? 1 : heads / kv_heads;
  }
};

struct ForwardProblem : Problem {
  DType out_type = DType::f32, lse_type = DType::f32;
  DType weights_type = DType::f32, scores_type = DType::f32;
  bool lse = false, weights = false, scores = false, visited_blocks = false;  // written
  std::int64_t weight_heads = 0;  // heads whose weights are written, those of the Call; 0: all
  ScoreStage stage = ScoreStage::masked;
  bool state = false;      // a partial state is written, instead of out and lse
  std::int64_t parts = 0;  // partial states that the sums begin with

  friend bool operator==(const ForwardProblem&, const ForwardProblem&) = default;
};

// The sizes of an undivided problem of which a backward call computes a part; 0: it is the whole.
// They say how rows are cut into groups whose sums of dk and dv are f32, so that these sums are
// those of the undivided call.
struct UndividedSizes {
  std::int64_t heads = 0;  // key heads times the batch
  std::int64_t queries = 0, keys = 0;

  friend bool operator==(const UndividedSizes&, const UndividedSizes&) = default;
};

struct BackwardProblem : Problem {
  DType out_type = DType::f32, lse_type = DType::f32;  // read
  DType dout_type = DType::f32, dlse_type = DType::f32;
  bool dlse = false;  // read
  bool dq = false, dk = false, dv_gradient = false, dbias = false, dsinks = false, dalibi = false;
  // Of parts of a problem (core/row_sums.h): what rows summed over all their keys is written, or
  // read instead of summed, since the keys at hand are some of them.
  bool sums_written = false, sums_read = false;
  UndividedSizes undivided;

  std::int64_t cut_heads() const noexcept {
    return undivided.heads != 0 ? undivided.heads : batch * kv_heads;
  }
  std::int64_t cut_queries() const noexcept {
    return undivided.queries != 0 ? undivided.queries : q_length;
  }
  std::int64_t cut_keys() const noexcept { return undivided.keys != 0 ? undivided.keys : k_length; }
  // Nothing but sums of what rows have summed already: no key is read.
  bool only_joins_rows() const noexcept {
    return sums_read && !dq && !dk && !dv_gradient && (!dbias || dbias_keys == 1);
  }

  friend bool operator==(const BackwardProblem&, const BackwardProblem&) = default;
};

// Results (o, lse) over parts of the keys, joined.
struct MergeProblem {
  Device device;
  DType type = DType::f32;  // of o[0]
  DType out_type = DType::f32, lse_type = DType::f32;
  std::int64_t batch = 0, heads = 0, q_length = 0, dv = 0, parts = 0;
  bool lse = false;

  friend bool operator==(const MergeProblem&, const MergeProblem&) = default;
};

// Statistics of the weights: lse, maximum and entropy of each row, and what else is asked for.
struct InspectProblem : Problem {
  DType lse_type = DType::f32;
  std::int64_t top_k = 0, local_width = 0;
  bool key_mass = false, metrics = false, tokens = false;
  std::int64_t tile_queries = 0, tile_keys = 0;  // the size of a tile of the map; 0: no map

  friend bool operator==(const InspectProblem&, const InspectProblem&) = default;

  // Tiles of the map, along the queries and along the keys.
  ATTEND_HOST_DEVICE std::int64_t map_rows() const noexcept {
    return tile_queries == 0 ? 0 : (q_length + tile_queries - 1) / tile_queries;
  }
  ATTEND_HOST_DEVICE std::int64_t map_columns() const noexcept {
    return tile_keys == 0 ? 0 : (k_length + tile_keys - 1) / tile_keys;
  }
};

// A window of the weights, from lse. Where it begins is the Call's.
struct WeightsProblem : Problem {
  DType lse_type = DType::f32;
  std::int64_t window_queries = 0, window_keys = 0;

  friend bool operator==(const WeightsProblem&, const WeightsProblem&) = default;
};

}  // namespace attend
