// One layer as the page reads it: {"name", "heads", ..., "q": blob, ...}. docs/view.md has the
// list.
#pragma once

#include "view/blobs.h"
#include "view/notes.h"
#include "view/numbers.h"

namespace attend::view {

struct LayerInput {
  const Single& single;
  const std::string& name;
  const std::vector<double>& contribution;  // [heads], or empty
  const ConstTensorView& w_o;               // or none
  ConstTensorView tokens{};                 // [keys], or none
};

// `notes` receives what is wrong with the numbers, `done` how many more heads are done.
Json layer_json(const LayerInput& layer, const LayerContent& content, Blobs& blobs, Notes& notes,
                const HeadsDone& done, Context& context);

}  // namespace attend::view
