// Rows that launch into a queue instead of running tasks, on a device that is none: the work is
// done after the call has returned, memory is given back in the queue's order, and failures come
// out as errors.
#include "api/check.h"
#include "api/context.h"
#include "support/fake_device.h"
#include "support/thrown_by.h"

#include <attend/plan.h>

#include <gtest/gtest.h>

#include <cmath>

namespace attend::test {
namespace {

struct Launch : testing::Test {
  Tensor q{Shape{2, 4, 30, 6}}, k{Shape{2, 2, 50, 6}}, v{Shape{2, 2, 50, 7}},
      out{Shape{2, 4, 30, 7}};
  Context context{{.threads = 1}};
  FakeQueue queue;

  Launch() {
    for (Tensor* t : {&q, &k, &v})
      for (std::int64_t n = 0; n < t->count(); ++n)
        t->data<float>()[n] = static_cast<float>(std::sin(static_cast<double>(n)));
  }
  template <class View>
  static View on_device(const View& view) {
    return View(view.data(), view.dtype(), view.shape(), kFakeDevice);
  }
  Request<Forward> request(Tensor& to, const AttentionOptions& options = {}) {
    return check(ForwardArguments{on_device(ConstTensorView(q)),
                                  on_device(ConstTensorView(k)),
                                  on_device(ConstTensorView(v)),
                                  on_device(to.view()),
                                  options,
                                  {}});
  }
  // The Request dies with the call.
  template <bool early = false>
  void run(Tensor& to) {
    const Request<Forward> made = request(to);
    ContextState::of(context).execute("attention", fake_plan<early>(made.problem), made.call,
                                      &queue);
  }
  Tensor expected() const {
    Context reference({.threads = 1, .kernels = "forward:reference.forward"});
    return attention(q, k, v, {}, reference);
  }
  static bool same(const Tensor& a, const Tensor& b) {
    return std::equal(a.data<float>(), a.data<float>() + a.count(), b.data<float>());
  }
};

TEST_F(Launch, a_row_for_the_device_is_chosen_there_and_nowhere_else) {
  EXPECT_EQ(describe(fake_plan(request(out).problem)),
            "problem    forward f32, q [2, 4, 30, 6], k [2, 2, 50, 6], dv 7, scale "
            "0.4082482904638631, on cuda:0\n"
            "kernel     fake.forward\n"
            "launched   into a queue of the device\n");
  const AttentionOptions capped{.softcap = 3};
  EXPECT_EQ(thrown_by([&] { fake_plan(request(out, capped).problem); }),
            "Unsupported: plan: no kernel takes " + describe(request(out, capped).problem) +
                ": fake.forward takes no softcap; reference.forward reads host memory, the tensors "
                "are on cuda:0");
  const auto on_host = fake_plan(check(ForwardArguments{q, k, v, out, {}, {}}).problem);
  EXPECT_EQ(on_host.kernel->name, "reference.forward");
  const std::vector<std::pair<std::string_view, std::string>> declined = {
      {"fake.forward", "launches on a device, the tensors are in host memory"}};
  EXPECT_EQ(on_host.declined, declined);
}

TEST_F(Launch, the_work_is_done_after_the_call_has_returned) {
  const Tensor before = Tensor::copy_of(out);
  run(out);
  EXPECT_TRUE(same(out, before)) << "done too early";
  EXPECT_EQ(queue.waiting(), 3U) << "two pieces of work, and the end of their memory";
  EXPECT_TRUE(queue.wait());
  EXPECT_TRUE(same(out, expected()));
}

// The same block serves all of them, one after the other.
TEST_F(Launch, memory_is_given_back_in_the_order_of_the_queue) {
  std::vector<Tensor> results(5, Tensor(out.shape()));
  for (Tensor& to : results) run(to);
  EXPECT_EQ(queue.in_use(), 0U);
  EXPECT_EQ(queue.wrong_gifts, 0);
  EXPECT_TRUE(queue.wait());
  for (const Tensor& to : results) EXPECT_TRUE(same(to, expected()));
}

TEST_F(Launch, memory_that_is_free_when_the_call_returns_is_found_out) {
  run<true>(out);
  EXPECT_TRUE(queue.wait());
  EXPECT_FALSE(same(out, expected()));
}

TEST_F(Launch, a_launch_that_fails_leaves_nothing_behind) {
  queue.refuses = true;
  EXPECT_THROW(run(out), DeviceError);
  EXPECT_EQ(queue.in_use(), 0U);
  queue.exhausted = true;
  EXPECT_THROW(run(out), OutOfMemory);
  queue.exhausted = false;
  run(out);
  EXPECT_TRUE(queue.wait());
  EXPECT_TRUE(same(out, expected()));
}

// The table has no row for a device yet: a plan that the Context has made so far stands for it.
TEST_F(Launch, the_public_functions_hand_over_the_queue) {
  const ForwardProblem problem = request(out).problem;
  std::get<Plans<Forward>>(ContextState::of(context).plans)
      .made.emplace(problem, std::make_shared<const Decision<Forward>>(fake_plan(problem)));
  const ConstTensorView on_q = on_device(ConstTensorView(q)), on_k = on_device(ConstTensorView(k)),
                        on_v = on_device(ConstTensorView(v));
  Tensor planned(out.shape()), checked(out.shape());
  attention(on_q, on_k, on_v, on_device(out.view()), {}, {}, Where(context, queue));
  const Plan plan =
      Plan::attention(on_q, on_k, on_v, on_device(planned.view()), {}, {}, {}, context);
  plan.run(on_q, on_k, on_v, on_device(planned.view()), {}, {}, &queue);
  const AttentionOptions spelled_out{.scale = 1 / std::sqrt(6.0)};  // checked as if it were new
  plan.run(on_q, on_k, on_v, on_device(checked.view()), spelled_out, {}, &queue);
  EXPECT_EQ(queue.waiting(), 9U);
  EXPECT_TRUE(queue.wait());
  EXPECT_TRUE(same(out, expected()));
  EXPECT_TRUE(same(planned, expected()));
  EXPECT_TRUE(same(checked, expected()));
  const std::string none =
      "InvalidArgument: attention: the tensors are on cuda:0; a queue of it must be given";
  EXPECT_EQ(thrown_by([&] { attention(on_q, on_k, on_v, on_device(out.view()), {}, {}, context); }),
            none);
  EXPECT_EQ(thrown_by([&] { plan.run(on_q, on_k, on_v, on_device(out.view())); }), none);
}

TEST_F(Launch, a_failure_of_earlier_work_is_told_by_the_next_call) {
  run(out);
  queue.put([] { return Status{Status::Kind::failed, "an illegal address"}; });
  EXPECT_FALSE(queue.wait());
  EXPECT_THROW(run(out), DeviceError);
  EXPECT_EQ(queue.in_use(), 0U);
}

}  // namespace
}  // namespace attend::test
