#include "view/plan.h"

#include "core/text.h"

#include <algorithm>
#include <map>

namespace attend::view {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMostTileBytes = 8 * kMiB;  // of all maps together
constexpr std::int64_t kMostRowBytes = 8 * kMiB;   // of all statistics of rows and keys
constexpr std::int64_t kLeastTiles = 16;           // below, a map shows nothing
constexpr std::int64_t kWindow = 64;               // side of a window that nobody chose

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidArgument(text("view: ", parts...));
}

std::string megabytes(std::int64_t bytes) {
  const std::int64_t tenths = (bytes * 10 + kMiB - 1) / kMiB;  // rounded up
  return text(static_cast<double>(tenths) / 10, " MiB");
}

void check(std::span<const ViewRun> runs, const ViewOptions& o) {
  if (runs.empty() || runs.size() > 2)
    fail("there are ", runs.size(), " runs; the page shows one, or compares two");
  if (o.language != "en" && o.language != "zh")
    fail("language is '", o.language, "'; it must be en or zh");
  if (o.embed_bytes < 0 || o.embed_bytes > kMostEmbeddedBytes)
    fail("embed_bytes is ", o.embed_bytes, "; it must be from 0 to ", kMostEmbeddedBytes);
  if (o.tiles < 1 || o.tiles > 1024) fail("tiles is ", o.tiles, "; it must be from 1 to 1024");
  if (o.top_k < 0 || o.top_k > 1024) fail("top_k is ", o.top_k, "; it must be from 0 to 1024");
  if (o.open_run < 0 || o.open_run >= std::ssize(runs))
    fail("open_run is ", o.open_run, "; there are ", runs.size(), " runs, counted from 0");
}

// ---- tokens ------------------------------------------------------------------------------------

// The texts of the queries, which may be the last ones of the keys' texts.
std::vector<std::string> query_tokens(const ViewRun& run, const Single& s) {
  const std::vector<std::string>& all = run.tokens;
  if (std::ssize(all) == s.queries()) return all;
  const std::int64_t begin = s.query_offset, end = begin + s.queries();
  if (run.key_tokens.empty() && std::ssize(all) == s.keys() && begin >= 0 && end <= std::ssize(all))
    return {all.begin() + begin, all.begin() + end};
  return {};
}

void plan_tokens(const ViewRun& run, const std::string& where, PlannedRun& plan) {
  for (const PlannedLayer& layer : plan.layers) {
    const Single& s = *layer.single;
    if (!run.tokens.empty()) {
      std::vector<std::string> tokens = query_tokens(run, s);
      if (tokens.empty() || (&layer != &plan.layers[0] && tokens != plan.tokens))
        fail(where, "there are ", run.tokens.size(), " tokens, ", layer.name, " has ", s.queries(),
             " queries and ", s.keys(), " keys");
      plan.tokens = std::move(tokens);
    }
    plan.key_tokens = run.key_tokens.empty() ? run.tokens : run.key_tokens;
    if (std::ssize(plan.key_tokens) == s.keys()) continue;
    if (!run.key_tokens.empty())
      fail(where, "there are ", run.key_tokens.size(), " key tokens, ", layer.name, " has ",
           s.keys(), " keys");
    plan.key_tokens.clear();
  }
}

// Equal texts are equal tokens, where no numbers are given.
void plan_token_ids(const ViewRun& run, const std::string& where, PlannedRun& plan) {
  const std::int64_t keys = plan.layers.empty() ? 0 : plan.layers[0].single->keys();
  std::vector<std::int64_t> ids = run.token_ids;
  std::map<std::string, std::int64_t> known;
  if (ids.empty())
    for (const std::string& token : plan.key_tokens)
      ids.push_back(known.emplace(token, std::ssize(known)).first->second);
  if (ids.empty()) return;
  for (const PlannedLayer& layer : plan.layers)
    if (std::ssize(ids) != layer.single->keys())
      fail(where, "there are ", ids.size(), " token numbers, ", layer.name, " has ",
           layer.single->keys(), " keys");
  plan.token_ids = Tensor::copy_of(ConstTensorView(ids.data(), {keys}));
}

// ---- sizes -------------------------------------------------------------------------------------

