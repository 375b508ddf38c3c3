// The writer of the page: what it refuses, word for word, what it leaves out and says so, and the
// bytes between C++ and the browser. That the numbers on a page are right is tested where pages can
// be read: python/tests/test_view.py and tests/web.
#include "errors/sources.h"
#include "support/counted_allocations.h"
#include "support/io_files.h"
#include "support/thrown_by.h"
#include "view/blobs.h"
#include "view/single.h"

#include <attend/attention.h>
#include <attend/inspect.h>
#include <attend/view.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace attend::test {
namespace {

using view::base64;
using view::deflated;
using view::log8;
using view::stored;

// Numbers between -1 and 1.
Tensor numbers(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor(shape);
  for (std::int64_t n = 0; n < tensor.count(); ++n)
    tensor.data<float>()[n] = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  return tensor;
}

// One run of one layer, 2 sequences, 4 heads on 2 key heads, 3 queries, 5 keys.
struct Page {
  Tensor q = numbers({2, 4, 3, 6}, 1), k = numbers({2, 2, 5, 6}, 2), v = numbers({2, 2, 5, 7}, 3);
  std::vector<ViewRun> runs{1};
  ViewOptions options{};
  Page() { runs[0].layers.push_back({.q = q, .k = k, .v = v}); }
  std::string text() const { return view_page(runs, options); }
};

// ---- mistakes ----------------------------------------------------------------------------------

struct Mistake {
  std::string name;
  std::function<void(Page&)> make;
  std::string message;
};

const Tensor& tall() {  // as many heads as no page has room for
  static const Tensor tensor({1, 20000, 1, 1});
  return tensor;
}
const Tensor& empty() {
  static const Tensor tensor({2, 4, 0, 6});
  return tensor;
}
const Tensor& other() {
  static const Tensor tensor({2, 4, 2, 6});
  return tensor;
}

std::vector<Mistake> mistakes() {
  return {
      {"no_runs", [](Page& p) { p.runs.clear(); },
       "view: there are 0 runs; the page shows one, or compares two"},
      {"language", [](Page& p) { p.options.language = "de"; },
       "view: language is 'de'; it must be en or zh"},
      {"page_too_large", [](Page& p) { p.options.page_bytes = 1 << 30; },
       "view: page_bytes is 1073741824; it must be from 1 to 67108864"},
      {"no_page", [](Page& p) { p.options.page_bytes = 0; },
       "view: page_bytes is 0; it must be from 1 to 67108864"},
      {"page_too_small",
       [](Page& p) {
         p.options.page_bytes = 1000;
         p.options.windows = {{0, 0, 0, 1, 0, 1}};
       },
       "view: the page takes at least # bytes, for maps and scores of 4 heads, tokens, and 464 of "
       "windows; page_bytes is 1000, and may be up to 67108864"},
      {"tiles", [](Page& p) { p.options.tiles = 0; },
       "view: tiles is 0; it must be from 1 to 1024"},
      {"open_run", [](Page& p) { p.options.open_run = 1; },
       "view: open_run is 1; there are 1 runs, counted from 0"},
      {"no_layers", [](Page& p) { p.runs[0].layers.clear(); }, "view: there are no layers"},
      {"no_q", [](Page& p) { p.runs[0].layers[0].q = {}; }, "view: layer 0: there is no q"},
      {"no_k",
       [](Page& p) {
         p.runs.push_back(p.runs[0]);
         p.runs[1].layers[0].k = {};
       },
       "view: run 1, layer 0: there is no k"},
      {"batch", [](Page& p) { p.options.batch = 2; },
       "view: layer 0: there is no batch element 2; there are 2"},
      {"no_queries", [](Page& p) { p.runs[0].layers[0].q = empty(); },
       "view: layer 0: there is nothing to show: 4 heads, 0 queries, 5 keys"},
      {"key_offset_without_query_offset",
       [](Page& p) { p.runs[0].layers[0].options.key_offset = 256; },
       "view: layer 0: key_offset is 256 and query_offset is not given; a part of the keys needs "
       "both, the positions of query 0 and of key 0"},
      {"tokens",
       [](Page& p) {
         p.runs[0].tokens = {"a", "b"};
       },
       "view: there are 2 tokens, layer 0 has 3 queries and 5 keys"},
      {"key_tokens",
       [](Page& p) {
         p.runs[0].key_tokens = {"a", "b"};
       },
       "view: there are 2 key tokens, layer 0 has 5 keys"},
      {"token_ids",
       [](Page& p) {
         p.runs[0].token_ids = {1, 2};
       },
       "view: there are 2 token numbers, layer 0 has 5 keys"},
      {"contribution", [](Page& p) { p.runs[0].layers[0].contribution = {1}; },
       "view: layer 0 has 1 contributions and 4 heads"},
      {"runs_of_different_depth",
       [](Page& p) {
         p.runs.push_back(p.runs[0]);
         p.runs[1].layers.push_back(p.runs[0].layers[0]);
       },
       "view: the runs have 1 and 2 layers; runs to compare have equal sizes"},
      {"runs_of_different_sizes",
       [](Page& p) {
         p.runs.push_back(p.runs[0]);
         p.runs[1].layers[0].q = other();
       },
       "view: layer 0 has [heads, queries, keys] [4, 3, 5] in one run and [4, 2, 5] in the other; "
       "runs to compare have equal sizes"},
      {"window_of_no_layer",
       [](Page& p) {
         p.options.windows = {{1, 0, 0, 1, 0, 1}};
       },
       "view: a window is of layer 1; there are 1"},
      {"window_outside",
       [](Page& p) {
         p.options.windows = {{0, 3, 1, 3, 0, 5}};
       },
       "view: a window is head 3, queries 1 + 3, keys 0 + 5; layer 0 has 4 heads, 3 queries, 5 "
       "keys"},
      {"window_too_large",
       [](Page& p) {
         p.options.windows = {{0, 3, 0, 3, 0, 5}};
         p.options.page_bytes = 50;
       },
       "view: a window of 3 x 5 weights does not fit into a page of 50 bytes"},
      {"w_o_without_v",
       [](Page& p) {
         p.runs[0].layers[0].w_o = p.q.view().slice(0, 0, 1);
         p.runs[0].layers[0].v = {};
       },
       "view: layer 0 has w_o and no v"},
      {"w_o_of_another_shape",
       [](Page& p) { p.runs[0].layers[0].w_o = tall().view().slice(1, 0, 28); },
       "view: layer 0: w_o is f32 [1, 28, 1, 1]; it must be f64, f32, bf16 or f16, [model_dim, "
       "28]: heads * dv"},
      {"too_many_heads",
       [](Page& p) {
         p.runs[0].layers[0].q = p.runs[0].layers[0].k = p.runs[0].layers[0].v = tall();
       },
       "view: the page takes at least # bytes, for maps and scores of 20000 heads, tokens, and 0 "
       "of windows; page_bytes is 16777216, and may be up to 67108864"},
  };
}

// Equal but for the digits where the message says "#".
bool agrees(const std::string& found, const std::string& message) {
  const std::size_t mark = message.find('#');
  if (mark == message.npos) return found == message;
  const std::size_t end = found.find_first_not_of("0123456789", mark);
  return end > mark && end != found.npos && found.substr(0, mark) == message.substr(0, mark) &&
         found.substr(end) == message.substr(mark + 1);
}

TEST(ViewErrors, say_what_was_found_and_what_is_allowed) {
  for (const Mistake& mistake : mistakes()) {
    Page page;
    mistake.make(page);
    page.options.progress = [](std::int64_t, std::int64_t) { FAIL() << "nothing is computed"; };
    const std::string found = thrown_by([&] { page.text(); });
    EXPECT_TRUE(agrees(found, "InvalidArgument: " + mistake.message))
        << mistake.name << ": " << found;
  }
}

TEST(ViewErrors, every_message_in_the_sources_is_covered) {
  std::vector<std::string> seen;
  for (const Mistake& mistake : mistakes()) seen.push_back(mistake.message);
  seen.push_back("save_view: 'none/page.html': there is no folder 'none'");  // below
  std::vector<MessagePattern> patterns;
  const std::filesystem::path folder = std::filesystem::path(ATTEND_SOURCE_DIR) / "src/view";
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename() != "deflate.cpp")  // std::bad_alloc has no message
      for (MessagePattern& pattern :
           message_patterns(entry.path().filename().string(), bytes_of(entry.path())))
        patterns.push_back(std::move(pattern));
  EXPECT_GT(patterns.size(), 15U) << "the sources were not understood";
  EXPECT_EQ(uncovered(patterns, seen), "");
}

