// Traps that other libraries fell into: sizes that are large, or zero. Each test names its trap and
// where it was seen; every kernel is put to it.
#include "support/property_truth.h"

#include "cases/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>

namespace attend::test {
namespace {

// Address space of which only what is written takes memory.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ != MAP_FAILED) madvise(memory_, bytes, MADV_NOHUGEPAGE);
  }
  ~SparseMemory() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool there() const { return memory_ != MAP_FAILED; }
  template <class T>
  T* data() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_;
  std::size_t bytes_;
};

// pytorch #187227 #142228: L = S = 65537, so that the last rows of the mask lie beyond 2^32. Each
// query sees its own key at most, or this would take hours.
TEST(Traps, mask_index_past_two_to_the_32) {
  if (on_gpu()) GTEST_SKIP() << "tensors too large to be moved: cuda_errors_test makes them there";
  constexpr std::int64_t kLength = 65537;
  const SparseMemory memory(static_cast<std::size_t>(kLength * kLength));
  if (!memory.there()) GTEST_SKIP() << "no address space";
  std::vector<float> zero(kLength, 0.0f), v(kLength), out(kLength);
  for (std::int64_t j = 0; j < kLength; ++j) v[static_cast<std::size_t>(j)] = float(j + 1);
  const std::vector<std::int64_t> visible = {0, 1, 4096, 65520, 65535, 65536};
  for (const std::int64_t i : visible) memory.data<std::uint8_t>()[i * kLength + i] = 1;
  AttentionOptions options;
  options.window = {0, 0};
  options.mask = ConstTensorView(memory.data<const std::uint8_t>(), {1, 1, kLength, kLength});
  const Shape shape = {1, 1, kLength, 1};
  const ConstTensorView q(zero.data(), shape), values(v.data(), shape);
  const TensorView o(out.data(), shape);
  for (const KernelUnderTest& kernel : forward_kernels()) {
    if (kernel.yardstick) continue;  // would take 4 gigabytes of scores
    Plan::attention(q, q, values, o, options, {}, {kernel.name}).run(q, q, values, o, options);
    for (std::int64_t i = 0; i < kLength; ++i) {
      const bool sees = std::find(visible.begin(), visible.end(), i) != visible.end();
      ASSERT_EQ(out[static_cast<std::size_t>(i)], sees ? float(i + 1) : 0)
          << kernel.name << ", row " << i;
    }
  }
}

// flash-attention #2611, PR #2260, mlx #2894: batch elements so far apart that an offset in
// elements does not fit 32 bits.
TEST(Traps, large_outer_strides) {
  if (on_gpu()) GTEST_SKIP() << "tensors too large to be moved: cuda_errors_test makes them there";
  const Trial trial = make_trial({.batch = 2,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .q_length = 5,
                                  .k_length = 6,
                                  .d = 4,
                                  .dv = 3,
                                  .mask = cases::Mask::full,
                                  .bias = cases::Bias::full});
  constexpr std::int64_t kFar = (std::int64_t{1} << 32) + 12345;
  std::vector<std::unique_ptr<SparseMemory>> memories;
  bool there = true;
  const auto place = [&](const ConstTensorView& view) -> TensorView {
    const std::int64_t size = size_of(view.dtype());
    const auto& memory = memories.emplace_back(
        std::make_unique<SparseMemory>(static_cast<std::size_t>((kFar + 4096) * size)));
    there = there && memory->there();
    Shape strides = contiguous_strides(view.shape());
    strides[0] = kFar;
    void* const data = memory->data<void>();
    const TensorView far(data, view.dtype(), view.shape(), strides);
    if (there)
      cases::for_each_index(view.shape(), [&](const Shape& index) {
        cases::store(far, index, value_at(view, index));
      });
    return far;
  };
  for (const KernelUnderTest& kernel : all_kernels()) {
    Written written = trial.empty_results(kernel.backward);
    const Arguments arguments = exchange_tensors(trial.arguments(), place);
    const Outputs outputs = exchange_tensors(written.views(), place);
    if (!there) GTEST_SKIP() << "no address space";
    Outputs wanted = outputs;
    if (kernel.yardstick) wanted.gradients.dbias = {};
    ASSERT_TRUE(run(arguments, wanted, kernel)) << kernel.name;
    const auto expected = trial.run(kernel);
    EXPECT_TRUE(same_bits(expected->out, outputs.out)) << kernel.name;
    EXPECT_TRUE(same_bits(expected->lse, outputs.lse)) << kernel.name;
    if (kernel.backward) {
      EXPECT_TRUE(same_bits(expected->dq, outputs.gradients.dq)) << kernel.name;
      EXPECT_TRUE(same_bits(expected->dk, outputs.gradients.dk)) << kernel.name;
      EXPECT_TRUE(same_bits(expected->dv, outputs.gradients.dv)) << kernel.name;
    }
    memories.clear();
  }
}

