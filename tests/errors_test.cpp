// Every error message, each produced at least once, word for word, and before anything is written.
// The mistakes stand in tables, tests/errors/; this file makes them all and then holds the tables
// against the sources, so that a message nobody has seen cannot be added.
#include "errors/arguments.h"
#include "errors/sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

// A sanitizer's allocator ends the process where malloc returns null, unless told so.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace attend::test {
namespace {

std::vector<ErrorCase> all_errors() {
  std::vector<ErrorCase> all;
  for (const auto& table :
       {input_errors(), sequence_errors(), option_errors(), output_errors(), overlap_errors(),
        partial_errors(), tensor_errors(), statistics_errors(), planning_errors(), launch_errors(),
        no_memory_errors()})
    all.insert(all.end(), table.begin(), table.end());
  return all;
}

class Errors : public testing::TestWithParam<ErrorCase> {};

TEST_P(Errors, says_what_was_found_and_what_is_allowed) {
  EXPECT_EQ(thrown_by(GetParam().make), GetParam().type + ": " + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Errors, testing::ValuesIn(all_errors()),
                         [](const auto& param) { return param.param.mistake; });

// ---- The messages of the sources ---------------------------------------------------------------

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ErrorMessages, every_message_in_the_sources_is_covered) {
  // What attention itself is made of; the folders beside it have tests of their own.
  const std::filesystem::path src = std::filesystem::path(ATTEND_SOURCE_DIR) / "src";
  std::vector<MessagePattern> patterns;
  for (const char* folder : {"api", "core", "cpu", "cuda", "plan", "reference"}) {
    if (!std::filesystem::exists(src / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(src / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string name = "src/" + std::filesystem::relative(entry.path(), src).string();
      for (MessagePattern& pattern : message_patterns(name, contents(entry.path())))
        patterns.push_back(std::move(pattern));
    }
  }
  EXPECT_GT(patterns.size(), 80U) << "the sources were not understood";
  std::vector<std::string> messages;
  for (const ErrorCase& c : all_errors()) messages.push_back(c.message);
  EXPECT_EQ(uncovered(patterns, messages), "");
}

// The names of arguments reach messages through functions, which the patterns do not follow.
TEST(ErrorMessages, every_name_in_the_check_is_covered) {
  const std::vector<ErrorCase> cases = all_errors();
  int names = 0;
  for (const char* file :
       {"check.cpp", "check_inputs.cpp", "check_inspect.cpp", "check_options.cpp", "checker.cpp"}) {
    const std::filesystem::path path = std::filesystem::path(ATTEND_SOURCE_DIR) / "src/api" / file;
    for (const MessagePattern& literal : string_literals(file, contents(path))) {
      if (literal.text.ends_with(".h")) continue;  // an #include
      ++names;
      EXPECT_TRUE(std::any_of(
          cases.begin(), cases.end(),
          [&](const ErrorCase& c) { return c.message.find(literal.text) != std::string::npos; }))
          << literal.where << ": no test produces \"" << literal.text << "\"";
    }
  }
  EXPECT_GT(names, 100) << "the sources were not understood";
}

TEST(ErrorMessages, the_reader_of_sources_finds_messages) {
  const char* source = R"(
    void fail(int n);  // fail("not a message")
    if (a) fail("q has ", n, b ? " pages" : " keys", "; it (must) be \"1\"");
    throw Unsupported(text("plan: ", f(a, b), " is", " gone, "
                           "and here"));
    std::string declines(const Problem& p) { return "is 'x' " + p; }
    throw OutOfMemory(name + ": no memory" + x);
  )";
  std::vector<std::string> found;
  for (MessagePattern& pattern : message_patterns("f.cpp", source)) {
    std::replace(pattern.text.begin(), pattern.text.end(), kAnything, '*');
    found.push_back(pattern.where + " " + pattern.text);
  }
  EXPECT_EQ(found, (std::vector<std::string>{
                       "f.cpp:3 *: q has * pages; it (must) be \"1\"",
                       "f.cpp:3 *: q has * keys; it (must) be \"1\"",
                       "f.cpp:4 plan: * is gone, and here",
                       "f.cpp:6 *is 'x' *",
                       "f.cpp:7 *: no memory*",
                   }));
  EXPECT_TRUE(matches("\1: q is \1; no", "attention: q is 7; no"));
  EXPECT_FALSE(matches("\1: q is \1; no", "attention: q is 7; no more"));
  EXPECT_FALSE(matches("q is \1; no", "attention: q is 7; no"));
  EXPECT_FALSE(matches("\1no \1no", "attention: no"));
  EXPECT_TRUE(matches("\1keys\1", "keys"));
}

// ---- What is no mistake ------------------------------------------------------------------------

TEST(Accepted, arguments_with_nothing_wrong) {
  for (void (Arguments::*change)() : {&Arguments::pack, &Arguments::page}) {
    Arguments a;
    EXPECT_EQ(thrown_by([&] { run_forward(a); }), "nothing");
    EXPECT_EQ(thrown_by([&] { run_backward(a); }), "nothing");
    EXPECT_EQ(thrown_by([&] { run_merge(a); }), "nothing");
    EXPECT_EQ(thrown_by([&] { inspect(a.q, a.k, a.options); }), "nothing");
    EXPECT_EQ(thrown_by([&] { weights_of(a.q, a.k, a.lse, {.queries = 3, .keys = 5}, a.options); }),
              "nothing");
    EXPECT_FALSE(a.untouched()) << "or the sentinel shows nothing";
    (a.*change)();
    EXPECT_EQ(thrown_by([&] { run_forward(a); }), "nothing");
    EXPECT_EQ(thrown_by([&] { run_backward(a); }), "nothing");
  }
}

TEST(Accepted, gradients_interleaved_in_one_buffer) {
  constexpr std::int64_t kBatch = 2, kRows = 5, kHeads = 3, kD = 4;
  Tensor qkv({kBatch, kRows, 3, kHeads, kD}), gradients({kBatch, kRows, 3, kHeads, kD});
  const auto part = [&](Tensor& all, std::int64_t n) {
    return TensorView(&all.at<float>({0, 0, n, 0, 0}), {kBatch, kHeads, kRows, kD},
                      {kRows * 3 * kHeads * kD, kD, 3 * kHeads * kD, 1});
  };
  const Tensor out({kBatch, kHeads, kRows, kD}), lse({kBatch, kHeads, kRows});
  EXPECT_EQ(thrown_by([&] {
              attention_backward({.q = part(qkv, 0),
                                  .k = part(qkv, 1),
                                  .v = part(qkv, 2),
                                  .out = out,
                                  .lse = lse,
                                  .dout = out},
                                 {}, {part(gradients, 0), part(gradients, 1), part(gradients, 2)});
            }),
            "nothing");
}

TEST(Accepted, out_in_the_gaps_of_an_input) {
  Tensor memory({2, 4, 3, 20});
  const TensorView q(memory.data<float>(), {2, 4, 3, 6}, {240, 60, 20, 1});
  const TensorView out(&memory.at<float>({0, 0, 0, 6}), {2, 4, 3, 7}, {240, 60, 20, 2});
  Arguments a;
  EXPECT_EQ(thrown_by([&] { attention(q, a.k, a.v, out); }), "nothing");
}

TEST(Accepted, out_upside_down_and_inputs_with_strides_of_zero) {
  Arguments a;
  Tensor memory({168});
  const Tensor row({6}), value({7});
  const TensorView out(&memory.at<float>({167}), {2, 4, 3, 7}, {-84, -21, -7, -1});
  EXPECT_EQ(thrown_by([&] {
              attention(row.view().broadcast_to({2, 4, 3, 6}),
                        row.view().broadcast_to({2, 2, 5, 6}),
                        value.view().broadcast_to({2, 2, 5, 7}), out);
            }),
            "nothing");
}

// The stride of a dimension of size one is never used, and tensors of other libraries have any.
TEST(Accepted, any_stride_where_there_is_one_element) {
  for (const std::int64_t stride : {kUnlimited, -kUnlimited - 1, std::int64_t{0}}) {
    Tensor q({1, 2, 3, 4}), out({1, 2, 3, 4});
    const TensorView strange_q(q.data<float>(), {1, 2, 3, 4}, {stride, 12, 4, 1});
    const TensorView strange_out(out.data<float>(), {1, 2, 3, 4}, {stride, 12, 4, 1});
    EXPECT_EQ(thrown_by([&] { attention(strange_q, q, q, strange_out); }), "nothing") << stride;
  }
}

TEST(Accepted, null_addresses_of_empty_tensors) {
  const TensorView none(nullptr, DType::f32, {0, 4, 3, 6}), keys(nullptr, DType::f32, {0, 2, 5, 6});
  EXPECT_EQ(thrown_by([&] { attention(none, keys, keys, none); }), "nothing");
}

TEST(Accepted, dropout_up_to_the_last_counter) {
  Arguments a;
  a.options.dropout = {.p = 0.5,
                       .origin = {.b = (std::int64_t{1} << 29) - 2,
                                  .h = 4,
                                  .i = (std::int64_t{1} << 32) - 3,
                                  .j = (std::int64_t{1} << 35) - 5,
                                  .heads = 8}};
  EXPECT_EQ(thrown_by([&] { run_forward(a); }), "nothing");
}

// The functions that return tensors judge the same way.
TEST(ErrorMessages, the_returning_functions_refuse_alike) {
  Arguments a;
  const auto forward = [&] { attention(a.q, a.k, a.v, a.options); };
  const auto backward = [&] { attention_backward(a.backward_inputs(), a.options); };
  EXPECT_EQ(thrown_by(forward), "nothing");
  EXPECT_EQ(thrown_by(backward), "nothing");
  const auto both_say = [&](const std::string& message) {
    EXPECT_EQ(thrown_by(forward), "InvalidArgument: attention: " + message);
    EXPECT_EQ(thrown_by(backward), "InvalidArgument: attention_backward: " + message);
  };
  a.options.scale = HUGE_VAL;
  both_say("scale is inf; it must be finite");
  a.v = a.input({5, 7});
  both_say("v has 2 dimensions [5, 7]; it must be [batch, key heads, keys, dv]");
  a.q = {};
  both_say("q is missing");
}

}  // namespace
}  // namespace attend::test
