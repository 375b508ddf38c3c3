// The one table of attention problems: tests, benchmark and the `check` command all draw from it.
//
// A Case is a plain value that says everything about a problem: sizes, type, memory layout,
// options, outputs, and the seed of its data. name() writes it as one line of `key=value` words
// (what has its default is left out) and parse() reads that line back, so that any failure can be
// repeated from what it printed. make() turns a Case into buffers, views and filled option structs:
// instance.h.
#pragma once

#include <attend/options.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cases {

inline constexpr std::array kTypes = {DType::f64, DType::f32, DType::bf16, DType::f16};

// How q, k, v, out and the gradients lie in memory. All but the broadcasts apply to every tensor
// that has rows (mask, bias, lse, weights, scores too); dout never has the layout of out.
enum class Layout : std::uint8_t {
  contiguous,       // [B, H, T, d]
  bthd,             // memory [B, T, H, d], seen as [B, H, T, d]
  interleaved,      // q, k and v between each other in one buffer [B, T, heads of all three, d]
  reversed,         // every stride negative
  broadcast_batch,  // k and v with stride 0 in the batch
  broadcast_heads,  // k and v with stride 0 in the heads
  padded,           // an odd first element and odd gaps after every row, head and batch element
  gapped,           // innermost stride 3
  transposed,       // memory [B, H, d, T]: innermost stride T
};

enum class Addressing : std::uint8_t {
  dense,
  packed,        // sequences of different lengths; one without queries, one without keys
  packed_self,   // cu_seqlens_k not given: as cu_seqlens_q; needs k_length == q_length
  paged,         // shuffled pages, some of them nobody's
  paged_shared,  // the first pages of all sequences are the same: a common prefix
  packed_paged,  // packed queries, paged keys
};

// Shapes and contents of a mask; a third of the keys is hidden.
enum class Mask : std::uint8_t {
  none,
  full,        // [b, h, q, k]
  per_pair,    // [1, 1, q, k]
  per_key,     // [b, 1, 1, k]: padding
  query_key,   // [q, k]
  key,         // [k]
  per_head,    // [1, h, 1, 1]: whole heads hidden
  rows,        // [b, 1, q, k], every third row sees nothing
  short_full,  // [b, h, q, less than k]
  short_key,   // [less than k]
  nothing,     // [1], zero: everything hidden
};

enum class Bias : std::uint8_t {
  none,
  full,            // [b, h, q, k]
  per_pair,        // [1, 1, q, k]
  per_key,         // [b, 1, 1, k]
  head_query_key,  // [h, q, k]
  query_key,       // [q, k]
  key,             // [k]
  per_head,        // [1, h, 1, 1]
  infinite,        // [b, h, q, k] with entries of -inf and rows of nothing else
  short_full,      // [b, h, q, less than k]
};

enum class BlockMask : std::uint8_t {
  none,
  full,    // [b, h, query blocks, key blocks]
  shared,  // [1, 1, query blocks, key blocks]
  rows,    // [b, 1, query blocks, key blocks], every second row of blocks hidden
};

enum class Offset : std::uint8_t { by_default, one, each };
enum class Lengths : std::uint8_t { none, full, mixed };  // mixed: parts, zero, and full

// Types of out, weights and scores: the tensors' type, or a wider one where there is one.
enum class Width : std::uint8_t { same, f32, f64 };

enum class Gradients : std::uint8_t { all, dq, dkdv, dv, extras };  // extras: dbias dsinks dalibi

enum class Values : std::uint8_t {
  gaussian,  // every score about N(0, 1)
  outliers,  // a few features and tokens twenty times larger than the rest
  cold,      // every score near -120: exp of it underflows in f32
  constant,  // all elements of a tensor equal
};

