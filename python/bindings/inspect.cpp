// inspect, weights_of, and the page.
#include "inspect.h"
#include "bindings.h"
#include "call.h"
#include "layer.h"
#include "place.h"

#include <attend/view.h>

#include <nanobind/stl/vector.h>

#include <deque>

namespace attend::python {
namespace {

using namespace nb::literals;

nb::object types(const char* name) { return nb::module_::import_("attend._types").attr(name); }

nb::object inspect_arrays(nb::handle q, nb::handle k, std::int64_t top_k, bool key_mass,
                          bool metrics, std::int64_t local_width, nb::handle tokens,
                          std::int64_t tile_rows, std::int64_t tile_columns, GivenContext context,
                          const nb::kwargs& keywords) {
  constexpr const char* where = "inspect";
  const Array queries = read(q, {where, "q", Kind::floating, false, Devices::any});
  const Array keys = read(k, {where, "k", Kind::keys, false, Devices::any});
  const InspectArguments arguments({.top_k = top_k,
                                    .key_mass = key_mass,
                                    .metrics = metrics,
                                    .local_width = local_width,
                                    .tile_rows = tile_rows,
                                    .tile_columns = tile_columns},
                                   tokens, where, Devices::any);
  const Options options(keywords, where, Devices::any);
  const Place place(where, queries, context_or_default(context));
  Statistics statistics;
  place.run([&](const Where& at) {
    statistics = inspect(queries, keys, options.get(), arguments.options, at);
  });
  return to_python(std::move(statistics), q);
}

nb::object window_of_weights(nb::handle q, nb::handle k, nb::handle lse, std::int64_t batch,
                             std::int64_t head, std::int64_t query, std::int64_t queries,
                             std::int64_t key, std::int64_t keys, GivenContext context,
                             const nb::kwargs& keywords) {
  constexpr const char* where = "weights_of";
  const Array q_array = read(q, {where, "q", Kind::floating, false, Devices::any});
  const Array k_array = read(k, {where, "k", Kind::keys, false, Devices::any});
  const Array lse_array = read(lse, {where, "lse", Kind::floating, false, Devices::any});
  const Options options(keywords, where, Devices::any);
  const Place place(where, q_array, context_or_default(context));
  const WeightsWindow window{batch, head, query, queries, key, keys};
  Tensor weights;
  place.run([&](const Where& at) {
    weights = weights_of(q_array, k_array, lse_array, window, options.get(), at);
  });
  return to_python(std::move(weights), q);
}

// ---- the page ----------------------------------------------------------------------------------

std::vector<std::string> texts_of(nb::handle list, const std::string& what) {
  std::vector<std::string> texts;
  for (const nb::handle item : list)
    texts.push_back(text_of(item, what + "[" + std::to_string(texts.size()) + "]"));
  return texts;
}

// Runs as attend/_view.py hands them over, and the arrays that they show.
class ViewRuns {
 public:
  explicit ViewRuns(const nb::list& runs) {
    for (const nb::handle run : runs) {
      ViewRun& to = runs_.emplace_back();
      to.name = text_of(run["name"], "view: names");
      to.tokens = texts_of(run["tokens"], "view: tokens");
      to.key_tokens = texts_of(run["key_tokens"], "view: key_tokens");
      to.token_ids = nb::cast<std::vector<std::int64_t>>(run["token_ids"]);
      for (const nb::handle layer : run["layers"]) add(to, layer);
    }
  }
  const std::vector<ViewRun>& get() const noexcept { return runs_; }

 private:
  void add(ViewRun& to, nb::handle layer) {
    const auto array = [&](const char* name, Kind kind, bool optional) -> const ConstTensorView& {
      return arrays_.emplace_back(read(layer[name], {"view", name, kind, optional}));
    };
    const Options& options = options_.emplace_back(layer["options"], "view", "options");
    to.layers.push_back({.name = text_of(layer["name"], "view: the name of a layer"),
                         .q = array("q", Kind::floating, false),
                         .k = array("k", Kind::keys, false),
                         .v = array("v", Kind::keys, true),
                         .options = options.get(),
                         .contribution = nb::cast<std::vector<double>>(layer["contribution"]),
                         .w_o = array("w_o", Kind::floating, true)});
  }

