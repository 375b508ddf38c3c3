// Rows that launch into a queue instead of running tasks, on a device that is none: the work is
// done after the call has returned, memory is given back in the queue's order, and failures come
// out as errors.
#include "api/check.h"
#include "api/context.h"
#include "api/device_copies.h"
#include "layer/hidden_rows.h"
#include "layer/matmul.h"
#include "layer/run_rows.h"
#include "support/fake_device.h"
#include "support/thrown_by.h"

#include <attend/block.h>
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

// ---- Statistics --------------------------------------------------------------------------------

// Their results are numbers for people: the call waits, and they are on the host.
struct LaunchOfStatistics : Launch {
  Tensor starts = Tensor({std::int64_t{0}, std::int64_t{11}, std::int64_t{30}}, {3});
  Tensor tokens{Shape{30}, DType::i32};
  AttentionOptions options{.causal = true, .cu_seqlens_q = starts, .max_q = 25, .max_k = 25};
  InspectOptions asked{.top_k = 3, .tokens = tokens, .tile_rows = 4, .tile_columns = 4};
  ConstTensorView packed_q = q.view().slice(0, 0, 1), packed_k = q.view().slice(0, 1, 2);

  LaunchOfStatistics() {
    for (std::int64_t n = 0; n < 30; ++n)
      tokens.data<std::int32_t>()[n] = static_cast<std::int32_t>(n * n % 5);
  }
  // As if the tensors were on the device, options and all.
  AttentionOptions options_there() const {
    AttentionOptions there = options;
    there.cu_seqlens_q = on_device(ConstTensorView(options.cu_seqlens_q));
    return there;
  }
  template <class Operation>
  void plan_by_the_fake(const typename Operation::Problem& problem) {
    const Kernel<Operation>* const table[] = {&kFakeTasks<Operation>};
    std::get<Plans<Operation>>(ContextState::of(context).plans)
        .made.emplace(problem, std::make_shared<const Decision<Operation>>(
                                   decide<Operation>(problem, this_machine(), 1, "", table)));
  }
  Statistics run(const InspectOptions& of, Queue* into) {
    const ConstTensorView on_q = on_device(packed_q), on_k = on_device(packed_k);
    const AttentionOptions there = options_there();
    plan_by_the_fake<Inspect>(check(InspectArguments{on_q, on_k, there, of}).problem);
    return inspect(on_q, on_k, there, of, into == nullptr ? Where(context) : Where(context, *into));
  }
  Statistics on_host() const {
    Context reference({.threads = 1, .kernels = "inspect:reference.inspect"});
    return inspect(packed_q, packed_k, options, asked, reference);
  }
  static void expect_same(const Statistics& a, const Statistics& b) {
    for (const auto& tensor :
         {&Statistics::lse, &Statistics::maximum, &Statistics::entropy, &Statistics::top_weights,
          &Statistics::key_mass, &Statistics::tile_mean, &Statistics::tile_maximum})
      EXPECT_TRUE(same(a.*tensor, b.*tensor));
    ASSERT_EQ(a.heads.size(), b.heads.size());
    for (std::size_t n = 0; n < a.heads.size(); ++n) {
      EXPECT_EQ(a.heads[n].distance, b.heads[n].distance);
      EXPECT_EQ(a.heads[n].local_uniform, b.heads[n].local_uniform);
      EXPECT_EQ(a.heads[n].duplicate, b.heads[n].duplicate);
      EXPECT_EQ(a.heads[n].induction, b.heads[n].induction);
    }
  }
};

TEST_F(LaunchOfStatistics, they_are_on_the_host_when_the_call_returns) {
  InspectOptions there = asked;
  there.tokens = on_device(ConstTensorView(tokens));
  expect_same(run(there, &queue), on_host());
  EXPECT_EQ(queue.in_use(), 0U);
  EXPECT_EQ(queue.wrong_gifts, 0);
  expect_same(run(asked, &queue), on_host());  // tokens in memory of the host
}

