// The numbers of a layer's heads, computed part by part, so that progress can be told, and kept as
// the page has them.
#pragma once

#include "view/single.h"

#include <attend/inspect.h>

#include <functional>

namespace attend::view {

// What of a layer goes onto the page, beside the scores of its heads.
struct LayerContent {
  bool exact = false, values = false;  // q and k, with mask and bias; v
  bool norms = false;                  // of the values
  bool statistics = true;              // of rows and keys
  bool reduced = false;                // those in 16 bits
  std::int64_t k = 0, rows = 0;        // keys of largest weight of each of the last rows
  std::int64_t tiles = 0;              // in each direction, at most
  std::vector<WeightsWindow> windows{};
  std::string why{};  // q and k are not there
};

// Every vector is [heads] times what is said.
struct LayerNumbers {
  std::vector<HeadStatistics> heads;           // 1
  std::vector<float> lse;                      // rows of the content, or all with q and k
  std::vector<float> entropy, maximum;         // queries
  std::vector<float> mass;                     // keys
  std::vector<std::int32_t> top_keys;          // rows, k; -1: none
  std::vector<std::uint16_t> top_weights;      // rows, k; log16
  std::vector<float> tile_mean, tile_maximum;  // tile_rows, tile_columns; -1: none is visible
  std::int64_t tile_rows = 0, tile_columns = 0, tile_queries = 0, tile_keys = 0;
  std::vector<std::vector<float>> windows;  // as in the content
};

// Whether keys of rows are 16-bit numbers on the page; 65535 stands for none.
inline bool short_keys(std::int64_t keys) noexcept { return keys <= 65535; }

using HeadsDone = std::function<void(std::int64_t)>;

// `done` is told how many more heads are done.
LayerNumbers numbers_of(const Single& layer, const LayerContent& content,
                        const ConstTensorView& tokens, const HeadsDone& done, Context& context);

// How many pairs of each tile are visible: [heads, or 1 if it is the same for all, rows, columns].
std::vector<std::int64_t> visible_pairs(const Single& layer, const LayerNumbers& numbers,
                                        const Context& context);

// The norms of the values [key heads, keys], and of v_j W^O_h [heads, keys].
std::vector<float> value_norms(const Single& layer);
std::vector<float> output_norms(const Single& layer, const ConstTensorView& w_o,
                                const Context& context);

}  // namespace attend::view
