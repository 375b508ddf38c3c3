// What the writer of the page refuses, word for word, before anything is computed.
#include "errors/sources.h"
#include "support/io_files.h"
#include "support/thrown_by.h"
#include "support/view_page.h"

#include <gtest/gtest.h>

#include <functional>

namespace attend::test {
namespace {

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

}  // namespace
}  // namespace attend::test
