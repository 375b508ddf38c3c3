// Who owns which positions, their rows, and what a call over ranks will cost.
#include "layouts.h"

#include "bindings.h"
#include "fields.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

namespace attend::python {
namespace {

using namespace nb::literals;
using distributed::DistributedPlan;
using distributed::Layout;
using distributed::Layouts;
using distributed::RankCost;

using Lengths = std::vector<std::int64_t>;

nb::list runs_of(const Layout& layout, int rank) {
  nb::list list;
  for (const Layout::Run& run : layout.runs(rank))
    list.append(nb::make_tuple(run.sequence, run.begin, run.end, run.local));
  return list;
}

nb::list lengths_of(const Layout& layout) {
  nb::list list;
  for (std::int64_t s = 0; s < layout.sequences(); ++s) list.append(layout.length(s));
  return list;
}

nb::tuple balanced(std::int64_t queries, nb::handle keys, int ranks, std::int64_t batch,
                   const nb::kwargs& keywords) {
  constexpr const char* where = "balanced_layouts";
  const Options options(keywords, where);
  const std::int64_t key_count =
      keys.is_none() ? queries : number<std::int64_t>(keys, where, "keys", "a whole number");
  Layouts found = distributed::balanced_layouts(
      {.queries = queries, .keys = key_count, .batch = batch}, options.get(), ranks);
  return nb::make_tuple(std::move(found.queries), std::move(found.keys));
}

nb::object take(const Layout& layout, int rank, nb::handle whole, int dim) {
  const Array array = read(whole, {"take_rows", "whole"});
  return to_python(distributed::take_rows(layout, rank, array.view, dim), whole);
}

void put(const Layout& layout, int rank, nb::handle rows, nb::handle whole, int dim) {
  const Array array = read(rows, {"put_rows", "rows"});
  const WritableArray to = write(whole, {"put_rows", "whole"});
  distributed::put_rows(layout, rank, array.view, to.view, dim);
}

DistributedPlan plan_of(nb::handle layouts, std::int64_t heads, nb::handle key_heads,
                        std::int64_t d, nb::handle dv, std::int64_t batch, nb::handle type,
                        nb::handle k_type, nb::handle v_type, nb::handle scheme, nb::handle bits,
                        const nb::kwargs& keywords) {
  constexpr const char* where = "plan";
  const Options options(keywords, where);
  const Layouts both = to_layouts(layouts, where);
  const auto or_else = [&](nb::handle value, const char* name, std::int64_t otherwise) {
    return value.is_none() ? otherwise : number<std::int64_t>(value, where, name, "a whole number");
  };
  const auto type_or_none = [&](nb::handle own) {
    return own.is_none() ? std::nullopt : std::optional(to_dtype(own, where));
  };
  const distributed::WholeSizes whole{.queries = both.queries.total(),
                                      .keys = both.keys.total(),
                                      .batch = batch,
                                      .heads = heads,
                                      .key_heads = or_else(key_heads, "key_heads", heads),
                                      .d = d,
                                      .dv = or_else(dv, "dv", d),
                                      .type = to_dtype(type, where),
                                      .k_type = type_or_none(k_type),
                                      .v_type = type_or_none(v_type)};
  return distributed::plan(both, whole, options.get(),
                           to_distributed(scheme, bits, nb::float_(1.0), where));
}

const char* scheme_name(distributed::Scheme scheme) {
  return scheme == distributed::Scheme::heads ? "heads" : "gather";
}

}  // namespace

Layouts to_layouts(nb::handle layouts, const char* where) {
  if (nb::isinstance<Layout>(layouts)) {
    const auto& both = nb::cast<const Layout&>(layouts);
    return {both, both};
  }
  if ((nb::isinstance<nb::tuple>(layouts) || nb::isinstance<nb::list>(layouts)) &&
      nb::len(layouts) == 2 && nb::isinstance<Layout>(layouts[0]) &&
      nb::isinstance<Layout>(layouts[1]))
    return {nb::cast<const Layout&>(nb::object(layouts[0])),
            nb::cast<const Layout&>(nb::object(layouts[1]))};
  raise_type_error(std::string(where) +
                   ": layouts takes a Layout, or a pair of them for queries and keys, found " +
                   name_of_type(layouts));
}

distributed::DistributedOptions to_distributed(nb::handle scheme, nb::handle bits,
                                               nb::handle timeout, const char* where) {
  using distributed::Bits;
  using distributed::Scheme;
  const std::string start = std::string(where) + ": ";
  distributed::DistributedOptions options;
  const std::string s = text_of(scheme, start + "scheme"), b = text_of(bits, start + "bits");
  if (s == "heads") options.scheme = Scheme::heads;
  else if (s == "gather") options.scheme = Scheme::gather;
  else if (s != "automatic")
    throw InvalidArgument(start + "scheme is 'automatic', 'heads' or 'gather', found '" + s + "'");
  if (b == "fast") options.bits = Bits::fast;
  else if (b != "one_process")
    throw InvalidArgument(start + "bits is 'one_process' or 'fast', found '" + b + "'");
  const double seconds = number<double>(timeout, where, "timeout", "a number of seconds");
  if (!(seconds > 0) || seconds > 1e9)
    throw InvalidArgument(start + "timeout is " + std::to_string(seconds) +
                          "; it is a number of seconds above 0");
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
  return options;
}

void bind_layouts(nb::module_& m) {
  nb::class_<Layout>(m, "Layout", R"(Who owns which positions, of queries or of keys.

lengths  of the sequences: one, whatever the batch, or those that are packed
owners   for each sequence a list: the rank that owns each granule of so many positions
ranks    how many there are

A rank's arrays hold the positions that it owns in ascending order, sequence by sequence. Bits do not
depend on it.

>>> layout = attend.distributed.Layout.serpentine([1000], 2)
>>> layout.owned(0), layout.owned(1), layout.runs(0)
(488, 512, [(0, 0, 256, 0), (0, 768, 1000, 256)])
)")
      .def(nb::init<Lengths, std::vector<std::vector<int>>, int, std::int64_t>(), "lengths"_a,
           "owners"_a, "ranks"_a, "granule"_a = distributed::kGranule)
      .def_static("serpentine", &Layout::serpentine, "lengths"_a, "ranks"_a,
                  "granule"_a = distributed::kGranule,
                  "Granules dealt 0, 1, ... P - 1, P - 1, ... 0, 0, ...: balanced where attention "
                  "is causal.")
      .def_static("contiguous", &Layout::contiguous, "lengths"_a, "ranks"_a,
                  "granule"_a = distributed::kGranule,
                  "The first granules to rank 0, the next to rank 1, as many to each or one fewer.")
      .def_prop_ro("ranks", &Layout::ranks, "How many ranks there are.")
      .def_prop_ro("granule", &Layout::granule, "Positions are dealt out by so many.")
      .def_prop_ro("lengths", lengths_of, nb::sig("def lengths(self) -> list[int]"),
                   "Of the sequences.")
      .def_prop_ro("total", &Layout::total, "Positions of all sequences.")
      .def("owned", &Layout::owned, "rank"_a, "How many positions a rank owns.")
      .def("owner", &Layout::owner, "sequence"_a, "position"_a, "The rank that owns a position.")
      .def("runs", runs_of, "rank"_a,
           nb::sig("def runs(self, rank: int) -> list[tuple[int, int, int, int]]"),
           "A rank's positions: (sequence, begin, end, row of the rank's arrays).")
      .def(
          "__eq__",
          [](const Layout& a, nb::handle b) {
            return nb::isinstance<Layout>(b) && a == nb::cast<const Layout&>(b);
          },
          "other"_a.none(), nb::sig("def __eq__(self, other: object) -> bool"));

  m.def("balanced_layouts", balanced, "queries"_a, "keys"_a = nb::none(), nb::kw_only(), "ranks"_a,
        "batch"_a = 1, "options"_a,
        nb::sig("def balanced_layouts(queries: int, keys: int | None = None, *, ranks: int, "
                "batch: int = 1, **options: Any) -> tuple[Layout, Layout]"),
        R"(Layouts of the queries and keys of a whole problem, so that ranks have as much to do.

Granules are dealt to and fro or, where pairs are hidden by a window, lengths or packed sequences,
given to whoever has least to do. Packed, queries and keys are those of all sequences.

>>> queries, keys = attend.distributed.balanced_layouts(5000, ranks=4, causal=True)
>>> queries == keys, [queries.owned(rank) for rank in range(4)]
(True, [1280, 1280, 1280, 1160])
)");

  m.def("take_rows", take, "layout"_a, "rank"_a, "whole"_a.none(), "dim"_a = 2,
        nb::sig("def take_rows(layout: Layout, rank: int, whole: ArrayT, dim: int = 2) -> ArrayT"),
        "A rank's rows of an array of the whole; `dim` is the one of the positions.");
  m.def("put_rows", put, "layout"_a, "rank"_a, "rows"_a.none(), "whole"_a.none(), "dim"_a = 2,
        nb::sig("def put_rows(layout: Layout, rank: int, rows: Array, whole: Array, dim: int = 2) "
                "-> None"),
        "Writes a rank's rows into an array of the whole.");

  nb::class_<RankCost>(m, "RankCost", "What a call will cost one rank.")
      .def_ro("sent", &RankCost::sent, "Bytes of tensors to other ranks.")
      .def_ro("received", &RankCost::received, "Bytes of tensors from other ranks.")
      .def_ro("memory", &RankCost::memory, "Bytes beside the caller's arrays and workspaces.");
  nb::class_<DistributedPlan>(m, "DistributedPlan", "What a call over ranks will cost.")
      .def_prop_ro(
          "scheme", [](const DistributedPlan& plan) { return scheme_name(plan.scheme); },
          "'heads' or 'gather': the one that is used forward.")
      .def_prop_ro(
          "backward_scheme",
          [](const DistributedPlan& plan) { return scheme_name(plan.backward_scheme); },
          "And backward.")
      .def_ro("forward", &DistributedPlan::forward, "A RankCost for each rank.")
      .def_ro("backward", &DistributedPlan::backward, "A RankCost for each rank.")
      .def("describe", &DistributedPlan::describe, "All of it in words.")
      .def("__repr__", &DistributedPlan::describe);
  m.def("distributed_plan", plan_of, "layouts"_a, nb::kw_only(), "heads"_a,
        "key_heads"_a = nb::none(), "d"_a, "dv"_a = nb::none(), "batch"_a = 1, "type"_a = "f32",
        "k_type"_a = nb::none(), "v_type"_a = nb::none(), "scheme"_a = "automatic",
        "bits"_a = "one_process", "options"_a,
        nb::sig("def distributed_plan(layouts: Layout | Sequence[Layout], *, heads: int, "
                "key_heads: int | None = None, d: int, dv: int | None = None, batch: int = 1, "
                "type: str = 'f32', k_type: str | None = None, v_type: str | None = "
                "None, " ATTEND_DISTRIBUTED "**options: Any) -> DistributedPlan"),
        "What a call over ranks will cost: bytes, memory, balance. Nothing is sent.");
}

}  // namespace attend::python
