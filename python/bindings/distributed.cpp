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
  char wrong[600] = {};      // what is, if the others are not known
};

// Into a message of fixed size, whole characters alone.
template <std::size_t kSize>
void write_words(const std::string& words, char (&to)[kSize]) {
  std::size_t end = std::min(words.size(), kSize - 1);
  while (end < words.size() && end > 0 && (words[end] & 0xC0) == 0x80) --end;
  words.copy(to, end);
}

// Of an exception, without Python's traceback.
std::string words_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const nb::python_error& error) {
    const nb::gil_scoped_acquire locked;
    std::string words;
    try {
      words = string_of(error.value());
    } catch (const nb::python_error&) {
    }
    return words.empty() ? name_of_type(error.value()) : words;
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool is_invalid_argument(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidArgument&) {
    return true;
  } catch (...) {
    return false;
  }
}

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

// The rows of all ranks together. A rank whose arguments are wrong has unknown ones: all throw, and
// say what is wrong with the first.
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
  Rows total{.queries = 0, .keys = 0};
  for (std::size_t r = 0; r < size; ++r) {
    if (all[r].queries == kUnknown)
      throw InvalidArgument("rank " + std::to_string(r) + ": " + all[r].wrong);
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
            nb::handle context, const char* where)
      : group_(group), given_(given), where_(where) {
    try {
      how = to_distributed(scheme, bits, timeout, where);
      context_ = given_context(context);
    } catch (...) {
      wrong_ = std::current_exception();
    }
  }

  Context& context() const { return context_or_default(context_); }

  // prepare(), which is this rank's alone, and the layouts: as they are given, or the balanced ones
  // of as many rows as all ranks have. If something is wrong here, the others hear of it instead of
  // waiting. `refused`: None, or what is wrong already.
  template <class Prepare>
  void begin(nb::handle refused, const Prepare& prepare, const std::optional<Inputs>& in,
             const std::optional<Options>& options) {
    Rows own{.layouts = given_.is_none() ? 0 : 1};
    try {
      if (!refused.is_none()) {
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(refused.ptr())), refused.ptr());
        throw nb::python_error();
      }
      if (wrong_) std::rethrow_exception(wrong_);
      prepare();
      own.queries = rows_of(in->q, "q", "[batch, heads, owned, d]");
      own.keys = rows_of(in->k, "k", "[batch, key heads, owned, d]");
      if (!given_.is_none()) layouts = to_layouts(given_, where_);
    } catch (...) {
      wrong_ = std::current_exception();
      own = {};
      write_words(words_of(wrong_), own.wrong);
    }
    {
      const Unlocked unlocked;
      if (wrong_) hear([&] { total_rows(group_, own, how, where_); });
      else balance(own, *in, *options);
    }
    if (wrong_) std::rethrow_exception(wrong_);
  }

  DistributedOptions how;
  Layouts layouts;

 private:
  std::int64_t rows_of(const ConstTensorView& view, const char* name, const char* form) const {
    if (view.rank() == 4) return view.size(2);
    throw InvalidArgument(std::string(where_) + ": " + name + " has " +
                          std::to_string(view.rank()) + " dimensions " + to_string(view.shape()) +
                          "; it must be " + form);
  }
  void balance(const Rows& own, const Inputs& in, const Options& options) {
    const Rows total = total_rows(group_, own, how, where_);
    if (own.layouts != 0) return;
    const std::int64_t batch = options.get().cu_seqlens_q ? 1 : in.q.view.size(0);
    try {
      layouts = distributed::balanced_layouts(
          {.queries = total.queries, .keys = total.keys, .batch = batch}, options.get(),
          group_.size());
    } catch (...) {
      wrong_ = std::current_exception();
      hear([&] { distributed::refuse_call(group_, words_of(wrong_), how, context()); });
    }
  }
  // What call() throws follows from wrong_. All ranks raise the same, but for what only Python
  // knows.
  template <class Call>
  void hear(const Call& call) {
    try {
      call();
    } catch (const InvalidArgument&) {
      if (is_invalid_argument(wrong_)) wrong_ = std::current_exception();
    } catch (const std::exception&) {
    }
  }

  Group& group_;
  nb::handle given_;
  const char* where_;
  GivenContext context_;
  std::exception_ptr wrong_;
};

nb::object forward(Group& group, nb::handle q, nb::handle k, nb::handle v, nb::handle layouts,
                   nb::handle scheme, nb::handle bits, nb::handle timeout, nb::handle out,
                   nb::handle return_lse, nb::handle context, nb::handle refused,
                   const nb::kwargs& keywords) {
  constexpr const char* where = "distributed.attention";
  RanksCall call(group, layouts, scheme, bits, timeout, context, where);
  std::optional<Inputs> in;
  std::optional<Options> options;
  std::optional<Results> results;
  call.begin(
      refused,
      [&] {
        in.emplace(q, k, v, where);
        options.emplace(keywords, where);
        Wanted wanted;
        wanted.lse = number<bool>(return_lse, where, "return_lse", "True or False");
        results.emplace(*in, options->get(), wanted, out, where,
                        Place(where, in->q, call.context()));
      },
      in, options);
  {
    const Unlocked unlocked;
    distributed::attention(group, call.layouts, in->q, in->k, in->v, results->out(), options->get(),
                           results->outputs(), call.how, call.context());
  }
  return results->to_python(q);
}

nb::object backward(Group& group, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                    nb::handle lse, nb::handle dout, nb::handle layouts, nb::handle scheme,
                    nb::handle bits, nb::handle timeout, nb::handle dlse, nb::handle context,
                    const nb::kwargs& keywords) {
  constexpr const char* where = "distributed.attention_backward";
  RanksCall call(group, layouts, scheme, bits, timeout, context, where);
  std::optional<Inputs> in;
  std::optional<BackwardArrays> more;
  std::optional<Options> options;
  Gradients gradients;
  call.begin(
      nb::none(),
      [&] {
        in.emplace(q, k, v, where);
        more.emplace(out, lse, dout, dlse, where);
        options.emplace(keywords, where);
        gradients = Gradients(*in, options->get(), Place(where, in->q, call.context()));
      },
      in, options);
  {
    const Unlocked unlocked;
    distributed::attention_backward(group, call.layouts, inputs_of(*in, *more), options->get(),
                                    gradients.views(), call.how, call.context());
  }
  return gradients.to_python(q);
}

}  // namespace

void bind_distributed(nb::module_& m) {
  const auto no_context = nb::arg("context") = nb::none();
  m.def("distributed_attention", forward, "group"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(),
        nb::kw_only(), "layouts"_a = nb::none(), "scheme"_a = "automatic", "bits"_a = "one_process",
        "timeout"_a = 300.0, "out"_a = nb::none(), "return_lse"_a.none() = false, no_context,
        "refused"_a = nb::none(), "options"_a,
        nb::sig("def distributed_attention(group: Group, q: ArrayT, k: Array, v: Array, *, "
                "layouts: Layout | Sequence[Layout] | None = None, " ATTEND_DISTRIBUTED
                "timeout: float = 300.0, " ATTEND_OPTIONS
                "out: ArrayT | None = None, return_lse: bool = False, "
                "context: Context | None = None, "
                "refused: BaseException | None = None) -> Any"),
        "attend.distributed.attention() for a Group. All ranks are told of `refused`.");
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