TEST(ViewErrors, options_that_do_not_fit_are_refused_as_attention_does) {
  Page page;
  page.runs[0].layers[0].options.softcap = -1;
  EXPECT_EQ(
      thrown_by([&] { page.text(); }),
      "InvalidArgument: attention: softcap is -1; it must be finite and at least 0 (0: none)");
}

TEST(ViewErrors, a_folder_that_is_missing_is_told_before_anything_is_computed) {
  const TemporaryFolder folder;
  Page page;
  page.options.progress = [](std::int64_t, std::int64_t) { FAIL() << "nothing is computed"; };
  const std::string path = (folder / "none/page.html").string();
  EXPECT_EQ(thrown_by([&] { save_view(path, page.runs, page.options); }),
            "another attend::Error: save_view: '" + path + "': there is no folder '" +
                (folder / "none").string() + "'");
}

TEST(ViewErrors, a_failed_page_leaves_the_older_file) {
  const TemporaryFolder folder;
  Page page;
  save_view(folder / "page.html", page.runs);
  const std::string before = bytes_of(folder / "page.html");
  EXPECT_EQ(before, page.text());
  page.options.tiles = 0;
  EXPECT_NE(thrown_by([&] { save_view(folder / "page.html", page.runs, page.options); }),
            "nothing");
  EXPECT_EQ(bytes_of(folder / "page.html"), before);
}