// The host cannot refuse what lies in memory of the device: it is brought into range, as kernels do
// it.
TEST_F(LaunchOfStatistics, numbers_out_of_range_are_brought_into_it) {
  const auto sequences = [&](std::vector<std::int64_t> numbers,
                             std::vector<std::int64_t> key_lengths) {
    const auto there = [](const std::vector<std::int64_t>& list) {
      return ConstTensorView(list.data(), DType::i64, {static_cast<std::int64_t>(list.size())},
                             kFakeDevice);
    };
    AttentionOptions wrong = options_there();
    wrong.cu_seqlens_q = there(numbers);
    wrong.key_lengths = there(key_lengths);
    const Request<Inspect> made =
        check(InspectArguments{on_device(packed_q), on_device(packed_k), wrong, asked});
    DeviceCopies copies("inspect", kFakeDevice, &queue);
    const HostSequences found(made.problem, made.call, copies);
    std::vector<std::int64_t> all;
    for (std::int64_t b = 0; b < 2; ++b)
      all.insert(all.end(), {found[b].q_begin, found[b].q_length, found[b].k_length});
    return all;
  };
  using List = std::vector<std::int64_t>;
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  EXPECT_EQ(sequences({0, 11, 30}, {11, 19}), (List{0, 11, 11, 11, 19, 19}));
  EXPECT_EQ(sequences({-7, 11, kFar}, {kFar, 19}), (List{0, 11, 11, 11, 19, 19}));
  EXPECT_EQ(sequences({3, 1, kFar}, {-1, kFar}), (List{3, 0, 0, 3, 25, 25})) << "25 is max_q";
  EXPECT_EQ(sequences({kFar, -kFar, 0}, {1, 1}), (List{30, 0, 0, 30, 0, 0}));
}

TEST_F(LaunchOfStatistics, tokens_far_apart_are_read_one_by_one) {
  Tensor wide({30, 20}, DType::i32);
  for (std::int64_t n = 0; n < 30; ++n)
    wide.at<std::int32_t>({n, 0}) = tokens.data<std::int32_t>()[n];
  InspectOptions there = asked;
  there.tokens = ConstTensorView(wide.data<std::int32_t>(), DType::i32, {30}, {20}, kFakeDevice);
  expect_same(run(there, &queue), on_host());
  Tensor backwards({30}, DType::i32);
  for (std::int64_t n = 0; n < 30; ++n)
    backwards.data<std::int32_t>()[29 - n] = tokens.data<std::int32_t>()[n];
  there.tokens =
      ConstTensorView(backwards.data<std::int32_t>() + 29, DType::i32, {30}, {-1}, kFakeDevice);
  expect_same(run(there, &queue), on_host());
}

TEST_F(LaunchOfStatistics, failures_come_out_as_errors_and_leave_nothing_behind) {
  EXPECT_EQ(thrown_by([&] { run(asked, nullptr); }),
            "InvalidArgument: inspect: the tensors are on cuda:0; a queue of it must be given");
  queue.refuses = true;
  EXPECT_EQ(thrown_by([&] { run(asked, &queue); }),
            "DeviceError: inspect: cuda:0 failed: too much shared memory");
  queue.exhausted = true;
  EXPECT_EQ(thrown_by([&] { run(asked, &queue); }),
            "OutOfMemory: inspect: cuda:0 has no memory for it: none is left");
  queue.exhausted = false;
  EXPECT_EQ(queue.in_use(), 0U);
  queue.put([] { return Status{Status::Kind::failed, "an illegal address"}; });
  EXPECT_EQ(thrown_by([&] { run(asked, &queue); }),
            "DeviceError: inspect: cuda:0 failed: an illegal address");
  EXPECT_EQ(queue.in_use(), 0U);
}

TEST_F(LaunchOfStatistics, a_window_of_weights_from_an_lse_in_either_memory) {
  const WeightsWindow window{.batch = 1, .head = 2, .query = 3, .queries = 9, .key = 2, .keys = 14};
  const Tensor lse = on_host().lse;
  const Tensor expected = weights_of(packed_q, packed_k, lse, window, options);
  const ConstTensorView on_q = on_device(packed_q), on_k = on_device(packed_k);
  const AttentionOptions there = options_there();
  const auto found = [&](const ConstTensorView& of, const WeightsWindow& part) {
    plan_by_the_fake<Weights>(check(WindowArguments{on_q, on_k, of, part, there}).problem);
    return weights_of(on_q, on_k, of, part, there, Where(context, queue));
  };
  EXPECT_TRUE(same(found(lse, window), expected));
  EXPECT_TRUE(same(found(on_device(ConstTensorView(lse)), window), expected));
  EXPECT_EQ(thrown_by([&] { found(lse, {.batch = 1, .queries = 20, .keys = 1}); }),
            "InvalidArgument: weights_of: the window has 20 queries from 0 on; there are 19");
  EXPECT_EQ(queue.in_use(), 0U);
}

