// Attention over ranks and its gradient.
#include "bindings.h"
#include "call.h"
#include "layouts.h"

#include <array>
#include <exception>

namespace attend::python {
namespace {

using namespace nb::literals;
using distributed::DistributedOptions;
using distributed::Group;
using distributed::Layouts;

constexpr std::int64_t kUnknown = -1;

struct Rows {
  std::int64_t queries = kUnknown, keys = kUnknown;
};

// The rows of all ranks together. A rank whose arguments are wrong has unknown ones: all throw.
Rows total_rows(Group& group, const Rows& own, const DistributedOptions& how) {
  struct Memory {
    Rows own;
    std::vector<Rows> all;
  };
  const auto size = static_cast<std::size_t>(group.size());
  const auto self = static_cast<std::size_t>(group.rank());
  const auto memory = std::make_shared<Memory>(Memory{own, std::vector<Rows>(size, own)});
  std::vector<std::span<const std::byte>> send(size, std::as_bytes(std::span(&memory->own, 1)));
  std::vector<std::span<std::byte>> receive;
  for (Rows& rows : memory->all) receive.push_back(std::as_writable_bytes(std::span(&rows, 1)));
  send[self] = {};
  receive[self] = {};
  if (!group.failure().empty())
    throw distributed::PeerError(
        "distributed.attention: the group takes no more calls since one failed: " +
        group.failure());
  try {
    const auto pending = group.exchange(send, receive);
    if (!pending->wait(how.timeout)) {
      std::string missing;
      for (const int r : pending->missing()) missing += " " + std::to_string(r);
      throw distributed::PeerError("distributed.attention: no answer from ranks" + missing +
                                   " within " + std::to_string(how.timeout.count()) + " ms");
    }
  } catch (const std::exception& error) {
    group.keep(memory);
    group.fail(error.what());
    throw;
  }
  Rows total{0, 0};
  for (std::size_t r = 0; r < size; ++r) {
    if (memory->all[r].queries == kUnknown)
      throw InvalidArgument("distributed.attention: the arguments of rank " + std::to_string(r) +
                            " are wrong; its own error says how");
    total.queries += memory->all[r].queries;
    total.keys += memory->all[r].keys;
  }
  return total;
}

// A call that all ranks make together, begun by one of them.
class RanksCall {
 public:
  RanksCall(Group& group, nb::handle given, nb::handle scheme, nb::handle bits, nb::handle timeout,
            const char* where)
      : group_(group), given_(given), where_(where) {
    try {
      how = to_distributed(scheme, bits, timeout, where);
    } catch (...) {
      wrong_ = std::current_exception();
    }
  }

  // prepare(), which is this rank's alone, and the layouts: as they are given, or the balanced ones
  // of as many rows as all ranks have. If something is wrong here, the others hear of it instead of
  // waiting: by the number of rows, or by refuse(), which takes part in the call with arguments
  // that are wrong.
  template <class Prepare, class Refuse>
  void begin(const Prepare& prepare, const std::optional<Inputs>& in,
             const std::optional<Options>& options, const Refuse& refuse) {
    try {
      if (wrong_) std::rethrow_exception(wrong_);
      prepare();
      if (!given_.is_none()) layouts = to_layouts(given_, where_);
    } catch (...) {
      wrong_ = std::current_exception();
    }
    {
      const Unlocked unlocked;
      if (given_.is_none()) balance(in, options, refuse);
      else if (wrong_) without_exceptions(refuse);
    }
    if (wrong_) std::rethrow_exception(wrong_);
  }

  DistributedOptions how;
  Layouts layouts;

 private:
  static Rows rows_of(const Inputs& in) {
    const auto rows = [](const ConstTensorView& view) {
      return view.rank() == 4 ? view.size(2) : 0;
    };
    return {rows(in.q), rows(in.k)};
  }
  template <class Refuse>
  void balance(const std::optional<Inputs>& in, const std::optional<Options>& options,
               const Refuse& refuse) {
    if (wrong_) {
      without_exceptions([&] { total_rows(group_, {}, how); });
      return;
    }
    const Rows total = total_rows(group_, rows_of(*in), how);
    const bool batched = !options->get().cu_seqlens_q && in->q.view.rank() == 4;
    try {
      layouts = distributed::balanced_layouts(
          {.queries = total.queries, .keys = total.keys, .batch = batched ? in->q.view.size(0) : 1},
          options->get(), group_.size());
    } catch (...) {
      wrong_ = std::current_exception();
      without_exceptions(refuse);
    }
  }
  // For what only follows from the exception that is at hand.
  template <class Call>
  static void without_exceptions(const Call& call) {
    try {
      call();
    } catch (const std::exception&) {
    }
  }

