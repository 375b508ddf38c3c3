#include "call_memory.h"

#include "widen.h"

#include <attend/option_list.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace attend::test {
namespace {

const std::string& only() {
  static const std::string* const names = [] {
    const char* const given = std::getenv("ATTEND_ONLY");
    return new std::string(given == nullptr ? "" : given);
  }();
  return *names;
}

class NeedsGpu : public testing::Environment {
  void SetUp() override {
    if (!on_gpu()) return;
    if (const std::string reason = cuda::why_unavailable(); !reason.empty())
      GTEST_SKIP() << "skipped: this machine has no GPU for it: it " << reason;
  }
};
[[maybe_unused]] testing::Environment* const needs_gpu =
    testing::AddGlobalTestEnvironment(new NeedsGpu);

// Memory of the GPU for one call at a time, taken once: there are thousands of small calls.
struct There {
  static constexpr std::size_t kBytes = std::size_t{256} << 20;
  cuda::Memory memory{kBytes};
  std::shared_ptr<Queue> queue = cuda::make_queue();
};
There& there() {
  static auto* const only_one = new There;  // for ever: the driver may be gone at the end
  return *only_one;
}

constexpr std::size_t kGuard = 256;  // bytes on both sides; places keep their address modulo it

}  // namespace

bool on_gpu() { return only().starts_with("cuda."); }

bool is_under_test(std::string_view kernel) {
  return kernel.starts_with("cuda.") == on_gpu() && kernel.starts_with(only());
}

CallMemory::CallMemory(bool gpu) : gpu_(gpu) {}

void* CallMemory::place(const ConstTensorView& view, bool written) {
  std::int64_t before = 0, after = 0;  // elements on both sides of the first
  for (int dim = 0; dim < view.rank(); ++dim) {
    const std::int64_t reach = std::max<std::int64_t>(view.size(dim) - 1, 0) * view.strides()[dim];
    (reach < 0 ? before : after) += std::abs(reach);
  }
  const auto size = static_cast<std::size_t>(size_of(view.dtype()));
  const bool any = view.count() > 0;
  const std::size_t first = any ? static_cast<std::size_t>(before) * size : 0;
  const std::size_t bytes = any ? first + static_cast<std::size_t>(after + 1) * size : 0;
  const auto* const lowest = static_cast<const std::byte*>(view.data()) - first;
  const std::size_t place = (used_ + 2 * kGuard - 1) / kGuard * kGuard +
                            reinterpret_cast<std::uintptr_t>(lowest) % kGuard;
  used_ = place + bytes + kGuard;
  if (used_ > There::kBytes) throw std::runtime_error("a test's tensors are too large to be moved");
  pieces_.push_back({view, lowest, place, bytes, first, written});
  return static_cast<std::byte*>(there().memory.data()) + place + first;
}

ConstTensorView CallMemory::in(const ConstTensorView& view) {
  if (!gpu_ || !view) return view;
  return {place(view, false), view.dtype(), view.shape(), view.strides(), there().memory.device()};
}

TensorView CallMemory::out(const TensorView& view) {
  if (!gpu_ || !view) return view;
  return {place(view, true), view.dtype(), view.shape(), view.strides(), there().memory.device()};
}

AttentionOptions CallMemory::in(const ConstTensorView& q, const ConstTensorView& k,
                                const ConstTensorView& v, AttentionOptions options) {
  if (!gpu_) return options;
  if (options.cu_seqlens_q) {
    const Shape shape = weights_shape(q, k, v, options);
    options.max_q = shape[2];
    if (!options.block_table) options.max_k = shape[3];
  }
  for_each_tensor(options, [&](const char*, TensorOrView& view) { view = in(view); });
  return options;
}

AttentionOutputs CallMemory::out(AttentionOutputs outputs) {
  if (!gpu_) return outputs;
  for (TensorView* view : {&outputs.lse, &outputs.weights, &outputs.scores}) *view = out(*view);
  outputs.visited_blocks = nullptr;
  return outputs;
}

AttentionGradients CallMemory::out(AttentionGradients g) {
  for (TensorView* view : {&g.dq, &g.dk, &g.dv, &g.dbias, &g.dsinks, &g.dalibi}) *view = out(*view);
  return g;
}

Where CallMemory::begin(Context& context) {
  if (!gpu_) return context;
  sent_.assign(used_, std::byte{0xff});
  for (const Piece& piece : pieces_)
    if (piece.bytes > 0) std::memcpy(sent_.data() + piece.place, piece.lowest, piece.bytes);
  cuda::copy(there().memory.data(), sent_.data(), used_, *there().queue);
  return {context, *there().queue};
}

void CallMemory::end() {
  if (!gpu_) return;
  std::vector<std::byte> back(used_);
  cuda::copy(back.data(), there().memory.data(), used_, *there().queue);
  for (const Piece& piece : pieces_) {
    if (!piece.written || piece.bytes == 0) continue;
    const std::int64_t size = size_of(piece.view.dtype());
    auto* const host = const_cast<std::byte*>(piece.lowest) + piece.first;
    const std::size_t at = piece.place + piece.first;
    for_each_element(
        piece.view.shape(), piece.view.strides(), [&](std::int64_t, std::int64_t offset) {
          const std::byte* const from = back.data() + at + offset * size;
          std::memcpy(host + offset * size, from, static_cast<std::size_t>(size));
          std::memcpy(sent_.data() + at + offset * size, from, static_cast<std::size_t>(size));
        });
  }
  if (sent_ != back) throw std::runtime_error("a kernel wrote where nothing is to be written");
}

}  // namespace attend::test
