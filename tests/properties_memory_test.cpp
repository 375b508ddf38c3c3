// Properties of memory: any layout (P8), no byte outside the tensors (P18), whatever the workspace
// holds (P19). The textbook kernel is held to all of them as well.
#include "support/property_compare.h"
#include "support/property_memory.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

namespace attend::test {
namespace {

using cases::Case;
using Side = GuardedMemory::Side;

// A kernel's results, written through the given views.
Written copies_of(const Outputs& o) {
  const auto copy = [](const TensorView& view) { return Tensor::copy_of(view); };
  const AttentionGradients& g = o.gradients;
  return {copy(o.out), copy(o.lse),   copy(g.dq),     copy(g.dk),
          copy(g.dv),  copy(g.dbias), copy(g.dsinks), copy(g.dalibi)};
}

// What the kernel can give of these.
Outputs wanted_from(const KernelUnderTest& kernel, Outputs outputs) {
  if (kernel.yardstick)
    outputs.gradients.dbias = outputs.gradients.dsinks = outputs.gradients.dalibi = {};
  return outputs;
}

// ---- P8 ----------------------------------------------------------------------------------------

TEST(Properties, p8_any_layout_equals_contiguous) {
  for_trials(
      every_kernel(), 8000, 150, [](Case&) {},
      [](const Trial& trial, const KernelUnderTest& kernel, Written& contiguous) {
        ScatteredMemory memory(trial.line.size());
        const auto scatter = [&](const ConstTensorView& view) { return memory.scatter(view); };
        const Arguments arguments = exchange_tensors(trial.arguments(), scatter);
        Written results = trial.empty_results(kernel.backward);
        const Outputs outputs = exchange_tensors(results.views(), scatter);
        ASSERT_TRUE(run(arguments, wanted_from(kernel, outputs), kernel));
        EXPECT_TRUE(same_bits(contiguous, copies_of(outputs)));
        EXPECT_TRUE(memory.gaps_untouched());
      });
}

// The view without one dimension's variety: every index of it reads index 0.
ConstTensorView repeated_along(const ConstTensorView& view, int dim) {
  Shape strides = view.strides();
  strides[dim] = 0;
  return {view.data(), view.dtype(), view.shape(), strides};
}

TEST(Properties, p8_repeated_by_stride_zero_equals_repeated_in_memory) {
  const auto adapt = [](Case& c) { c.addressing = cases::Addressing::dense; };
  for_trials(every_kernel(), 8500, 60, adapt,
             [](const Trial& trial, const KernelUnderTest& kernel, Written&) {
               if (trial.k.count() == 0) return;
               for (int dim = 0; dim < 4; ++dim) {
                 const auto repeat = [dim](const ConstTensorView& view) {
                   return view.rank() == 4 ? repeated_along(view, dim) : view;
                 };
                 std::vector<Tensor> copies;
                 const Arguments views = exchange_tensors(trial.arguments(), repeat);
                 const Arguments in_memory =
                     exchange_tensors(views, [&](const ConstTensorView& view) {
                       return copies.emplace_back(Tensor::copy_of(view)).view();
                     });
                 Written by_stride = trial.empty_results(kernel.backward), by_copy = by_stride;
                 ASSERT_TRUE(run(views, wanted_from(kernel, by_stride.views()), kernel));
                 ASSERT_TRUE(run(in_memory, wanted_from(kernel, by_copy.views()), kernel));
                 EXPECT_TRUE(same_bits(by_copy, by_stride)) << "dimension " << dim;
               }
             });
}

// ---- P18 ---------------------------------------------------------------------------------------

// The case at hand, for the handler: nobody else is left to print it after a bad access.
char case_at_hand[1024];

void report_bad_access(int) {
  const char text[] = "\ntouched memory outside a tensor, or wrote to an input: ";
  static_cast<void>(!write(STDERR_FILENO, text, sizeof text - 1));
  static_cast<void>(!write(STDERR_FILENO, case_at_hand, std::strlen(case_at_hand)));
  static_cast<void>(!write(STDERR_FILENO, "\n", 1));
  _exit(1);
}

// Reports a bad access as long as it lives.
class BadAccessReporter {
 public:
  BadAccessReporter() {
    struct sigaction action {};
    action.sa_handler = report_bad_access;
    sigaction(SIGSEGV, &action, &segv_);
    sigaction(SIGBUS, &action, &bus_);
  }
  ~BadAccessReporter() {
    sigaction(SIGSEGV, &segv_, nullptr);
    sigaction(SIGBUS, &bus_, nullptr);
  }
  BadAccessReporter(const BadAccessReporter&) = delete;
  BadAccessReporter& operator=(const BadAccessReporter&) = delete;