void check_equal(const PlannedRun& a, const PlannedRun& b) {
  if (a.layers.size() != b.layers.size())
    fail("the runs have ", a.layers.size(), " and ", b.layers.size(),
         " layers; runs to compare have equal sizes");
  for (std::size_t n = 0; n < a.layers.size(); ++n) {
    const Single &x = *a.layers[n].single, &y = *b.layers[n].single;
    const Shape one{x.heads(), x.queries(), x.keys()}, other{y.heads(), y.queries(), y.keys()};
    if (one != other)
      fail("layer ", n, " has [heads, queries, keys] ", one, " in one run and ", other,
           " in the other; runs to compare have equal sizes");
  }
}

// Windows that were asked for; they come before everything else. Returns their bytes.
std::int64_t plan_windows(std::vector<PlannedRun>& plan, const ViewOptions& options) {
  std::int64_t bytes = 0;
  for (PlannedRun& run : plan)
    for (const ViewWindow& w : options.windows) {
      if (w.layer < 0 || w.layer >= std::ssize(run.layers))
        fail("a window is of layer ", w.layer, "; there are ", run.layers.size());
      PlannedLayer& layer = run.layers[static_cast<std::size_t>(w.layer)];
      const Single& s = *layer.single;
      const auto inside = [](std::int64_t begin, std::int64_t count, std::int64_t all) {
        return begin >= 0 && count > 0 && begin < all && count <= all - begin;
      };
      if (w.head < 0 || w.head >= s.heads() || !inside(w.query, w.queries, s.queries()) ||
          !inside(w.key, w.keys, s.keys()))
        fail("a window is head ", w.head, ", queries ", w.query, " + ", w.queries, ", keys ", w.key,
             " + ", w.keys, "; ", layer.name, " has ", s.heads(), " heads, ", s.queries(),
             " queries, ", s.keys(), " keys");
      if (w.keys > options.embed_bytes / 4 / w.queries)
        fail("a window of ", w.queries, " x ", w.keys, " weights does not fit into the ",
             options.embed_bytes, " bytes allowed");
      layer.content.windows.push_back({0, w.head, w.query, w.queries, w.key, w.keys});
      bytes += 4 * w.queries * w.keys;
    }
  if (bytes > options.embed_bytes)
    fail("the windows need ", bytes, " bytes; ", options.embed_bytes, " are allowed");
  return bytes;
}

class Budget {
 public:
  Budget(std::vector<PlannedRun>& plan, const ViewOptions& options, Notes& notes)
      : plan_(plan), o_(options), notes_(notes), left_(options.embed_bytes) {}

  void spend() {
    left_ -= plan_windows(plan_, o_);
    exact();
    rest();
    rows();
    tiles();
  }

