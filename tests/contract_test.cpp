// The contract (docs/contract.md), points 1, 2, 3 and 5: what the properties and traps do not show
// already. Errors against the truth are contract_error_test's, memory contract_memory_test's, and
// threads contract_threads_test's.
#include "support/property_memory.h"
#include "support/property_truth.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace attend::test {
namespace {

// ---- 1 Exact -----------------------------------------------------------------------------------

// exp2(0) = 1: equal scores weigh exactly equal, and a sum of four of them is exact.
TEST(Contract, contract_1_four_equal_scores_weigh_a_quarter_each) {
  for (const DType type : cases::kTypes) {
    Tensor q({1, 1, 2, 3}, type), k = gaussian({1, 1, 4, 3}, type, 1), v({1, 1, 4, 1}, type);
    for (std::int64_t j = 0; j < 4; ++j) set_value(v, {0, 0, j, 0}, double(j * j));
    Tensor out({1, 1, 2, 1}, type), weights({1, 1, 2, 4}, type);
    AttentionOutputs outputs;
    outputs.weights = weights;
    for (const KernelUnderTest& kernel : forward_kernels()) {
      Plan::attention(q, k, v, out, {}, outputs, {kernel.name}).run(q, k, v, out, {}, outputs);
      for (const double weight : widen(weights)) EXPECT_EQ(weight, 0.25) << kernel.name;
      for (const double o : widen(out)) EXPECT_EQ(o, 3.5) << kernel.name << " " << name_of(type);
    }
  }
}

// A single visible key gives its value, to the bit, and its score, whatever the score. In f64 the
// weight is divided by itself with one rounding more.
TEST(Contract, contract_1_a_single_visible_key_gives_its_value) {
  for (const DType type : cases::kTypes)
    for (const double size : {0.0, 1e-3, 1.0, 30.0}) {
      Trial trial = make_trial({.type = type,
                                .batch = 2,
                                .heads = 3,
                                .kv_heads = 3,
                                .q_length = 11,
                                .k_length = 11,
                                .d = 7,
                                .dv = 9});
      trial.plain.window = {0, 0};  // query i sees key i alone
      trial.plain.scale = size;
      const Arguments a = trial.arguments();
      for (const KernelUnderTest& kernel : forward_kernels()) {
        SCOPED_TRACE(kernel.name + " " + std::string(name_of(type)) + " " + std::to_string(size));
        Written written = trial.empty_results(false);
        Tensor scores({2, 3, 11, 11}, type == DType::f64 ? DType::f64 : DType::f32);
        AttentionOutputs outputs;
        outputs.lse = written.lse;
        outputs.scores = scores;
        Plan::attention(a.q, a.k, a.v, written.out, a.options, outputs, {kernel.name})
            .run(a.q, a.k, a.v, written.out, a.options, outputs);
        const bool exact = type != DType::f64 || size == 0;
        EXPECT_TRUE(exact ? same_bits(trial.v, written.out)
                          : close(trial.v, written.out, 2 * unit_roundoff(DType::f64)));
        for (std::int64_t i = 0; i < 11; ++i) {
          const double s = value_at(scores, {1, 2, i, i});
          const double error =
              2 * unit_roundoff(written.lse.dtype()) * std::abs(s) + 4 * unit_roundoff(DType::f64);
          EXPECT_NEAR(value_at(written.lse, {1, 2, i}), s, error) << "row " << i;
        }
      }
    }
}

// ---- 2 Bitwise ---------------------------------------------------------------------------------

// Kernels are chosen by type, d, options and machine, never by batch, lengths, strides or threads.
TEST(Contract, contract_2_the_kernel_does_not_depend_on_sizes_strides_or_threads) {
  for (const DType type : cases::kTypes) {
    std::string forward, backward;
    for (const int threads : {1, 5})
      for (const std::int64_t batch : {0, 1, 40})
        for (const std::int64_t queries : {1, 3, 300})
          for (const std::int64_t keys : {0, 1, 7, 513})
            for (const bool permuted : {false, true}) {
              ContextOptions options;
              options.threads = threads;
              Context context(options);
              const std::int64_t heads = 4;
              const Shape of_q = {batch, heads, queries, 8}, of_k = {batch, heads, keys, 8};
              const auto make = [&](const Shape& s) {
                return permuted ? Tensor({s[0], s[2], s[1], s[3]}, type) : Tensor(s, type);
              };
              Tensor q = make(of_q), k = make(of_k), out = make(of_q), dq = make(of_q);
              const DType lse_type = type == DType::f64 ? DType::f64 : DType::f32;
              Tensor lse({batch, heads, queries}, lse_type);
              const auto view = [&](Tensor& t) {
                return permuted ? t.view().permute({0, 2, 1, 3}) : t.view();
              };
              AttentionGradients gradients;
              gradients.dq = view(dq);
              const Plan plan = Plan::attention(view(q), view(k), view(k), view(out),
                                                {.causal = true}, {}, {}, context);
              const Plan plan_backward =
                  Plan::attention_backward(view(q), view(k), view(k), view(out), lse, view(out),
                                           gradients, {.causal = true}, {}, {}, context);
              if (forward.empty()) forward = plan.kernel();
              if (backward.empty()) backward = plan_backward.kernel();
              EXPECT_EQ(plan.kernel(), forward) << to_string(of_q) << " " << to_string(of_k);
              EXPECT_EQ(plan_backward.kernel(), backward) << to_string(of_q) << to_string(of_k);
            }
  }
}

// What stands beside a row, in the batch and in other heads, changes no bit of it.
TEST(Contract, contract_2_neighbours_change_no_bit) {
  for (const DType type : cases::kTypes) {
    const Trial trial = make_trial({.type = type,
                                    .batch = 3,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .q_length = 6,
                                    .k_length = 300,
                                    .causal = true,
                                    .sinks = true,
                                    .width = cases::Width::f64});
    Trial other = trial;  // batch element 1 stays, and in it key head 1
    for (const auto member : {&Trial::q, &Trial::k, &Trial::v, &Trial::dout}) {
      Tensor& t = other.*member;
      const std::int64_t kept = t.size(1) / 2;
      const Tensor original = t;
      fill(t, NAN);
      for (std::int64_t h = kept; h < t.size(1); ++h)
        for (std::int64_t i = 0; i < t.size(2); ++i)
          for (std::int64_t x = 0; x < t.size(3); ++x)
            set_value(t, {1, h, i, x}, value_at(original, {1, h, i, x}));
    }
    for (const KernelUnderTest& kernel : all_kernels()) {
      const auto before = trial.run(kernel), after = other.run(kernel);
      ASSERT_TRUE(before && after);
      for (const auto member :
           {&Written::out, &Written::lse, &Written::dq, &Written::dk, &Written::dv}) {
        const Tensor& a = (*before).*member;
        const Tensor& b = (*after).*member;
        if (!a) continue;
        const std::vector<std::int64_t> heads = range(a.size(1) / 2, a.size(1));
        EXPECT_TRUE(same_bits(take(take(a, 0, {1}), 1, heads), take(take(b, 0, {1}), 1, heads)))
            << kernel.name << " " << name_of(type);
      }
    }
  }
}

// ---- 3 Hidden means hidden ---------------------------------------------------------------------

// A cache that was never written holds anything: the bits are those of one filled with zeros.
TEST(Contract, contract_3_what_lies_behind_the_lengths_changes_no_bit) {
  for (const DType type : cases::kTypes)
    for (const std::int64_t length : {0, 1, 31, 256, 257, 300}) {
      Trial zeros = make_trial({.type = type,
                                .heads = 2,
                                .kv_heads = 1,
                                .q_length = 3,
                                .k_length = 300,
                                .causal = true,
                                .width = cases::Width::f64});
      zeros.key_lengths = integers_of({length});
      Trial garbage = zeros;
      for (std::int64_t j = length; j < 300; ++j)
        for (std::int64_t x = 0; x < 8; ++x) {
          set_value(zeros.k, {0, 0, j, x}, 0);
          set_value(zeros.v, {0, 0, j, x}, 0);
          set_value(garbage.k, {0, 0, j, x}, x % 2 == 0 ? NAN : INFINITY);
          set_value(garbage.v, {0, 0, j, x}, x % 2 == 0 ? -INFINITY : NAN);
        }
      for (const KernelUnderTest& kernel : all_kernels())
        EXPECT_TRUE(same_bits(*zeros.run(kernel), *garbage.run(kernel)))
            << kernel.name << " " << name_of(type) << ", " << length << " keys";
    }
}

// ---- 5 Errors ----------------------------------------------------------------------------------

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
  attention_backward(a.q, a.k, a.v, written.out, written.lse, a.dout, written.views().gradients,
                     a.options, {}, context);
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
  expect_failure<Unsupported>("device memory", trial, [](Trial& t, Written& w, std::int64_t&) {
    const auto on_device = [](const Tensor& tensor) {
      return ConstTensorView(tensor.view().data(), tensor.dtype(), tensor.shape(),
                             Device{Device::Kind::cuda, 0});
    };
    const TensorView out(w.out.view().data(), w.out.dtype(), w.out.shape(),
                         Device{Device::Kind::cuda, 0});
    attention(on_device(t.q), on_device(t.k), on_device(t.v), out);
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
