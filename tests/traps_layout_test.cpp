// Traps that other libraries fell into: memory layout. Each test names its trap and where it was
// seen; every kernel is put to it.
#include "support/property_truth.h"

#include "cases/arena.h"

#include <cmath>

namespace attend::test {
namespace {

// The results of a trial whose tensors are seen through change(view).
template <class Change>
Written run_changed(const Trial& trial, const KernelUnderTest& kernel, Change&& change) {
  Written written = trial.empty_results(kernel.backward);
  Outputs outputs = written.views();
  if (kernel.yardstick) outputs.gradients.dbias = outputs.gradients.dsinks = {};
  EXPECT_TRUE(run(exchange_tensors(trial.arguments(), change), outputs, kernel));
  return written;
}

// pytorch PR #187504
TEST(Traps, innermost_stride_other_than_one) {
  const Trial trial = make_trial({.batch = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .q_length = 5,
                                  .k_length = 33,
                                  .d = 7,
                                  .dv = 6,
                                  .bias = cases::Bias::full});
  for (const std::int64_t step : {2, 3, -1, -2}) {
    std::vector<Tensor> wide;  // each with |step| times as many elements in its rows
    const auto gapped = [&](const ConstTensorView& view) {
      const int last = view.rank() - 1;
      const std::int64_t size = view.size(last), width = std::abs(step);
      Shape shape = view.shape();
      shape[last] = size * width;
      Tensor& buffer = wide.emplace_back(shape, view.dtype());
      fill(buffer, NAN);
      const TensorView inside = step > 0 ? buffer.view().slice(last, 0, size * width, step)
                                         : buffer.view().slice(last, size * width - 1, -1, step);
      cases::for_each_index(view.shape(), [&](const Shape& index) {
        set_value(inside, index, value_at(view, index));
      });
      return ConstTensorView(inside);
    };
    for (const KernelUnderTest& kernel : all_kernels())
      EXPECT_TRUE(same_bits(*trial.run(kernel), run_changed(trial, kernel, gapped)))
          << kernel.name << ", stride " << step;
  }
}

// pytorch #191937: keys and values expanded from one row, and a last tile of one key.
TEST(Traps, stride_zero_keys_with_length_mod_32_eq_1) {
  for (const std::int64_t keys : {1, 33, 65, 97}) {
    const Trial trial = make_trial(
        {.batch = 2, .heads = 2, .kv_heads = 2, .q_length = 4, .k_length = keys, .d = 5, .dv = 3});
    Trial copied = trial;
    for (const auto member : {&Trial::k, &Trial::v})
      copied.*member =
          take(trial.*member, 2, std::vector<std::int64_t>(static_cast<std::size_t>(keys), 0));
    const auto expand = [&](const ConstTensorView& view) {
      const bool is_key =
          view.data() == trial.k.view().data() || view.data() == trial.v.view().data();
      return is_key ? view.slice(2, 0, 1).broadcast_to(view.shape()) : view;
    };
    for (const KernelUnderTest& kernel : all_kernels()) {
      const Written written = run_changed(trial, kernel, expand);
      EXPECT_TRUE(same_bits(*copied.run(kernel), written)) << kernel.name << ", " << keys;
      EXPECT_TRUE(close_to_truth(copied, written, 1e-5)) << kernel.name << ", " << keys;
    }
  }
}

// pytorch #112577, #133671: q, k, v and the mask permuted, each in its own way.
TEST(Traps, permuted_q_k_v_and_mask) {
  const Trial trial = make_trial({.batch = 2,
                                  .heads = 3,
                                  .kv_heads = 3,
                                  .q_length = 5,
                                  .k_length = 7,
                                  .d = 4,
                                  .dv = 6,
                                  .mask = cases::Mask::full});
  const Shape orders[] = {{0, 2, 1, 3}, {3, 1, 0, 2}, {1, 0, 3, 2}, {2, 3, 0, 1}, {0, 1, 3, 2}};
  std::vector<Tensor> permuted;
  std::size_t n = 0;
  const auto permute = [&](const ConstTensorView& view) -> ConstTensorView {
    if (view.rank() != 4) return view;
    const Shape& order = orders[n++ % 5];
    Shape inverse = order;
    for (int dim = 0; dim < 4; ++dim) inverse[static_cast<int>(order[dim])] = dim;
    permuted.push_back(Tensor::copy_of(view.permute(order)));
    return permuted.back().view().permute(inverse);
  };
  for (const KernelUnderTest& kernel : all_kernels())
    EXPECT_TRUE(same_bits(*trial.run(kernel), run_changed(trial, kernel, permute))) << kernel.name;
}

// pytorch #176915: backward took dout's strides to be those of out.
TEST(Traps, dout_strides_unlike_out_strides) {
  Trial trial = make_trial(
      {.batch = 2, .heads = 3, .kv_heads = 3, .q_length = 5, .k_length = 7, .d = 4, .dv = 6});
  fill(trial.dout, 0.5);
  const float half = 0.5f;
  const Shape& shape = trial.dout.shape();
  const ConstTensorView same_everywhere(&half, shape, {0, 0, 0, 0});  // as the gradient of a sum
  const ConstTensorView transposed = ConstTensorView(trial.dout.view().data(), DType::f32,
                                                     {shape[3], shape[2], shape[1], shape[0]})
                                         .permute({3, 2, 1, 0});
  for (const KernelUnderTest& kernel : all_kernels())
    for (const ConstTensorView& dout : {same_everywhere, transposed}) {
      const auto exchange = [&](const ConstTensorView& view) {
        return view.data() == trial.dout.view().data() ? dout : view;
      };
      EXPECT_TRUE(same_bits(*trial.run(kernel), run_changed(trial, kernel, exchange)))
          << kernel.name << ", strides " << to_string(dout.strides());
    }
}

// pytorch #176767, PR #184180
TEST(Traps, d_v_unlike_d_k_and_a_mask_of_batch_1_l_s) {
  for (const auto& [d, dv] : {std::pair<std::int64_t, std::int64_t>{8, 5}, {3, 11}, {1, 17}}) {
    const Trial trial = make_trial({.batch = 3,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .q_length = 5,
                                    .k_length = 9,
                                    .d = d,
                                    .dv = dv,
                                    .mask = cases::Mask::rows});
    ASSERT_EQ(trial.mask.shape(), (Shape{3, 1, 5, 9}));
    for (const KernelUnderTest& kernel : all_kernels())
      EXPECT_TRUE(close_to_truth(trial, *trial.run(kernel), 1e-5)) << kernel.name << " " << d;
  }
}

// diffusers PR #14341: [batch, length, heads, d] taken for [batch, heads, length, d]; where heads
// and length are equal nobody notices.
TEST(Traps, heads_and_length_are_not_exchanged) {
  const Tensor q = gaussian({2, 5, 3, 4}, DType::f32, 1), k = gaussian({2, 7, 3, 4}, DType::f32, 2);
  const Tensor v = gaussian({2, 7, 3, 6}, DType::f32, 3);
  EXPECT_THROW(attention(q, k, v), InvalidArgument);
  Trial trial;
  trial.q = Tensor::copy_of(q.view().permute({0, 2, 1, 3}));
  trial.k = Tensor::copy_of(k.view().permute({0, 2, 1, 3}));
  trial.v = Tensor::copy_of(v.view().permute({0, 2, 1, 3}));
  Tensor out({2, 5, 3, 6});
  run_forward({}, q.view().permute({0, 2, 1, 3}), k.view().permute({0, 2, 1, 3}),
              v.view().permute({0, 2, 1, 3}), out.view().permute({0, 2, 1, 3}));
  EXPECT_TRUE(close(truth_of(trial).out, out.view().permute({0, 2, 1, 3}), 1e-6));
}

}  // namespace
}  // namespace attend::test
