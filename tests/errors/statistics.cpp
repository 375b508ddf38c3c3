// Mistakes in the arguments of inspect and weights_of. The rules for q, k and the options are those
// of attention; what is here is their own.
#include "arguments.h"

#include "core/problem.h"
#include "cpu/declines.h"

#include <gtest/gtest.h>

namespace attend::test {
namespace {

constexpr Device kCuda{Device::Kind::cuda, 0};

// A plan must refuse it alike.
ErrorCase inspect_error(std::string mistake,
                        std::function<void(Arguments&, InspectOptions&)> change,
                        std::string message) {
  const auto make = [change = std::move(change)] {
    Arguments a;
    InspectOptions asked;
    change(a, asked);
    const auto run = [&] { inspect(a.q, a.k, a.options, asked); };
    EXPECT_EQ(thrown_by([&] { Plan::inspect(a.q, a.k, a.options, asked); }), thrown_by(run));
    run();
  };
  return {"inspect_" + std::move(mistake), make, "inspect: " + std::move(message)};
}

ErrorCase window_error(std::string mistake, std::function<void(Arguments&, WeightsWindow&)> change,
                       std::string message) {
  const auto make = [change = std::move(change)] {
    Arguments a;
    WeightsWindow window{.batch = 1, .head = 3, .query = 1, .queries = 2, .key = 2, .keys = 3};
    change(a, window);
    weights_of(a.q, a.k, a.lse, window, a.options);
  };
  return {"weights_of_" + std::move(mistake), make, "weights_of: " + std::move(message)};
}

std::vector<ErrorCase> inspections() {
  return {
      inspect_error(
          "without_k", [](Arguments& a, InspectOptions&) { a.k = {}; }, "k is missing"),
      inspect_error(
          "flat_q",
          [](Arguments& a, InspectOptions&) {
            a.q = a.input({3, 6});
          },
          "q has 2 dimensions [3, 6]; it must be [batch, heads, queries, d]"),
      inspect_error(
          "heads_that_do_not_divide",
          [](Arguments& a, InspectOptions&) {
            a.k = a.input({2, 3, 5, 6});
          },
          "k has 3 heads, q has 4; heads of q must be a multiple"),
      inspect_error(
          "bad_dropout", [](Arguments& a, InspectOptions&) { a.options.dropout.p = 2; },
          "dropout.p is 2; it must be from 0 to 1"),
      inspect_error(
          "negative_top_k", [](Arguments&, InspectOptions& o) { o.top_k = -1; },
          "top_k is -1; it must be from 0 to 1024"),
      inspect_error(
          "too_large_top_k", [](Arguments&, InspectOptions& o) { o.top_k = 1025; },
          "top_k is 1025; it must be from 0 to 1024"),
      inspect_error(
          "negative_local_width", [](Arguments&, InspectOptions& o) { o.local_width = -2; },
          "local_width is -2; it must be at least 0"),
      inspect_error(
          "map_without_columns", [](Arguments&, InspectOptions& o) { o.tile_rows = 4; },
          "tile_rows is 4 and tile_columns 0; both must be above 0, or both 0 for no map"),
      inspect_error(
          "map_with_negative_rows",
          [](Arguments&, InspectOptions& o) { o.tile_rows = -1, o.tile_columns = 2; },
          "tile_rows is -1 and tile_columns 2; both must be above 0, or both 0 for no map"),
      inspect_error(
          "map_that_is_too_large",
          [](Arguments& a, InspectOptions& o) {
            constexpr std::int64_t kLong = std::int64_t{1} << 31;
            a.q = {a.q.data(), DType::f32, {1, 1, kLong, 1}, {0, 0, 0, 0}};
            a.k = {a.k.data(), DType::f32, {1, 1, kLong, 1}, {0, 0, 0, 0}};
            o.tile_rows = o.tile_columns = kLong;
          },
          "the map [1, 1, 2147483648, 2147483648] has sizes that multiply to more than 2^60"),
      inspect_error(
          "tokens_of_floats", [](Arguments& a, InspectOptions& o) { o.tokens = a.input({5}); },
          "tokens is f32; it must be i32 or i64"),
      inspect_error(
          "too_few_tokens",
          [](Arguments& a, InspectOptions& o) {
            o.tokens = a.integers({1, 2, 3, 4});
          },
          "tokens is [4]; it must be [5] or [2, 5], one for each key"),
      inspect_error(
          "tokens_of_packed_keys",
          [](Arguments& a, InspectOptions& o) {
            a.pack();
            o.tokens = a.input({2, 5}, DType::i64);
          },
          "tokens is [2, 5]; it must be [8] or [1, 8], one for each key"),
      inspect_error(
          "tokens_on_another_device",
          [](Arguments& a, InspectOptions& o) {
            o.tokens = {a.k.data(), DType::i64, {5}, kCuda};
          },
          "tokens is on cuda:0, q on cpu; all tensors must be on one device"),
  };
}

std::vector<ErrorCase> windows() {
  return {
      window_error(
          "without_lse", [](Arguments& a, WeightsWindow&) { a.lse = {}; }, "lse is missing"),
      window_error(
          "lse_of_another_shape",
          [](Arguments& a, WeightsWindow&) {
            a.lse = a.input({2, 4, 2});
          },
          "lse is [2, 4, 2]; it must be [2, 4, 3]"),
      window_error(
          "half_precision_lse",
          [](Arguments& a, WeightsWindow&) {
            a.lse = a.input({2, 4, 3}, DType::f16);
          },
          "lse is f16; it must be f32 or f64"),
      window_error(
          "batch_that_is_not_there", [](Arguments&, WeightsWindow& w) { w.batch = 2; },
          "the window has 1 batch elements from 2 on; there are 2"),
      window_error(
          "negative_head", [](Arguments&, WeightsWindow& w) { w.head = -1; },
          "the window has 1 heads from -1 on; there are 4"),
      window_error(
          "too_many_queries", [](Arguments&, WeightsWindow& w) { w.queries = 3; },
          "the window has 3 queries from 1 on; there are 3"),
      window_error(
          "negative_keys", [](Arguments&, WeightsWindow& w) { w.keys = -3; },
          "the window has -3 keys from 2 on; there are 5"),
      window_error(
          "queries_of_another_sequence",
          [](Arguments& a, WeightsWindow& w) {
            a.pack();
            w.batch = 0, w.queries = 2;
          },
          "the window has 2 queries from 1 on; there are 2"),
  };
}

std::vector<ErrorCase> kernels_that_decline() {
  return {
      {"inspect_on_a_gpu",
       [] {
         Arguments a;
         a.move_to(kCuda);
         inspect(
             a.q, a.k, {}, {},
             *std::make_unique<Context>(ContextOptions{.kernels = "inspect:reference.inspect"}));
       },
       "plan: reference.inspect was forced and declines inspect f32, q [2, 4, 3, 6], k [2, 2, "
       "5, 6], scale 0.4082482904638631, on cuda:0, key mass, metrics, local 8: it reads host "
       "memory, the tensors are on cuda:0",
       "Unsupported"},
      {"weights_of_on_a_gpu",
       [] {
         Arguments a;
         a.move_to(kCuda);
         weights_of(
             a.q, a.k, a.lse, {.queries = 3, .keys = 5}, {},
             *std::make_unique<Context>(ContextOptions{.kernels = "weights:reference.weights"}));
       },
       "plan: reference.weights was forced and declines weights f32, q [2, 4, 3, 6], k [2, 2, "
       "5, 6], scale 0.4082482904638631, on cuda:0, window of 3 x 5: it reads host memory, the "
       "tensors are on cuda:0",
       "Unsupported"},
      {"too_many_tokens_for_f32",
       [] {
         InspectProblem problem;
         problem.tokens = true;
         problem.k_length = (std::int64_t{1} << 24) + 1;
         throw Unsupported(declines_generic(problem, Machine{}));
       },
       "counts keys and tokens in f32, exact for up to 2^24 keys", "Unsupported"},
      {"scale_that_f32_does_not_have",
       [] {
         InspectProblem problem;
         problem.scale = 1e39;
         throw Unsupported(declines_generic(problem, Machine{}));
       },
       "computes in f32, where a scale of 1e+39 or its inverse is no normal number", "Unsupported"},
      {"softcap_whose_inverse_f64_does_not_have",
       [] {
         InspectProblem problem;
         problem.type = DType::f64;
         problem.softcap = 1e-310;
         throw Unsupported(declines_generic(problem, Machine{}));
       },
       "computes in f64, where a softcap of 1e-310 or its inverse is no normal number",
       "Unsupported"},
      {"inspect_plan_run_with_something_else",
       [] {
         Arguments a;
         Plan::inspect(a.q, a.k).run_inspect(a.q, a.k, {}, {.top_k = 2});
       },
       "plan: made for inspect f32, q [2, 4, 3, 6], k [2, 2, 5, 6], scale 0.4082482904638631, "
       "key mass, metrics, local 8; called with inspect f32, q [2, 4, 3, 6], k [2, 2, 5, 6], "
       "scale 0.4082482904638631, top 2, key mass, metrics, local 8"}};
}

}  // namespace

std::vector<ErrorCase> statistics_errors() {
  std::vector<ErrorCase> cases;
  for (const auto& table : {inspections(), windows(), kernels_that_decline()})
    cases.insert(cases.end(), table.begin(), table.end());
  return cases;
}

}  // namespace attend::test