// A problem. Everything in it is in its name, in this order.
struct Case {
  DType type = DType::f32;
  std::int64_t batch = 1;  // sequences, if packed
  std::int64_t heads = 1, kv_heads = 1;
  std::int64_t q_length = 4, k_length = 4;  // of the longest sequence, if packed
  std::int64_t d = 8, dv = 8;
  std::uint64_t seed = 1;
  std::optional<DType> k_type = std::nullopt, v_type = std::nullopt;  // not given: type; or i8
  Values values = Values::gaussian;
  Layout layout = Layout::contiguous;
  Addressing addressing = Addressing::dense;
  // The longest sequence or more, of packed ones; not given: q_length and k_length.
  std::optional<std::int64_t> max_q = std::nullopt, max_k = std::nullopt;
  std::int64_t page_size = 16;
  DType index_type = DType::i32;  // of lengths, offsets, cu_seqlens and block_table
  Lengths key_lengths = Lengths::none;
  bool causal = false;
  std::int64_t window_left = kUnlimited, window_right = kUnlimited;
  Offset query_offset = Offset::by_default;
  std::int64_t offset = 0;  // the one, or the first of each
  // Other than 0: a part of the keys, which begins there; offset counts from there on, too, and is
  // given, as one, where query_offset has its default.
  std::int64_t key_offset = 0;
  Mask mask = Mask::none;
  DType mask_type = DType::boolean;  // of the mask and of the block mask
  Bias bias = Bias::none;
  bool bias_f32 = false;  // f32 bias whatever the tensors' type
  BlockMask blocks = BlockMask::none;
  std::int64_t block_q = 16, block_k = 16;
  std::optional<double> scale = std::nullopt;
  double softcap = 0;
  bool bias_before_softcap = false;
  bool alibi = false;
  bool sinks = false;
  bool k_scales = false, v_scales = false;
  double dropout = 0;
  bool dropout_origin = false;  // part of a larger problem
  bool lse = true;
  bool lse_f64 = false;  // always for f64
  bool weights = false;
  bool scores = false;
  ScoreStage stage = ScoreStage::masked;
  Width width = Width::same;
  bool dlse = false;
  Gradients gradients = Gradients::all;

  friend bool operator==(const Case&, const Case&) = default;
};

// Calls visit(key, member) for every field, in the order of the name.
template <class SomeCase, class Visitor>
constexpr void for_each_field(SomeCase& c, Visitor&& visit) {
  visit("type", c.type);
  visit("batch", c.batch);
  visit("heads", c.heads);
  visit("kv_heads", c.kv_heads);
  visit("q", c.q_length);
  visit("k", c.k_length);
  visit("d", c.d);
  visit("dv", c.dv);
  visit("seed", c.seed);
  visit("k_type", c.k_type);
  visit("v_type", c.v_type);
  visit("values", c.values);
  visit("layout", c.layout);
  visit("addressing", c.addressing);
  visit("max_q", c.max_q);
  visit("max_k", c.max_k);
  visit("page_size", c.page_size);
  visit("index_type", c.index_type);
  visit("key_lengths", c.key_lengths);
  visit("causal", c.causal);
  visit("window_left", c.window_left);
  visit("window_right", c.window_right);
  visit("query_offset", c.query_offset);
  visit("offset", c.offset);
  visit("key_offset", c.key_offset);
  visit("mask", c.mask);
  visit("mask_type", c.mask_type);
  visit("bias", c.bias);
  visit("bias_f32", c.bias_f32);
  visit("blocks", c.blocks);
  visit("block_q", c.block_q);
  visit("block_k", c.block_k);
  visit("scale", c.scale);
  visit("softcap", c.softcap);
  visit("bias_before_softcap", c.bias_before_softcap);
  visit("alibi", c.alibi);
  visit("sinks", c.sinks);
  visit("k_scales", c.k_scales);
  visit("v_scales", c.v_scales);
  visit("dropout", c.dropout);
  visit("dropout_origin", c.dropout_origin);
  visit("lse", c.lse);
  visit("lse_f64", c.lse_f64);
  visit("weights", c.weights);
  visit("scores", c.scores);
  visit("stage", c.stage);
  visit("width", c.width);
  visit("dlse", c.dlse);
  visit("gradients", c.gradients);
}

// "type=bf16 batch=2 heads=6 kv_heads=2 q=33 k=65 d=24 dv=40 mask=per_key mask_type=u8"
std::string name(const Case& problem);

// Reads a line of such words, as changes to a case; throws std::invalid_argument, naming the word.
Case parse(std::string_view line, const Case& from = {});

bool is_packed(const Case& problem) noexcept;  // the queries
bool is_paged(const Case& problem) noexcept;   // the keys

// The extents of masks, weights and scores. That of keys on pages is rounded up to whole ones.
std::int64_t query_extent(const Case& problem) noexcept;
std::int64_t key_extent(const Case& problem) noexcept;

// Multiply-adds of q . k for one pass over all pairs: what a case costs, up to a factor.
std::int64_t cost(const Case& problem) noexcept;

// A few hundred cases, all of type f32; every one is meant for all of kTypes.
std::vector<Case> table();

// Some sixty of them that touch every option, for emulators and sanitizers.
std::vector<Case> reduced_table();

}  // namespace attend::cases
