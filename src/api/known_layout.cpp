// Comparing the arguments of a run with those of its Plan.
#include "api/known_layout.h"

namespace attend {
namespace {

template <class T>
bool same_value(const T& a, const T& b) noexcept {
  return a == b;
}
bool same_value(const TensorOrView&, const TensorOrView&) noexcept { return true; }  // by layout
bool same_value(const QueryOffset& a, const QueryOffset& b) noexcept { return a.all() == b.all(); }

// Types of options are taken apart: one that has a new member does not compile until it is compared
// here, or bound as tensors are.
bool same_value(const Window& a, const Window& b) noexcept {
  const auto& [left, right] = a;
  return left == b.left && right == b.right;
}
bool same_value(const Blocks& a, const Blocks& b) noexcept {
  const auto& [visible, query_size, key_size] = a;  // visible by layout
  return query_size == b.query_size && key_size == b.key_size;
}
bool same_value(const Dropout::Origin& x, const Dropout::Origin& y) noexcept {
  const auto& [b, h, i, j, heads] = x;
  return b == y.b && h == y.h && i == y.i && j == y.j && heads == y.heads;
}
bool same_value(const Dropout& a, const Dropout& b) noexcept {
  const auto& [p, seed, offset, origin] = a;  // seed and offset may differ: each run has its own
  return p == b.p && same_value(origin, b.origin);
}

// Lengths, offsets or pages: whoever reads them must look at their values first.
template <class T>
bool holds_values(OptionKind, const T&) noexcept {
  return false;
}
bool holds_values(OptionKind kind, const TensorOrView& tensor) noexcept {
  return kind == OptionKind::integer_tensor && tensor;
}
bool holds_values(OptionKind, const QueryOffset& offset) noexcept {
  return static_cast<bool>(offset.each());
}

}  // namespace

KnownOptions::KnownOptions(const AttentionOptions& given, const AttentionOutputs& outputs)
    : options(given), stage(outputs.stage), weight_heads(outputs.weight_heads),
      any(outputs.visited_blocks == nullptr) {
  for_each_option(given, [&](const Option& option, const auto& member) {
    if (holds_values(option.kind, member)) any = false;
  });
  if (!any) options = {};
  for_each_tensor(options, [](const char*, TensorOrView& tensor) { tensor = TensorOrView(); });
}

bool KnownOptions::same(const AttentionOptions& given,
                        const AttentionOutputs& outputs) const noexcept {
  if (outputs.stage != stage || outputs.weight_heads != weight_heads ||
      outputs.visited_blocks != nullptr)
    return false;
#define ATTEND_SAME(kind, name)                                                            \
  if (!same_value(options.name, given.name) || holds_values(OptionKind::kind, given.name)) \
    return false;
  ATTEND_OPTION_LIST(ATTEND_SAME)
#undef ATTEND_SAME
  return true;
}

TensorLayouts::Layout TensorLayouts::layout_of(const ConstTensorView& view) noexcept {
  Layout layout{view};
  if (!view || view.count() == 0) return layout;
  const std::int64_t size = size_of(view.dtype());
  layout.high = size - 1;
  for (int dim = 0; dim < view.rank(); ++dim) {
    const std::int64_t reach = (view.size(dim) - 1) * view.strides()[dim] * size;
    (reach < 0 ? layout.low : layout.high) += reach;
  }
  return layout;
}

// Its address must be one that the check would take.
bool TensorLayouts::same(const Layout& known, const ConstTensorView& view) noexcept {
  const ConstTensorView& a = known.view;
  if (!a || !view) return static_cast<bool>(a) == static_cast<bool>(view);
  return a.dtype() == view.dtype() && a.device() == view.device() && a.shape() == view.shape() &&
         a.strides() == view.strides() && view.data() != nullptr &&
         reinterpret_cast<std::uintptr_t>(view.data()) %
                 static_cast<std::uintptr_t>(size_of(view.dtype())) ==
             0;
}

// Whether nothing that is written lies within the first and last byte of another tensor.
bool TensorLayouts::apart(const std::array<Bytes, kMost>& all, std::size_t count) noexcept {
  for (std::size_t w = 0; w < count; ++w) {
    if (!all[w].written) continue;
    for (std::size_t n = 0; n < count; ++n)
      if (n != w && all[w].low <= all[n].high && all[n].low <= all[w].high) return false;
  }
  return true;
}

}  // namespace attend
