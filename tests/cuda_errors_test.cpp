// Bad input on a GPU: each error has its class and its words, and the next call works. Too much
// memory is an error; sizes past the limits of grids and of 32 bits are none. Without a GPU all are
// skipped; cuda_driver_test asks what is said then.
#include "cuda/device.h"
#include "support/device_tensor.h"
#include "support/layer_numbers.h"
#include "support/thrown_by.h"

#include <attend/attention.h>
#include <attend/plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

namespace attend::test {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

// ---- Bad input ---------------------------------------------------------------------------------

class CudaErrors : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::why_unavailable(); !reason.empty())
      GTEST_SKIP() << "this machine has no GPU for it: it " << reason;
    queue = cuda::make_queue();
    q = on_device(host);
    out = on_device(Tensor(host.shape(), host.dtype()));
    right_call();
    expected = Tensor::copy_of(out.back());
  }
  DeviceTensor on_device(Tensor tensor) const { return {std::move(tensor), *queue}; }
  Where where() const { return {default_context(), *queue}; }
  void right_call() {
    attention(q, q, q, out.view(), {.causal = true}, {}, where());
    cuda::wait(*queue);
  }
  // Nothing is left behind of an error: the next call gives its bits.
  void expect_works() {
    const Tensor zeros(host.shape(), host.dtype());
    cuda::copy(out.view().data(), zeros.view().data(), static_cast<std::size_t>(zeros.count() * 2),
               *queue);
    right_call();
    EXPECT_TRUE(same_bits(out.back(), expected));
  }
  template <class Call>
  void expect_thrown(const std::string& words, Call&& call) {
    EXPECT_EQ(thrown_by(call), words);
    expect_works();
  }

  const Tensor host = numbers({2, 2, 70, 64}, DType::bf16, 1);
  std::shared_ptr<Queue> queue;
  DeviceTensor q, out;
  Tensor expected;
};

TEST_F(CudaErrors, tensors_elsewhere_are_refused) {
  const auto call = [&](const ConstTensorView& k, const TensorView& to,
                        const AttentionOptions& options = {}) {
    attention(q, k, q, to, options, {}, where());
  };
  const std::string other = ", q on cuda:0; all tensors must be on one device";
  Tensor mask({70, 70}, DType::boolean), out_here(host.shape(), host.dtype());
  const ConstTensorView next(q.view().data(), DType::bf16, host.shape(), {Device::Kind::cuda, 1});
  expect_thrown("InvalidArgument: attention: k is on cpu" + other, [&] { call(host, out.view()); });
  expect_thrown("InvalidArgument: attention: k is on cuda:1" + other,
                [&] { call(next, out.view()); });
  expect_thrown("InvalidArgument: attention: out is on cpu" + other, [&] { call(q, out_here); });
  expect_thrown("InvalidArgument: attention: mask is on cpu" + other,
                [&] { call(q, out.view(), {.mask = mask}); });
  expect_thrown(
      "InvalidArgument: attention: the tensors are on cuda:0; a queue of it must be given",
      [&] { attention(q, q, q, out.view()); });
  expect_thrown(
      "InvalidArgument: attention: max_q is missing; cu_seqlens_q is on cuda:0, where the "
      "host cannot read the length of the longest sequence",
      [&] {
        const DeviceTensor starts = on_device(Tensor({2}, DType::i32));
        const auto one = [](const ConstTensorView& x) { return x.slice(0, 0, 1); };
        attention(one(q), one(q), one(q), out.view().slice(0, 0, 1),
                  {.cu_seqlens_q = starts.view()}, {}, where());
      });
}

TEST_F(CudaErrors, a_gpu_that_is_not_there_is_told) {
  const Device none{Device::Kind::cuda, cuda::device_count()};
  const ConstTensorView x(q.view().data(), DType::bf16, host.shape(), none);
  const TensorView to(out.view().data(), DType::bf16, host.shape(), none);
  const std::string thrown = thrown_by([&] { attention(x, x, x, to, {}, {}, where()); });
  EXPECT_TRUE(thrown.starts_with("Unsupported: plan: no kernel takes forward bf16, ")) << thrown;
  EXPECT_NE(thrown.find("cuda.portable.forward finds " + std::to_string(none.index)), thrown.npos)
      << thrown;
  expect_works();
}

