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

// ---- The tensors of a call: use(view, its place in the Call, whether it is written)
// --------------

template <class Use>
void each_tensor(const AttentionOptions& options, Call& call, const Use& use) {
#define ATTEND_NO_TENSOR(name)
#define ATTEND_TENSOR(name) use(options.name, call.name, false);
#define ATTEND_OF_number ATTEND_NO_TENSOR
#define ATTEND_OF_flag ATTEND_NO_TENSOR
#define ATTEND_OF_optional_number ATTEND_NO_TENSOR
#define ATTEND_OF_optional_integer ATTEND_NO_TENSOR
#define ATTEND_OF_own_type ATTEND_NO_TENSOR  // below
#define ATTEND_OF_mask_tensor ATTEND_TENSOR
#define ATTEND_OF_float_tensor ATTEND_TENSOR
#define ATTEND_OF_head_tensor ATTEND_TENSOR
#define ATTEND_OF_key_tensor ATTEND_TENSOR
#define ATTEND_OF_integer_tensor ATTEND_NO_TENSOR  // holds values: never known
#define ATTEND_EACH(kind, name) ATTEND_OF_##kind(name)
  ATTEND_OPTION_LIST(ATTEND_EACH)
#undef ATTEND_NO_TENSOR
#undef ATTEND_TENSOR
#undef ATTEND_OF_number
#undef ATTEND_OF_flag
#undef ATTEND_OF_optional_number
#undef ATTEND_OF_optional_integer
#undef ATTEND_OF_own_type
#undef ATTEND_OF_mask_tensor
#undef ATTEND_OF_float_tensor
#undef ATTEND_OF_head_tensor
#undef ATTEND_OF_key_tensor
#undef ATTEND_OF_integer_tensor
#undef ATTEND_EACH
  use(options.blocks.visible, call.blocks, false);
}

template <class Use>
void each_tensor(const ForwardArguments& a, ForwardCall& call, const Use& use) {
  use(a.q, call.q, false);
  use(a.k, call.k, false);
  use(a.v, call.v, false);
  each_tensor(a.options, call, use);
  use(a.out, call.out, true);
  use(a.outputs.lse, call.lse, true);
  use(a.outputs.weights, call.weights, true);
  use(a.outputs.scores, call.scores, true);
}

template <class Use>
void each_tensor(const BackwardArguments& a, BackwardCall& call, const Use& use) {
  use(a.inputs.q, call.q, false);
  use(a.inputs.k, call.k, false);
  use(a.inputs.v, call.v, false);
  each_tensor(a.options, call, use);
  use(a.inputs.out, call.out, false);
  use(a.inputs.lse, call.lse, false);
  use(a.inputs.dout, call.dout, false);
  use(a.inputs.dlse, call.dlse, false);
  use(a.gradients.dq, call.dq, true);
  use(a.gradients.dk, call.dk, true);
  use(a.gradients.dv, call.dv, true);
  use(a.gradients.dbias, call.dbias, true);
  use(a.gradients.dsinks, call.dsinks, true);
  use(a.gradients.dalibi, call.dalibi, true);
}

// ---- The rest of the options -------------------------------------------------------------------

struct KnownOptions {
  AttentionOptions options;  // without their tensors
  ScoreStage stage = ScoreStage::masked;
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
