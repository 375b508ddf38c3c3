// What goes onto the page, decided before anything is computed: the runs are checked, and what does
// not fit into the bytes allowed is left out (budget.h), with a note.
#pragma once

#include "view/layer.h"

#include <memory>

namespace attend::view {

struct PlannedLayer {
  std::string name;
  std::unique_ptr<Single> single;
  std::vector<double> contribution{};
  ConstTensorView w_o{};
  LayerContent content{};
};

struct PlannedRun {
  std::vector<std::string> tokens, key_tokens;  // of queries and keys; empty: positions
  Tensor token_ids;                             // [keys], or none
  std::vector<PlannedLayer> layers;
};

// Throws where runs, tokens or options do not fit together.
std::vector<PlannedRun> planned(std::span<const ViewRun> runs, const ViewOptions& options,
                                Notes& notes);

}  // namespace attend::view
