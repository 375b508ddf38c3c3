// The page that shows the heads: one HTML file that opens from disk and asks for nothing else. Of
// every layer it holds statistics, labels and a map of tiles of each head (inspect.h), and q, k and
// v themselves as long as they fit: then every cell can be computed on the page, exactly. What is
// reduced is said on the page. What the data is made of: docs/view.md.
//
// In the library attend::view (find_package(attend COMPONENTS view)), which alone needs zlib.
#pragma once

#include <attend/context.h>
#include <attend/options.h>

#include <filesystem>
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

inline constexpr std::int64_t kMostEmbeddedBytes = std::int64_t{32} << 20;

struct ViewOptions {
  std::string title{};
  std::string language = "en";                       // or "zh"
  std::int64_t batch = 0;                            // which element of the batch, or sequence
  std::int64_t embed_bytes = std::int64_t{8} << 20;  // for q, k, v, masks, biases and windows
  std::int64_t tiles = 128;                          // of a map, in each direction, at most
  std::int64_t top_k = 8;                            // keys of largest weight of each row
  std::vector<ViewWindow> windows{};                 // in every run
  std::int64_t open_run = 0;                         // of two runs, the one that is seen first
};

// The page as text. One run, or two of equal sizes to compare. Memory: O(length) beside the page.
ATTEND_API std::string view_page(std::span<const ViewRun> runs, const ViewOptions& options = {},
                                 const Where& where = default_context());

// The same as a file, which is written whole or not at all.
ATTEND_API void save_view(const std::filesystem::path& path, std::span<const ViewRun> runs,
                          const ViewOptions& options = {}, const Where& where = default_context());

}  // namespace attend
