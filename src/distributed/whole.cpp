#include "distributed/whole.h"

#include "api/checker.h"
#include "api/overlap.h"
#include "core/text.h"

#include <attend/option_list.h>

#include <algorithm>
#include <numeric>

namespace attend::distributed {
namespace {

// ---- The whole, of which no rows are here
// --------------------------------------------------------

// A tensor of the whole's shape whose elements are all the same one: only its sizes are looked at.
ConstTensorView sizes_only(const ConstTensorView& local, std::int64_t length) {
  static constexpr double kAddress = 0;
  if (!local) return local;
  Shape shape = local.shape(), strides = local.strides();
  shape[2] = length;
  for (int dim = 0; dim < strides.rank(); ++dim) strides[dim] = 0;
  const void* address = local.data() != nullptr ? local.data() : &kAddress;
  return {address, local.dtype(), shape, strides, local.device()};
}

AttentionOptions options_of_whole(const AttentionOptions& options, const Layouts& layouts) {
  AttentionOptions whole = options;
  whole.k_scales = sizes_only(options.k_scales, layouts.keys.total());
  whole.v_scales = sizes_only(options.v_scales, layouts.keys.total());
  return whole;
}

// Of the rows that are here nothing but the scales is special.
AttentionOptions options_of_rows(const AttentionOptions& options) {
  return {.k_scales = options.k_scales, .v_scales = options.v_scales};
}

void check_layouts(const char* function, int rank, int ranks, const Layouts& layouts,
                   const AttentionOptions& options, const ConstTensorView& q,
                   const ConstTensorView& k) {
  const auto fail = [&](const auto&... parts) {
    throw InvalidArgument(text(function, ": ", parts...));
  };
  if (options.block_table) fail("keys on pages (block_table) are not divided among ranks");
  const auto check = [&](const char* name, const char* tensor, const Layout& layout,
                         const ConstTensorView& rows) {
    if (layout.ranks() != ranks)
      fail("layouts.", name, " is for ", layout.ranks(), " ranks, the group has ", ranks);
    if (!options.cu_seqlens_q && layout.sequences() != 1)
      fail("layouts.", name, " has ", layout.sequences(),
           " sequences; without cu_seqlens_q it must have 1, as all elements of a batch lie alike");
    if (rows && rows.rank() == 4 && rows.size(2) != layout.owned(rank))
      fail(tensor, " has ", rows.size(2), " rows, by layouts.", name, " rank ", rank, " owns ",
           layout.owned(rank));
  };
  check("queries", "q", layouts.queries, q);
  check("keys", "k", layouts.keys, k);
  if (q && q.device() != Device{}) fail("q is on ", q.device(), "; it must be in host memory");
}

// The rank's rows are checked apart from what is the whole's, which memory knows nothing of: what
// is written of the one must not be where the other is.
using NamedTensors = std::vector<Named>;
void check_apart(const char* function, const NamedTensors& written, const NamedTensors& others) {
  for (const Named& w : written)
    for (const Named& other : others)
      if (w.view && other.view && overlap(w.view, other.view))
        throw InvalidArgument(
            text(function, ": ", w.name, " overlaps ", other.name, " in memory; outputs must not"));
}
NamedTensors tensors_of(const AttentionOptions& options) {
  NamedTensors tensors;
  for_each_tensor(options, [&](const char* name, const ConstTensorView& view) {
    if (view) tensors.push_back({name, view});
  });
  return tensors;
}

void find_sequences(WholeProblem& whole) {
  const Problem& p = whole.problem;
  whole.sizes = {p.batch * p.kv_heads, p.q_length, p.k_length};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, whole.call, b);
    whole.sequences.push_back(s);
    whole.q_starts.push_back(whole.q_starts.back() + s.q_length);
    whole.k_starts.push_back(whole.k_starts.back() + s.k_stored);
  }
}