// pytorch #142228, flash-attention #2611: more batch elements, heads or rows than a grid of 65535.
TEST(Traps, batch_heads_or_queries_above_65535) {
  constexpr std::int64_t kMany = 70001;
  const cases::Case sizes[] = {
      {.batch = kMany, .heads = 1, .kv_heads = 1, .q_length = 1, .k_length = 2, .d = 1, .dv = 1},
      {.batch = 1, .heads = kMany, .kv_heads = 1, .q_length = 1, .k_length = 2, .d = 1, .dv = 1},
      {.batch = 1, .heads = 1, .kv_heads = 1, .q_length = kMany, .k_length = 2, .d = 1, .dv = 1},
      {.batch = 1, .heads = 1, .kv_heads = 1, .q_length = 2, .k_length = kMany, .d = 1, .dv = 1}};
  std::vector<cases::Case> all(std::begin(sizes), std::end(sizes));
  for (cases::Case c : sizes) {  // and for a GPU's matrix units
    c.type = DType::bf16;
    c.d = c.dv = 8;
    if (on_gpu()) all.push_back(c);
  }
  for (const cases::Case& c : all) {
    const Trial trial = make_trial(c);
    const Written truth = truth_of(trial);
    const double more = c.type == DType::bf16 ? usual_error(c.type) : 0;
    for (const KernelUnderTest& kernel : all_kernels(c.type)) {
      SCOPED_TRACE(trial.line + " kernel " + kernel.name);
      const auto written = trial.run(kernel);
      ASSERT_TRUE(written);
      EXPECT_TRUE(close(truth.out, written->out, 1e-5 + more));
      if (!kernel.backward) continue;
      EXPECT_TRUE(close(truth.dq, written->dq, 1e-5 + more, 1));
      EXPECT_TRUE(close(truth.dk, written->dk, 1e-4 + more, 1));
    }
  }
}

// pytorch #141218 #141219, PR #169222, flash-attention PR #2470
TEST(Traps, zero_sizes) {
  using cases::Bias, cases::Mask;
  for (int zeros = 0; zeros < 16; ++zeros)
    for (const bool with_options : {false, true}) {
      cases::Case c = {.batch = zeros & 1 ? 0 : 2,
                       .heads = zeros & 2 ? 0 : 4,
                       .kv_heads = zeros & 2 ? 0 : 2,
                       .q_length = zeros & 4 ? 0 : 3,
                       .k_length = zeros & 8 ? 0 : 5};
      if (with_options) {
        c.causal = c.alibi = c.sinks = c.dlse = true;
        c.mask = Mask::full;
        c.bias = Bias::full;
        c.dropout = 0.5;
      }
      const Trial trial = make_trial(c);
      for (const KernelUnderTest& kernel : all_kernels(c.type)) {
        SCOPED_TRACE(trial.line + " kernel " + kernel.name);
        const auto written = trial.run(kernel);
        ASSERT_TRUE(written);
        EXPECT_TRUE(close_to_truth(trial, *written, 1e-5));
        EXPECT_TRUE((zeros & 8) == 0 || all_zero(written->out));
        if (!kernel.backward || zeros == 0) continue;
        for (const auto member : {&Written::dq, &Written::dk, &Written::dv})
          EXPECT_TRUE(all_zero((*written).*member));
      }
    }
}

TEST(Traps, zero_sequences_and_zero_rows_to_merge) {
  Trial trial = make_trial({.heads = 2, .kv_heads = 2, .q_length = 0, .k_length = 0});
  trial.cu_seqlens_q = integers_of({0});
  for (const KernelUnderTest& kernel : all_kernels()) EXPECT_TRUE(trial.run(kernel)) << kernel.name;
  trial.cu_seqlens_q = integers_of({0, 0, 0});
  for (const KernelUnderTest& kernel : all_kernels()) EXPECT_TRUE(trial.run(kernel)) << kernel.name;
  const Tensor o({0, 2, 3, 4}), lse({0, 2, 3});
  Tensor out({0, 2, 3, 4}), lse_out({0, 2, 3});
  attend::merge({o, o}, {lse, lse}, out, lse_out);
}

}  // namespace
}  // namespace attend::test
