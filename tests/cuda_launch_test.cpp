// What the rows for GPUs start, and which memory they ask for: a driver that is none
// (tests/fake_driver) tells it, so nothing is computed, and no tensor is touched, however large.
#include "cuda/backward_sm90.h"
#include "cuda/device.h"
#include "fake_driver/launches.h"
#include "support/layer_numbers.h"
#include "support/thrown_by.h"

#include <attend/attention.h>
#include <attend/cuda.h>
#include <attend/linear.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace attend::test {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};
constexpr std::int64_t kOne = 1;

struct Started {
  std::string name;
  std::int64_t blocks;
};

class CudaLaunch : public testing::Test, public FakeListener {
 protected:
  CudaLaunch() { listen_to_fake_driver(this); }
  ~CudaLaunch() override { listen_to_fake_driver(nullptr); }
  void launched(const char* name, unsigned blocks, const void* arguments) override {
    started.push_back({name, blocks});
    if (on_launch) on_launch(name, arguments);
  }
  void allocated(std::size_t bytes) override { taken.push_back(bytes); }

  bool has_started(const std::string& name) const {
    return std::any_of(started.begin(), started.end(),
                       [&](const Started& one) { return one.name == name; });
  }
  Where where() const { return {default_context(), *queue}; }

  // A tensor at an address of its own, far from the others.
  TensorView tensor(const Shape& shape, DType type = DType::bf16) {
    next_ += std::intptr_t{1} << 42;
    return {reinterpret_cast<void*>(next_), type, shape, kGpu};
  }
  TensorView starts(std::int64_t sequences) { return tensor({sequences + 1}, DType::i32); }

  void forward(std::int64_t queries, std::int64_t keys, std::int64_t longest,
               std::int64_t sequences) {
    const TensorView q = tensor({1, 1, queries, 8}), k = tensor({1, 1, keys, 8});
    attention(q, k, tensor({1, 1, keys, 8}), tensor({1, 1, queries, 8}),
              {.cu_seqlens_q = starts(sequences),
               .cu_seqlens_k = starts(sequences),
               .max_q = longest,
               .max_k = longest},
              {}, where());
  }
  void backward(std::int64_t queries, std::int64_t keys, std::int64_t longest,
                std::int64_t sequences, std::int64_t d = 8) {
    const Shape of_q{1, 1, queries, d}, of_k{1, 1, keys, d};
    attention_backward({.q = tensor(of_q),
                        .k = tensor(of_k),
                        .v = tensor(of_k),
                        .out = tensor(of_q),
                        .lse = tensor({1, 1, queries}, DType::f32),
                        .dout = tensor(of_q)},
                       {.cu_seqlens_q = starts(sequences),
                        .cu_seqlens_k = starts(sequences),
                        .max_q = longest,
                        .max_k = longest},
                       {.dq = tensor(of_q), .dk = tensor(of_k), .dv = tensor(of_k)}, where());
  }

  std::shared_ptr<Queue> queue = cuda::make_queue();
  std::vector<Started> started;
  std::vector<std::size_t> taken;
  std::function<void(const std::string&, const void*)> on_launch;

 private:
  std::intptr_t next_ = 0;
};

// ---- Sizes -------------------------------------------------------------------------------------

TEST_F(CudaLaunch, more_blocks_than_a_grid_has_are_refused_unless_the_kernel_goes_round) {
  auto& stream = dynamic_cast<cuda::StreamQueue&>(*queue);
  const int arguments = 0;
  const auto most = cuda::Launch{"clamp", "attend_put", cuda::kMostBlocks, 256};
  const auto more = cuda::Launch{"clamp", "attend_put", cuda::kMostBlocks + 1, 256};
  EXPECT_TRUE(stream.start(most, &arguments));
  EXPECT_FALSE(stream.start(more, &arguments));
  EXPECT_EQ(started.size(), 1U);
  EXPECT_TRUE(stream.start_round(more, &arguments));
  ASSERT_EQ(started.size(), 2U);
  EXPECT_EQ(started[1].blocks, (kOne << 31) - 1);
}