// Whole elements at any address give the right bits; parts of one are refused.
TEST_F(CudaErrors, misaligned_views_are_right_or_refused) {
  const auto bytes = static_cast<std::size_t>(host.count() * 2);
  const cuda::Memory in(bytes + 64), to(bytes + 64);
  for (const std::size_t shift : {2, 6, 8, 14, 16, 30}) {
    auto* const from = static_cast<std::byte*>(in.data()) + shift;
    auto* const result = static_cast<std::byte*>(to.data()) + (shift * 3) % 32;
    cuda::copy(from, host.view().data(), bytes, *queue);
    const ConstTensorView x(from, DType::bf16, host.shape(), kGpu);
    attention(x, q, x, TensorView(result, DType::bf16, host.shape(), kGpu), {.causal = true}, {},
              where());
    Tensor found(host.shape(), host.dtype());
    cuda::copy(found.view().data(), result, bytes, *queue);
    EXPECT_TRUE(same_bits(found, expected)) << shift;
  }
  const ConstTensorView odd(static_cast<std::byte*>(in.data()) + 1, DType::bf16, host.shape(),
                            kGpu);
  expect_thrown("InvalidArgument: attention: q is bf16, but its address is not a multiple of 2",
                [&] { attention(odd, q, q, out.view(), {}, {}, where()); });
}

// Sixteen TiB, and a workspace of one: rows that are repeated by stride 0 are copied.
TEST_F(CudaErrors, more_memory_than_there_is_is_an_error) {
  expect_thrown("OutOfMemory: memory: cuda:0 failed: out of memory",
                [&] { const cuda::Memory large(std::size_t{1} << 44); });
  constexpr std::int64_t kBatch = 64, kKeys = std::int64_t{1} << 27;
  const Shape rows{kBatch, 1, 2, 64};
  const ConstTensorView few(q.view().data(), DType::bf16, rows, kGpu);
  const ConstTensorView keys(q.view().data(), DType::bf16, {kBatch, 1, kKeys, 64}, {0, 0, 0, 1},
                             kGpu);
  expect_thrown(
      "OutOfMemory: attention: cuda:0 has no memory for it: the device has none left for "
      "a workspace",
      [&] {
        attention(few, keys, keys, TensorView(out.view().data(), DType::bf16, rows, kGpu), {}, {},
                  where());
      });
}

// ---- Sizes -------------------------------------------------------------------------------------

// Tensors of gigabytes of which a few rows are written. Where the GPU has no room for them the test
// is skipped.
class CudaSizes : public CudaErrors {
 protected:
  static cuda::Memory gigabytes(double count) {
    return cuda::Memory(static_cast<std::size_t>(count * (1U << 30)));
  }
  template <class Test>
  void where_there_is_room(Test&& test) {
    try {
      test();
    } catch (const OutOfMemory& error) {
      GTEST_SKIP() << "this GPU has no room for it: " << error.what();
    }
    expect_works();
  }
};

TEST_F(CudaSizes, more_blocks_than_an_int_counts_are_an_error) {
  if (cuda::Gpu::find(0)->capability() != 90) GTEST_SKIP() << "for the rows of sm_90";
  where_there_is_room([&] {
    constexpr std::int64_t kBatch = (std::int64_t{1} << 29) + 8;
    const cuda::Memory to = gigabytes(8.1);
    const Shape shape{kBatch, 1, 1, 8};
    const ConstTensorView x(q.view().data(), DType::bf16, shape, {0, 0, 0, 1}, kGpu);
    EXPECT_EQ(thrown_by([&] {
                attention(x, x, x, TensorView(to.data(), DType::bf16, shape, kGpu), {}, {},
                          where());
              }),
              "DeviceError: attention: cuda:0 failed: more than 2^29 blocks of queries");
  });
}

