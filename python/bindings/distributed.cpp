// Attention over ranks and its gradient.
#include "bindings.h"
#include "call.h"
#include "layouts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>

namespace attend::python {
namespace {

using namespace nb::literals;
using distributed::DistributedOptions;
using distributed::Group;
using distributed::Layouts;

constexpr std::int64_t kUnknown = -1;

// What ranks tell each other before the call.
struct Rows {
  std::int64_t queries = kUnknown, keys = kUnknown;
  std::int64_t layouts = 0;  // whether they are given
};

void wait(Group& group, distributed::Pending& pending, const DistributedOptions& how,
          const char* where) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook{20};
  const Clock::time_point begin = Clock::now();
  while (!pending.wait(std::min(how.timeout, kLook))) {
    check_signals();
    if (Clock::now() - begin < how.timeout) continue;
    std::string missing;
    for (const int r : pending.missing())
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(r);
    throw distributed::PeerError(std::string(where) + ": no answer from " +
                                 (missing.empty() ? "another rank" : missing) + " within " +
                                 std::to_string(how.timeout.count()) + " ms");
  }
  group.add_wait(Clock::now() - begin);
}

// The rows of all ranks together. A rank whose arguments are wrong has unknown ones: all throw.
Rows total_rows(Group& group, const Rows& own, const DistributedOptions& how, const char* where) {
  struct Memory {
    Rows own;
    std::vector<Rows> all;
  };
  const std::string start = std::string(where) + ": ";
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
        start + "the group takes no more calls since one failed: " + group.failure());
  try {
    wait(group, *group.exchange(send, receive), how, where);
  } catch (const std::exception& error) {
    group.keep(memory);
    group.fail(error.what());
    throw;
  }
  const std::vector<Rows>& all = memory->all;
  Rows total{0, 0};
  for (std::size_t r = 0; r < size; ++r) {
    if (all[r].queries == kUnknown)
      throw InvalidArgument(start + "the arguments of rank " + std::to_string(r) +
                            " are wrong; its own error says how");
    total.queries += all[r].queries;
    total.keys += all[r].keys;
  }
  const auto layouts = [&](std::size_t r) {
    return "rank " + std::to_string(r) + " was given " + (all[r].layouts != 0 ? "" : "no ") +
           "layouts";
  };
  for (std::size_t r = 1; r < size; ++r)
    if (all[r].layouts != all[0].layouts)
      throw InvalidArgument(start + layouts(r) + ", " + layouts(0) +
                            "; all ranks must describe one problem");
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
    const bool balances = given_.is_none();
    {
      const Unlocked unlocked;
      if (wrong_) without_exceptions([&] { total_rows(group_, {}, how, where_); });
      else balance(*in, *options, balances, refuse);
    }
    if (wrong_) std::rethrow_exception(wrong_);
  }

  DistributedOptions how;
  Layouts layouts;

 private:
  static Rows rows_of(const Inputs& in, bool balances) {
    const auto rows = [](const ConstTensorView& view) {
      return view.rank() == 4 ? view.size(2) : 0;
    };
    return {rows(in.q), rows(in.k), balances ? 0 : 1};
  }
  template <class Refuse>
  void balance(const Inputs& in, const Options& options, bool balances, const Refuse& refuse) {
    const Rows total = total_rows(group_, rows_of(in, balances), how, where_);
    if (!balances) return;
    const bool batched = !options.get().cu_seqlens_q && in.q.view.rank() == 4;
    try {
      layouts = distributed::balanced_layouts(
          {.queries = total.queries, .keys = total.keys, .batch = batched ? in.q.view.size(0) : 1},
          options.get(), group_.size());
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
