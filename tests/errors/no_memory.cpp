// Every allocation that a call makes fails once. What comes out is OutOfMemory or a result, never
// another exception, and a call that failed has written nothing. For that this program has an
// operator new of its own.
#include "arguments.h"

#include <attend/model.h>
#include <attend/train.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>

namespace {

thread_local long allocations_left = -1;  // until one fails; -1: none does
thread_local bool failed = false;

bool fails_now() noexcept {
  if (allocations_left != 0) {
    allocations_left -= allocations_left > 0;
    return false;
  }
  allocations_left = -1;
  failed = true;
  return true;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails_now() || bytes > static_cast<std::size_t>(PTRDIFF_MAX)) return nullptr;
  return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) { return or_throw(allocate(bytes, 16)); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, static_cast<std::size_t>(alignment)));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 16);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace attend::test {
namespace {

// Calls and lets allocation n of it fail; "" if that was not even noticed.
std::string thrown_without(long n, const std::function<void()>& call) {
  const char* type = "";
  std::string message;
  message.reserve(1000);
  failed = false;
  allocations_left = n;
  try {
    call();
  } catch (const OutOfMemory& error) {
    type = "OutOfMemory";
    message = error.what();
  } catch (const std::exception& error) {
    type = "something else";
    message = error.what();
  }
  allocations_left = -1;
  return *type == '\0' ? "" : type + (": " + message);
}

// Runs make() and then call() again and again, until no allocation of call() fails any more.
// Returns how many there were.
template <class Make, class Call>
long each_allocation_fails(Make make, Call call) {
  for (long n = 0; n < 1000; ++n) {
    auto state = make();
    const std::string thrown = thrown_without(n, [&] { call(*state); });
    if (!failed) {
      EXPECT_EQ(thrown, "") << "with all its memory";
      return n;
    }
    EXPECT_TRUE(thrown.empty() || thrown.starts_with("OutOfMemory: ")) << "allocation " << n;
  }
  ADD_FAILURE() << "a thousand allocations are no end";
  return 0;
}

struct Call {
  Context context{{.threads = 1}};
  Arguments arguments;
};

template <class Run>
long allocations_of(Run run) {
  return each_allocation_fails([] { return std::make_unique<Call>(); },
                               [&](Call& c) { run(c.arguments, c.context); });
}

TEST(NoMemory, attention_says_so) {
  EXPECT_GT(allocations_of([](const Arguments& a, Context& c) { run_forward(a, c); }), 2);
}

TEST(NoMemory, attention_into_a_new_tensor_says_so) {
  EXPECT_GT(allocations_of(
                [](const Arguments& a, Context& c) { attention(a.q, a.k, a.v, a.options, c); }),
            3);
}

TEST(NoMemory, attention_backward_says_so) {
  EXPECT_GT(allocations_of([](const Arguments& a, Context& c) { run_backward(a, c); }), 2);
  EXPECT_GT(allocations_of([](const Arguments& a, Context& c) {
              attention_backward(a.backward_inputs(), a.options, c);
            }),
            5);
}

TEST(NoMemory, merge_says_so) {
  EXPECT_GT(allocations_of([](const Arguments& a, Context& c) { run_merge(a, c); }), 2);
}

TEST(NoMemory, inspect_and_weights_of_say_so) {
  const Tensor tokens({5}, DType::i64);
  EXPECT_GT(allocations_of([&](const Arguments& a, Context& c) {
              inspect(a.q, a.k, a.options,
                      {.top_k = 2, .tokens = tokens, .tile_rows = 2, .tile_columns = 2}, c);
            }),
            10);
  EXPECT_GT(allocations_of([](const Arguments& a, Context& c) {
              weights_of(a.q, a.k, a.lse, {.queries = 3, .keys = 5}, a.options, c);
            }),
            2);
}

TEST(NoMemory, a_plan_says_so) {
  EXPECT_GT(allocations_of([](const Arguments& a, Context& c) {
              const Plan plan = Plan::attention(a.q, a.k, a.v, a.out, a.options, {}, {}, c);
              plan.run(a.q, a.k, a.v, a.out, a.options);
            }),
            3);
  const PlanOptions forced{.kernel = "reference.backward"};
  EXPECT_GT(allocations_of([&](const Arguments& a, Context& c) {
              Plan::attention_backward(a.backward_inputs(), a.options, a.gradients, forced, c);
            }),
            2);
}

TEST(NoMemory, the_message_about_a_mistake_says_so) {
  const auto mistaken = [](const Arguments& a, Context& c) {
    try {
      attention(a.q, a.k, a.v, a.out, {.scale = HUGE_VAL}, {}, c);
    } catch (const InvalidArgument&) {
    }
  };
  EXPECT_GT(allocations_of(mistaken), 1);
}

TEST(NoMemory, a_context_says_so) {
  const ContextOptions options{.threads = 1, .kernels = "forward:reference.forward"};
  const auto make = [] { return std::make_unique<std::optional<Context>>(); };
  EXPECT_GT(each_allocation_fails(
                make, [&](std::optional<Context>& context) { context.emplace(options); }),
            2);
}

TEST(NoMemory, a_tensor_says_so) {
  const auto make = [] { return std::make_unique<Tensor>(Shape{2, 3}); };
  EXPECT_EQ(each_allocation_fails(make, [](Tensor& t) { t = Tensor({4, 5}); }), 1);
  EXPECT_EQ(each_allocation_fails(make, [](Tensor& t) { const Tensor copy = t; }), 1);
}

TEST(NoMemory, a_copy_of_a_model_says_so) {
  const auto make = [] {
    return std::make_unique<LanguageModel>(LanguageModelOptions{
        .vocabulary = 3, .length = 2, .layers = 2, .model_dim = 4, .heads = 1});
  };
  EXPECT_GT(each_allocation_fails(make, [](LanguageModel& m) { const LanguageModel copy(m); }), 30);
  const auto other = make();
  EXPECT_GT(each_allocation_fails(make, [&](LanguageModel& m) { m = *other; }), 30);
}

TEST(NoMemory, an_optimizer_says_so) {
  const auto make = [] { return std::make_unique<int>(); };
  EXPECT_GT(each_allocation_fails(make, [](int&) { const AdamW optimizer; }), 0);
  EXPECT_GT(each_allocation_fails(make, [](int&) { const SGD optimizer({.momentum = 0.5}); }), 0);
}

TEST(NoMemory, gradients_stay_scaled) {
  struct Gradients {
    std::vector<NamedTensor> list = {{"a", Tensor({f16(3)}, {1})}, {"b", Tensor({f16(5)}, {1})}};
  };
  const auto make = [] { return std::make_unique<Gradients>(); };
  EXPECT_GT(each_allocation_fails(make,
                                  [](Gradients& g) {
                                    try {
                                      LossScale().unscale(g.list);
                                    } catch (const OutOfMemory&) {
                                      EXPECT_EQ(g.list[0].tensor.at<f16>({0}), f16(3));
                                      EXPECT_EQ(g.list[1].tensor.at<f16>({0}), f16(5));
                                      throw;
                                    }
                                  }),
            3);
}

// Throws what the call throws when its first allocation fails.
void without_memory(const std::function<void()>& call) {
  const std::string thrown = thrown_without(0, call);
  const std::string type = "OutOfMemory: ";
  if (thrown.starts_with(type)) throw OutOfMemory(thrown.substr(type.size()));
}

}  // namespace

std::vector<ErrorCase> no_memory_errors() {
  const std::string type = "OutOfMemory";
  return {
      {"no_memory_for_a_context", [] { without_memory([] { Context(); }); },
       "context: out of memory", type},
      {"no_memory_for_the_check_of_attention",
       [] {
         Arguments a;
         without_memory([&] { run_forward(a); });
       },
       "attention: out of memory", type},
      {"no_memory_for_the_check_of_backward",
       [] {
         Arguments a;
         without_memory([&] { run_backward(a); });
       },
       "attention_backward: out of memory", type},
      {"no_memory_for_the_check_of_merge",
       [] {
         Arguments a;
         without_memory([&] { run_merge(a); });
       },
       "merge: out of memory", type},
      {"no_memory_for_a_plan",
       [] {
         Arguments a;
         without_memory([&] { Plan::attention(a.q, a.k, a.v, a.out); });
       },
       "plan: out of memory", type},
  };
}

}  // namespace attend::test
