#include "device.h"

#include "arena.h"

#include <attend/option_list.h>

#include <stdexcept>

namespace attend::cases {

DeviceInstance::DeviceInstance(const Instance& host, int device)
    : queue_(cuda::make_queue(device)) {
  for (const std::span<std::byte> bytes : host.arena->memory()) {
    buffers_.push_back({bytes.data(), cuda::Memory(bytes.size(), device)});
    cuda::copy(buffers_.back().device.data(), bytes.data(), bytes.size(), *queue_);
  }
  if (host.visited_blocks) {
    auto* const count = reinterpret_cast<std::byte*>(host.visited_blocks.get());
    buffers_.push_back({count, cuda::Memory(sizeof(std::int64_t), device)});
  }
  moved_.q = moved(host.q);
  moved_.k = moved(host.k);
  moved_.v = moved(host.v);
  moved_.dout = moved(host.dout);
  moved_.dlse = moved(host.dlse);
  moved_.out = moved(host.out);
  moved_.lse = moved(host.lse);
  moved_.options = host.options;
  for_each_tensor(moved_.options, [&](const char*, TensorOrView& view) { view = moved(view); });
  if (host.options.cu_seqlens_q) {
    const Shape shape = weights_shape(host.q, host.k, host.v, host.options);
    moved_.options.max_q = shape[2];
    if (!host.options.block_table) moved_.options.max_k = shape[3];
  }
  moved_.outputs = host.outputs;
  moved_.outputs.lse = moved(host.outputs.lse);
  moved_.outputs.weights = moved(host.outputs.weights);
  moved_.outputs.scores = moved(host.outputs.scores);
  if (host.outputs.visited_blocks != nullptr)
    moved_.outputs.visited_blocks =
        static_cast<std::int64_t*>(moved(static_cast<const void*>(host.outputs.visited_blocks)));
  const AttentionGradients& g = host.gradients;
  moved_.gradients = {.dq = moved(g.dq),
                      .dk = moved(g.dk),
                      .dv = moved(g.dv),
                      .dbias = moved(g.dbias),
                      .dsinks = moved(g.dsinks),
                      .dalibi = moved(g.dalibi)};
}

void DeviceInstance::copy_back() {
  for (Buffer& buffer : buffers_)
    cuda::copy(buffer.host, buffer.device.data(), buffer.device.bytes(), *queue_);
}

void* DeviceInstance::moved(const void* address) const {
  for (const Buffer& buffer : buffers_) {
    const auto* const at = static_cast<const std::byte*>(address);
    if (at >= buffer.host && at <= buffer.host + buffer.device.bytes())
      return static_cast<std::byte*>(buffer.device.data()) + (at - buffer.host);
  }
  throw std::logic_error("a tensor of the case is in no buffer");
}

ConstTensorView DeviceInstance::moved(const ConstTensorView& view) const {
  if (!view) return {};
  return {moved(view.data()), view.dtype(), view.shape(), view.strides(),
          buffers_.front().device.device()};
}

TensorView DeviceInstance::moved(const TensorView& view) const {
  if (!view) return {};
  return {moved(static_cast<const void*>(view.data())), view.dtype(), view.shape(), view.strides(),
          buffers_.front().device.device()};
}

}  // namespace attend::cases
