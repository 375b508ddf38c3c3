// The contract's fourth point: memory is O(length). Every allocation of this process is counted:
// workspaces come through the C++ runtime's operators too.
#include "support/counted_allocations.h"
#include "support/property_memory.h"
#include "support/property_truth.h"

namespace attend::test {
namespace {

// Self-attention of some length, with everything that a training step has.
struct Step {
  explicit Step(std::int64_t length)
      : q(gaussian({1, 1, length, 2}, DType::f32, 1)),
        k(gaussian({1, 1, length, 2}, DType::f32, 2)), out({1, 1, length, 2}),
        dq({1, 1, length, 2}), dk({1, 1, length, 2}), dv({1, 1, length, 2}), lse({1, 1, length}) {
    options.causal = true;
    outputs.lse = lse;
    gradients.dq = dq;
    gradients.dk = dk;
    gradients.dv = dv;
  }
  Plan forward_plan(const std::string& kernel, Context& context) {
    return Plan::attention(q, k, k, out, options, outputs, {kernel}, context);
  }
  Plan backward_plan(const std::string& kernel, Context& context) {
    return Plan::attention_backward({.q = q, .k = k, .v = k, .out = out, .lse = lse, .dout = out},
                                    options, gradients, {kernel}, context);
  }
  void run(const Plan& plan, bool backward) {
    if (backward)
      plan.run_backward({.q = q, .k = k, .v = k, .out = out, .lse = lse, .dout = out}, options,
                        gradients);
    else plan.run(q, k, k, out, options, outputs);
  }