void finish(const char* function, const Layouts& layouts, WholeProblem& whole) {
  whole.layouts = &layouts;
  find_sequences(whole);
  for (const Sequence& s : whole.sequences) {
    const std::int64_t n = whole.layout_sequence(s.b);
    const auto same = [&](const char* name, const char* starts, const Layout& layout,
                          std::int64_t length) {
      if (n < layout.sequences() && layout.length(n) == length) return;
      throw InvalidArgument(text(function, ": sequence ", n, " has length ", length, " by ", starts,
                                 ", but layouts.", name, " has ",
                                 n < layout.sequences() ? text("length ", layout.length(n))
                                                        : text(layout.sequences(), " sequences")));
    };
    same("queries", whole.packed() ? "cu_seqlens_q" : "q", layouts.queries, s.q_length);
    same("keys", whole.packed() ? "cu_seqlens_k" : "k", layouts.keys, s.k_stored);
  }
}

// ---- Blocks
// --------------------------------------------------------------------------------------

// What begins inside of a block has blocks of the largest size that divides both. `x`: of one
// sequence, or, with `batch`, of that many.
void cut_blocks(const WholeProblem& whole, const Piece& x, std::int64_t batch, Problem& p, Call& c,
                PieceMemory& memory) {
  const Strided& all = whole.call.blocks;
  const std::int64_t q_size = whole.problem.block_queries, k_size = whole.problem.block_keys;
  if (x.i_begin % q_size == 0 && x.j_begin % k_size == 0) {
    c.blocks = moved_to(all, x.b, x.head, x.i_begin / q_size, x.j_begin / k_size);
    return;
  }
  p.block_queries = std::gcd(q_size, x.i_begin);
  p.block_keys = std::gcd(k_size, x.j_begin);
  const auto count = [](std::int64_t length, std::int64_t size) {
    return (length + size - 1) / size;
  };
  const std::int64_t rows = count(x.i_end - x.i_begin, p.block_queries);
  const std::int64_t columns = count(x.j_end - x.j_begin, p.block_keys);
  memory.blocks.clear();
  for (std::int64_t n = 0; n < batch * x.heads * rows * columns; ++n) {
    const std::int64_t j = n % columns, i = n / columns % rows, h = n / columns / rows % x.heads,
                       b = n / columns / rows / x.heads;
    const std::int64_t at =
        all.offset(x.b + b, x.head + h, (x.i_begin + i * p.block_queries) / q_size,
                   (x.j_begin + j * p.block_keys) / k_size);
    memory.blocks.push_back(load_integer(all, at) != 0 ? 1 : 0);
  }
  p.blocks_type = DType::u8;
  c.blocks = {.data = reinterpret_cast<std::byte*>(memory.blocks.data()),
              .type = DType::u8,
              .given = true,
              .stride = {x.heads * rows * columns, rows * columns, columns, 1}};
}

// What tells of each key, from the first of x on.
void cut_pairs(const WholeProblem& whole, const Piece& x, std::int64_t batch, Problem& p, Call& c,
               PieceMemory& memory) {
  c.mask = moved_to(c.mask, x.b, x.head, x.i_begin, x.j_begin);
  c.bias = moved_to(c.bias, x.b, x.head, x.i_begin, x.j_begin);
  const auto keys_of_piece = [&](std::int64_t keys) {
    return std::clamp<std::int64_t>(keys - x.j_begin, 0, p.k_length);
  };
  if (p.mask) p.mask_keys = keys_of_piece(p.mask_keys);
  if (p.bias) p.bias_keys = keys_of_piece(p.bias_keys);
  if (p.blocks) cut_blocks(whole, x, batch, p, c, memory);
  c.draws.b += x.b;
  c.draws.h += x.head;
  c.draws.i += x.i_begin;
  c.draws.j += x.j_begin;
}

}  // namespace

