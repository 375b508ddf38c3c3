// A call to try a Context with, and an allocator that counts.
#pragma once

#include "api/check.h"

#include <attend/plan.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace attend::test {

// A call of few and short rows, filled with something.
struct SmallCall {
  Tensor q, k, v, out;
  explicit SmallCall(std::int64_t length, std::int64_t batch = 2)
      : q({batch, 4, length, 6}), k({batch, 2, 5, 6}), v({batch, 2, 5, 7}),
        out({batch, 4, length, 7}) {
    for (Tensor* t : {&q, &k, &v})
      for (std::int64_t n = 0; n < t->count(); ++n)
        t->data<float>()[n] = static_cast<float>(n * 37 % 101) / 50 - 1;
  }
  void run(Context& context, const AttentionOptions& options = {}) {
    attention(q, k, v, out, options, {}, context);
  }
  std::string kernel(Context& context) {
    return Plan::attention(q, k, v, out, {}, {}, {}, context).kernel();
  }
  std::string backward_kernel(Context& context) {
    const Tensor lse(Shape{q.size(0), q.size(1), q.size(2)});
    Tensor dq(q.shape());
    return Plan::attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = out},
                                    {}, {.dq = dq}, {}, context)
        .kernel();
  }
  ForwardProblem problem(const AttentionOptions& options = {}) {
    return check(ForwardArguments{q, k, v, out, options, {}}).problem;
  }
  std::vector<float> result() const { return {out.data<float>(), out.data<float>() + out.count()}; }
};

// Counts what it gives and takes, and fills memory with NaN.
struct CountingAllocator {
  std::atomic<int> allocated{0}, deallocated{0};
  std::atomic<std::size_t> bytes{0};
  bool exhausted = false;

  Allocator allocator() {
    return {[this](std::size_t size, std::size_t alignment) -> void* {
              EXPECT_EQ(alignment, 64U);
              ++allocated;
              bytes += size;
              if (exhausted) return nullptr;
              void* memory = std::aligned_alloc(alignment, (size + 63) / 64 * 64);
              std::memset(memory, 0xFF, size);
              return memory;
            },
            [this](void* memory, std::size_t size) {
              ++deallocated;
              bytes -= size;
              std::free(memory);
            }};
  }
};

}  // namespace attend::test