  std::deque<Array> arrays_;  // whose elements do not move
  std::deque<Options> options_;
  std::vector<ViewRun> runs_;
};

std::string page(const nb::list& runs, nb::handle title, nb::handle language, std::int64_t batch,
                 std::int64_t page_bytes, std::int64_t tiles,
                 const std::vector<std::vector<std::int64_t>>& windows, std::int64_t open_run,
                 nb::handle progress, GivenContext context, nb::handle command) {
  const ViewRuns read_runs(runs);
  ViewOptions options{.title = text_of(title, "view: title"),
                      .language = text_of(language, "view: language"),
                      .batch = batch,
                      .page_bytes = page_bytes,
                      .tiles = tiles,
                      .open_run = open_run,
                      .command = text_of(command, "view: command")};
  if (!progress.is_none())
    options.progress = [=](std::int64_t done, std::int64_t all) {
      const nb::gil_scoped_acquire locked;
      progress(done, all);
    };
  for (const auto& w : windows) {
    if (w.size() != 6)
      throw InvalidArgument("view: a window is (layer, head, query, queries, key, keys), found " +
                            std::to_string(w.size()) + " numbers");
    options.windows.push_back({w[0], w[1], w[2], w[3], w[4], w[5]});
  }
  return unlocked([&] { return view_page(read_runs.get(), options, context_or_default(context)); });
}

}  // namespace

InspectArguments::InspectArguments(const InspectOptions& given, nb::handle tokens,
                                   const char* where, Devices devices)
    : tokens_(read(types("token_numbers")(where, tokens),
                   {where, "tokens", Kind::whole, true, devices})),
      options(given) {
  options.tokens = tokens_;
}

nb::object to_python(Statistics&& s, nb::handle like) {
  const nb::object head_type = types("HeadStatistics");
  const auto heads = static_cast<std::size_t>(s.lse.size(1));
  nb::list list;
  for (std::size_t n = 0; n < s.heads.size(); ++n) {
    const HeadStatistics& h = s.heads[n];
    const HeadLabel label = label_of(h);
    list.append(head_type("batch"_a = n / heads, "head"_a = n % heads, "label"_a = label.name,
                          "score"_a = label.score, "definition"_a = label.definition,
                          "rows"_a = h.rows, "lse"_a = h.lse, "entropy"_a = h.entropy,
                          "evenness"_a = h.evenness, "maximum"_a = h.maximum,
                          "distance"_a = h.distance, "previous"_a = h.previous, "first"_a = h.first,
                          "diagonal"_a = h.diagonal, "local"_a = h.local,
                          "local_uniform"_a = h.local_uniform, "duplicate"_a = h.duplicate,
                          "induction"_a = h.induction, "contribution"_a = h.contribution));
  }
  const auto array = [&](Tensor& tensor) { return to_python(std::move(tensor), like); };
  return types("Statistics")(
      "lse"_a = array(s.lse), "maximum"_a = array(s.maximum), "entropy"_a = array(s.entropy),
      "top_keys"_a = array(s.top_keys), "top_weights"_a = array(s.top_weights),
      "key_mass"_a = array(s.key_mass), "tile_mean"_a = array(s.tile_mean),
      "tile_maximum"_a = array(s.tile_maximum), "tile_queries"_a = s.tile_queries,
      "tile_keys"_a = s.tile_keys, "batch"_a = s.batch, "heads"_a = list);
}

void bind_inspect(nb::module_& m) {
  const auto no_context = nb::arg("context") = nb::none();
  m.def("inspect", inspect_arrays, "q"_a.none(), "k"_a.none(), nb::kw_only(), "top_k"_a = 0,
        "key_mass"_a = true, "metrics"_a = true, "local_width"_a = 8, "tokens"_a = nb::none(),
        "tile_rows"_a = 0, "tile_columns"_a = 0, no_context, "options"_a,
        nb::sig("def inspect(q: Array, k: Array, *, " ATTEND_INSPECT ATTEND_OPTIONS
                "context: Context | None = None) -> Statistics"),
        R"(What every head looks at, without storing the weights: memory is O(length).

    q [batch, heads, queries, d]        k [batch, key heads, keys, d]

Options as in attention(); dropout is ignored. Returns Statistics: lse, maximum and entropy of every
row, and of every head means, scores and a label.

top_k                keys of largest weight to list for each row, with their weights
key_mass             of every key the sum of the weights that it receives
metrics              of every head distance, previous, first, diagonal, local, duplicate, induction
local_width          'local' is at most so far from the query's position
tokens               for duplicate and induction: a list of the keys' texts, or integers [keys] or
                     [batch, keys]
tile_rows, tile_columns  both above 0: a map of at most so many tiles

>>> q = numpy.zeros((1, 2, 4, 8)); statistics = attend.inspect(q, q, top_k=1)
>>> statistics.entropy.shape, round(statistics.heads[0].entropy, 4)
((1, 2, 4), 1.3863)
>>> statistics.heads[0].label
'uniform'
)");

  m.def("weights_of", window_of_weights, "q"_a.none(), "k"_a.none(), "lse"_a, nb::kw_only(),
        "batch"_a = 0, "head"_a = 0, "query"_a = 0, "queries"_a, "key"_a = 0, "keys"_a, no_context,
        "options"_a,
        nb::sig("def weights_of(q: ArrayT, k: Array, lse: Array, *, batch: int = 0, head: int = 0, "
                "query: int = 0, queries: int, key: int = 0, keys: int, " ATTEND_OPTIONS
                "context: Context | None = None) -> ArrayT"),
        R"(The exact weights of a part of one head, [queries, keys], from q, k and lse.

`queries` queries from `query` on, and `keys` keys from `key` on. lse is what attention() or
inspect() gave for the same q, k and options.

>>> q = numpy.zeros((1, 1, 4, 8))
>>> attend.weights_of(q, q, attend.inspect(q, q).lse, query=2, queries=1, keys=2)
array([[0.25, 0.25]])
)");

  m.def("view_page", page, "runs"_a, "title"_a, "language"_a, "batch"_a, "page_bytes"_a, "tiles"_a,
        "windows"_a, "open_run"_a, "progress"_a.none(), no_context, "command"_a = "attend view",
        nb::sig("def view_page(runs: list[Any], title: str, language: str, batch: int, "
                "page_bytes: int, tiles: int, windows: Sequence[Sequence[int]], open_run: int, "
                "progress: Callable[[int, int], object] | None, "
                "context: Context | None = None, command: str = 'attend view') -> str"),
        "The page as text, from dicts of runs and layers; attend.view makes them.");
}

}  // namespace attend::python
