// cuda.sm90.forward: bf16 and f16 on Hopper GPUs, by the copy engine and the matrix units.
#include "cuda/forward_sm90.h"

#include "cuda/rows.h"
#include "cuda/sm90_one_query.h"

#include "core/philox.h"

#include <algorithm>

namespace attend {
namespace cuda {
namespace {

// Those of the kernel with options (forward_options.cuh).
bool has_options(const Problem& p) noexcept {
  return p.mask || p.blocks || p.bias || p.alibi || p.sinks || p.softcap != 0 || p.drop_below != 0;
}

std::string declines(const ForwardProblem& p, const Machine&) {
  if (p.out_type != p.type) return text("writes ", p.type, ", and out is ", p.out_type);
  if (has_options(p) && has_byte_keys(p))
    return "takes keys of i8 without mask, blocks, bias, ALiBi, sinks, softcap and dropout";
  if (p.bias && p.bias_type == DType::f64) return "takes a bias of f32, bf16 or f16, not f64";
  for (const DType of :
       {p.mask ? p.mask_type : DType::boolean, p.blocks ? p.blocks_type : DType::boolean})
    if (size_of(of) != 1) return text("takes a mask and blocks of bytes, not of ", of);
  if (p.softcap != 0 && !(p.softcap >= 0x1p-40 && p.softcap <= 0x1p40))
    return text("takes a softcap from 2^-40 to 2^40, not ", p.softcap);
  return sm90_declines(p);
}

// What the kernel does not write; `out` is its own, whatever else is asked for.
bool wants_more(const ForwardProblem& p) {
  return p.weights || p.scores || (p.lse && p.lse_type != DType::f32);
}

ForwardTiles tiles_of(const ForwardProblem& p) noexcept {
  return has_options(p) ? general_tiles(kernel_size(p)) : forward_tiles(kernel_size(p));
}

void fill_in_options(const ForwardProblem& p, const ForwardCall& call,
                     GeneralParameters& a) noexcept {
  const auto limited = [](std::int64_t x) {
    return static_cast<int>(std::min<std::int64_t>(x, kNoLimit));
  };
  a.mask = call.mask;
  a.bias = call.bias;
  a.alibi = call.alibi;
  a.sinks = call.sinks;
  a.blocks = call.blocks;
  a.draws = call.draws;
  a.positions_begin = static_cast<double>(call.offset - call.key_offset);
  a.key_limit = kNoLimit;
  if (p.mask) a.key_limit = std::min(a.key_limit, limited(p.mask_keys));
  if (p.bias) a.key_limit = std::min(a.key_limit, limited(p.bias_keys));
  a.block_queries = limited(p.block_queries);
  a.block_keys = limited(p.block_keys);
  a.bias_before_softcap = p.bias_before_softcap ? 1 : 0;
  a.drop_below = p.drop_below;
  a.kept = static_cast<float>(kept_factor(p));
  a.softcap = static_cast<float>(p.softcap);
  a.part_of_softcap = p.softcap != 0 ? static_cast<float>(1 / p.softcap) : 0;
}

Status fill_in(const ForwardProblem& p, const ForwardCall& call, int size,
               ForwardParameters& a) noexcept {
  const ForwardTiles tiles = tiles_of(p);
  const Sm90Positions positions = sm90_positions(p, call);
  const bool longest_first = positions.right < kNoLimit;
  const std::int64_t blocks = blocks_of(p.q_length, tiles.queries), heads = p.heads * p.batch;
  const std::int64_t group = p.group();
  const std::int64_t in_section =
      forward_section_bytes(longest_first, p.k_length) / (p.k_length * size * 4);
  if (blocks * heads > kNoLimit) return {Status::Kind::failed, "more than 2^29 blocks of queries"};
  a.lse = {p.lse && p.lse_type == DType::f32 ? call.lse.data : nullptr, call.lse.stride[0],
           call.lse.stride[1], call.lse.stride[2]};
  a.key_lengths = integers(call.key_lengths, p.key_lengths);
  a.offsets = integers(call.query_offset, p.offset_each);
  a.q_starts = integers(call.cu_seqlens_q, p.packed_queries);
  a.k_starts = integers(call.cu_seqlens_k, p.keys == KeyAddressing::packed);
  a.pages = sm90_pages(p, call, tiles.keys);
  a.heads = static_cast<int>(p.heads);
  a.group = static_cast<int>(group);
  a.q_length = static_cast<int>(p.q_length);
  a.k_length = static_cast<int>(p.k_length);
  a.left = positions.left;
  a.right = positions.right;
  a.offset = positions.offset;
  a.offset_given = positions.offset_given;
  a.query_blocks = static_cast<int>(blocks);
  a.items = static_cast<int>(blocks * heads);
  a.section = static_cast<int>(std::min(std::max<std::int64_t>(in_section, 1) * group, heads));
  a.turns = forward_takes_turns(size, longest_first) ? 1 : 0;
  a.value_d = static_cast<int>(p.dv);
  a.scale = static_cast<float>(p.scale);
  return {};
}

Status launch(const ForwardProblem& p, const ForwardCall& given, Queue& into) noexcept {
  if (p.k_length == 0 ||
      p.batch * p.heads * p.q_length == 0 ||  // zeros: no tensor for a copy engine
      (p.keys == KeyAddressing::paged && p.pages == 0) || has_too_many_rows(p, given))
    return launch_portable_forward(p, given, into);
  Status status;
  StreamQueue* const queue = stream_queue(into, status);
  if (queue == nullptr) return status;
  const InContext in(queue->gpu());  // of which tensor maps are made
  const int size = kernel_size(p);
  const ForwardTiles tiles = tiles_of(p);
  Loans loans(*queue);
  ForwardCall call = given;
  ATTEND_TRY(clamp_integers(p, call, Integers::i32, kFarthestOffset, loans, *queue));
  GeneralParameters a{};
  ATTEND_TRY(fill_in(p, call, size, a));
  fill_in_options(p, call, a);
  Sm90Tensors tensors(p, call, loans, *queue);
  AlignedTensor q, k, v, out;
  ATTEND_TRY(tensors.queries(call.q, p.d, q));
  ATTEND_TRY(tensors.keys(call.k, p.d, k));
  ATTEND_TRY(tensors.keys(call.v, p.dv, v));
  ATTEND_TRY(tensors.query_result(call.out, p.dv, out));
  if (has_byte_keys(p)) {
    const bool pages_fit = p.keys != KeyAddressing::paged || p.page_size % kLeastPiece == 0;
    a.k_bytes = k.bytes(call.k_scales);
    a.v_bytes = v.bytes(call.v_scales);
    a.k_bytes.boxes = pages_fit && k.takes_boxes() ? 1 : 0;
    a.v_bytes.boxes = pages_fit && v.takes_boxes() ? 1 : 0;
  }
  if (!has_options(p) && is_one_query(p, size)) {
    ATTEND_TRY(start_one_query(p, a, size, {q, k, v, out}, loans, *queue));
  } else {
    ATTEND_TRY(q.map({.rows = tiles.queries}, a.q));
    AlignedTensor::Box box{.rows = a.pages.piece};
    if (has_byte_keys(p)) {
      const int columns = std::min(size, 128);
      box = {.rows = byte_box_rows(columns, a.pages.piece), .features = columns, .permuted = false};
    }
    if (!has_byte_keys(p) || a.k_bytes.boxes != 0) ATTEND_TRY(k.map(box, a.k));
    if (!has_byte_keys(p) || a.v_bytes.boxes != 0) ATTEND_TRY(v.map(box, a.v));
    ATTEND_TRY(out.map({.rows = 64}, a.out));
    a.out_rows = out.rows();
    a.counter = queue->gpu().counter_of(queue->stream());
    if (a.counter == nullptr) {
      a.counter = loans.take<unsigned>(1);
      if (loans.failed()) return loans.status();
      ATTEND_TRY(queue->fill(a.counter, 0, sizeof(unsigned)));
    }
    const std::int64_t blocks = std::min<std::int64_t>(a.items, queue->gpu().processors());
    const auto threads = static_cast<unsigned>(forward_threads(tiles, size, has_byte_keys(p)));
    ATTEND_TRY(queue->start({sm90_module(Sm90Kernel::forward, module_type(p), size),
                             has_options(p) ? "attend_forward_general" : "attend_forward", blocks,
                             threads, kForwardSharedBytes},
                            &a));
  }
  ATTEND_TRY(tensors.finish(out));
  return wants_more(p) ? launch_portable_statistics(p, given, into) : Status{};
}

}  // namespace
}  // namespace cuda

extern constinit const Kernel<Forward> kCudaSm90Forward{
    .name = "cuda.sm90.forward",
    .only_if_forced = false,
    .takes = Features{Feature::device_memory,
                      Feature::bf16,
                      Feature::f16,
                      Feature::grouped_heads,
                      Feature::own_key_type,
                      Feature::own_value_type,
                      Feature::key_scales,
                      Feature::value_scales,
                      Feature::own_value_size,
                      Feature::packed_queries,
                      Feature::packed_keys,
                      Feature::paged_keys,
                      Feature::key_lengths,
                      Feature::causal,
                      Feature::window,
                      Feature::query_offset,
                      Feature::query_offset_each,
                      Feature::key_offset,
                      Feature::softcap,
                      Feature::bias_before_softcap,
                      Feature::mask,
                      Feature::short_mask,
                      Feature::integer_mask,
                      Feature::bias,
                      Feature::alibi,
                      Feature::sinks,
                      Feature::blocks,
                      Feature::dropout,
                      Feature::lse,
                      Feature::other_types,
                      Feature::weights,
                      Feature::weight_heads,
                      Feature::scores},
    .declines = cuda::declines,
    .launch = cuda::launch,
};

}  // namespace attend
