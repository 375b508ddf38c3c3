// What of every layer fits into the page, from sizes alone. In this order: the scores and tiles of
// all heads with the windows that are asked for, statistics of rows and keys, lse and the keys of
// largest weight of every row, norms of the values, q and k of layers, v.
#pragma once

#include "view/single.h"

namespace attend::view {

// A layer in every run of the page: two runs are compared cell by cell, so a layer is stored in
// both in the same way. Sizes are characters of the page, before anything is deflated.
class LayerSizes {
 public:
  void add(const Single& single, bool w_o) { runs_.push_back({&single, w_o}); }

  std::int64_t heads() const;
  std::int64_t queries() const;
  bool has_values() const;
  std::int64_t tiles(std::int64_t side) const;
  std::int64_t statistics(bool reduced) const;
  std::int64_t rows(std::int64_t k, std::int64_t count) const;  // with lse, of the last queries
  std::int64_t norms(bool reduced) const;
  std::int64_t exact() const;   // q, k, mask, bias
  std::int64_t values() const;  // v

 private:
  struct Run {
    const Single* single;
    bool w_o;
  };
  template <class Size>
  std::int64_t sum(Size size) const {
    std::int64_t all = 0;
    for (const Run& run : runs_) all += size(*run.single, run);
    return all;
  }
  std::vector<Run> runs_;
};

struct Choice {
  std::int64_t least = 0;  // what the page needs at least; the rest counts only if that fits
  bool whole = false;      // everything is there
  bool statistics = false, norms = false;
  std::int64_t tiles = 0, k = 0;
  std::int64_t rows = 0;  // of every head, the last ones
  std::vector<bool> exact, values;
};

struct PageSizes {
  std::vector<LayerSizes> layers;
  std::int64_t fixed = 0;       // the page without its layers, with the windows
  std::int64_t tiles = 0;       // as asked for
  std::int64_t page_bytes = 0;  // allowed

  std::int64_t whole() const;  // with everything
  Choice choice() const;
};

}  // namespace attend::view
