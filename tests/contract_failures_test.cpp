// The contract's fifth point: a call that fails says so by its class, writes nothing, and the
// library never prints.
#include "support/property_memory.h"
#include "support/property_truth.h"

#include <unistd.h>

#include <cstdio>

namespace attend::test {
namespace {

// Everything the process writes to stdout and stderr while body runs.
std::string printed_by(const std::function<void()>& body) {
  std::fflush(nullptr);
  std::FILE* const file = std::tmpfile();
  if (file == nullptr) return "no temporary file";
  const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  body();
  std::fflush(nullptr);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  ::close(out);
  ::close(err);
  std::string printed;
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) printed += static_cast<char>(c);
  std::fclose(file);
  return printed;
}

Allocator no_memory() {
  return {[](std::size_t, std::size_t) -> void* { return nullptr; }, [](void*, std::size_t) {}};
}

TEST(Contract, contract_5_the_library_never_prints) {
  EXPECT_EQ(printed_by([] { std::puts("x"); }), "x\n");  // it would show
  const std::string printed = printed_by([] {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const Trial trial = make_trial(random_case(seed));
      for (const KernelUnderTest& kernel : all_kernels()) static_cast<void>(trial.run(kernel));
      const Arguments a = trial.arguments();
      const auto ignore = [](const auto& call) {
        try {
          call();
        } catch (const Error&) {
        }
      };
      Context hungry(one_thread(no_memory()));
      ignore([&] { attention(a.q, a.k, a.v, a.options, hungry); });
      ignore([&] { attention(a.q, a.v, a.k, a.options); });
      ignore([&] { attention({}, {}, {}, a.options); });
      ignore([&] { Context({.threads = -1}); });
      ignore([&] { Tensor({std::int64_t{1} << 40, std::int64_t{1} << 40}); });
    }
  });
  EXPECT_EQ(printed, "");
}

// Runs a call that must fail with E and leave every output as it was.
template <class E, class Call>
void expect_failure(const char* what, Trial trial, Call&& call) {
  Written written = trial.empty_results(true);
  for (Tensor* t : {&written.out, &written.lse, &written.dq, &written.dk, &written.dv})
    fill(*t, 42);
  const Written before = written;
  std::int64_t visited = 42;
  try {
    call(trial, written, visited);
    ADD_FAILURE() << what << ": nothing was thrown";
  } catch (const E& error) {
    const std::string message = error.what();
    const std::string function = message.substr(0, message.find(": "));
    EXPECT_TRUE(function == "attention" || function == "attention_backward" || function == "plan" ||
                function == "context")
        << what << ": " << message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": another class: " << error.what();
  }
  EXPECT_TRUE(same_bits(before, written)) << what;
  EXPECT_EQ(visited, 42) << what;
}

// Forward, with blocks, so that every kind of output is there.
void run_forward(const Trial& trial, Written& written, std::int64_t& visited, Context& context) {
  const Arguments a = trial.arguments();
  AttentionOutputs outputs;
  outputs.lse = written.lse;
  outputs.visited_blocks = &visited;
  attention(a.q, a.k, a.v, written.out, a.options, outputs, context);
}

void run_backward(const Trial& trial, Written& written, Context& context) {
  const Arguments a = trial.arguments();
  attention_backward(
      {.q = a.q, .k = a.k, .v = a.v, .out = written.out, .lse = written.lse, .dout = a.dout},
      a.options, written.views().gradients, context);
}

TEST(Contract, contract_5_a_failed_call_has_its_class_and_writes_nothing) {
  const Trial trial = make_trial({.batch = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .q_length = 20,
                                  .k_length = 24,
                                  .blocks = cases::BlockMask::full});
  expect_failure<InvalidArgument>("heads that do not fit", trial,
                                  [](Trial& t, Written& w, std::int64_t& visited) {
                                    t.k = take(t.k, 1, {0, 1, 0});
                                    run_forward(t, w, visited, default_context());
                                  });
  expect_failure<InvalidArgument>("another type", trial, [](Trial& t, Written& w, std::int64_t&) {
    t.v = Tensor(t.v.shape(), DType::f64);
    run_backward(t, w, default_context());
  });
  expect_failure<InvalidArgument>("out over q", trial, [](Trial& t, Written&, std::int64_t&) {
    attention(t.q, t.k, t.v, t.q);
  });
  Context hungry(one_thread(no_memory()));
  expect_failure<OutOfMemory>(
      "no workspace", trial,
      [&](Trial& t, Written& w, std::int64_t& visited) { run_forward(t, w, visited, hungry); });
  expect_failure<OutOfMemory>(
      "no workspace backward", trial,
      [&](Trial& t, Written& w, std::int64_t&) { run_backward(t, w, hungry); });
  ContextOptions forced;
  forced.kernels = "forward:textbook.forward";
  Context textbook(forced);
  expect_failure<Unsupported>(
      "a forced kernel that declines", trial,
      [&](Trial& t, Written& w, std::int64_t& visited) { run_forward(t, w, visited, textbook); });
  Context on_host({.kernels = "forward:reference.forward"});
  expect_failure<Unsupported>("device memory", trial, [&](Trial& t, Written& w, std::int64_t&) {
    const auto on_device = [](const Tensor& tensor) {
      return ConstTensorView(tensor.view().data(), tensor.dtype(), tensor.shape(),
                             Device{Device::Kind::cuda, 0});
    };
    const TensorView out(w.out.view().data(), w.out.dtype(), w.out.shape(),
                         Device{Device::Kind::cuda, 0});
    attention(on_device(t.q), on_device(t.k), on_device(t.v), out, {}, {}, on_host);
  });
}

// A library's error is a std::runtime_error, and one handler is enough.
TEST(Contract, contract_5_every_error_is_an_error) {
  static_assert(std::is_base_of_v<std::runtime_error, Error>);
  static_assert(std::is_base_of_v<Error, InvalidArgument> &&
                std::is_base_of_v<Error, Unsupported> && std::is_base_of_v<Error, OutOfMemory> &&
                std::is_base_of_v<Error, FileError> && std::is_base_of_v<Error, DeviceError>);
  EXPECT_THROW(attention({}, {}, {}), Error);
}

}  // namespace
}  // namespace attend::test
