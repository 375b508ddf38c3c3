// One layer as the page reads it: {"name", "heads", ..., "q": blob, ...}. docs/view.md has the
// list.
#pragma once

#include "view/blobs.h"
#include "view/single.h"

#include <attend/inspect.h>

namespace attend::view {

// Bytes on the page, before they are deflated, of what may be left out.
struct LayerBytes {
  explicit LayerBytes(const Single& layer);
  std::int64_t exact = 0;   // q, k, mask, bias: with them every weight can be computed
  std::int64_t values = 0;  // v
  std::int64_t rows = 0;    // numbers, not bytes: entropy and maximum of rows, mass of keys
};

// Sentences for the reader of the page, in the page's language.
class Notes {
 public:
  explicit Notes(const std::string& language) : chinese_(language == "zh") {}
  void add(const std::string& english, const std::string& chinese) {
    list_.push(chinese_ ? chinese : english);
  }
  const Json& list() const noexcept { return list_; }

 private:
  bool chinese_;
  Json list_ = Json::array();
};

// What of a layer goes onto the page.
struct LayerContent {
  bool exact = false, values = false;
  bool rows = true, halves = false;  // statistics of rows and keys, and whether as f16
  std::int64_t top_k = 0, tiles = 0;
  std::vector<WeightsWindow> windows{};  // exact weights
};

struct LayerInput {
  const Single& single;
  const std::string& name;
  const std::vector<double>& contribution;  // [heads], or empty
  ConstTensorView tokens{};                 // [keys], or none
};

// `notes` receives what is wrong with the numbers.
Json layer_json(const LayerInput& layer, const LayerContent& content, Blobs& blobs, Notes& notes,
                Context& context);

}  // namespace attend::view