// Each block of threads of backward has its place in the grid. A million sequences, one of which
// may be as long as all of them, would be 2^35 blocks.
TEST_F(CudaLaunch, packed_sequences_go_in_turns_where_a_grid_cannot_hold_them) {
  constexpr std::int64_t kSequences = kOne << 20, kLongest = kOne << 20;
  for (const std::int64_t d : {64, 128, 256}) {
    const int *first = nullptr, *first_key = nullptr;
    std::int64_t rows = 0, queries = 0, keys = 0, wrong = 0;
    on_launch = [&](const std::string& name, const void* arguments) {
      if (name.starts_with("attend_clamp")) return;
      const auto& a = *static_cast<const cuda::BackwardParameters*>(arguments);
      if (first == nullptr) first = a.q_starts, first_key = a.k_starts;
      std::int64_t& done = name == "attend_backward_rows"      ? rows
                           : name == "attend_backward_queries" ? queries
                                                               : keys;
      wrong += a.q_starts - first != done || a.k_starts - first_key != done;
      done += a.batch;
      const std::int64_t block = name == "attend_backward_queries" ? cuda::kBackwardQueryBlock
                                 : name == "attend_backward_keys"
                                     ? cuda::backward_key_block(static_cast<int>(d))
                                     : 256 / (d / 8);
      wrong += started.back().blocks != a.batch * (kLongest / block);
    };
    started.clear();
    backward(kLongest, kLongest, kLongest, kSequences, d);
    EXPECT_EQ(rows, kSequences) << d;
    EXPECT_EQ(queries, kSequences) << d;
    EXPECT_EQ(keys, kSequences) << d;
    EXPECT_EQ(wrong, 0) << d;
    EXPECT_GT(started.size(), 30U) << d;
  }
}

TEST_F(CudaLaunch, what_fits_into_a_grid_goes_at_once) {
  backward(5000, 6000, 700, 12, 64);
  std::vector<std::string> names;
  for (const Started& one : started) names.push_back(one.name);
  EXPECT_EQ(names, (std::vector<std::string>{"attend_clamp_i32", "attend_backward_rows",
                                             "attend_backward_queries", "attend_backward_keys"}));
}

// Starts of sequences are ints in the kernels of Hopper.
TEST_F(CudaLaunch, more_packed_tokens_than_an_int_counts_are_for_the_portable_kernels) {
  constexpr std::int64_t kMany = kOne << 31, kLimit = kMany - (kOne << 10);
  struct Case {
    std::int64_t queries, keys;
    bool is_portable;
  };
  for (const auto& [queries, keys, is_portable] : {Case{kMany, kMany, true},
                                                   {kMany + 5, 64, true},
                                                   {64, kMany + 5, true},
                                                   {kLimit, 64, true},
                                                   {64, kLimit, true},
                                                   {kLimit - 1, kLimit - 1, false},
                                                   {64, 64, false}}) {
    SCOPED_TRACE(testing::Message() << queries << " " << keys);
    started.clear();
    forward(queries, keys, 64, 3);
    EXPECT_EQ(has_started("attend_forward"), !is_portable);
    EXPECT_EQ(has_started("attend_forward_f32"), is_portable);
    EXPECT_EQ(has_started("attend_clamp_i64"), is_portable) << "starts of 64 bits";
    EXPECT_EQ(has_started("attend_clamp_i32"), !is_portable);
    if (!is_portable && queries > 64) continue;  // 34 GB of workspace
    started.clear();
    backward(queries, keys, 64, 3);
    EXPECT_EQ(has_started("attend_backward_rows"), !is_portable);
    EXPECT_EQ(has_started("attend_backward_rows_float"), is_portable);
  }
}

// However many: more than 2^29 were refused.
TEST_F(CudaLaunch, backward_of_packed_queries_takes_16_bytes_of_each) {
  constexpr std::int64_t kMany = (kOne << 29) + 4;
  const std::string thrown = thrown_by([&] { backward(kMany, 64, 64, 3); });
  EXPECT_TRUE(thrown == "nothing" || thrown.starts_with("OutOfMemory: ")) << thrown;
  EXPECT_EQ(*std::max_element(taken.begin(), taken.end()),
            static_cast<std::size_t>(16 * (kMany + 4 * 4 + 384)));
}

// ---- Memory ------------------------------------------------------------------------------------