 private:
  struct sigaction segv_ {
  }, bus_{};
};

std::size_t planned_workspace(const Arguments& a, const Outputs& o, const KernelUnderTest& kernel,
                              Context& context) {
  if (kernel.backward)
    return Plan::attention_backward({.q = a.q,
                                     .k = a.k,
                                     .v = a.v,
                                     .out = o.out,
                                     .lse = o.lse,
                                     .dout = a.dout,
                                     .dlse = a.dlse},
                                    a.options, o.gradients, {kernel.name}, context)
        .workspace_bytes();
  AttentionOutputs outputs;
  outputs.lse = o.lse;
  return Plan::attention(a.q, a.k, a.v, o.out, a.options, outputs, {kernel.name}, context)
      .workspace_bytes();
}

// Every tensor and the workspace against a guard page; inputs cannot be written.
void expect_no_access_outside(const Case& problem, Side side) {
  const Trial trial = make_trial(problem);
  for (const KernelUnderTest& kernel : all_kernels(problem.type)) {
    const std::string where = "ATTEND_CASE=\"" + trial.line + "\", kernel " + kernel.name;
    std::strncpy(case_at_hand, where.c_str(), sizeof case_at_hand - 1);
    SCOPED_TRACE(where);
    GuardedMemory inputs(side), others(side);
    const Arguments arguments = exchange_tensors(
        trial.arguments(), [&](const ConstTensorView& view) { return inputs.place(view); });
    inputs.protect_from_writing();
    Written results = trial.empty_results(kernel.backward);
    const Outputs outputs = exchange_tensors(
        results.views(), [&](const TensorView& view) { return others.place(view); });
    const Outputs wanted = wanted_from(kernel, outputs);
    Context context(one_thread(others.allocator()));
    if (!run(arguments, wanted, kernel, context)) continue;
    const auto usual = trial.run(kernel);
    ASSERT_TRUE(usual);
    EXPECT_TRUE(same_bits(*usual, copies_of(outputs)));
    if (kernel.on_gpu()) continue;  // its memory is the stream's; a call has guards of its own
    // Exactly what the plan says was asked for (the forward call before a backward one asks first,
    // and its memory is used again if it is large enough).
    const std::size_t bytes = planned_workspace(arguments, wanted, kernel, context);
    ASSERT_EQ(others.allocated().empty(), bytes == 0);
    if (!kernel.backward) {
      EXPECT_EQ(others.allocated(), std::vector<std::size_t>{bytes});
    } else if (others.allocated().size() > 1) {
      EXPECT_EQ(others.allocated().back(), bytes);
    }
  }
}

// Sizes 1 to 65 in one dimension: every tail of a tile of up to 32, and twice it and one more.
void expect_every_tail_stays_inside(std::int64_t Case::*size) {
  const BadAccessReporter reporter;
  for (std::int64_t n = 1; n <= 65; ++n) {
    Case c = random_case(static_cast<std::uint64_t>(18000 + n));
    c.type = cases::kTypes[static_cast<std::size_t>(n) % 4];
    if (c.type == DType::f64) c.bias_f32 = false;
    c.batch = 1 + n % 2;
    c.k_length = std::min<std::int64_t>(c.k_length, 40);
    c.*size = n;
    if (c.addressing == cases::Addressing::packed_self) c.k_length = c.q_length = n;
    for (const Side side : {Side::before, Side::behind}) {
      expect_no_access_outside(c, side);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(Properties, p18_no_byte_outside_the_tensors_for_every_number_of_queries) {
  expect_every_tail_stays_inside(&Case::q_length);
}
TEST(Properties, p18_no_byte_outside_the_tensors_for_every_number_of_keys) {
  expect_every_tail_stays_inside(&Case::k_length);
}
TEST(Properties, p18_no_byte_outside_the_tensors_for_every_d) {
  expect_every_tail_stays_inside(&Case::d);
}
TEST(Properties, p18_no_byte_outside_the_tensors_for_every_dv) {
  expect_every_tail_stays_inside(&Case::dv);
}

// Few rows against many keys, which stand in lanes: every tail of them, of up to 8 rows.
TEST(Properties, p18_no_byte_outside_the_tensors_for_few_rows_of_many_keys) {
  const BadAccessReporter reporter;
  for (std::int64_t n = 0; n < 33; ++n)
    for (const Side side : {Side::before, Side::behind}) {
      expect_no_access_outside({.type = cases::kTypes[static_cast<std::size_t>(n) % 4],
                                .heads = 1 + n % 8,
                                .q_length = 1,
                                .k_length = 128 + n,
                                .d = 32,
                                .dv = n % 3 == 0 ? 16 : 32},
                               side);
      if (testing::Test::HasFailure()) return;
    }
}

// ---- P19 ---------------------------------------------------------------------------------------

TEST(Properties, p19_a_poisoned_workspace_gives_the_same_bits) {
  if (on_gpu()) GTEST_SKIP() << "a GPU's workspace is the stream's, which other calls have used";
  for_trials(
      every_kernel(), 19000, 80, [](Case&) {},
      [](const Trial& trial, const KernelUnderTest& kernel, Written& usual) {
        for (const int byte : {0xff, 0x00, 0x7f, 0x3c}) {
          Context context(one_thread(filled_allocator(byte)));
          const auto results = trial.run(kernel, context);
          ASSERT_TRUE(results);
          EXPECT_TRUE(same_bits(usual, *results)) << "workspace of " << byte;
        }
      });
}

// A workspace that another problem has left behind.
TEST(Properties, p19_a_used_workspace_gives_the_same_bits) {
  Context context(one_thread());
  for_trials(
      every_kernel(), 19500, 80, [](Case&) {},
      [&](const Trial& trial, const KernelUnderTest& kernel, Written& usual) {
        const auto results = trial.run(kernel, context);
        ASSERT_TRUE(results);
        EXPECT_TRUE(same_bits(usual, *results));
      });
}

}  // namespace
}  // namespace attend::test
