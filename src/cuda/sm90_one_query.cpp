#include "cuda/sm90_one_query.h"

#include "cuda/one_query_sm90.h"

#include <algorithm>

namespace attend::cuda {
namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 29;

std::int64_t tiles_of(const ForwardProblem& p, int size) {
  return blocks_of(p.k_length, forward_tiles(size).keys);
}

// Whether what these kernels keep for every key of the table of pages is not much more than the
// pages themselves, which many sequences share. (The prompts' kernel keeps nothing.)
bool fits(const ForwardProblem& p, int size) {
  if (p.keys != KeyAddressing::paged) return true;
  const auto kept =
      score_row(size) * 4.0 * static_cast<double>(p.batch * p.heads * tiles_of(p, size));
  const double pool = (has_byte_keys(p) ? 1.0 : 2.0) * static_cast<double>(p.pages) *
                      static_cast<double>(p.page_size * p.kv_heads * (p.d + p.dv));
  return kept <= 4 * pool;
}

}  // namespace

bool is_one_query(const ForwardProblem& p, int size) noexcept {
  return p.q_length == 1 && !p.packed_queries && p.keys != KeyAddressing::packed &&
         p.group() <= kOneQueryRows && tiles_of(p, size) >= 2 &&
         p.batch * p.heads * tiles_of(p, size) < kMostTiles && fits(p, size);
}

Status start_one_query(const ForwardProblem& p, const ForwardParameters& a, int size,
                       const OneQueryTensors& tensors, Loans& loans, StreamQueue& queue) noexcept {
  const int keys = forward_tiles(size).keys;
  const std::int64_t tiles = tiles_of(p, size);
  const bool bytes = has_byte_keys(p);
  OneQueryParameters o{};
  const std::int64_t heads = p.batch * p.kv_heads;
  const std::int64_t groups = heads * blocks_of(p.group(), kHeadsAtOnce);
  const bool narrow = groups * blocks_of(p.dv, kNarrowSlice) <= queue.gpu().processors();
  const int slice = narrow ? kNarrowSlice : kSlice;
  ATTEND_TRY(tensors.q.map({.rows = 1, .heads = static_cast<int>(p.group())}, o.q));
  if (bytes) {
    o.k_bytes = a.k_bytes;
    o.v_bytes = a.v_bytes;
    o.value_scales = loans.take<float>(heads * tiles * keys);
  } else {
    ATTEND_TRY(tensors.k.map({.rows = a.pages.piece, .at_once = 128}, o.k));
    ATTEND_TRY(tensors.v.map({.rows = a.pages.piece, .features = slice, .at_once = 128}, o.v));
  }
  o.scores = loans.take<float>(p.batch * p.heads * tiles * score_row(size));
  if (loans.failed()) return loans.status();
  o.out = tensors.out.rows();
  o.lse = a.lse;
  o.key_lengths = a.key_lengths;
  o.offsets = a.offsets;
  o.pages = a.pages;
  o.batch = static_cast<int>(p.batch);
  o.heads = a.heads;
  o.group = a.group;
  o.k_length = a.k_length;
  o.tiles = static_cast<int>(tiles);
  o.left = a.left;
  o.right = a.right;
  o.offset = a.offset;
  o.offset_given = a.offset_given;
  o.value_d = a.value_d;
  o.scale = a.scale;
  const char* const module = sm90_module(Sm90Kernel::one_query, module_type(p), size);
  const std::int64_t at_once = std::int64_t{queue.gpu().processors()} * score_blocks_each(size);
  ATTEND_TRY(queue.start({module, "attend_one_query_scores", std::min(heads * tiles, at_once), 256,
                          score_shared_bytes(size, bytes)},
                         &o));
  return queue.start({module, narrow ? "attend_one_query_values_narrow" : "attend_one_query_values",
                      groups * blocks_of(p.dv, slice), static_cast<unsigned>(value_threads(bytes)),
                      value_shared_bytes(size, slice, bytes)},
                     &o);
}

}  // namespace attend::cuda