// ---- what is on the page -----------------------------------------------------------------------

TEST(ViewPage, hostile_texts_end_no_element_and_open_none) {
  Page page;
  const std::string hostile = "</script><!--<script>&\xE2\x80\xA8\xE2\x80\xAE\x1B[31m\xFF{{data}}";
  page.runs[0].tokens = {hostile, hostile, hostile};
  page.runs[0].name = page.runs[0].layers[0].name = hostile;
  page.options.title = "</title></script><!--<script>{{data}}";
  Page plain;
  plain.runs[0].tokens = {"a", "b", "c"};
  const auto count = [](const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
    return n;
  };
  for (const char* part : {"<script", "</script", "<!--", "\xE2\x80\xA8"})
    EXPECT_EQ(count(page.text(), part), count(plain.text(), part)) << part;
}

// Two layers of 4 heads; a page of everything takes 4 to 8 MiB.
struct LargePage {
  Tensor x = numbers({1, 4, 600, 64}, 5);
  std::vector<ViewRun> runs{1};
  ViewOptions options{};
  LargePage() { runs[0].layers = {{.q = x, .k = x, .v = x}, {.q = x, .k = x, .v = x}}; }
  std::string text() const { return view_page(runs, options); }
};

TEST(ViewPage, what_is_left_out_is_said_in_both_languages) {
  EXPECT_NE(Page().text().find("\"notes\":[]"), std::string::npos) << "everything fits";
  LargePage page;
  page.options.page_bytes = std::int64_t{2} << 20;
  const std::string text = page.text();
  EXPECT_NE(text.find("The page is reduced to 2 MiB: every query of every head has the 16 keys of "
                      "largest weight; q and k, with which every weight is exact, are there for 0 "
                      "of 2 layers."),
            std::string::npos);
  EXPECT_NE(text.find("they do not fit into 2 MiB; attend view ... --page-size "),
            std::string::npos);
  EXPECT_NE(text.find(" --window 1,HEAD,QUERY,QUERIES,KEY,KEYS the weights of a part."),
            std::string::npos);
  page.options.language = "zh";
  EXPECT_NE(page.text().find("\\u9875\\u9762\\u7f29\\u51cf"), std::string::npos);
}