 private:
  template <class Use>
  void each(Use use) {
    for (PlannedRun& run : plan_)
      for (PlannedLayer& layer : run.layers) use(layer);
  }
  // Layer n of every run, or of none: two runs are compared cell by cell.
  std::int64_t bytes_of(std::size_t n, std::int64_t LayerBytes::*part) const {
    std::int64_t bytes = 0;
    for (const PlannedRun& run : plan_) bytes += LayerBytes(*run.layers[n].single).*part;
    return bytes;
  }
  bool take(std::int64_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

  // q and k of all layers, else of the first that fit; v after them, of all or of none.
  void exact() {
    const std::size_t layers = plan_[0].layers.size();
    std::size_t done = 0;
    std::int64_t needed = 0, values = 0;
    for (std::size_t n = 0; n < layers; ++n) {
      needed += bytes_of(n, &LayerBytes::exact);
      values += bytes_of(n, &LayerBytes::values);
      if (!take(bytes_of(n, &LayerBytes::exact))) continue;
      for (PlannedRun& run : plan_) run.layers[n].content.exact = true;
      ++done;
    }
    if (done < layers) {
      notes_.add(
          text("The page is reduced: q and k of ", done, " of ", layers,
               " layers are on it, where every weight is exact; the other layers have tiles and "
               "the chosen windows only. All of them need ",
               megabytes(needed), ", ", megabytes(o_.embed_bytes), " are allowed."),
          text("页面经过缩减：", layers, " 层中有 ", done,
               " 层带有 q 和 k，其中每个权重都是精确的；其余各层只有分块图和所选窗口。全部需要 ",
               megabytes(needed), "，允许 ", megabytes(o_.embed_bytes), "。"));
    }
    const bool with_values = done == layers && take(values);
    each([&](PlannedLayer& layer) { layer.content.values = with_values && layer.single->v; });
    if (done == layers && !with_values)
      notes_.add(
          text("The values v are left out: they need ", megabytes(values), ", ", megabytes(left_),
               " are left of ", megabytes(o_.embed_bytes),
               "; a larger --embed (embed_bytes, up to 32 MiB) makes room."),
          text("未包含数值 v：需要 ", megabytes(values), "，在允许的 ", megabytes(o_.embed_bytes),
               " 中只剩 ", megabytes(left_), "；可加大 --embed（embed_bytes，至多 32 MiB）。"));
  }

  // Of layers without q and k: the end of every head, where the newest tokens meet, and the keys of
  // largest weight.
  void rest() {
    each([&](PlannedLayer& layer) {
      const Single& s = *layer.single;
      const std::int64_t queries = std::min(kWindow, s.queries()),
                         keys = std::min(kWindow, s.keys());
      if (layer.content.exact || !take(4 * s.heads() * queries * keys)) return;
      for (std::int64_t h = 0; h < s.heads(); ++h)
        layer.content.windows.push_back(
            {0, h, s.queries() - queries, queries, s.keys() - keys, keys});
    });
    each([&](PlannedLayer& layer) {
      const Single& s = *layer.single;
      const std::int64_t top_k = std::min(o_.top_k, s.keys());
      if (!layer.content.exact && take(8 * top_k * s.heads() * s.queries()))
        layer.content.top_k = top_k;
    });
  }

  void rows() {
    std::int64_t numbers = 0;
    each([&](PlannedLayer& layer) { numbers += LayerBytes(*layer.single).rows; });
    const bool halves = 4 * numbers > kMostRowBytes, left_out = numbers > kMostRowBytes;
    each([&](PlannedLayer& layer) {
      layer.content.halves = halves;
      layer.content.rows = !left_out || layer.content.exact;
    });
    if (left_out)
      notes_.add(text("The statistics of single rows and keys are left out: they are ", numbers,
                      " numbers."),
                 text("未包含逐行和逐键的统计：共 ", numbers, " 个数。"));
    else if (halves)
      notes_.add("Statistics of rows and keys are rounded to 16 bits.",
                 "逐行和逐键的统计舍入为 16 位。");
  }

  void tiles() {
    std::int64_t heads = 0, side = o_.tiles;
    each([&](PlannedLayer& layer) { heads += layer.single->heads(); });
    while (side > kLeastTiles && 2 * heads > kMostTileBytes / side / side) side /= 2;
    if (2 * heads > kMostTileBytes / side / side)
      fail("the page would be too large: ", heads, " heads, of which each has a map; show fewer");
    each([&](PlannedLayer& layer) { layer.content.tiles = side; });
  }

  std::vector<PlannedRun>& plan_;
  const ViewOptions& o_;
  Notes& notes_;
  std::int64_t left_;
};

// Of this element of the batch.
std::vector<double> contribution_of(const ViewLayer& layer, std::int64_t heads, std::int64_t batch,
                                    const std::string& where) {
  const std::vector<double>& all = layer.contribution;
  if (all.empty() || std::ssize(all) == heads) return all;
  if (std::ssize(all) != heads * layer.q.size(0))
    fail(where, " has ", all.size(), " contributions and ", heads, " heads");
  return {all.begin() + batch * heads, all.begin() + (batch + 1) * heads};
}

PlannedRun planned_run(const ViewRun& run, const std::string& where, const ViewOptions& options) {
  if (run.layers.empty()) fail(where, "there are no layers");
  PlannedRun plan;
  for (std::size_t n = 0; n < run.layers.size(); ++n) {
    const ViewLayer& layer = run.layers[n];
    const std::string name = layer.name.empty() ? text("layer ", n) : layer.name;
    auto single = std::make_unique<Single>(layer, options.batch, text("view: ", where, name));
    auto contribution = contribution_of(layer, single->heads(), options.batch, where + name);
    plan.layers.push_back({name, std::move(single), std::move(contribution), {}});
  }
  plan_tokens(run, where, plan);
  plan_token_ids(run, where, plan);
  return plan;
}

}  // namespace

std::vector<PlannedRun> planned(std::span<const ViewRun> runs, const ViewOptions& options,
                                Notes& notes) {
  check(runs, options);
  std::vector<PlannedRun> plan;
  for (std::size_t n = 0; n < runs.size(); ++n)
    plan.push_back(planned_run(runs[n], runs.size() > 1 ? text("run ", n, ", ") : "", options));
  if (plan.size() > 1) check_equal(plan[0], plan[1]);
  Budget(plan, options, notes).spend();
  return plan;
}

}  // namespace attend::view
