// Where a call runs, and where the arrays that it makes lie: as its first array does.
#pragma once

#include "options.h"

#include <attend/cuda.h>

#include <memory>
#include <utility>

namespace attend::python {

// A new array for a result. Default-made: none.
class NewArray {
 public:
  NewArray() = default;
  explicit NewArray(Tensor&& host) : host_(std::move(host)), view_(host_.view()) {}

  explicit operator bool() const noexcept { return static_cast<bool>(view_); }
  TensorView view() const noexcept { return view_; }

  // Gives it away, as an array of the library that `like` is from.
  nb::object to_python(nb::handle like);
  // The same as a torch.Tensor that shows `view`, which is the array's, or that with dimensions 1
  // and 2 in the other order.
  nb::object to_torch(const ConstTensorView& view);

 private:
  friend class Place;
  Tensor host_;
  nb::object torch_;                      // on a GPU: PyTorch's own,
  std::unique_ptr<cuda::Memory> memory_;  // or memory for an array of another library
  TensorView view_;
};

// In host memory that is a Context. On a GPU it is a stream besides. For PyTorch's tensors that is
// its current one, and its allocator makes new ones, so that memory is used again in the stream's
// order and nobody waits. Arrays of other libraries are handed over on the default stream, as
// DLPack has it, and the call waits for it: whoever takes the result may use any stream.
class Place {
 public:
  // `where` is for messages.
  Place(const char* where, nb::handle like, Device device, Context& context);
  Place(const char* where, const Array& like, Context& context)
      : Place(where, like.object, like.view.device(), context) {}

  bool on_host() const noexcept { return device_ == Device{}; }
  Queue* queue() const noexcept { return queue_.get(); }  // null: in host memory
  NewArray make(const Shape& shape, DType type) const;    // of any contents
  NewArray zeros(const Shape& shape, DType type) const;

  // call(where), without the GIL.
  template <class Call>
  void run(const Call& call) const {
    const Unlocked unlocked;
    call(queue_ ? Where(context_, *queue_) : Where(context_));
    if (waits_) cuda::wait(*queue_);
  }

 private:
  NewArray made(const char* by, const Shape& shape, DType type) const;

  nb::handle like_;
  Device device_;
  Context& context_;
  std::shared_ptr<Queue> queue_;
  bool waits_ = false;
};

}  // namespace attend::python
