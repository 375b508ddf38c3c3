// When a linear map's weights are packed, and when they are not.
#include "layer/packing.h"

#include "api/context.h"

#include <limits>

namespace attend {

// ---- writing -----------------------------------------------------------------------------------

class WeightPacking::Writing {
 public:
  explicit Writing(std::shared_ptr<WeightPacking> packing) noexcept : packing_(std::move(packing)) {
    packing_->begin_writing();
  }
  ~Writing() { packing_->end_writing(); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  std::shared_ptr<WeightPacking> packing_;
};

std::shared_ptr<const void> WeightPacking::writing(std::shared_ptr<WeightPacking> packing) {
  return std::make_shared<const Writing>(std::move(packing));
}

std::shared_ptr<WeightPacking> WeightPacking::of_own_weights() {
  return std::make_shared<WeightPacking>();
}

std::shared_ptr<WeightPacking> WeightPacking::of_shared_weights() {
  auto packing = of_own_weights();
  packing->begin_writing();  // and never ends it
  return packing;
}

// The copy is of no use any more, nor is one that a pass still read when an earlier writer came.
// Its memory goes with the first writer that finds no pass reading it: a model in training is not
// kept twice.
void WeightPacking::begin_writing() noexcept {
  bool mine = false;
  change([&](State& state) {
    ++state.writers;
    const bool others = state.status == Status::packing || state.status == Status::outdated;
    mine = !others && state.readers == 0;
    state.status = others || mine ? Status::outdated : Status::written;
    return true;
  });
  if (!mine) return;
  packed_.reset();
  change([](State& state) {
    state.status = Status::written;
    return true;
  });
}

void WeightPacking::end_writing() noexcept {
  change([](State& state) {
    --state.writers;
    return true;
  });
}

// ---- passes ------------------------------------------------------------------------------------

// The row of a Context that forces one is of no use to others: such a Context makes no copy. Nor
// does it use one that another row packed.
WeightPacking::Use WeightPacking::of(const Linear& linear, const Where& where) {
  if (linear.device() != Device{}) return {};  // rows of devices read them where they lie
  WeightPacking& self = *linear.packing_;
  const auto may_pack = [&](const State& state) {
    return state.writers == 0 && ContextState::of(where).forced_kernel(Product::kName).empty();
  };
  const Kernel<Product>& row =
      product_row(linear.dtype(), static_cast<bool>(linear.bias()), where, linear.quantized());
  Status before = Status::none;
  const bool changed = self.change([&](State& state) {
    before = state.status;
    switch (state.status) {
      case Status::packed:
        if (state.readers == std::numeric_limits<std::uint16_t>::max()) return false;
        ++state.readers;
        return true;
      case Status::none:
        if (state.readers > 0 || !may_pack(state)) return false;
        state.status = Status::packing;
        return true;
      case Status::written:
        if (!may_pack(state)) return false;
        state.status = Status::none;
        return true;
      default: return false;
    }
  });
  if (!changed || before == Status::written) return {};
  if (before == Status::none && !self.make(linear, row, where)) return {};
  Use use(&self);
  return self.packed_->row == &row ? std::move(use) : Use();
}

// False: without memory for it, or overtaken by somebody who may have written the weights.
bool WeightPacking::make(const Linear& linear, const Kernel<Product>& row, const Where& where) {
  try {
    packed_ = packed(linear.weight().view().permute({1, 0}), row, where);
    const bool up_to_date = change([](State& state) {
      if (state.status != Status::packing) return false;
      state.status = Status::packed;
      ++state.readers;
      return true;
    });
    if (up_to_date) return true;
  } catch (const OutOfMemory&) {
  }
  packed_.reset();
  change([](State& state) {
    state.status = Status::written;
    return true;
  });
  return false;
}

WeightPacking::Use::~Use() {
  if (packing_ == nullptr) return;
  packing_->change([](State& state) {
    --state.readers;
    return true;
  });
}

const PackedWeights* WeightPacking::Use::weights() const noexcept {
  return packing_ == nullptr ? nullptr : &*packing_->packed_;
}

}  // namespace attend