WholeProblem whole_of_sizes(const char* function, const WholeSizes& sizes,
                            const AttentionOptions& options, const Layouts* layouts) {
  static constexpr double kAddress = 0;
  const auto tensor = [&](std::optional<DType> type, std::int64_t heads, std::int64_t rows,
                          std::int64_t features) {
    return ConstTensorView(&kAddress, type.value_or(sizes.type),
                           {sizes.batch, heads, rows, features == 0 ? 1 : features}, {0, 0, 0, 0});
  };
  const auto scales = [&](std::optional<DType> type) {
    return type != DType::i8
               ? ConstTensorView()
               : ConstTensorView(&kAddress, DType::f32, {sizes.batch, sizes.key_heads, sizes.keys},
                                 {0, 0, 0});
  };
  AttentionOptions of_positions{.causal = options.causal,
                                .window = options.window,
                                .query_offset = options.query_offset,
                                .key_offset = options.key_offset,
                                .key_lengths = options.key_lengths,
                                .cu_seqlens_q = options.cu_seqlens_q,
                                .cu_seqlens_k = options.cu_seqlens_k,
                                .max_q = options.max_q,
                                .max_k = options.max_k,
                                .k_scales = scales(sizes.k_type),
                                .v_scales = scales(sizes.v_type)};
  if (options.block_table)
    throw InvalidArgument(
        text(function, ": keys on pages (block_table) are not divided among ranks"));
  WholeProblem whole;
  const Request<Forward> request =
      check_inputs(tensor(sizes.type, sizes.heads, sizes.queries, sizes.d),
                   tensor(sizes.k_type, sizes.key_heads, sizes.keys, sizes.d),
                   tensor(sizes.v_type, sizes.key_heads, sizes.keys, sizes.dv), of_positions);
  whole.problem = request.problem;
  whole.call = request.call;
  if (layouts == nullptr) {
    find_sequences(whole);
    return whole;
  }
  if (layouts->queries.ranks() != layouts->keys.ranks())
    throw InvalidArgument(text(function, ": layouts.queries is for ", layouts->queries.ranks(),
                               " ranks, layouts.keys for ", layouts->keys.ranks()));
  finish(function, *layouts, whole);
  return whole;
}

WholeForward check_forward(int rank, int ranks, const Layouts& layouts, const ForwardArguments& a) {
  constexpr const char* kCaller = "attention";
  check_layouts(kCaller, rank, ranks, layouts, a.options, a.q, a.k);
  if (a.outputs.weights || a.outputs.scores || a.outputs.visited_blocks != nullptr)
    throw InvalidArgument(
        "attention: weights, scores and visited_blocks are not gathered from ranks; out and lse "
        "are");
  WholeForward whole;
  // First the rank's own rows: what is wrong is then told of the sizes that were given.
  whole.local =
      check(ForwardArguments{a.q, a.k, a.v, a.out, options_of_rows(a.options), a.outputs});
  const Request<Forward> request =
      check_inputs(sizes_only(a.q, layouts.queries.total()), sizes_only(a.k, layouts.keys.total()),
                   sizes_only(a.v, layouts.keys.total()), options_of_whole(a.options, layouts));
  check_apart(kCaller, {{"out", a.out}, {"lse", a.outputs.lse}}, tensors_of(a.options));
  whole.problem = request.problem;
  whole.call = request.call;
  finish(kCaller, layouts, whole);
  return whole;
}

