#include "support/ranks.h"

#include <algorithm>
#include <exception>

namespace attend::test {
namespace {

using distributed::Layout;

std::vector<std::int64_t> lengths_of(const ConstTensorView& starts, std::int64_t length) {
  if (!starts) return {length};
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n + 1 < starts.size(0); ++n)
    lengths.push_back(static_cast<std::int64_t>(value_at(starts, {n + 1}) - value_at(starts, {n})));
  return lengths;
}

// A tensor shaped as this one, of any contents.
Tensor like(const ConstTensorView& view) {
  return view ? Tensor(view.shape(), view.dtype()) : Tensor();
}

struct RankTensors {
  Tensor q, k, v, out, lse, dout, dlse, dq, dk, dv, k_scales, v_scales;
};

}  // namespace

std::string name(const Division& d) {
  return std::to_string(d.ranks) + " ranks, granules of " + std::to_string(d.granule) +
         (d.contiguous        ? ", contiguous"
          : d.contiguous_keys ? ", contiguous keys"
                              : "") +
         (d.scheme == distributed::Scheme::heads ? ", heads" : ", gather") +
         (d.bits == distributed::Bits::fast ? ", fast" : "");
}

bool can_be_divided(const cases::Case& problem) { return !cases::is_paged(problem); }

distributed::Layouts layouts_of(const cases::Instance& whole, const Division& d) {
  const ConstTensorView& starts_q = whole.options.cu_seqlens_q;
  const ConstTensorView& starts_k =
      whole.options.cu_seqlens_k ? whole.options.cu_seqlens_k : starts_q;
  const auto layout = [&](const ConstTensorView& starts, std::int64_t length, bool contiguous) {
    auto lengths = lengths_of(starts, length);
    return contiguous ? Layout::contiguous(std::move(lengths), d.ranks, d.granule)
                      : Layout::serpentine(std::move(lengths), d.ranks, d.granule);
  };
  return {layout(starts_q, whole.q.size(2), d.contiguous),
          layout(starts_k, whole.k.size(2), d.contiguous || d.contiguous_keys)};
}

RanksResult run_ranks(const cases::Instance& whole, const Division& d, Context& context) {
  const distributed::Layouts layouts = layouts_of(whole, d);
  const auto ranks = static_cast<std::size_t>(d.ranks);
  std::vector<RankTensors> of(ranks);
  RanksResult result{like(whole.out),
                     like(whole.lse),
                     like(whole.gradients.dq),
                     like(whole.gradients.dk),
                     like(whole.gradients.dv),
                     {},
                     {},
                     {}};
  for (std::size_t r = 0; r < ranks; ++r) {
    result.dbias.push_back(like(whole.gradients.dbias));
    result.dsinks.push_back(like(whole.gradients.dsinks));
    result.dalibi.push_back(like(whole.gradients.dalibi));
  }
  const distributed::DistributedOptions options{
      .scheme = d.scheme, .bits = d.bits, .timeout = std::chrono::minutes(2)};
  const distributed::ThreadGroup group(d.ranks);
  const auto thrown = group.run([&](distributed::Group& mine) {
    const int rank = mine.rank();
    RankTensors& t = of[static_cast<std::size_t>(rank)];
    const auto rows = [&](const Layout& layout, const ConstTensorView& view) {
      return view ? take_rows(layout, rank, view) : Tensor();
    };
    t = {rows(layouts.queries, whole.q),
         rows(layouts.keys, whole.k),
         rows(layouts.keys, whole.v),
         rows(layouts.queries, whole.out),
         rows(layouts.queries, whole.lse),
         rows(layouts.queries, whole.dout),
         rows(layouts.queries, whole.dlse),
         rows(layouts.queries, whole.gradients.dq),
         rows(layouts.keys, whole.gradients.dk),
         rows(layouts.keys, whole.gradients.dv),
         rows(layouts.keys, whole.options.k_scales),
         rows(layouts.keys, whole.options.v_scales)};
    AttentionOptions mine_of = whole.options;
    if (t.k_scales) mine_of.k_scales = t.k_scales;
    if (t.v_scales) mine_of.v_scales = t.v_scales;
    distributed::attention(mine, layouts, t.q, t.k, t.v, t.out, mine_of, {.lse = t.lse}, options,
                           context);
    AttentionGradients gradients;
    const auto at = static_cast<std::size_t>(rank);
    if (t.dq) gradients.dq = t.dq;
    if (t.dk) gradients.dk = t.dk;
    if (t.dv) gradients.dv = t.dv;
    if (result.dbias[at]) gradients.dbias = result.dbias[at];
    if (result.dsinks[at]) gradients.dsinks = result.dsinks[at];
    if (result.dalibi[at]) gradients.dalibi = result.dalibi[at];
    BackwardInputs inputs{
        .q = t.q, .k = t.k, .v = t.v, .out = t.out, .lse = t.lse, .dout = t.dout, .dlse = {}};
    if (t.dlse) inputs.dlse = t.dlse;
    distributed::attention_backward(mine, layouts, inputs, mine_of, gradients, options, context);
  });
  for (const std::exception_ptr& error : thrown)
    if (error) std::rethrow_exception(error);
  for (int r = 0; r < d.ranks; ++r) {
    const RankTensors& t = of[static_cast<std::size_t>(r)];
    put_rows(layouts.queries, r, t.out, result.out);
    put_rows(layouts.queries, r, t.lse, result.lse);
    if (t.dq) put_rows(layouts.queries, r, t.dq, result.dq);
    if (t.dk) put_rows(layouts.keys, r, t.dk, result.dk);
    if (t.dv) put_rows(layouts.keys, r, t.dv, result.dv);
  }
  return result;
}

std::string differs(const cases::Instance& whole, const RanksResult& result, const Division& d) {
  std::string wrong;
  const auto compare = [&](const char* what, const ConstTensorView& undivided,
                           const ConstTensorView& found, bool exact) {
    if (!undivided) return;
    const auto same =
        exact ? same_bits(undivided, found)
              : close(undivided, found,
                      std::max(usual_error(whole.problem.type), usual_error(found.dtype())));
    if (!same) wrong += std::string(what) + ": " + same.message() + "; ";
  };
  // Sums over rows that are made in another order, if not in one process's.
  const bool exact =
      d.bits == distributed::Bits::one_process || d.scheme == distributed::Scheme::heads;
  compare("out", whole.out, result.out, true);
  compare("lse", whole.lse, result.lse, true);
  compare("dq", whole.gradients.dq, result.dq, true);
  compare("dk", whole.gradients.dk, result.dk, exact);
  compare("dv", whole.gradients.dv, result.dv, exact);
  for (std::size_t r = 0; r < result.dbias.size(); ++r) {
    compare("dbias", whole.gradients.dbias, result.dbias[r], true);
    compare("dsinks", whole.gradients.dsinks, result.dsinks[r], true);
    compare("dalibi", whole.gradients.dalibi, result.dalibi[r], true);
  }
  return wrong;
}

}  // namespace attend::test
