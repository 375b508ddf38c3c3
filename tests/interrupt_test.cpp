// The hook of a Context: who asks it, where a call stops, and what is left behind. Calls here would
// last for minutes if they did not stop; nothing is timed.
#include "api/check.h"
#include "api/context.h"
#include "layer/matmul.h"
#include "support/attention_layers.h"
#include "support/strands.h"
#include "support/thrown_by.h"

#include <attend/attend.h>
#include <attend/model.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

namespace attend::test {
namespace {

// Says yes at its nth question.
struct Hook {
  explicit Hook(int at) : yes_at(at) {}
  bool operator()() {
    other_thread |= std::this_thread::get_id() != caller;
    return ++questions == yes_at;
  }
  const std::thread::id caller = std::this_thread::get_id();
  const int yes_at;
  int questions = 0;
  bool other_thread = false;
};

Context context_with(Hook& hook, int threads, const char* kernels = "") {
  return Context({.threads = threads, .kernels = kernels, .interrupt = [&] { return hook(); }});
}

constexpr std::int64_t kLong = 131072;

// What would take minutes: a few long tasks, or many.
struct LongCall {
  explicit LongCall(std::int64_t queries = kLong, std::int64_t heads = 1)
      : q(Shape{1, heads, queries, 64}), k(Shape{1, 1, kLong, 64}),
        out(Shape{1, heads, queries, 64}), lse(Shape{1, heads, queries}), dq(q.shape()),
        dk(k.shape()), dv(k.shape()) {}
  void forward(Context& context) { attention(q, k, k, out, {}, {}, context); }
  void backward(Context& context) {
    attention_backward({.q = q, .k = k, .v = k, .out = out, .lse = lse, .dout = out}, {},
                       {.dq = dq, .dk = dk, .dv = dv}, context);
  }
  void look(Context& context) { inspect(q, k, {}, {}, context); }
  Tensor q, k, out, lse, dq, dk, dv;
};

TEST(Interrupt, ends_every_long_call_and_is_asked_by_its_thread_alone) {
  LongCall call;
  const std::vector<std::pair<const char*, void (LongCall::*)(Context&)>> calls = {
      {"forward", &LongCall::forward},
      {"backward", &LongCall::backward},
      {"inspect", &LongCall::look}};
  for (const char* kernels :
       {"", "forward:reference.forward,backward:reference.backward,inspect:reference.inspect"})
    for (const int threads : {1, 3})
      for (const auto& [name, run] : calls) {
        SCOPED_TRACE(text(name, " ", kernels, ", threads ", threads));
        Hook hook(3);
        Context context = context_with(hook, threads, kernels);
        EXPECT_THROW((call.*run)(context), Interrupted);
        EXPECT_EQ(hook.questions, 3) << "not asked again after the answer";
        EXPECT_FALSE(hook.other_thread);
      }
}

TEST(Interrupt, is_asked_inside_a_single_task) {
  LongCall call(64);
  Hook hook(2);
  Context context = context_with(hook, 1, "backward:reference.backward");
  EXPECT_THROW(call.backward(context), Interrupted);
}

TEST(Interrupt, is_asked_while_the_caller_waits_for_other_threads) {
  struct Counting : Interrupt {
    Counting() : Interrupt{count} {}
    static bool count(Interrupt& self, bool waited) noexcept {
      static_cast<Counting&>(self).asked += waited ? 1 : 0;
      return false;
    }
    std::atomic<int> asked{0};
  } interrupt;
  ThreadPool pool(2);
  Meeting meeting(2);
  const std::thread::id caller = std::this_thread::get_id();
  pool.run(
      2,
      [&](int) {
        meeting.meet();  // so that each thread has one
        if (std::this_thread::get_id() == caller) return;
        EXPECT_TRUE(wait_for([&] { return interrupt.asked >= 3; }));
      },
      &interrupt);
}

TEST(Interrupt, the_next_call_has_the_bits_of_a_context_that_was_never_interrupted) {
  LongCall call;
  const Tensor q = numbers({2, 4, 300, 16}, DType::f32, 1);
  for (const int threads : {1, 3}) {
    Hook hook(2);
    Context context = context_with(hook, threads), other({.threads = threads});
    EXPECT_THROW(call.forward(context), Interrupted);
    EXPECT_EQ(difference(attention(q, q, q, {.causal = true}, context),
                         attention(q, q, q, {.causal = true}, other)),
              "");
  }
}

TEST(Interrupt, a_hook_that_says_no_changes_no_bit) {
  const Tensor q = numbers({2, 4, 300, 16}, DType::f32, 1);
  Hook never(-1);
  Context context = context_with(never, 2), other({.threads = 2});
  for (int repeat = 0; repeat < 20; ++repeat)
    ASSERT_EQ(difference(attention(q, q, q, {}, context), attention(q, q, q, {}, other)), "");
}

TEST(Interrupt, what_the_hook_throws_is_thrown_by_the_call) {
  LongCall call;
  for (const int threads : {1, 3}) {
    Context context({.threads = threads, .interrupt = []() -> bool { throw 42; }});
    EXPECT_THROW(call.forward(context), int);
  }
}

// One task, before which the hook is asked once: the second question is one of the sum's. The same
// number is read again and again, so that the sum lasts for minutes and takes no memory.
TEST(Interrupt, ends_a_single_long_sum) {
  constexpr std::int64_t kTerms = std::int64_t{1} << 36;
  const float number = 1;
  const ConstTensorView row(&number, {1, kTerms}, {0, 0}), column(&number, {kTerms, 1}, {0, 0});
  Tensor sum(Shape{1, 1});
  for (const int threads : {1, 3}) {
    Hook hook(2);
    Context context = context_with(hook, threads);
    EXPECT_THROW(matmul(row, column, {}, sum, context), Interrupted);
    EXPECT_FALSE(hook.other_thread);
  }
}

TEST(Interrupt, ends_a_layer) {
  const Linear layer({.in = 64, .out = 64});
  const Tensor x(Shape{1000, 64});
  for (const int threads : {1, 3}) {
    Hook forward(2), backward(2);
    Context of_forward = context_with(forward, threads),
            of_backward = context_with(backward, threads);
    EXPECT_THROW(for (;;) layer.forward(x, of_forward), Interrupted);
    EXPECT_THROW(for (;;) layer.backward(x, x.view(), of_backward), Interrupted);
    EXPECT_FALSE(forward.other_thread || backward.other_thread);
  }
}

TEST(Interrupt, a_cache_is_as_it_was_before) {
  const MultiHeadAttention layer({.model_dim = 64, .heads = 1});
  KvCache cache = layer.make_cache(1, 2 * kLong);
  const Tensor few = numbers({1, 3, 64}, DType::f32, 2), many(Shape{1, kLong, 64});
  layer.forward(few, cache);
  for (const int question : {1, 4}) {
    Hook hook(question);
    Context context = context_with(hook, 2);
    EXPECT_THROW(layer.forward(many, cache, {}, {}, context), Interrupted);
    EXPECT_EQ(cache.length(0), 3);
  }
  EXPECT_EQ(layer.forward(few, cache).size(1), 3);
  EXPECT_EQ(cache.length(0), 6);
}

TEST(Interrupt, calls_inside_a_body_do_not_ask) {
  const Tensor q = numbers({1, 2, 40, 8}, DType::f32, 3);
  Hook hook(1);
  Context inner = context_with(hook, 2), outer({.threads = 3});
  std::atomic<int> done{0};
  outer.parallel_for(6, [&](std::int64_t) {
    attention(q, q, q, {}, inner);
    ++done;
  });
  EXPECT_EQ(done, 6);
  EXPECT_EQ(hook.questions, 0);
}

TEST(Interrupt, stops_between_the_bodies_of_a_parallel_for) {
  for (const int threads : {1, 3}) {
    Hook hook(1);
    Context context = context_with(hook, threads);
    std::atomic<int> done{0};
    EXPECT_THROW(context.parallel_for(1 << 30, [&](std::int64_t) { ++done; }), Interrupted);
    EXPECT_LT(done, 1 << 30);
  }
}

TEST(Interrupt, works_with_a_parallel_for_of_the_callers_own) {
  LongCall call;
  Hook hook(2);
  Context context({.threads = 2,
                   .parallel_for =
                       [](int n, const std::function<void(int)>& body) {
                         std::thread other([&] { body(n - 1); });
                         for (int strand = 0; strand < n - 1; ++strand) body(strand);
                         other.join();
                       },
                   .interrupt = [&] { return hook(); }});
  EXPECT_THROW(call.forward(context), Interrupted);
  EXPECT_FALSE(hook.other_thread);
}

// While the caller waits it runs no task, so only the hook's own call can tell that it is one.
TEST(Interrupt, a_hook_may_call_the_library_and_is_not_asked_by_it) {
  std::atomic<int> questions{0};
  int depth = 0, deepest = 0;
  Context* self = nullptr;
  Context context({.threads = 3, .interrupt = [&] {
                     deepest = std::max(deepest, ++depth);
                     if (depth < 9) self->parallel_for(2, [](std::int64_t) {});
                     --depth;
                     ++questions;
                     return false;
                   }});
  self = &context;
  Meeting meeting(3);
  const std::thread::id caller = std::this_thread::get_id();
  context.parallel_for(3, [&](std::int64_t) {
    meeting.meet();  // so that each thread has one
    if (std::this_thread::get_id() == caller) return;
    EXPECT_TRUE(wait_for([&] { return questions >= 3; }));
  });
  EXPECT_EQ(deepest, 1);
}

TEST(Interrupt, the_message_names_the_function) {
  LongCall call;
  Context context({.interrupt = [] { return true; }});
  try {
    call.backward(context);
    ADD_FAILURE() << "it was not interrupted";
  } catch (const Interrupted& error) {
    EXPECT_STREQ(error.what(),
                 "attention_backward: interrupted; what it was to write is not complete");
  }
}

// Whatever was running inside it. The hook is asked every 20 ms, so a short call is made again.
TEST(Interrupt, the_message_names_the_layer_that_was_called) {
  const LanguageModel model(
      {.vocabulary = 9, .length = 6, .layers = 1, .model_dim = 8, .heads = 2});
  const AttentionBlock& block = model.blocks()[0];
  const Tensor tokens({1L, 0L, 8L}, {1, 3}), x({1, 3, 8});
  Context context({.interrupt = [] { return true; }});
  const auto message = [](const auto& call) {
    for (;;)
      if (const std::string thrown = thrown_by(call); thrown != "nothing") return thrown;
  };
  const std::string start = "Interrupted: ",
                    end = ": interrupted; what it was to write is not complete";
  for (int trial = 0; trial < 5; ++trial) {  // at different places
    EXPECT_EQ(message([&] { model.forward(tokens, context); }), start + "language_model" + end);
    EXPECT_EQ(message([&] { block.forward(x, {}, context); }), start + "attention_block" + end);
    EXPECT_EQ(message([&] { block.attention().forward(x, {}, context); }),
              start + "multi_head_attention" + end);
  }
  Context own({.interrupt = []() -> bool { throw Interrupted("enough"); }});
  EXPECT_EQ(message([&] { model.forward(tokens, own); }), start + "enough");
}

// How often the tasks of a call ask, with one strand.
struct Counting : Interrupt {
  Counting() : Interrupt{count} {}
  static bool count(Interrupt& self, bool) noexcept {
    ++static_cast<Counting&>(self).asked;
    return false;
  }
  int asked = 0;
};
template <class Operation>
int questions_of(const Request<Operation>& request) {
  Counting interrupt;
  const auto decision =
      decide<Operation>(request.problem, ContextState::of(default_context()).machine, 1, "");
  std::vector<std::byte> memory(decision.workspace_bytes + 64);
  void* at = memory.data();
  std::size_t room = memory.size();
  auto* const shared = static_cast<std::byte*>(std::align(64, decision.workspace_bytes, at, room));
  for (int stage = 0; stage < decision.kernel->stages; ++stage)
    for (std::int64_t n = 0; n < decision.tasks[static_cast<std::size_t>(stage)]; ++n)
      decision.kernel->run(decision.problem, decision.tiles, request.call,
                           {.stage = stage,
                            .index = n,
                            .shared = shared,
                            .scratch = shared + decision.workspace.shared,
                            .interrupt = &interrupt});
  return interrupt.asked;
}

TEST(Interrupt, is_asked_while_weights_and_scores_are_written) {
  constexpr std::int64_t kChunks = 40;
  const Tensor q(Shape{1, 1, 8, 16}), k(Shape{1, 1, 256 * kChunks, 16});
  Tensor out(q.shape()), square(Shape{1, 1, 8, 256 * kChunks});
  for (const AttentionOutputs& outputs :
       {AttentionOutputs{.weights = square},
        AttentionOutputs{.scores = square, .stage = ScoreStage::raw}})
    EXPECT_GE(questions_of(check(ForwardArguments{q, k, k, out, {}, outputs})), 2 * kChunks);
}

TEST(Interrupt, is_asked_while_the_weights_of_a_window_are_computed) {
  const Tensor q(Shape{1, 1, 40, 16}), lse(Shape{1, 1, 40});
  Tensor square(Shape{40, 40});
  auto request = check(WindowArguments{q, q, lse, {.queries = 40, .keys = 40}, {}});
  request.call.weights = {.data = reinterpret_cast<std::byte*>(square.data<float>()),
                          .type = DType::f32,
                          .given = true};
  EXPECT_GE(questions_of(request), 40);
}

}  // namespace
}  // namespace attend::test
