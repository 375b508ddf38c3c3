#include "cuda/sm90_one_query.h"

#include "cuda/one_query_sm90.h"

#include <algorithm>

namespace attend::cuda {
namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 29;

std::int64_t tiles_of(const ForwardProblem& p, int size) {
  return blocks_of(p.k_length, forward_tiles(size).keys);
}

}  // namespace

bool is_one_query(const ForwardProblem& p, int size) noexcept {
  return p.q_length == 1 && !p.packed_queries && p.keys == KeyAddressing::dense &&
         p.group() <= kOneQueryRows && tiles_of(p, size) >= 2 &&
         p.batch * p.heads * tiles_of(p, size) < kMostTiles;
}

Status start_one_query(const ForwardProblem& p, const ForwardParameters& a, int size,
                       const OneQueryTensors& tensors, Loans& loans, StreamQueue& queue) noexcept {
  const int keys = forward_tiles(size).keys;
  const std::int64_t tiles = tiles_of(p, size), rows = p.batch * p.heads;
  OneQueryParameters o{};
  ATTEND_TRY(tensors.q.map(1, o.q, static_cast<int>(p.group())));
  ATTEND_TRY(tensors.k.map(keys, o.k, 1, AlignedTensor::kPromote128));
  ATTEND_TRY(tensors.v.map(keys, o.v, 1, AlignedTensor::kPromote128));
  o.scores = loans.take<float>(rows * tiles * keys);
  o.weights = loans.take<unsigned>(rows * tiles * (keys / 2));
  o.largest = loans.take<float>(rows * tiles);
  o.sums = loans.take<float>(rows * tiles * 4);
  o.rescales = loans.take<float>(rows * tiles);
  o.references = loans.take<float>(rows);
  if (loans.failed()) return loans.status();
  o.out = tensors.out.rows();
  o.lse = a.lse;
  o.key_lengths = a.key_lengths;
  o.offsets = a.offsets;
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
  const char* const module = sm90_module(Sm90Kernel::one_query, p.type, size);
  const std::int64_t at_once = std::int64_t{queue.gpu().processors()} * score_blocks_each(size);
  const std::int64_t warps = rows * blocks_of(tiles, kOneQueryTiles);
  const std::int64_t sums = p.batch * p.kv_heads * blocks_of(p.dv, kOneQuerySlice);
  ATTEND_TRY(
      queue.start({module, "attend_one_query_scores",
                   std::min(p.batch * p.kv_heads * tiles, at_once), 256, score_shared_bytes(size)},
                  &o));
  ATTEND_TRY(queue.start(
      {module, "attend_one_query_weights", blocks_of(warps, kOneQueryWarps), 32 * kOneQueryWarps},
      &o));
  return queue.start({module, "attend_one_query_values", sums, 256, value_shared_bytes(size)}, &o);
}

}  // namespace attend::cuda