// Random numbers do not deflate: pages as large as they can be.
TEST(ViewPage, is_never_larger_than_it_may_be) {
  LargePage page;
  page.runs[0].name = std::string(300, '<');
  page.runs[0].tokens = std::vector<std::string>(600, "</script>\x01");
  page.options.title = std::string(1000, '"');
  std::size_t before = 0;
  for (const std::int64_t size : {500'000, 700'000, 1'000'000, 2'000'000, 4'000'000, 7'000'000}) {
    page.options.page_bytes = size;
    const std::string text = page.text();
    EXPECT_LE(text.size(), static_cast<std::size_t>(size));
    EXPECT_GE(text.size(), before) << "more room, and less on the page";
    before = text.size();
  }
  page.options.page_bytes = std::int64_t{16} << 20;
  EXPECT_NE(page.text().find("\"notes\":[]"), std::string::npos);
}

// With the longest names, numbers and texts in the JSON, in the language whose letters are escaped.
TEST(ViewPage, fits_into_the_least_that_it_asks_for) {
  const Tensor x = numbers({1, 300, 4, 8}, 6);
  Tensor each({300});
  for (std::int64_t h = 0; h < 300; ++h) each.data<float>()[h] = -1.2345678e-17F;
  ViewRun run{.name = std::string(99, '\x01'),
              .tokens = std::vector<std::string>(4, "[\x01\x02]"),
              .token_ids = {3, 3, 3, 3},
              .layers = {{.name = std::string(999, '\x1b'),
                          .q = x,
                          .k = x,
                          .v = x,
                          .options = {.alibi = each, .sinks = each},
                          .contribution = std::vector<double>(300, -1.2345678901234567e-101)}}};
  run.layers.resize(3, run.layers[0]);
  ViewOptions options{.language = "zh", .page_bytes = 1};
  const std::string found = thrown_by([&] { view_page({&run, 1}, options); });
  options.page_bytes = std::stoll(found.substr(found.find("at least ") + 9));
  EXPECT_LE(view_page({&run, 1}, options).size(), static_cast<std::size_t>(options.page_bytes));
}

// The size that a page names as enough for a layer is: it stores the layer, and 1 MiB less does
// not.
TEST(ViewPage, the_page_size_that_it_asks_for_is_enough) {
  LargePage page;
  page.options.page_bytes = std::int64_t{2} << 20;
  const std::string said = "--page-size ", text = page.text();
  const std::size_t at = text.find("they do not fit into 2 MiB; attend view ... " + said);
  ASSERT_NE(at, std::string::npos);
  const std::int64_t size = std::stoll(text.substr(text.find(said, at) + said.size()));
  const auto has_q = [&](std::int64_t mebibytes) {
    page.options.page_bytes = mebibytes << 20;
    return page.text().find("\"q\":{\"blob\"") != std::string::npos;
  };
  EXPECT_TRUE(has_q(size));
  EXPECT_FALSE(has_q(size - 1));
}

TEST(ViewPage, progress_is_told_head_by_head_and_may_end_the_work) {
  LargePage page;
  std::vector<std::int64_t> told;
  page.options.progress = [&](std::int64_t done, std::int64_t all) {
    told.push_back(done);
    EXPECT_EQ(all, 8);
  };
  page.text();
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_EQ(told.back(), 8);
  EXPECT_GE(told.size(), 2U) << "at least once a layer";
  page.options.progress = [](std::int64_t, std::int64_t) { throw Interrupted("enough"); };
  EXPECT_EQ(thrown_by([&] { page.text(); }), "Interrupted: enough");
}

TEST(ViewPage, a_context_can_interrupt_it) {
  LargePage page;
  Context context({.threads = 2, .interrupt = [] { return true; }});
  EXPECT_EQ(thrown_by([&] { view_page(page.runs, page.options, context); }),
            "Interrupted: view: interrupted; what it was to write is not complete");
}