  Group& group_;
  nb::handle given_;
  const char* where_;
  std::exception_ptr wrong_;
};

nb::object forward(Group& group, nb::handle q, nb::handle k, nb::handle v, nb::handle layouts,
                   nb::handle scheme, nb::handle bits, nb::handle timeout, nb::handle out,
                   nb::handle return_lse, GivenContext context, const nb::kwargs& keywords) {
  constexpr const char* where = "distributed.attention";
  RanksCall call(group, layouts, scheme, bits, timeout, where);
  Context& used = context_or_default(context);
  std::optional<Inputs> in;
  std::optional<Options> options;
  std::optional<Results> results;
  call.begin(
      [&] {
        in.emplace(q, k, v, where);
        options.emplace(keywords, where);
        Wanted wanted;
        wanted.lse = number<bool>(return_lse, where, "return_lse", "True or False");
        results.emplace(*in, options->get(), wanted, out, where, Place(where, in->q, used));
      },
      in, options,
      [&] { distributed::attention(group, {}, {}, {}, {}, TensorView(), {}, {}, call.how, used); });
  {
    const Unlocked unlocked;
    distributed::attention(group, call.layouts, in->q, in->k, in->v, results->out(), options->get(),
                           results->outputs(), call.how, used);
  }
  return results->to_python(q);
}

nb::object backward(Group& group, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                    nb::handle lse, nb::handle dout, nb::handle layouts, nb::handle scheme,
                    nb::handle bits, nb::handle timeout, nb::handle dlse, GivenContext context,
                    const nb::kwargs& keywords) {
  constexpr const char* where = "distributed.attention_backward";
  RanksCall call(group, layouts, scheme, bits, timeout, where);
  Context& used = context_or_default(context);
  std::optional<Inputs> in;
  std::optional<BackwardArrays> more;
  std::optional<Options> options;
  Gradients gradients;
  call.begin(
      [&] {
        in.emplace(q, k, v, where);
        more.emplace(out, lse, dout, dlse, where);
        options.emplace(keywords, where);
        gradients = Gradients(*in, options->get(), Place(where, in->q, used));
      },
      in, options, [&] { distributed::attention_backward(group, {}, {}, {}, {}, call.how, used); });
  {
    const Unlocked unlocked;
    distributed::attention_backward(group, call.layouts, inputs_of(*in, *more), options->get(),
                                    gradients.views(), call.how, used);
  }
  return gradients.to_python(q);
}

}  // namespace

void bind_distributed(nb::module_& m) {
  const auto no_context = nb::arg("context") = nb::none();
  m.def("distributed_attention", forward, "group"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(),
        nb::kw_only(), "layouts"_a = nb::none(), "scheme"_a = "automatic", "bits"_a = "one_process",
        "timeout"_a = 300.0, "out"_a = nb::none(), "return_lse"_a.none() = false, no_context,
        "options"_a,
        nb::sig("def distributed_attention(group: Group, q: ArrayT, k: Array, v: Array, *, "
                "layouts: Layout | Sequence[Layout] | None = None, " ATTEND_DISTRIBUTED
                "timeout: float = 300.0, " ATTEND_OPTIONS
                "out: ArrayT | None = None, return_lse: bool = False, "
                "context: Context | None = None) -> Any"),
        "attend.distributed.attention() for a Group.");
  m.def("distributed_attention_backward", backward, "group"_a, "q"_a.none(), "k"_a.none(),
        "v"_a.none(), "out"_a.none(), "lse"_a.none(), "dout"_a.none(), nb::kw_only(),
        "layouts"_a = nb::none(), "scheme"_a = "automatic", "bits"_a = "one_process",
        "timeout"_a = 300.0, "dlse"_a = nb::none(), no_context, "options"_a,
        nb::sig("def distributed_attention_backward(group: Group, q: ArrayT, k: Array, v: Array, "
                "out: Array, lse: Array, dout: Array, *, "
                "layouts: Layout | Sequence[Layout] | None = None, " ATTEND_DISTRIBUTED
                "timeout: float = 300.0, " ATTEND_OPTIONS
                "dlse: Array | None = None, context: Context | None = None) -> Any"),
        "attend.distributed.attention_backward() for a Group.");
}

}  // namespace attend::python
