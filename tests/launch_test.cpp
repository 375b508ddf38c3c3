// Rows that launch into a queue instead of running tasks, on a device that is none: the work is
// done after the call has returned, memory is given back in the queue's order, and failures come
// out as errors.
#include "api/check.h"
#include "api/context.h"
#include "layer/matmul.h"
#include "layer/run_rows.h"
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
  EXPECT_TRUE(on_host.declined.empty()) << "a row for other memory is not worth a word";
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

// The table's rows for devices need one: a plan that the Context has made so far stands for it.
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

// ---- Operations of layers ----------------------------------------------------------------------

// What every launch must do, whatever it launches: start(where) is a call that writes `to`.
void expect_launched(const std::string& name, const std::function<void(const Where&)>& start,
                     Tensor& to, const Tensor& expected) {
  const auto same = [&] { return Launch::same(to, expected); };
  const auto forget = [&] { std::fill_n(to.data<float>(), to.count(), 7.0F); };
  Context context({.threads = 1});
  FakeQueue queue;
  const Where where(context, queue);
  forget();
  for (int call = 0; call < 3; ++call) start(where);
  EXPECT_FALSE(same()) << "done too early";
  EXPECT_EQ(queue.waiting(), 9U) << "two pieces of work, and the end of their memory, each";
  EXPECT_EQ(queue.in_use(), 0U);
  EXPECT_TRUE(queue.wait());
  EXPECT_TRUE(same());
  EXPECT_EQ(queue.wrong_gifts, 0);

  forget();
  EXPECT_EQ(
      thrown_by([&] { start(context); }),
      "InvalidArgument: " + name + ": the tensors are on cuda:0; a queue of it must be given");
  FakeQueue other;
  other.own_device = {Device::Kind::cuda, 1};
  EXPECT_EQ(thrown_by([&] {
              start({context, other});
            }),
            "InvalidArgument: " + name +
                ": the tensors are on cuda:0, the queue is of cuda:1; both must be one device");
  queue.refuses = true;
  EXPECT_EQ(thrown_by([&] { start(where); }),
            "DeviceError: " + name + ": cuda:0 failed: too much shared memory");
  queue.exhausted = true;
  EXPECT_EQ(thrown_by([&] { start(where); }),
            "OutOfMemory: " + name + ": cuda:0 has no memory for it: none is left");
  queue.exhausted = false;
  EXPECT_EQ(queue.in_use(), 0U);
  queue.put([] { return Status{Status::Kind::failed, "an illegal address"}; });
  start(where);
  EXPECT_FALSE(queue.wait());
  EXPECT_EQ(
      thrown_by([&] { start(where); }),
      "DeviceError: " + name + ": cuda:0 failed: an illegal address (perhaps in an earlier call)");
  EXPECT_FALSE(same()) << "done in spite of a failure before";
}

struct LaunchOfLayers : Launch {
  Tensor a{Shape{5, 12}}, b{Shape{12, 7}}, bias{Shape{7}}, c{Shape{5, 7}};

  LaunchOfLayers() {
    for (Tensor* t : {&a, &b, &bias})
      for (std::int64_t n = 0; n < t->count(); ++n)
        t->data<float>()[n] = static_cast<float>(std::sin(static_cast<double>(n)));
  }
  Multiplication product(std::optional<Activation> activation) {
    return {.a = on_device(ConstTensorView(a)),
            .b = on_device(ConstTensorView(b)),
            .row_bias = on_device(ConstTensorView(bias)),
            .c = on_device(c.view()),
            .activation = activation};
  }
};

TEST_F(LaunchOfLayers, a_product_with_its_end) {
  Context reference({.threads = 1, .kernels = "product:reference.product"});
  for (const bool activated : {false, true}) {
    Tensor expected(c.shape());
    const std::optional<Activation> activation =
        activated ? std::optional(Activation::relu) : std::nullopt;
    const Multiplication on_host[] = {
        {.a = a, .b = b, .row_bias = bias, .c = expected, .activation = activation}};
    matmul(on_host, reference);
    expect_launched(
        "product",
        [&](const Where& where) {
          const Multiplication x = product(activation);
          attend::launch_product(fake_row<Product>(kFakeProduct, device_problem(x)), x, where);
        },
        c, expected);
  }
}

TEST_F(LaunchOfLayers, rows_of_features) {
  const ActivationProblem problem{kFakeDevice, DType::f32, Activation::gelu};
  Tensor expected(a.shape()), hidden(a.shape());
  reference_row<ActivationForward>().run({{}, DType::f32, Activation::gelu},
                                         {12, a.data<float>(), nullptr, expected.data<float>()},
                                         {0, 5});
  expect_launched(
      "activation",
      [&](const Where& where) {
        const ActivationCall call{12, a.data<float>(), nullptr, hidden.data<float>()};
        run_rows(fake_row<ActivationForward>(kFakeActivation, problem), problem, call, 5, 12,
                 where);
      },
      hidden, expected);
}

TEST_F(LaunchOfLayers, a_row_says_which_ends_it_takes) {
  EXPECT_EQ(thrown_by([&] {
              fake_row<Product>(kFakeProduct, device_problem(product(Activation::gelu)));
            }),
            "Unsupported: plan: no kernel takes product f32, bias, gelu, on cuda:0: fake.product "
            "takes no gelu; reference.product reads host memory, the tensors are on cuda:0");
  Multiplication x = product(Activation::relu);
  x.residual = x.c;
  EXPECT_EQ(thrown_by([&] { fake_row<Product>(kFakeProduct, device_problem(x)); }),
            "Unsupported: plan: no kernel takes product f32, bias, relu, residual, on cuda:0: "
            "fake.product takes no a residual at the end; reference.product reads host memory, the "
            "tensors are on cuda:0");
  EXPECT_EQ(fake_row<Product>(kFakeProduct, {.device = {}, .type = DType::f32}).name,
            "reference.product");
}

// The rows that a Context keeps are for host tensors.
TEST_F(LaunchOfLayers, a_row_kept_for_the_host_is_not_taken_for_a_device) {
  const ContextState& state = ContextState::of(context);
  const auto& product_row = state.row_for<Product>({.device = {}, .type = DType::f32});
  const auto& convert_row =
      state.row_for<Convert>({.device = {}, .type = DType::bf16, .to = DType::f32});
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_THROW(state.row_for<Product>({.device = kFakeDevice, .type = DType::f32}), Unsupported);
    EXPECT_THROW(
        state.row_for<Convert>({.device = kFakeDevice, .type = DType::bf16, .to = DType::f32}),
        Unsupported);
  }
  EXPECT_EQ(&state.row_for<Product>({.device = {}, .type = DType::f32}), &product_row);
  EXPECT_EQ(&state.row_for<Convert>({.device = {}, .type = DType::bf16, .to = DType::f32}),
            &convert_row);
  const Multiplication list[] = {product({})};
  EXPECT_THROW(matmul(list, {context, queue}), Unsupported) << "no row is for a device yet";
}

}  // namespace
}  // namespace attend::test