TEST(ViewPage, numbers_that_are_not_finite_are_said) {
  Page page;
  page.q.at<float>({0, 1, 2, 3}) = std::nanf("");
  EXPECT_NE(page.text().find("layer 0: q has 1 numbers that are not finite"), std::string::npos);
  page.options.batch = 1;
  EXPECT_NE(page.text().find("\"notes\":[]"), std::string::npos) << "the other sequence has none";
}

TEST(ViewPage, equal_inputs_give_equal_bytes) {
  const Page page;
  EXPECT_EQ(page.text(), page.text());
}

// ---- memory ------------------------------------------------------------------------------------

// A window keeps the time short; the memory is what counts.
TEST(ViewMemory, grows_with_the_length_and_not_with_its_square) {
  const auto bytes = [](std::int64_t length) {
    const Tensor x = numbers({1, 2, length, 4}, 4);
    const std::vector<ViewRun> runs{
        {.layers = {{.q = x, .k = x, .v = x, .options = {.causal = true, .window = {8, 0}}}}}};
    const std::size_t before = bytes_allocated;
    const std::string page = view_page(runs, {.page_bytes = 8 << 20});
    EXPECT_LT(page.size(), std::size_t{8} << 20);
    return static_cast<double>(bytes_allocated - before);
  };
  bytes(1024);  // the first workspaces
  const double one = bytes(65536), two = bytes(131072);
  EXPECT_LT(two, 2.2 * one);
  EXPECT_LT(two, 128.0 * (1 << 20)) << "a row of weights for each query would be 128 GiB";
}

TEST(ViewMemory, whichever_allocation_fails_the_caller_is_told) {
  const Page page;
  const std::string whole = page.text();
  std::size_t failures = 0;
  bool finished = false;
  for (std::size_t n = 1; !finished; n += 7) {
    failing_allocation = allocations + n;
    std::string found;
    const std::string thrown = thrown_by([&] { found = page.text(); });
    finished = allocations < failing_allocation;  // else one failed, maybe without need
    failing_allocation = 0;
    if (thrown == "nothing") EXPECT_EQ(found, whole);
    else EXPECT_TRUE(thrown.starts_with("OutOfMemory: ")) << thrown;
    failures += thrown != "nothing";
  }
  EXPECT_GT(failures, 20U);
}

// ---- one sequence ------------------------------------------------------------------------------

// Packed and paged tensors show what the plain ones do.
TEST(ViewSingle, packed_and_paged_sequences_are_those_of_the_batch) {
  const Page page;
  const view::Single plain({.q = page.q, .k = page.k, .v = page.v}, 1, "");

  Tensor packed_q({1, 4, 6, 6}), packed_k({1, 2, 10, 6}), pages({5, 2, 2, 6});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t d = 0; d < 6; ++d) {
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < 3; ++i)
          packed_q.at<float>({0, h, 3 * b + i, d}) = page.q.at<float>({b, h, i, d});
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t j = 0; j < 5; ++j) {
          packed_k.at<float>({0, h, 5 * b + j, d}) = page.k.at<float>({b, h, j, d});
          if (b == 1) pages.at<float>({4 - j / 2, h, j % 2, d}) = page.k.at<float>({b, h, j, d});
        }
    }
  const Tensor starts_q({std::int64_t{0}, std::int64_t{3}, std::int64_t{6}}, {3});
  const Tensor starts_k({std::int64_t{0}, std::int64_t{5}, std::int64_t{10}}, {3});
  const view::Single packed({.q = packed_q,
                             .k = packed_k,
                             .options = {.cu_seqlens_q = starts_q, .cu_seqlens_k = starts_k}},
                            1, "");
  const Tensor table({std::int64_t{0}, std::int64_t{0}, std::int64_t{0}, std::int64_t{4},
                      std::int64_t{3}, std::int64_t{2}},
                     {2, 3});
  const Tensor lengths({std::int64_t{1}, std::int64_t{5}}, {2});
  const view::Single paged(
      {.q = page.q, .k = pages, .options = {.key_lengths = lengths, .block_table = table}}, 1, "");
  for (const view::Single* other : {&packed, &paged}) {
    EXPECT_EQ(other->query_offset, 2);
    EXPECT_EQ(other->key_length, 5);
    for (std::int64_t d = 0; d < 6; ++d) {
      EXPECT_EQ(other->q.at<float>({0, 3, 2, d}), plain.q.at<float>({0, 3, 2, d}));
      for (std::int64_t j = 0; j < 5; ++j)
        EXPECT_EQ(other->k.at<float>({0, 1, j, d}), plain.k.at<float>({0, 1, j, d}));
    }
  }
}