WholeBackward check_backward(int rank, int ranks, const Layouts& layouts,
                             const BackwardArguments& a) {
  constexpr const char* kCaller = "attention_backward";
  const BackwardInputs& in = a.inputs;
  check_layouts(kCaller, rank, ranks, layouts, a.options, in.q, in.k);
  const AttentionGradients& g = a.gradients;
  WholeBackward whole;
  // Rows of which no gradient is wanted are checked as if dq were.
  AttentionGradients of_rows{.dq = g.dq, .dk = g.dk, .dv = g.dv};
  const AttentionOptions row_options = options_of_rows(a.options);
  Tensor stand_in;
  const bool none = !g.dq && !g.dk && !g.dv && (g.dbias || g.dsinks || g.dalibi);
  if (none) {
    check_inputs(in, row_options);
    of_rows.dq = stand_in = Tensor(in.q.shape(), in.q.dtype());
  }
  whole.local = check(BackwardArguments{in, row_options, of_rows});
  if (none) whole.local.problem.dq = false;
  const std::int64_t queries = layouts.queries.total(), keys = layouts.keys.total();
  const AttentionOptions options = options_of_whole(a.options, layouts);
  const BackwardInputs sizes{.q = sizes_only(in.q, queries),
                             .k = sizes_only(in.k, keys),
                             .v = sizes_only(in.v, keys),
                             .out = sizes_only(in.out, queries),
                             .lse = sizes_only(in.lse, queries),
                             .dout = sizes_only(in.dout, queries),
                             .dlse = sizes_only(in.dlse, queries)};
  if (g.dbias || g.dsinks || g.dalibi) {
    const AttentionGradients of_whole{.dbias = g.dbias, .dsinks = g.dsinks, .dalibi = g.dalibi};
    const Request<Backward> request = check(BackwardArguments{sizes, options, of_whole});
    whole.problem = request.problem;
    whole.call = request.call;
    whole.gradients = request.call;
    whole.dbias = request.problem.dbias;
    whole.dsinks = request.problem.dsinks;
    whole.dalibi = request.problem.dalibi;
  } else {
    const Request<Backward> request = check_inputs(sizes, options);
    whole.problem = request.problem;
    whole.call = request.call;
  }
  const NamedTensors rows{{"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}};
  const NamedTensors sums{{"dbias", g.dbias}, {"dsinks", g.dsinks}, {"dalibi", g.dalibi}};
  check_apart(kCaller, rows, tensors_of(a.options));
  check_apart(kCaller, sums, rows);
  check_apart(kCaller, sums,
              {{"q", in.q},
               {"k", in.k},
               {"v", in.v},
               {"out", in.out},
               {"lse", in.lse},
               {"dout", in.dout},
               {"dlse", in.dlse},
               {"k_scales", a.options.k_scales},
               {"v_scales", a.options.v_scales}});
  finish(kCaller, layouts, whole);
  return whole;
}

Piece piece_of(const WholeProblem& whole, std::int64_t b, std::int64_t kv_head) {
  const Sequence& s = whole.sequences[static_cast<std::size_t>(b)];
  return {.b = b,
          .head = kv_head * whole.group(),
          .heads = whole.group(),
          .i_begin = 0,
          .i_end = s.q_length,
          .j_begin = 0,
          .j_end = s.k_stored};
}

void cut(const WholeProblem& whole, const Piece& x, Problem& p, Call& c, PieceMemory& memory) {
  const Sequence& s = whole.sequences[static_cast<std::size_t>(x.b)];
  p = whole.problem;
  c = whole.call;
  p.packed_queries = false;
  p.keys = KeyAddressing::dense;
  p.batch = 1;
  p.heads = x.heads;
  p.kv_heads = 1;
  p.q_length = x.i_end - x.i_begin;
  p.k_length = x.j_end - x.j_begin;
  p.offset_given = true;
  p.offset_each = p.key_offset = false;
  c.offset = s.offset + x.i_begin - x.j_begin;
  c.key_offset = 0;
  if (p.key_lengths) {
    memory.key_length = std::clamp<std::int64_t>(s.k_length - x.j_begin, 0, p.k_length);
    c.key_lengths = {.data = reinterpret_cast<std::byte*>(&memory.key_length),
                     .type = DType::i64,
                     .given = true};
  }
  cut_pairs(whole, x, 1, p, c, memory);
  c.alibi = moved_to(c.alibi, 0, x.head, 0);
  c.sinks = moved_to(c.sinks, 0, x.head, 0);
}

void cut_keys(const WholeProblem& whole, std::int64_t begin, std::int64_t end, Problem& p, Call& c,
              PieceMemory& memory) {
  p = whole.problem;
  p.k_length = end - begin;
  p.offset_given = p.key_offset = false;
  c.key_offset = 0;
  cut_pairs(whole,
            {.b = 0,
             .head = 0,
             .heads = p.heads,
             .i_begin = 0,
             .i_end = p.q_length,
             .j_begin = begin,
             .j_end = end},
            p.batch, p, c, memory);
}

}  // namespace attend::distributed
