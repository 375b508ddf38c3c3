// A tensor in memory of the first GPU, made of one of the host and brought back.
#pragma once

#include <attend/cuda.h>

#include <cstring>
#include <utility>

namespace attend::test {

class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(Tensor host, Queue& queue)
      : host_(std::move(host)), memory_(bytes()), queue_(&queue) {
    cuda::copy(memory_.data(), std::as_const(host_).view().data(), bytes(), queue);
  }

  TensorView view() const {
    return {memory_.data(), host_.dtype(), host_.shape(), Device{Device::Kind::cuda, 0}};
  }
  operator ConstTensorView() const { return view(); }  // NOLINT: reads as a view

  // What is there now, after all work so far.
  const Tensor& back() {
    cuda::copy(host_.view().data(), memory_.data(), bytes(), *queue_);
    return host_;
  }

 private:
  std::size_t bytes() const {
    return static_cast<std::size_t>(host_.count() * size_of(host_.dtype()));
  }

  Tensor host_;
  cuda::Memory memory_;
  Queue* queue_ = nullptr;
};

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.view().data(), b.view().data(),
                     static_cast<std::size_t>(a.count() * size_of(a.dtype()))) == 0;
}

}  // namespace attend::test
