// The packed copy of a linear map's weights, and who may write them. A forward pass makes the copy
// and later ones use it, as long as nobody but the layer can have written the weights since.
//
// Passes of many threads, and views for writing that come and go, meet in one atomic word. Nobody
// waits for anybody: a pass that finds no copy to use reads the weights where they lie, which gives
// the same bits. So nothing here can hang in the child of a fork(), whatever the other threads did.
#pragma once

#include "layer/matmul.h"

#include <attend/linear.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace attend {

class WeightPacking {
 public:
  // Of weights that somebody else may write at any time: never packed.
  static std::shared_ptr<WeightPacking> of_shared_weights();
  static std::shared_ptr<WeightPacking> of_own_weights();

  // While what it returns lives, somebody may write the weights. It keeps the packing, not the
  // layer: either may go first.
  static std::shared_ptr<const void> writing(std::shared_ptr<WeightPacking> packing);

  // The copy, for one pass, and no longer than this lives.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept : packing_(std::exchange(other.packing_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use();
    const PackedWeights* weights() const noexcept;  // null: there is none to use

   private:
    friend WeightPacking;
    explicit Use(WeightPacking* packing) noexcept : packing_(packing) {}
    WeightPacking* packing_ = nullptr;
  };
  static Use of(const Linear& linear, const Where& where);

  // Whether the memory of a copy is there, up to date or not. For tests, and while nobody else uses
  // the layer.
  static bool holds_copy(const Linear& linear) noexcept {
    return linear.packing_->packed_.has_value();
  }
  // Whether there is a copy that the next pass uses. For tests.
  static bool is_packed(const Linear& linear) noexcept {
    return linear.packing_->state_.load().status == Status::packed;
  }

 private:
  enum class Status : std::uint16_t {
    none,      // the next pass makes a copy
    written,   // the next pass does not, but the one after it
    packing,   // a pass is making one; only it touches packed_
    outdated,  // somebody makes or frees one: only they touch packed_, and it is not to be used
    packed,
  };
  struct alignas(8) State {  // one word: clang 14 calls a function for less aligned ones
    std::uint32_t writers = 0;
    std::uint16_t readers = 0;  // passes that use packed_, also one that is no longer up to date
    Status status = Status::none;
  };
  static_assert(std::has_unique_object_representations_v<State>);
  static_assert(std::atomic<State>::is_always_lock_free);
  class Writing;

  // Changes the state by a function of it, which may run more than once and returns whether
  // anything is to be changed.
  template <class Rule>
  bool change(Rule rule) noexcept {
    State seen = state_.load(std::memory_order_acquire);
    for (;;) {
      State next = seen;
      if (!rule(next)) return false;
      if (state_.compare_exchange_weak(seen, next, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
        return true;
    }
  }
  void begin_writing() noexcept;
  void end_writing() noexcept;
  bool make(const Linear& linear, const Kernel<Product>& row);

  std::atomic<State> state_{State{}};
  std::optional<PackedWeights> packed_;
};

}  // namespace attend