// The last queries of many keys see the last four values alone. 2^31 are the portable kernel's,
// below 2^28 they are for the copy engine; one query has kernels of its own.
TEST_F(CudaSizes, the_last_of_2_to_the_31_tokens_are_seen) {
  for (const std::int64_t keys : {(std::int64_t{1} << 31) + 64, (std::int64_t{1} << 28) - 64})
    where_there_is_room([&] {
      constexpr std::int64_t kWritten = 64, kD = 8;
      const cuda::Memory memory(static_cast<std::size_t>(keys * kD * 2));
      Tensor last({kWritten, kD}, DType::bf16);
      for (std::int64_t n = 0; n < last.count(); ++n)
        last.data<bf16>()[n] = bf16(static_cast<float>(4 * (n / kD)));
      cuda::copy(static_cast<std::byte*>(memory.data()) + (keys - kWritten) * kD * 2,
                 last.view().data(), static_cast<std::size_t>(last.count() * 2), *queue);
      const ConstTensorView k(q.view().data(), DType::bf16, {1, 1, keys, kD}, {0, 0, 0, 1}, kGpu);
      const ConstTensorView v(memory.data(), DType::bf16, {1, 1, keys, kD}, kGpu);
      for (const std::int64_t queries : {1, 2}) {
        const ConstTensorView x(q.view().data(), DType::bf16, {1, 1, queries, kD}, kGpu);
        DeviceTensor found = on_device(Tensor({1, 1, queries, kD}, DType::bf16));
        attention(x, k, v, found.view(), {.causal = true, .window = {.left = 3}}, {}, where());
        for (std::int64_t i = 0; i < queries; ++i)
          EXPECT_EQ(value(found.back(), {0, 0, i, 5}),
                    4 * static_cast<double>(kWritten - queries + i) - 6)
              << keys << " keys, " << queries << " queries";
      }
    });
}

// Packed sequences of 2^20 tokens, the last of 64: it begins at 2^31, where an int is negative.
TEST_F(CudaSizes, the_last_of_packed_sequences_begins_at_2_to_the_31) {
  where_there_is_room([&] {
    constexpr std::int64_t kEach = std::int64_t{1} << 20, kBefore = std::int64_t{1} << 31;
    constexpr std::int64_t kLast = 64, kTotal = kBefore + kLast, kD = 8;
    const cuda::Memory values(static_cast<std::size_t>(kTotal * kD * 2)), results(values.bytes());
    Tensor last({kLast, kD}, DType::bf16), found(last.shape(), DType::bf16);
    for (std::int64_t n = 0; n < last.count(); ++n)
      last.data<bf16>()[n] = bf16(static_cast<float>(4 * (n / kD)));
    const auto bytes = static_cast<std::size_t>(last.count() * 2);
    cuda::copy(static_cast<std::byte*>(values.data()) + kBefore * kD * 2, last.view().data(), bytes,
               *queue);
    Tensor starts({kBefore / kEach + 2}, DType::i64);
    for (std::int64_t n = 0; n < starts.count(); ++n)
      starts.data<std::int64_t>()[n] = std::min(n * kEach, kTotal);
    const DeviceTensor on_starts = on_device(starts);
    const Shape shape{1, 1, kTotal, kD};
    const ConstTensorView same(q.view().data(), DType::bf16, shape, {0, 0, 0, 1}, kGpu);
    attention(
        same, same, ConstTensorView(values.data(), DType::bf16, shape, kGpu),
        TensorView(results.data(), DType::bf16, shape, kGpu),
        {.causal = true, .window = {.left = 3}, .cu_seqlens_q = on_starts.view(), .max_q = kEach},
        {}, where());
    cuda::copy(found.view().data(), static_cast<std::byte*>(results.data()) + kBefore * kD * 2,
               bytes, *queue);
    for (std::int64_t i = 0; i < kLast; ++i)  // the mean of its own and up to three before
      EXPECT_EQ(value(found, {i, 5}),
                static_cast<double>(4 * i) - 2 * static_cast<double>(std::min<std::int64_t>(i, 3)))
          << i;
  });
}

// pytorch #187227 #142228: the last rows of the mask lie beyond 2^32.
TEST_F(CudaSizes, mask_index_past_two_to_the_32) {
  where_there_is_room([&] {
    constexpr std::int64_t kLength = 65537;
    const cuda::Memory memory(static_cast<std::size_t>(kLength * kLength));
    auto& stream = dynamic_cast<cuda::StreamQueue&>(*queue);
    ASSERT_TRUE(stream.fill(memory.data(), 0, memory.bytes()));
    const std::uint8_t one = 1;
    const std::vector<std::int64_t> visible = {0, 4096, 65535, 65536};
    for (const std::int64_t i : visible)
      cuda::copy(static_cast<std::byte*>(memory.data()) + i * (kLength + 1), &one, 1, *queue);
    Tensor values({1, 1, kLength, 1});
    for (std::int64_t j = 0; j < kLength; ++j) values.data<float>()[j] = static_cast<float>(j + 1);
    const DeviceTensor zero = on_device(Tensor({1, 1, kLength, 1})), v = on_device(values);
    DeviceTensor found = on_device(Tensor({1, 1, kLength, 1}));
    AttentionOptions options;
    options.window = {0, 0};
    options.mask = ConstTensorView(memory.data(), DType::u8, {1, 1, kLength, kLength}, kGpu);
    attention(zero, zero, v, found.view(), options, {}, where());
    const Tensor& rows = found.back();
    for (std::int64_t i = 0; i < kLength; ++i) {
      const bool sees = std::find(visible.begin(), visible.end(), i) != visible.end();
      ASSERT_EQ(rows.data<float>()[i], sees ? static_cast<float>(i + 1) : 0) << i;
    }
  });
}