// What the caller gives and has back, each piece once.
struct OwnMemory {
  void* take(std::size_t bytes) {
    if (throws) throw std::runtime_error("a mistake of the caller's");
    if (none) return nullptr;
    void* const memory = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
    lent.emplace_back(memory, bytes);
    return static_cast<char*>(memory) + shift;
  }
  void give(void* memory, std::size_t bytes) {
    memory = static_cast<char*>(memory) - shift;
    wrong += std::erase(lent, std::pair(memory, bytes)) != 1;
    std::free(memory);
    if (throws) throw std::runtime_error("another");
  }
  std::shared_ptr<Queue> queue() {
    return cuda::make_queue(0, nullptr,
                            {[this](std::size_t bytes) { return take(bytes); },
                             [this](void* memory, std::size_t bytes) { give(memory, bytes); }});
  }

  std::vector<std::pair<void*, std::size_t>> lent;
  std::size_t wrong = 0;
  bool none = false, throws = false;
  int shift = 0;
};

TEST_F(CudaLaunch, a_queue_takes_its_memory_from_the_caller_alone) {
  OwnMemory own;
  queue = own.queue();
  backward(5000, 6000, 700, 12, 64);
  forward(5000, 6000, 700, 12);
  EXPECT_TRUE(own.lent.empty());
  {
    const Tensor kept = Tensor::uninitialized({3, 5}, DType::f32, kGpu, where());
    EXPECT_EQ(own.lent.size(), 1U) << "a Tensor has its own as long as it lives";
    EXPECT_EQ(kept.view().data(), own.lent[0].first);
  }
  EXPECT_TRUE(own.lent.empty());
  EXPECT_EQ(own.wrong, 0U);
  EXPECT_TRUE(taken.empty()) << "nothing is the stream's";
  started.clear();
  queue = cuda::make_queue();
  forward(5000, 6000, 700, 12);
  EXPECT_FALSE(taken.empty());
}

TEST_F(CudaLaunch, memory_of_the_callers_that_cannot_be_used_is_an_error) {
  OwnMemory own;
  queue = own.queue();
  const auto call = [&] { return thrown_by([&] { forward(50, 60, 7, 12); }); };
  const std::string none =
      "OutOfMemory: attention: cuda:0 has no memory for it: the caller's memory has none left";
  own.none = true;
  EXPECT_EQ(call(), none);
  own.none = false;
  own.throws = true;
  EXPECT_EQ(call(), none);
  own.throws = false;
  own.shift = 16;
  EXPECT_EQ(call(),
            "DeviceError: attention: cuda:0 failed: the caller's memory is not at a multiple of "
            "256 bytes");
  own.shift = 0;
  EXPECT_EQ(call(), "nothing");
  EXPECT_TRUE(own.lent.empty());
  EXPECT_EQ(own.wrong, 0U);
  Tensor kept = Tensor::uninitialized({3, 5}, DType::f32, kGpu, where());
  own.throws = true;
  kept = Tensor();
  EXPECT_TRUE(own.lent.empty());
}

// ---- Products ----------------------------------------------------------------------------------

// dW = dy^T x, where x and dy have any strides: the algorithm depends on which of the two are
// transposed.
TEST_F(CudaLaunch, a_gradient_of_weights_is_the_same_product_whatever_the_strides) {
  for (const std::int64_t out : {1, 2, 5})
    for (const std::int64_t in : {1, 8})
      for (const std::int64_t rows : {1, 2, 6}) {
        const Linear layer = Linear({.in = in, .out = out, .bias = false}).to(kGpu, where());
        const auto transposed = [&](const Shape& of_dy, const Shape& of_x) {
          const auto view = [&](std::int64_t width, const Shape& strides) {
            return ConstTensorView(tensor({1}, DType::f32).data(), DType::f32, {rows, width},
                                   strides, kGpu);
          };
          layer.backward(view(out, of_dy), view(in, of_x), where());
          const FakeProduct product = *last_fake_product();
          return std::pair(product.first, product.second);
        };
        const auto expected = transposed({out, 1}, {in, 1});
        for (const auto& [of_dy, of_x] : {std::pair(Shape{out + 3, 1}, Shape{in + 1, 1}),
                                          {Shape{1, rows}, Shape{1, rows}},
                                          {Shape{1, 2 * rows}, Shape{2, 2 * rows}},
                                          {Shape{1, 1}, Shape{1, 1}},
                                          {Shape{0, 1}, Shape{0, 1}},
                                          {Shape{2 * out, 2}, Shape{2 * in, 2}}})
          EXPECT_EQ(transposed(of_dy, of_x), expected)
              << "out " << out << ", in " << in << ", rows " << rows << ", strides " << of_dy[0]
              << " " << of_dy[1];
      }
}

}  // namespace
}  // namespace attend::test
