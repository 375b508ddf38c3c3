// What a Plan remembers of the arguments it was made for. A run whose tensors lie as those did,
// each by itself in memory, differs from them in addresses alone: its Call is the Plan's with other
// addresses, and no rule is asked twice. Any other run goes through the whole check, and so does
// one with lengths, offsets or pages in tensors, whose values may be wrong.
#pragma once

#include "api/check.h"

#include <attend/option_list.h>

#include <array>
#include <cstdint>

namespace attend {

// ---- The tensors of a call ---------------------------------------------------------------------
// each_tensor() calls use(view, its place in the Call, whether it is written).

// Whether a kernel reads tensors of this kind where they lie. The others are no tensors, or their
// values must be checked: a run with such a tensor is never known.
constexpr bool is_bound(OptionKind kind) {
  switch (kind) {
    case OptionKind::mask_tensor:
    case OptionKind::float_tensor:
    case OptionKind::head_tensor:
    case OptionKind::key_tensor: return true;
    case OptionKind::number:
    case OptionKind::flag:
    case OptionKind::optional_number:
    case OptionKind::optional_integer:
    case OptionKind::integer_tensor:
    case OptionKind::own_type: return false;  // blocks: below
  }
  return false;
}
// NOLINTNEXTLINE(bugprone-macro-parentheses): a term of a sum
#define ATTEND_COUNT(kind, name) +is_bound(OptionKind::kind)
inline constexpr std::size_t kBoundOptions = 1 ATTEND_OPTION_LIST(ATTEND_COUNT);
#undef ATTEND_COUNT

template <class AnyCall, class Use>
void each_tensor(const AttentionOptions& options, AnyCall& call, const Use& use) {
#define ATTEND_EACH(kind, name) \
  if constexpr (is_bound(OptionKind::kind)) use(options.name, call.name, false);
  ATTEND_OPTION_LIST(ATTEND_EACH)
#undef ATTEND_EACH
  use(options.blocks.visible, call.blocks, false);
}

template <class Use>
void each_tensor(const ForwardArguments& a, ForwardCall& call, const Use& use) {
  const auto& [lse, weights, weight_heads, scores, stage, visited_blocks] = a.outputs;
  use(a.q, call.q, false);
  use(a.k, call.k, false);
  use(a.v, call.v, false);
  each_tensor(a.options, call, use);
  use(a.out, call.out, true);
  use(lse, call.lse, true);
  use(weights, call.weights, true);
  use(scores, call.scores, true);
  call.weight_heads = weight_heads.data();
}

template <class Use>
void each_tensor(const BackwardArguments& a, BackwardCall& call, const Use& use) {
  const auto& [q, k, v, out, lse, dout, dlse] = a.inputs;
  const auto& [dq, dk, dv, dbias, dsinks, dalibi] = a.gradients;
  use(q, call.q, false);
  use(k, call.k, false);
  use(v, call.v, false);
  each_tensor(a.options, call, use);
  use(out, call.out, false);
  use(lse, call.lse, false);
  use(dout, call.dout, false);
  use(dlse, call.dlse, false);
  use(dq, call.dq, true);
  use(dk, call.dk, true);
  use(dv, call.dv, true);
  use(dbias, call.dbias, true);
  use(dsinks, call.dsinks, true);
  use(dalibi, call.dalibi, true);
}

// ---- The rest of the options -------------------------------------------------------------------

struct KnownOptions {
  AttentionOptions options;  // without their tensors
  ScoreStage stage = ScoreStage::masked;
  std::vector<std::int64_t> weight_heads;
  bool any = true;  // false: no run is known, since values in tensors must be looked at

  KnownOptions(const AttentionOptions& given, const AttentionOutputs& outputs);
  bool same(const AttentionOptions& given, const AttentionOutputs& outputs) const noexcept;
};

// ---- The layout of all -------------------------------------------------------------------------

class TensorLayouts {
 protected:
  // How a tensor lies; low and high are its first and last byte, from its address.
  struct Layout {
    ConstTensorView view;
    std::int64_t low = 0, high = -1;
  };
  // The bytes of the tensors of one run.
  struct Bytes {
    std::uintptr_t low = 0, high = 0;
    bool written = false;
  };
  static constexpr std::size_t kMost = 32;
  static_assert(kBoundOptions + 7 + 6 <= kMost, "the options', and those of a backward call");

  static Layout layout_of(const ConstTensorView& view) noexcept;
  static bool same(const Layout& known, const ConstTensorView& view) noexcept;
  static bool apart(const std::array<Bytes, kMost>& all, std::size_t count) noexcept;

  std::array<Layout, kMost> layouts_{};
};

template <class Arguments, class Call>
class KnownLayout : TensorLayouts {
 public:
  // Of arguments that have passed the check, and the Call that it made of them.
  KnownLayout(const Arguments& given, const Call& call)
      : call_(call), options_(given.options, outputs_of(given)) {
    std::size_t n = 0;
    each_tensor(given, call_, [&](const ConstTensorView& view, Strided& place, bool) {
      if (view && place.data != view.data()) options_.any = false;
      place.data = nullptr;
      layouts_[n++] = layout_of(view);
    });
  }

  // The Call of a run, if its arguments lie as the Plan's did; otherwise it is not touched.
  bool bind(const Arguments& given, Call& call) const noexcept {
    if (!options_.any || !options_.same(given.options, outputs_of(given))) return false;
    Call bound = call_;
    std::array<Bytes, kMost> all;
    std::size_t n = 0, count = 0;
    bool known = true;
    each_tensor(given, bound, [&](const ConstTensorView& view, Strided& place, bool written) {
      const Layout& layout = layouts_[n++];
      known = known && same(layout, view);
      if (!known || !view) return;
      place.data = static_cast<std::byte*>(const_cast<void*>(view.data()));
      const auto address = reinterpret_cast<std::uintptr_t>(view.data());
      all[count++] = {address + static_cast<std::uintptr_t>(layout.low),
                      address + static_cast<std::uintptr_t>(layout.high), written};
    });
    if (!known || !apart(all, count)) return false;
    bound.draws.seed = given.options.dropout.seed;
    bound.draws.offset = given.options.dropout.offset;
    call = bound;
    return true;
  }

 private:
  static const AttentionOutputs& outputs_of(const ForwardArguments& a) noexcept {
    return a.outputs;
  }
  static AttentionOutputs outputs_of(const BackwardArguments&) noexcept { return {}; }

  Call call_;
  KnownOptions options_;
};

}  // namespace attend
