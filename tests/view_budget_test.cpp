// One budget for the page: what is on it is chosen from sizes alone, it is never larger than it may
// be, what is left out is said, and the memory grows with the length. While it is written, progress
// is told, and it can be interrupted.
#include "support/counted_allocations.h"
#include "support/thrown_by.h"
#include "support/view_page.h"
#include "view/blobs.h"

#include <attend/context.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace attend::test {
namespace {

// Two layers of 4 heads; a page of everything takes 4 to 8 MiB.
struct LargePage {
  Tensor x = numbers({1, 4, 600, 64}, 5);
  std::vector<ViewRun> runs{1};
  ViewOptions options{};
  LargePage() { runs[0].layers = {{.q = x, .k = x, .v = x}, {.q = x, .k = x, .v = x}}; }
  std::string text() const { return view_page(runs, options); }
};

TEST(ViewBudget, what_is_left_out_is_said_in_both_languages) {
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
TEST(ViewBudget, is_never_larger_than_it_may_be) {
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
TEST(ViewBudget, fits_into_the_least_that_it_asks_for) {
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
TEST(ViewBudget, the_page_size_that_it_asks_for_is_enough) {
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

TEST(ViewBudget, progress_is_told_head_by_head_and_may_end_the_work) {
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

TEST(ViewBudget, a_context_can_interrupt_it) {
  LargePage page;
  Context context({.threads = 2, .interrupt = [] { return true; }});
  EXPECT_EQ(thrown_by([&] { view_page(page.runs, page.options, context); }),
            "Interrupted: view: interrupted; what it was to write is not complete");
}

// Whatever zlib makes of bytes that cannot become fewer.
TEST(ViewBudget, a_blob_is_never_larger_than_its_plan) {
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
    EXPECT_LE(view::base64(view::stored(bytes)).size() + 200,
              static_cast<std::size_t>(view::characters_of_blob(static_cast<std::int64_t>(size))));
  }
}

// A window keeps the time short; the memory is what counts.
TEST(ViewBudget, grows_with_the_length_and_not_with_its_square) {
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

TEST(ViewBudget, whichever_allocation_fails_the_caller_is_told) {
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

}  // namespace
}  // namespace attend::test