// On pages and not: the keys and values of the page are those that the scales mean.
TEST(ViewSingle, keys_of_eight_bits_are_shown_as_what_they_mean) {
  const Page page;
  Tensor k({2, 2, 5, 6}, DType::i8), scales({2, 2, 5});
  for (std::int64_t n = 0; n < k.count(); ++n)
    k.data<std::int8_t>()[n] = static_cast<std::int8_t>(n % 251 - 125);
  for (std::int64_t n = 0; n < scales.count(); ++n)
    scales.data<float>()[n] = 0.25F * static_cast<float>(n + 1);
  const Tensor lengths({std::int64_t{5}, std::int64_t{5}}, {2});
  const Tensor table({std::int64_t{0}, std::int64_t{1}}, {2, 1});  // a page of 5 keys each
  const view::Single dense({.q = page.q, .k = k, .options = {.k_scales = scales}}, 1, "");
  const view::Single paged(
      {.q = page.q,
       .k = k,
       .v = page.v,
       .options = {.key_lengths = lengths, .block_table = table, .k_scales = scales}},
      1, "");
  for (const view::Single* one : {&dense, &paged}) {
    EXPECT_FALSE(one->options.k_scales);
    ASSERT_EQ(one->k.shape(), (Shape{1, 2, 5, 6}));
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t j = 0; j < 5; ++j)
        for (std::int64_t x = 0; x < 6; ++x)
          EXPECT_EQ(
              one->k.at<float>({0, h, j, x}),
              static_cast<float>(k.at<std::int8_t>({1, h, j, x})) * scales.at<float>({1, h, j}));
  }
}

// Whatever attention() takes is shown, with the numbers that it means.
TEST(ViewSingle, q_and_k_of_any_types_with_scales_or_without) {
  int shown = 0;
  for (const DType q_type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const DType k_type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i8})
      for (const int scaled : {0, 1, 2, 3}) {
        SCOPED_TRACE(text("q ", q_type, ", k ", k_type, ", scales ", scaled));
        Tensor q({1, 2, 3, 4}, q_type), k({1, 1, 5, 4}, k_type), scales({1, 1, 5});
        const auto put = [](const Tensor& t, std::int64_t n, double x) {
          const Strided to{
              static_cast<std::byte*>(const_cast<void*>(t.view().data())), t.dtype(), true, {}};
          if (t.dtype() == DType::i8)
            reinterpret_cast<std::int8_t&>(to.data[n]) = static_cast<std::int8_t>(x);
          else store(to, n, x);
        };
        for (std::int64_t n = 0; n < q.count(); ++n) put(q, n, static_cast<double>(n % 7) - 3);
        for (std::int64_t n = 0; n < k.count(); ++n) put(k, n, static_cast<double>(n % 5) - 2);
        for (std::int64_t n = 0; n < 5; ++n) put(scales, n, 0.25 * static_cast<double>(n + 1));
        AttentionOptions options;
        if ((scaled & 1) != 0) options.k_scales = scales;
        if ((scaled & 2) != 0) options.v_scales = scales;
        const std::string refused = thrown_by([&] { attention(q, k, k, options); });
        ViewRun run;
        run.layers.push_back({.q = q, .k = k, .v = k, .options = options});
        const std::string page = thrown_by([&] { view_page(std::span(&run, 1)); });
        EXPECT_EQ(page == "nothing", refused == "nothing") << page << "\n" << refused;
        if (refused != "nothing") continue;
        ++shown;
        const view::Single one(run.layers[0], 0, "");
        const Tensor lse = inspect(q, k, options).lse,
                     of_one = inspect(one.q, one.k, one.options).lse;
        for (std::int64_t i = 0; i < 3; ++i)
          EXPECT_NEAR(load(view::strided(lse), i), load(view::strided(of_one), i), 1e-5);
      }
  EXPECT_GE(shown, 40);
}

