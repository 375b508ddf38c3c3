// Views of the host, copied to the first GPU as they lie, strides and all; and where calls run: on
// the host, or there.
#pragma once

#include <attend/cuda.h>
#include <attend/inspect.h>
#include <attend/option_list.h>

#include <algorithm>
#include <list>
#include <memory>
#include <string>

namespace attend::test {

class Moved {
 public:
  Queue& queue() const { return *queue_; }

  ConstTensorView operator()(const ConstTensorView& view) {
    if (!view) return {};
    std::int64_t before = 0, after = 0;  // elements on both sides of the first
    for (int dim = 0; dim < view.rank(); ++dim) {
      const std::int64_t reach =
          std::max<std::int64_t>(view.size(dim) - 1, 0) * view.strides()[dim];
      (reach < 0 ? before : after) += reach < 0 ? -reach : reach;
    }
    const auto size = static_cast<std::size_t>(size_of(view.dtype()));
    const std::size_t front = static_cast<std::size_t>(before) * size;
    const std::size_t bytes =
        view.count() == 0 ? 0 : front + static_cast<std::size_t>(after + 1) * size;
    cuda::Memory& memory = memory_.emplace_back(bytes);
    cuda::copy(memory.data(), static_cast<const std::byte*>(view.data()) - front, bytes, *queue_);
    return {static_cast<std::byte*>(memory.data()) + front, view.dtype(), view.shape(),
            view.strides(), memory.device()};
  }

  // Packed sequences have max_q and max_k: a device needs them.
  AttentionOptions operator()(const ConstTensorView& q, const ConstTensorView& k,
                              AttentionOptions options) {
    if (options.cu_seqlens_q) {
      const Shape shape = weights_shape(q, k, k, options);
      options.max_q = shape[2];
      if (!options.block_table) options.max_k = shape[3];
    }
    for_each_tensor(options, [&](const char*, TensorOrView& view) { view = (*this)(view); });
    return options;
  }

 private:
  std::shared_ptr<Queue> queue_ = cuda::make_queue();
  std::list<cuda::Memory> memory_;
};

// A Context, and whether its calls are on the GPU. Arguments and results are on the host.
struct Place {
  Context context;
  bool gpu;

  explicit Place(const std::string& kernels = {}, int threads = 0)
      : context({.threads = threads, .kernels = kernels}),
        gpu(kernels.find(":cuda.") != kernels.npos) {}

  Statistics inspect(const ConstTensorView& q, const ConstTensorView& k,
                     const AttentionOptions& options = {}, const InspectOptions& asked = {}) {
    if (!gpu) return attend::inspect(q, k, options, asked, context);
    Moved moved;
    const AttentionOptions there = moved(q, k, options);
    InspectOptions asked_there = asked;
    asked_there.tokens = moved(asked.tokens);
    return attend::inspect(moved(q), moved(k), there, asked_there, Where(context, moved.queue()));
  }

  Tensor weights_of(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& lse,
                    const WeightsWindow& window, const AttentionOptions& options = {}) {
    if (!gpu) return attend::weights_of(q, k, lse, window, options, context);
    Moved moved;
    const AttentionOptions there = moved(q, k, options);
    return attend::weights_of(moved(q), moved(k), lse, window, there,
                              Where(context, moved.queue()));
  }

  // lse of attention(); values do not matter.
  Tensor lse(const ConstTensorView& q, const ConstTensorView& k, const AttentionOptions& options) {
    Tensor out(q.shape(), q.dtype()), found({q.size(0), q.size(1), q.size(2)});
    if (!gpu) {
      attention(q, k, k, out, options, {.lse = found}, context);
      return found;
    }
    Moved moved;
    const ConstTensorView on_k = moved(k);
    const auto written = [&](const Tensor& t) {
      const ConstTensorView there = moved(t);
      return TensorView(const_cast<void*>(there.data()), t.dtype(), t.shape(), there.device());
    };
    const TensorView lse_there = written(found);
    attention(moved(q), on_k, on_k, written(out), moved(q, k, options), {.lse = lse_there},
              Where(context, moved.queue()));
    cuda::copy(found.view().data(), lse_there.data(),
               static_cast<std::size_t>(found.count() * size_of(found.dtype())), moved.queue());
    return found;
  }
};

}  // namespace attend::test
