// The page that shows the heads: one HTML file that opens from disk and asks for nothing else. Of
// every head it holds statistics, a label and a map of tiles (inspect.h), of every row lse and the
// keys of largest weight, and q, k and v themselves as long as they fit: then every cell can be
// computed on the page. What is reduced is said on the page. What the data is made of:
// docs/view.md.
//
// In the library attend::view (find_package(attend COMPONENTS view)), which alone needs zlib.
#pragma once

#include <attend/context.h>
#include <attend/options.h>

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace attend {

// q [batch, heads, queries, d], k and v and the options as attention() takes them. v may be none.
struct ViewLayer {
  std::string name{};  // empty: "layer 0", by its number
  TensorOrView q{}, k{}, v{};
  AttentionOptions options{};
  // [heads] or [batch * heads]: mean norm of head_h W^O_h, as MultiHeadAttention::heads() has it;
  // empty: not known.
  std::vector<double> contribution{};
  // W^O [model_dim, heads * dv], as a layer has it: the page then has the norm of v_j W^O_h too.
  TensorOrView w_o{};
};

// The layers of one pass over one text. Without tokens the page shows positions.
struct ViewRun {
  std::string name{};
  std::vector<std::string> tokens{};      // a text for each query, UTF-8
  std::vector<std::string> key_tokens{};  // for each key; empty: the tokens, where they are as many
  // Numbers of the keys' tokens, for the duplicate-token and induction scores; empty: equal texts
  // are equal tokens.
  std::vector<std::int64_t> token_ids{};
  std::vector<ViewLayer> layers{};
};

// A part of a head whose weights are to be exact whatever the size of the page.
struct ViewWindow {
  std::int64_t layer = 0, head = 0, query = 0, queries = 0, key = 0, keys = 0;
};

inline constexpr std::int64_t kMostPageBytes = std::int64_t{64} << 20;

struct ViewOptions {
  std::string title{};
  std::string language = "en";  // or "zh"
  std::int64_t batch = 0;       // which element of the batch, or sequence
  // The size of the page, at most. Known before anything is computed: what does not fit is reduced
  // (docs/view.md has the order), and what cannot be is refused.
  std::int64_t page_bytes = std::int64_t{16} << 20;
  std::int64_t tiles = 128;           // of a map, in each direction, at most
  std::vector<ViewWindow> windows{};  // in every run
  std::int64_t open_run = 0;          // of two runs, the one that is seen first
  // Called by the thread that asked for the page whenever some more of all heads are done. What it
  // throws ends the work; so does the Context's `interrupt`.
  std::function<void(std::int64_t done, std::int64_t all)> progress{};
  // What the page calls the command that writes it anew with --window or --page-size.
  std::string command = "attend view";
};

// The page as text. One run, or two of equal sizes to compare. Memory: O(length) beside the page.
ATTEND_API std::string view_page(std::span<const ViewRun> runs, const ViewOptions& options = {},
                                 const Where& where = default_context());

// The same as a file, which is written whole or not at all. Where there is no such folder it says
// so at once.
ATTEND_API void save_view(const std::filesystem::path& path, std::span<const ViewRun> runs,
                          const ViewOptions& options = {}, const Where& where = default_context());

}  // namespace attend
