// The options, outputs and gradients of attention. All options compose, forward and backward.
//
// Letters: b batch, h head, i query, j key. Query i is at position i + query_offset, key j at
// j + key_offset; causal, window and alibi compare these positions.
#pragma once

#include <attend/tensor.h>

#include <limits>
#include <optional>
#include <vector>

namespace attend {

inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// Keys from `left` positions before the query to `right` positions after it are visible.
struct Window {
  std::int64_t left = kUnlimited;
  std::int64_t right = kUnlimited;
};

// One position for all batch elements, or one each ([batch], i32 or i64). Not given: the last query
// is at the last key, key_length[b] - query_length[b].
class QueryOffset {
 public:
  QueryOffset() = default;
  QueryOffset(std::int64_t all) : all_(all) {}                // NOLINT: reads as a number
  QueryOffset(TensorOrView each) : each_(std::move(each)) {}  // NOLINT: or as a tensor
  template <std::convertible_to<TensorOrView> T>              // or what becomes one
  QueryOffset(T&& each) : each_(std::forward<T>(each)) {}     // NOLINT
  const std::optional<std::int64_t>& all() const noexcept { return all_; }
  const TensorOrView& each() const noexcept { return each_; }

 private:
  std::optional<std::int64_t> all_;
  TensorOrView each_;
};

// Block-sparse attention: visible[b, h, i / query_size, j / key_size] == 0 hides the whole block,
// and its keys are never read. [batch or 1, heads or 1, query blocks, key blocks], the numbers
// of blocks rounded up.
struct Blocks {
  TensorOrView visible{};  // bool, u8 or an integer
  std::int64_t query_size = 0;
  std::int64_t key_size = 0;
};

// Weights are dropped with probability p (in steps of 1/65536) and the others scaled by 1 / (1 -
// p). Philox4x32-10: key = seed, counter = (j / 8, i, b * heads + h, offset), eight 16-bit draws,
// draw j % 8 is that of key j. If this call is a part of a larger problem, the origin says where it
// begins, so that the same weights are dropped.
struct Dropout {
  double p = 0;
  std::uint64_t seed = 0;
  std::uint32_t offset = 0;
  struct Origin {
    std::int64_t b = 0, h = 0, i = 0, j = 0;
    std::int64_t heads = 0;  // of the larger problem; 0: as many as here
  } origin{};
};

// The memory of a tensor must live until the call returns, unless the tensor is given away.
struct AttentionOptions {
  std::optional<double> scale{};     // 1 / sqrt(d) if not given
  double softcap = 0;                // s = softcap * tanh(s / softcap); 0: none
  bool bias_before_softcap = false;  // otherwise bias and alibi are added after the softcap

  bool causal = false;  // key j is visible iff j + key_offset <= i + query_offset
  Window window{};
  QueryOffset query_offset{};
  // The position of key 0: in a call on a part of the keys, the number of keys before the part.
  // Dropout draws by it too. Masks, bias, blocks and key_lengths are the part's own. Not given: 0.
  // If it is given, causal, window and alibi need query_offset too, whose default would count the
  // part's keys alone.
  std::optional<std::int64_t> key_offset{};

  // [batch, heads, queries, keys] or fewer dimensions, each of them may be 1. Keys past the end of
  // a shorter last dimension are hidden.
  TensorOrView mask{};   // bool, u8 or an integer: 0 = hidden
  TensorOrView bias{};   // the tensors' type or f32, added to the scores; -inf hides
  TensorOrView alibi{};  // [heads] slopes: adds -slope * |i + query_offset - (j + key_offset)|
  TensorOrView sinks{};  // [heads] scores of a key without a value that every query sees
  Blocks blocks{};

  TensorOrView key_lengths{};  // [batch], i32 or i64: keys from this index on are hidden

  // Packed sequences (varlen): q [1, heads, total, d] and k, v likewise; sequence n has the queries
  // from cu_seqlens_q[n] up to cu_seqlens_q[n + 1], and keys likewise. A batch dimension elsewhere
  // is then the index of the sequence; i and j count within the sequence.
  TensorOrView cu_seqlens_q{};  // [sequences + 1], i32 or i64, from 0 to total
  TensorOrView cu_seqlens_k{};  // not given: as cu_seqlens_q
  // The number of queries and of keys of the longest sequence, or more. They are the sizes of what
  // has queries and keys (masks, bias, weights, scores, blocks); no bit of out, lse or dq changes,
  // and a Plan that was made with them takes sequences of any lengths up to them.
  // On a device, whose memory the host does not wait for, they must be given; on the CPU they are
  // found if they are not. Where cu_seqlens_k is not given, max_k is max_q unless it is; of keys on
  // pages block_table says it.
  std::optional<std::int64_t> max_q{};
  std::optional<std::int64_t> max_k{};

  // Paged keys: k [pages, key heads, page size, d] and v likewise; key j of batch element b is on
  // page block_table[b, j / page size]. Needs key_lengths. Queries may be packed (cu_seqlens_q).
  TensorOrView block_table{};  // [batch, pages of the longest], i32 or i64

  // Key j is k[j] * k_scales[j], value j is v[j] * v_scales[j], as in a KV cache of few bits.
  // Shaped as k is but for d: [batch, key heads, keys], packed [1, key heads, total], on pages
  // [pages, key heads, page size]; one for a whole head by broadcast_to(). dk and dv are the
  // gradients at what is stored; the scales have none, nor has an i8 tensor. Backward and inspect()
  // of scales, and of k or v of another type than q, are the reference kernels': 50 times slower.
  TensorOrView k_scales{};  // f32
  TensorOrView v_scales{};

  Dropout dropout{};
};

// Which scores to hand out.
enum class ScoreStage : std::uint8_t {
  raw,         // scale * q . k, for hidden pairs too
  softcapped,  // after the softcap (and what was added before it), for hidden pairs too
  masked,      // after bias and mask: what the softmax sees; hidden = -inf
};

// What attention writes besides `out`, each if given. lse is [batch, heads, queries], packed as q
// is; weights and scores are [batch, heads, queries, keys], for packed sequences [sequences, heads,
// max_q, max_k]. `out`, weights and scores have the type of q or a wider one; lse is f32 or f64
// (f64 for f64).
//
// weight_heads chooses query heads: weights are then [batch, chosen heads, queries, keys], in the
// order of the list, with the bits that they have among those of all heads. The other heads cost
// nothing besides `out`.
struct AttentionOutputs {
  TensorView lse{};      // log of the sum of exp of the scores; -inf where no key is seen
  TensorView weights{};  // after the softmax, before dropout
  std::vector<std::int64_t> weight_heads{};  // of these heads alone; empty: of all
  TensorView scores{};
  ScoreStage stage = ScoreStage::masked;
  std::int64_t* visited_blocks = nullptr;  // with `blocks`: pairs (query, key block) entered
};

// What attention_backward writes, each if given, with the type and shape of its input.
struct AttentionGradients {
  TensorView dq{}, dk{}, dv{};
  TensorView dbias{};  // summed over the dimensions in which bias is repeated
  TensorView dsinks{}, dalibi{};
};

}  // namespace attend