// Whole groups that share a key head, and a part of one: with what belongs to these heads alone.
TEST(ViewSingle, a_part_of_the_heads_has_the_numbers_that_they_have_among_all) {
  const Page page;
  Tensor mask({2, 4, 3, 5}, DType::u8), slopes({4}), sinks({4}), blocks({2, 4, 2, 3}, DType::u8);
  for (std::int64_t n = 0; n < mask.count(); ++n) mask.data<std::uint8_t>()[n] = n % 7 != 0;
  for (std::int64_t n = 0; n < blocks.count(); ++n) blocks.data<std::uint8_t>()[n] = n % 5 != 0;
  for (std::int64_t h = 0; h < 4; ++h) {
    slopes.data<float>()[h] = 0.1F * static_cast<float>(h);
    sinks.data<float>()[h] = static_cast<float>(h) - 1;
  }
  const Tensor bias = numbers({1, 4, 3, 5}, 8);
  const view::Single all(
      {.q = page.q,
       .k = page.k,
       .options =
           {.mask = mask, .bias = bias, .alibi = slopes, .sinks = sinks, .blocks = {blocks, 2, 2}}},
      1, "");
  const Tensor whole = inspect(all.q, all.k, all.options).lse;
  for (const auto& [from, count] : {std::pair{0, 4}, {0, 2}, {2, 2}, {1, 1}, {2, 1}}) {
    const view::Single::Part part = all.part(from, count);
    const Tensor lse = inspect(part.q, part.k, part.options).lse;
    ASSERT_EQ(lse.count(), 3 * count);
    for (std::int64_t n = 0; n < lse.count(); ++n)
      EXPECT_EQ(lse.data<float>()[n], whole.data<float>()[3 * from + n]) << from << " " << count;
  }
}

// A part of the keys is shown by its own numbers: query 0 is at the part's key `query_offset`.
TEST(ViewSingle, a_part_of_the_keys_is_shown_where_its_queries_are) {
  const Page page;
  const view::Single part({.q = page.q,
                           .k = page.k,
                           .options = {.causal = true, .query_offset = 257, .key_offset = 256}},
                          1, "");
  EXPECT_EQ(part.query_offset, 1);
  EXPECT_EQ(part.positions(0).end, 2);
  EXPECT_FALSE(part.options.key_offset);
}

// ---- bytes -------------------------------------------------------------------------------------

TEST(ViewBytes, base64_is_that_of_rfc_4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("\xFF\xFE\xFD\xFC"), "//79/A==");
}

TEST(ViewJson, texts_are_ascii_without_markup_whatever_bytes_they_hold) {
  const auto json = [](const char* text) { return view::Json(text).text(); };
  EXPECT_EQ(json("</a>&b"), R"("\u003c/a\u003e\u0026b")");
  EXPECT_EQ(json("\"\\\n\x7F"), R"("\"\\\n\u007f")");
  EXPECT_EQ(json("\u2028\U0001f600"), R"("\u2028\ud83d\ude00")");
  EXPECT_EQ(json("a\xFF\xC0\xAF"), R"("a\ufffd\ufffd\ufffd")");  // no beginning, too long
  EXPECT_EQ(json("\xED\xA0\x80z"), R"("\ufffd\ufffd\ufffdz")");  // half of a surrogate pair
  EXPECT_EQ(json("\xE2\x82"), R"("\ufffd")");                    // cut off
}

