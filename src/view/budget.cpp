#include "view/budget.h"

#include "view/blobs.h"
#include "view/numbers.h"

#include <algorithm>

namespace attend::view {
namespace {

constexpr std::int64_t kKeys[] = {16, 8, 4, 2, 1};  // of a row, the most that fits
constexpr std::int64_t kEnoughTiles = 32;           // more of them never cost keys of rows
constexpr std::int64_t kLeastTiles = 16;            // below, a map shows nothing
constexpr std::int64_t kShareOfTiles = 4;           // at most a quarter of the page
constexpr std::int64_t kRowsAtOnce = 64;            // a range of rows is a multiple of it

// Tiles along one side, as inspect() cuts them: their size is the smallest power of two that does.
std::int64_t tiles_along(std::int64_t length, std::int64_t most) {
  std::int64_t size = 1;
  while ((length + size - 1) / size > most) size *= 2;
  return (length + size - 1) / size;
}

std::int64_t bytes_of(const ConstTensorView& x) {
  return x.count() * (x.dtype() == DType::f64 ? 4 : size_of(x.dtype()));
}

std::int64_t bits_of_mask(const Single& s) {
  return (s.masked_by_head() ? s.heads() : 1) * s.queries() * s.keys();
}

}  // namespace

std::int64_t LayerSizes::heads() const { return runs_[0].single->heads(); }
std::int64_t LayerSizes::queries() const { return runs_[0].single->queries(); }
bool LayerSizes::has_values() const { return static_cast<bool>(runs_[0].single->v); }

std::int64_t LayerSizes::tiles(std::int64_t side) const {
  return sum([&](const Single& s, const Run&) {
    const std::int64_t map = tiles_along(s.queries(), side) * tiles_along(s.keys(), side);
    const std::int64_t seen = map * (s.masked_by_head() ? s.heads() : 1);
    return 2 * characters_of_blob(map * s.heads()) + characters_of_blob(seen) +
           2 * characters_of_blob(map);  // over the heads
  });
}

std::int64_t LayerSizes::statistics(bool reduced) const {
  return sum([&](const Single& s, const Run&) {
    const std::int64_t number = reduced ? 2 : 4;
    return (reduced ? 1 : 2) * characters_of_blob(number * s.heads() * s.queries()) +
           characters_of_blob(number * s.heads() * s.keys());
  });
}

std::int64_t LayerSizes::rows(std::int64_t k, std::int64_t count) const {
  return sum([&](const Single& s, const Run&) {
    const std::int64_t rows = s.heads() * std::min(count, s.queries());
    const std::int64_t keys = rows * std::min(k, s.keys());
    return characters_of_blob(4 * rows) + characters_of_blob(2 * keys) +
           characters_of_blob((short_keys(s.keys()) ? 2 : 4) * keys);
  });
}

std::int64_t LayerSizes::norms(bool reduced) const {
  return sum([&](const Single& s, const Run& run) {
    if (!s.v) return std::int64_t{0};
    const std::int64_t number = (reduced ? 2 : 4) * s.keys();
    return characters_of_blob(number * s.key_heads()) +
           (run.w_o ? characters_of_blob(number * s.heads()) : 0);
  });
}

std::int64_t LayerSizes::exact() const {
  return sum([](const Single& s, const Run&) {
    std::int64_t size = characters_of_blob(bytes_of(s.q)) + characters_of_blob(bytes_of(s.k));
    if (s.masked()) size += characters_of_blob(bits_of_mask(s) / 8 + 1);
    if (const ConstTensorView& bias = s.options.bias)
      size += characters_of_blob(4 * bias.size(1) * bias.size(2) * s.keys());
    return size;
  });
}

std::int64_t LayerSizes::values() const {
  return sum([](const Single& s, const Run&) {
    return s.v ? characters_of_blob(bytes_of(s.v)) : std::int64_t{0};
  });
}

namespace {

template <class Size>
std::int64_t total(const std::vector<LayerSizes>& layers, Size size) {
  std::int64_t all = 0;
  for (const LayerSizes& layer : layers) all += size(layer);
  return all;
}

class Choosing {
 public:
  explicit Choosing(const PageSizes& page)
      : page_(page), layers_(page.layers), left_(page.page_bytes - page.fixed) {
    choice_.exact = choice_.values = std::vector<bool>(layers_.size());
    for (const LayerSizes& layer : layers_) longest_ = std::max(longest_, layer.queries());
    const std::int64_t least = tiles_of(std::min(page.tiles, kLeastTiles));
    choice_.least = page.fixed + least;
    if (left_ < least) return;
    if (page.whole() <= page.page_bytes) {
      everything();
      return;
    }
    choice_.statistics = left_ - least >= statistics();
    if (choice_.statistics) left_ -= statistics();
    rows();
    norms();
    exact();
  }
  Choice take() { return std::move(choice_); }