TEST_F(LaunchOfStatistics, tensors_of_another_device_are_refused) {
  InspectOptions there = asked;
  there.tokens =
      ConstTensorView(tokens.data<std::int32_t>(), DType::i32, {30}, Device{Device::Kind::cuda, 1});
  EXPECT_EQ(thrown_by([&] { run(there, &queue); }),
            "InvalidArgument: inspect: tokens is on cuda:1, q on cuda:0; all tensors must be on "
            "one device");
  EXPECT_EQ(thrown_by([&] { inspect(packed_q, on_device(packed_k), {}, {}, context); }),
            "InvalidArgument: inspect: k is on cuda:0, q on cpu; all tensors must be on one "
            "device");
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

// Of any type: bytes are copied by the queue.
TEST_F(LaunchOfLayers, a_copy_on_the_same_device_waits) {
  const Where where(context, queue);
  const Linear eight_bits = Linear({.in = 4, .out = 5}).quantize();
  const Linear there = eight_bits.to(kFakeDevice, where);
  bool done = false;
  queue.put([&] {
    done = true;
    return Status{};
  });
  const Linear again = there.to(kFakeDevice, where);
  EXPECT_TRUE(done);
  EXPECT_NE(again.weight().view().data(), there.weight().view().data());
  const Tensor back = again.to(Device{}, where).weight();
  EXPECT_TRUE(std::equal(back.data<std::int8_t>(), back.data<std::int8_t>() + 20,
                         eight_bits.weight().data<std::int8_t>()));
}

// Whether or not a queue is given: no queue would help.
TEST_F(LaunchOfLayers, a_block_over_a_cache_is_of_the_host_alone) {
  const Where where(context, queue);
  const AttentionBlockOptions options{.attention = {.model_dim = 8, .heads = 2}, .hidden_dim = 8};
  AttentionBlockOptions crossed = options;
  crossed.cross = true;
  const AttentionBlock plain = AttentionBlock(options).to(kFakeDevice, where),
                       cross = AttentionBlock(crossed).to(kFakeDevice, where);
  const Tensor host({1, 2, 8});
  Tensor y(host.shape());
  const ConstTensorView x = on_device(ConstTensorView(host));
  KvCache cache = AttentionBlock(options).attention().make_cache(1, 8), memory = cache;
  const std::string refused =
      "Unsupported: attention_block: a KvCache takes host memory alone, found cuda:0; make a copy "
      "in it: to() of a layer, Tensor::copy_of()";
  EXPECT_EQ(thrown_by([&] { plain.forward(x, cache, {}, {}, context); }), refused);
  EXPECT_EQ(thrown_by([&] { plain.forward(x, cache, {}, {}, where); }), refused);
  EXPECT_EQ(thrown_by([&] { cross.forward(x, cache, memory, {}, {}, {}, context); }), refused);
  EXPECT_EQ(thrown_by([&] { cross.forward(x, cache, memory, {}, {}, {}, where); }), refused);
  const TensorView to = on_device(y.view());
  EXPECT_EQ(thrown_by([&] { plain.forward_into(x, cache, to, {}, {}, context); }), refused);
  EXPECT_EQ(thrown_by([&] { plain.trace(x, {}, context); }),
            "Unsupported: attention_block: trace() takes host memory alone, found cuda:0; make a "
            "copy in it: to() of a layer, Tensor::copy_of()");
}

TEST_F(LaunchOfLayers, where_there_are_no_rows_none_is_hidden) {
  const auto found = [](const AttentionOptions& options, std::int64_t queries, std::int64_t keys) {
    return thrown_by([&] { check_hides_no_rows(kFakeDevice, options, queries, keys); });
  };
  EXPECT_EQ(found({.causal = true, .window = {.left = 0}}, 0, 0), "nothing");
  EXPECT_EQ(found({.causal = true}, 3, 3), "nothing");
  EXPECT_NE(found({}, 3, 0), "nothing");
  EXPECT_NE(found({}, 0, 3), "nothing");
}

// The rows that a Context keeps are for host tensors.
TEST_F(LaunchOfLayers, a_row_kept_for_the_host_is_not_taken_for_a_device) {
  const Device nowhere{Device::Kind::cuda, 77};  // no machine has so many
  const ContextState& state = ContextState::of(context);
  const auto& product_row = state.row_for<Product>({.device = {}, .type = DType::f32});
  const auto& convert_row =
      state.row_for<Convert>({.device = {}, .type = DType::bf16, .to = DType::f32});
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_THROW(state.row_for<Product>({.device = nowhere, .type = DType::f32}), Unsupported);
    EXPECT_THROW(state.row_for<Convert>({.device = nowhere, .type = DType::bf16, .to = DType::f32}),
                 Unsupported);
  }
  EXPECT_EQ(&state.row_for<Product>({.device = {}, .type = DType::f32}), &product_row);
  EXPECT_EQ(&state.row_for<Convert>({.device = {}, .type = DType::bf16, .to = DType::f32}),
            &convert_row);
  Multiplication x = product({});
  x.c = TensorView(x.c.data(), DType::f32, x.c.shape(), nowhere);
  const Multiplication list[] = {x};
  EXPECT_THROW(matmul(list, {context, queue}), Unsupported) << "there is no such device";
}

}  // namespace
}  // namespace attend::test