TEST(ViewJson, numbers_have_the_fewest_digits_and_are_finite_or_null) {
  EXPECT_EQ(view::Json(0.1).text(), "0.1");
  EXPECT_EQ(view::Json(1e23).text(), "1e+23");
  EXPECT_EQ(view::Json(5e-324).text(), "5e-324");
  EXPECT_EQ(view::Json(std::nan("")).text(), "null");
  EXPECT_EQ(view::Json(-HUGE_VAL).text(), "null");
}

TEST(ViewBytes, log8_is_the_nearest_of_its_steps) {
  EXPECT_EQ(log8(0), 0);
  EXPECT_EQ(log8(-1), 0);
  EXPECT_EQ(log8(std::nan("")), 0);
  EXPECT_EQ(log8(1), 255);
  EXPECT_EQ(log8(0.5), 247);
  EXPECT_EQ(log8(1e-30), 1);
  for (double p = 1; p > 1e-9; p *= 0.99) {
    const double shown = std::exp2((log8(p) - 255) / 8.0);
    EXPECT_LE(std::abs(std::log2(shown / p)), 1.0 / 16 + 1e-9) << p;
  }
}

TEST(ViewBytes, log16_is_the_nearest_of_its_steps) {
  EXPECT_EQ(view::log16(1), 0);
  EXPECT_EQ(view::log16(1.0001), 0);
  EXPECT_EQ(view::log16(0.5), 2048);
  EXPECT_EQ(view::log16(0), 65535);
  EXPECT_EQ(view::log16(-1), 65535);
  EXPECT_EQ(view::log16(std::nan("")), 65535);
  EXPECT_EQ(view::log16(std::exp2(-32)), 65535);
  EXPECT_EQ(view::log16(std::exp2(-65534 / 2048.0)), 65534);
  for (double p = 1; p > std::exp2(-31); p *= 0.9993)
    EXPECT_LE(std::abs(std::exp2(-view::log16(p) / 2048.0) / p - 1), 1.7e-4) << p;
}

// Whatever zlib makes of bytes that cannot become fewer.
TEST(ViewBytes, a_blob_is_never_larger_than_its_plan) {
  std::mt19937 random(7);
  for (const std::size_t size : {0, 1, 2, 3, 100, 16383, 65536, 1'000'003}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    view::Blobs blobs;
    const std::string json =
        blobs.add("log16", {123456, 123456, 16}, bytes).set("scale", 1.2345678901234567e-17).text();
    blobs.pack(default_context());
    EXPECT_LE(json.size() + sizeof "\"output_norm\":," + blobs.elements().size(),
              static_cast<std::size_t>(view::characters_of_blob(static_cast<std::int64_t>(size))));
    EXPECT_LE(base64(stored(bytes)).size() + 200,
              static_cast<std::size_t>(view::characters_of_blob(static_cast<std::int64_t>(size))));
  }
}

TEST(ViewBytes, numbers_in_16_bits_have_a_scale_or_are_not_finite) {
  view::Blobs blobs;
  EXPECT_EQ(blobs.add_halved({3}, {131072.0F, 65536.0F, 0.0F}).text(),
            R"({"blob":0,"type":"log16","shape":[3],"scale":131072})");
  EXPECT_EQ(blobs.add_halved({1}, {0.0F}).text(),
            R"({"blob":1,"type":"log16","shape":[1],"scale":1})");
  EXPECT_EQ(blobs.add_halved({2}, {1.0F, std::nanf("")}).text(),
            R"({"blob":2,"type":"f16","shape":[2]})");
}

TEST(ViewBytes, bytes_without_zlib_are_stored_in_blocks) {
  using namespace std::string_literals;
  EXPECT_EQ(stored(""), "\x01\x00\x00\xFF\xFF"s);
  EXPECT_EQ(stored("abc"), "\x01\x03\x00\xFC\xFF"s + "abc");
  const std::string many(65535 + 2, 'x');
  EXPECT_EQ(stored(many),
            "\x00\xFF\xFF\x00\x00"s + many.substr(2) + "\x01\x02\x00\xFD\xFF"s + "xx");
  EXPECT_LE(deflated(many).size(), stored(many).size());
}

}  // namespace
}  // namespace attend::test