 private:
  std::int64_t tiles_of(std::int64_t side) const {
    return total(layers_, [&](const LayerSizes& layer) { return layer.tiles(side); });
  }
  std::int64_t statistics() const {
    return total(layers_, [](const LayerSizes& layer) { return layer.statistics(true); });
  }
  std::int64_t rows_of(std::int64_t k, std::int64_t count) const {
    return total(layers_, [&](const LayerSizes& layer) { return layer.rows(k, count); });
  }
  bool take(std::int64_t size) {
    if (size > left_) return false;
    left_ -= size;
    return true;
  }

  void everything() {
    choice_.whole = choice_.statistics = choice_.norms = true;
    choice_.tiles = page_.tiles;
    choice_.k = kKeys[0];
    choice_.rows = longest_;
    choice_.exact = choice_.values = std::vector<bool>(layers_.size(), true);
  }

  // The most keys beside a few tiles, then as many tiles as leave room for these keys.
  void rows() {
    const std::int64_t few = tiles_of(std::min(page_.tiles, kEnoughTiles));
    for (const std::int64_t k : kKeys)
      if (choice_.k == 0 && rows_of(k, longest_) + few <= left_) choice_.k = k;
    const bool all = choice_.k > 0;
    choice_.rows = all ? longest_ : 0;
    const std::int64_t needed = all ? rows_of(choice_.k, longest_) : 0;
    // Where not all rows fit, every tile costs some.
    const std::int64_t share = page_.page_bytes / (all ? kShareOfTiles : 4 * kShareOfTiles);
    choice_.tiles = page_.tiles;
    while (choice_.tiles > kLeastTiles &&
           (tiles_of(choice_.tiles) + needed > left_ ||
            (choice_.tiles > kEnoughTiles && tiles_of(choice_.tiles) > share)))
      choice_.tiles = std::max(choice_.tiles / 2, kLeastTiles);
    left_ -= tiles_of(choice_.tiles) + needed;
    if (!all) some_rows();
  }

  // The last rows of every head, with one key each.
  void some_rows() {
    std::int64_t fits = 0, too_many = longest_;
    while (too_many - fits > 1) {
      const std::int64_t middle = (fits + too_many) / 2;
      (rows_of(1, middle) <= left_ ? fits : too_many) = middle;
    }
    if (fits > kRowsAtOnce) fits -= fits % kRowsAtOnce;
    if (fits == 0) return;
    choice_.k = 1;
    choice_.rows = fits;
    left_ -= rows_of(1, fits);
  }

  void norms() {
    choice_.norms = take(total(layers_, [](const LayerSizes& layer) { return layer.norms(true); }));
  }

  // q and k need the lse of all rows.
  void exact() {
    if (choice_.rows < longest_) return;
    for (std::size_t n = 0; n < layers_.size(); ++n) choice_.exact[n] = take(layers_[n].exact());
    for (std::size_t n = 0; n < layers_.size(); ++n)
      choice_.values[n] = choice_.exact[n] && take(layers_[n].values());
  }

  const PageSizes& page_;
  const std::vector<LayerSizes>& layers_;
  std::int64_t left_, longest_ = 0;
  Choice choice_;
};

}  // namespace

std::int64_t PageSizes::whole() const {
  return fixed + total(layers, [&](const LayerSizes& layer) {
           return layer.tiles(tiles) + layer.statistics(false) +
                  layer.rows(kKeys[0], layer.queries()) + layer.norms(false) + layer.exact() +
                  layer.values();
         });
}

Choice PageSizes::choice() const { return Choosing(*this).take(); }

}  // namespace attend::view