// flash-attention #2611, PR #2260, mlx #2894: an offset in elements does not fit 32 bits. d 64 is
// for the copy engine, d 20 for the portable kernels.
TEST_F(CudaSizes, large_outer_strides) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 32) + 64;
  for (const std::int64_t d : {64, 20})
    where_there_is_room([&] {
      const Shape shape{2, 2, 50, d};
      Shape strides = contiguous_strides(shape);
      strides[0] = kFar;
      std::vector<cuda::Memory> memories;
      const auto far = [&](const Tensor& tensor) {
        const cuda::Memory& memory = memories.emplace_back(gigabytes(8.1));
        const auto bytes = static_cast<std::size_t>(tensor.count());  // of half of it
        for (const std::int64_t b : {0, 1})
          cuda::copy(static_cast<std::byte*>(memory.data()) + b * kFar * 2,
                     static_cast<const std::byte*>(tensor.view().data()) + std::size_t(b) * bytes,
                     bytes, *queue);
        return TensorView(memory.data(), DType::bf16, shape, strides, kGpu);
      };
      const auto back = [&](const TensorView& view) {
        Tensor tensor(shape, DType::bf16);
        const auto bytes = static_cast<std::size_t>(tensor.count());
        for (const std::int64_t b : {0, 1})
          cuda::copy(static_cast<std::byte*>(tensor.view().data()) + std::size_t(b) * bytes,
                     static_cast<const std::byte*>(view.data()) + b * kFar * 2, bytes, *queue);
        return tensor;
      };
      const Tensor given[] = {numbers(shape, DType::bf16, 1), numbers(shape, DType::bf16, 2),
                              numbers(shape, DType::bf16, 3), numbers(shape, DType::bf16, 4)};
      const auto run = [&](const auto& place, const auto& fetch) {
        const TensorView q0 = place(given[0]), k = place(given[1]), v = place(given[2]),
                         dout = place(given[3]), to = place(given[0]), dq = place(given[0]),
                         dk = place(given[0]), dv = place(given[0]);
        DeviceTensor lse = on_device(Tensor({2, 2, 50}));
        attention(q0, k, v, to, {.causal = true}, {.lse = lse.view()}, where());
        attention_backward({.q = q0, .k = k, .v = v, .out = to, .lse = lse.view(), .dout = dout},
                           {.causal = true}, {.dq = dq, .dk = dk, .dv = dv}, where());
        return std::array{fetch(to), fetch(dq), fetch(dk), fetch(dv)};
      };
      const auto apart = run(far, back);
      memories.clear();
      std::vector<DeviceTensor> near;
      near.reserve(8);
      const auto together =
          run([&](const Tensor& tensor) { return near.emplace_back(tensor, *queue).view(); },
              [&](const TensorView& view) {
                Tensor tensor(shape, DType::bf16);
                cuda::copy(tensor.view().data(), view.data(),
                           static_cast<std::size_t>(tensor.count() * 2), *queue);
                return tensor;
              });
      for (std::size_t n = 0; n < apart.size(); ++n)
        EXPECT_TRUE(same_bits(apart[n], together[n])) << "d " << d << ", result " << n;
    });
}

// oneDNN #4381 #5393
TEST_F(CudaErrors, one_plan_from_many_threads) {
  const Plan plan = Plan::attention(q, q, q, out.view(), {.causal = true});
  std::array<int, 8> wrong{};
  std::vector<std::thread> threads;
  for (int& own_wrong : wrong)
    threads.emplace_back([&] {
      const auto own = cuda::make_queue();
      const DeviceTensor x(host, *own);
      for (int repeat = 0; repeat < 12; ++repeat) {
        DeviceTensor to(Tensor(host.shape(), host.dtype()), *own);
        plan.run(x, x, x, to.view(), {.causal = true}, {}, own.get());
        own_wrong += !same_bits(to.back(), expected);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<int, 8>{}));
}

}  // namespace
}  // namespace attend::test
