#include "view/plan.h"

#include "core/text.h"
#include "view/assets.h"

#include <algorithm>
#include <map>

namespace attend::view {
namespace {

// JSON, in characters, at most. Beside the blobs: options, metrics and a label of each head, why
// q and k are missing, what is not finite.
constexpr std::int64_t kOfPage = 16384, kOfLayer = 6144, kOfHead = 832, kOfWindow = 192;
constexpr std::int64_t kOfByte = 6;  // of a text: one byte may become \u001f or &quot;

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw InvalidArgument(text("view: ", parts...));
}

void check(std::span<const ViewRun> runs, const ViewOptions& o) {
  if (runs.empty() || runs.size() > 2)
    fail("there are ", runs.size(), " runs; the page shows one, or compares two");
  if (o.language != "en" && o.language != "zh")
    fail("language is '", o.language, "'; it must be en or zh");
  if (o.page_bytes < 1 || o.page_bytes > kMostPageBytes)
    fail("page_bytes is ", o.page_bytes, "; it must be from 1 to ", kMostPageBytes);
  if (o.tiles < 1 || o.tiles > 1024) fail("tiles is ", o.tiles, "; it must be from 1 to 1024");
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

// Windows that were asked for. Returns their characters.
std::int64_t plan_windows(std::vector<PlannedRun>& plan, const ViewOptions& options) {
  std::int64_t size = 0;
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
      if (w.keys > options.page_bytes / 4 / w.queries)
        fail("a window of ", w.queries, " x ", w.keys, " weights does not fit into a page of ",
             options.page_bytes, " bytes");
      layer.content.windows.push_back({0, w.head, w.query, w.queries, w.key, w.keys});
      size += kOfWindow + characters_of_blob(4 * w.queries * w.keys);
    }
  return size;
}

std::int64_t characters_of(const std::vector<std::string>& texts) {
  std::int64_t size = 0;
  for (const std::string& text : texts) size += std::ssize(Json(text).text()) + 1;
  return size;
}

// The page without what is left to choose, and without windows.
std::int64_t fixed_size(std::span<const ViewRun> runs, const std::vector<PlannedRun>& plan,
                        const ViewOptions& options) {
  std::int64_t size = std::ssize(kShell.text) + std::ssize(kStyle.text) + std::ssize(kScript.text) +
                      kOfPage +
                      kOfByte * (2 * std::ssize(options.title) + std::ssize(options.command));
  for (std::size_t n = 0; n < plan.size(); ++n) {
    constexpr std::int64_t kOfPosition = 12;  // in the list of special tokens
    size += kOfByte * std::ssize(runs[n].name) + characters_of(plan[n].tokens) +
            characters_of(plan[n].key_tokens) + kOfPosition * std::ssize(plan[n].key_tokens);
    for (const PlannedLayer& layer : plan[n].layers)  // names of layers are in notes, too
      size += kOfLayer + kOfHead * layer.single->heads() +
              kOfByte * (3 * std::ssize(layer.name) + 2 * std::ssize(options.command));
  }
  return size;
}

PageSizes sizes_of(std::span<const ViewRun> runs, const std::vector<PlannedRun>& plan,
                   const ViewOptions& options, std::int64_t windows) {
  PageSizes page{.layers = std::vector<LayerSizes>(plan[0].layers.size()),
                 .fixed = fixed_size(runs, plan, options) + windows,
                 .tiles = options.tiles,
                 .page_bytes = options.page_bytes};
  for (const PlannedRun& run : plan)
    for (std::size_t n = 0; n < run.layers.size(); ++n)
      page.layers[n].add(*run.layers[n].single, static_cast<bool>(run.layers[n].w_o));
  return page;
}

void plan_contents(std::span<const ViewRun> runs, std::vector<PlannedRun>& plan,
                   const ViewOptions& options, Notes& notes) {
  const std::int64_t windows = plan_windows(plan, options);
  const PageSizes page = sizes_of(runs, plan, options, windows);
  const Choice choice = page.choice();
  if (choice.least > options.page_bytes) {
    std::int64_t heads = 0;
    for (const LayerSizes& layer : page.layers) heads += layer.heads();
    fail("the page takes at least ", choice.least, " bytes, for maps and scores of ", heads,
         " heads, tokens, and ", windows, " of windows; page_bytes is ", options.page_bytes,
         ", and may be up to ", kMostPageBytes);
  }
  const std::vector<std::string> why = reasons(page, choice, notes, options.command);
  for (PlannedRun& run : plan)
    for (std::size_t n = 0; n < run.layers.size(); ++n) {
      const Single& s = *run.layers[n].single;
      LayerContent& content = run.layers[n].content;
      content.exact = choice.exact[n];
      content.values = choice.values[n] && s.v;
      content.norms = choice.norms && s.v;
      content.statistics = choice.statistics;
      content.reduced = !choice.whole;
      content.k = std::min(choice.k, s.keys());
      content.rows = std::min(choice.rows, s.queries());
      content.tiles = choice.tiles;
      content.why = why[n];
    }
  if (!choice.whole) say_what_is_reduced(page, choice, notes);
}

// Of this element of the batch.
std::vector<double> contribution_of(const ViewLayer& layer, std::int64_t heads, std::int64_t batch,
                                    const std::string& where) {
  const std::vector<double>& all = layer.contribution;
  if (all.empty() || std::ssize(all) == heads) return all;
  if (std::ssize(all) != heads * layer.q.size(0))
    fail(where, " has ", all.size(), " contributions and ", heads, " heads");
  return {all.begin() + batch * heads, all.begin() + (batch + 1) * heads};
}

ConstTensorView output_weights(const ViewLayer& layer, const Single& s, const std::string& where) {
  const ConstTensorView& w = layer.w_o;
  if (!w) return w;
  if (!s.v) fail(where, " has w_o and no v");
  if (w.rank() != 2 || w.size(1) != s.heads() * s.v.size(3) ||
      (w.dtype() != DType::f64 && w.dtype() != DType::f32 && w.dtype() != DType::bf16 &&
       w.dtype() != DType::f16))
    fail(where, ": w_o is ", w.dtype(), " ", w.shape(),
         "; it must be f64, f32, bf16 or f16, [model_dim, ", s.heads() * s.v.size(3),
         "]: heads * dv");
  return w;
}

PlannedRun planned_run(const ViewRun& run, const std::string& where, const ViewOptions& options) {
  if (run.layers.empty()) fail(where, "there are no layers");
  PlannedRun plan;
  for (std::size_t n = 0; n < run.layers.size(); ++n) {
    const ViewLayer& layer = run.layers[n];
    const std::string name = layer.name.empty() ? text("layer ", n) : layer.name;
    auto single = std::make_unique<Single>(layer, options.batch, text("view: ", where, name));
    auto contribution = contribution_of(layer, single->heads(), options.batch, where + name);
    const ConstTensorView w_o = output_weights(layer, *single, where + name);
    plan.layers.push_back({name, std::move(single), std::move(contribution), w_o, {}});
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
  plan_contents(runs, plan, options, notes);
  return plan;
}

}  // namespace attend::view