  Tensor q, k, out, dq, dk, dv, lse;
  AttentionOptions options;
  AttentionOutputs outputs;
  AttentionGradients gradients;
};

ContextOptions two_threads() {
  ContextOptions options;
  options.threads = 2;
  return options;
}

// Bytes that the first call takes, from making the plan to the end.
std::size_t bytes_of_a_step(std::int64_t length, const KernelUnderTest& kernel) {
  Step step(length);
  Context context(two_threads());
  const std::size_t before = bytes_allocated;
  step.run(kernel.backward ? step.backward_plan(kernel.name, context)
                           : step.forward_plan(kernel.name, context),
           kernel.backward);
  return bytes_allocated - before;
}

TEST(Contract, contract_4_forward_and_backward_take_memory_in_proportion_to_the_length) {
  for (const KernelUnderTest& kernel : all_kernels()) {
    if (kernel.yardstick) {  // length x length, on purpose: the count would notice
      const std::size_t one = bytes_of_a_step(200, kernel), two = bytes_of_a_step(400, kernel);
      EXPECT_GT(static_cast<double>(two), 3 * static_cast<double>(one)) << kernel.name;
      continue;
    }
    const std::size_t one = bytes_of_a_step(2048, kernel), two = bytes_of_a_step(4096, kernel);
    EXPECT_LT(static_cast<double>(two), 2.2 * static_cast<double>(one)) << kernel.name;
    EXPECT_LT(two, std::size_t{4096} * 2 * 16 * sizeof(double)) << kernel.name;
  }
}

// Plans for lengths that nobody could run here: their workspace is O(length) as well.
TEST(Contract, contract_4_the_workspace_of_a_million_tokens) {
  Context context(two_threads());
  for (const KernelUnderTest& kernel : all_kernels()) {
    if (kernel.yardstick) continue;
    const auto workspace = [&](std::int64_t length) {
      Step step(length);
      return (kernel.backward ? step.backward_plan(kernel.name, context)
                              : step.forward_plan(kernel.name, context))
          .workspace_bytes();
    };
    const std::size_t one = workspace(1 << 20), two = workspace(1 << 21);
    EXPECT_LE(static_cast<double>(two), 2.2 * static_cast<double>(one)) << kernel.name;
    EXPECT_LT(two, std::size_t{1} << 31) << kernel.name;
  }
}

// The workspace is kept, and arguments that lie as those of the Plan did are not checked again.
TEST(Contract, contract_4_later_calls_of_a_plan_allocate_nothing) {
  Context context(two_threads());
  for (const KernelUnderTest& kernel : all_kernels())
    for (const std::int64_t length : {16, 600}) {
      Step step(length);
      const Plan plan = kernel.backward ? step.backward_plan(kernel.name, context)
                                        : step.forward_plan(kernel.name, context);
      step.run(plan, kernel.backward);
      const std::size_t before = allocations;
      step.run(plan, kernel.backward);
      EXPECT_EQ(allocations - before, 0U) << kernel.name << " length " << length;
    }
}

// Whichever allocation of a call fails, the caller is told so in the library's own words, and the
// next call works.
TEST(Contract, contract_5_any_allocation_that_fails_is_out_of_memory) {
  const Tensor q({1, 2, 3, 4}), k({1, 2, 5, 4});
  Tensor out({1, 2, 3, 4}), lse({1, 2, 3});
  std::size_t failures = 0;
  for (bool finished = false; !finished;) {
    Context context(two_threads());
    failing_allocation = allocations + ++failures;
    try {
      attention(q, k, k, out, {.causal = true}, {.lse = lse}, context);
      finished = allocations < failing_allocation;
    } catch (const OutOfMemory&) {
    }
    failing_allocation = 0;
    attention(q, k, k, out, {.causal = true}, {.lse = lse}, context);
  }
  EXPECT_GT(failures, 5u);
}

// As large as the tensors allow: keys that are one row repeated need no memory themselves.
TEST(Contract, contract_4_a_workspace_beyond_all_memory_is_out_of_memory) {
  const float zero = 0;
  float out = 42;
  std::size_t asked = 0;
  const Allocator refuses = {[&](std::size_t bytes, std::size_t) -> void* {
                               asked = bytes;
                               return nullptr;
                             },
                             [](void*, std::size_t) {}};
  for (const int bits : {40, 57, 59, 60}) {
    const std::int64_t keys = std::int64_t{1} << bits;
    const ConstTensorView q(&zero, {1, 1, 1, 1}), k(&zero, {1, 1, keys, 1}, {0, 0, 0, 0});
    const TensorView o(&out, {1, 1, 1, 1});
    Context context(one_thread(refuses));
    const Plan plan = Plan::attention(q, k, k, o, {}, {}, {"textbook.forward"}, context);
    EXPECT_GE(plan.workspace_bytes(), static_cast<std::size_t>(keys)) << bits;
    EXPECT_THROW(plan.run(q, k, k, o), OutOfMemory) << bits;
    EXPECT_TRUE(asked == plan.workspace_bytes() || bits > 57) << bits;  // not even asked for
    EXPECT_EQ(out, 42) << bits;
  }
}

// Sizes whose product does not fit are refused before anything is allocated.
TEST(Contract, contract_4_sizes_whose_product_overflows_are_refused) {
  const float zero = 0;
  const std::int64_t huge = std::int64_t{1} << 33;
  const std::size_t before = bytes_allocated;
  EXPECT_THROW(Tensor({huge, huge}), Error);
  EXPECT_THROW(Tensor({huge, huge, 0, huge, huge}), Error);
  const Shape shape = {huge, huge, huge, 1}, strides = {0, 0, 0, 0};
  EXPECT_THROW(
      {
        const ConstTensorView q(&zero, shape, strides);
        attention(q, q, q);
      },
      Error);
  const ConstTensorView q(&zero, {1, 1, huge, 1}, strides), k(&zero, {1, 1, huge, 1}, strides);
  EXPECT_THROW(attention(q, k, k, TensorView(const_cast<float*>(&zero), {1, 1, huge, 1}, strides)),
               InvalidArgument);  // out overlaps itself
  EXPECT_LT(bytes_allocated - before, std::size_t{1} << 20);
}

}  // namespace
}  // namespace attend::test
