// attention() on PyTorch's tensors where nobody but the caller wants to know of it: without
// PyTorch's dispatch and, but for some questions, without Python. Between the products of a model,
// where every line of code has left the caches, a short attention takes less time than those do.
#include "bindings.h"
#include "call.h"
#include "dlpack.h"

#include <array>
#include <vector>

namespace attend::python {
namespace {

using namespace nb::literals;

// Options that are read once for many calls.
class TorchOptions {
 public:
  TorchOptions(const nb::dict& given, std::int64_t queries, std::int64_t keys)
      : given_(given), read_(given, "attention", "options", Devices::any), options_(read_.get()),
        queries_(queries), keys_(keys) {}

  nb::tuple arguments() const { return nb::make_tuple(given_, queries_, keys_); }

  // Whether they are for calls of these lengths; negative ones are for any.
  bool are_for(std::int64_t queries, std::int64_t keys) const noexcept {
    return (queries_ < 0 || queries == queries_) && (keys_ < 0 || keys == keys_);
  }

  // With this scale, in `other` if they have another: that of the first call is kept, and is what
  // all others have, as the layers of a model do.
  const AttentionOptions& with(const std::optional<double>& scale,
                               std::optional<AttentionOptions>& other) {
    if (!used_) options_.scale = scale;
    used_ = true;
    if (options_.scale == scale) return options_;
    other = options_;
    other->scale = scale;
    return *other;
  }

 private:
  nb::dict given_;
  Options read_;
  AttentionOptions options_;
  std::int64_t queries_, keys_;
  bool used_ = false;
};

// Something that is asked: a context variable for its value, a function for its result, or any
// other object, which is the answer itself.
class Question {
 public:
  explicit Question(nb::handle of) : of_(nb::borrow(of)) {}

  nb::object answer() const {
    PyObject* found = nullptr;
    if (PyContextVar_CheckExact(of_.ptr())) {
      if (PyContextVar_Get(of_.ptr(), Py_None, &found) < 0) throw nb::python_error();
    } else if (PyCallable_Check(of_.ptr()) != 0) {
      found = PyObject_CallNoArgs(of_.ptr());
      if (found == nullptr) throw nb::python_error();
    } else {
      return of_;
    }
    return nb::steal(found);
  }

  bool is_true() const {
    const int found = PyObject_IsTrue(answer().ptr());
    if (found < 0) throw nb::python_error();
    return found != 0;
  }

 private:
  nb::object of_;
};

bool has(nb::handle tensor, PyObject* name) {
  const nb::object answer = nb::steal(PyObject_GetAttr(tensor.ptr(), name));
  if (!answer.is_valid()) throw nb::python_error();
  return answer.is(Py_True);
}

// The Context for as many threads as PyTorch last had. One for all: each Context has threads of its
// own.
PyObject* kept_context = nullptr;
long kept_threads = 0;

class TorchCalls {
 public:
  TorchCalls(const nb::sequence& listeners, nb::handle gradients, nb::handle threads,
             nb::handle context)
      : gradients_(gradients), threads_(threads), current_(context),
        requires_grad_(nb::str("requires_grad")), is_neg_(nb::str("is_neg")),
        prepared_(nb::str("prepared")), output_attentions_(nb::str("output_attentions")) {
    for (const nb::handle listener : listeners) listeners_.emplace_back(listener);
  }

  bool plain(const nb::args& tensors) const {
    for (const nb::handle tensor : tensors)
      if (!is_exact_torch(tensor)) return false;
    if (is_heard()) return false;
    const bool gradients = gradients_.is_true();
    for (const nb::handle tensor : tensors)
      if (gradients && has(tensor, requires_grad_.ptr())) return false;
    return true;
  }

  nb::object attention(nb::handle q, nb::handle k, nb::handle v, nb::handle scale,
                       TorchOptions& options, bool heads_last, bool same_heads,
                       nb::handle context) {
    const std::array<nb::handle, 3> tensors{q, k, v};
    if (!scale.is_none() && !PyFloat_CheckExact(scale.ptr())) return nb::none();
    for (const nb::handle tensor : tensors)
      if (!is_exact_torch(tensor)) return nb::none();
    if (is_heard()) return nb::none();
    const bool gradients = gradients_.is_true();
    std::array<ConstTensorView, 3> views;
    for (std::size_t n = 0; n < views.size(); ++n)
      if (!see(tensors[n], gradients, views[n])) return nb::none();
    if (!fit(views[0], views[1], views[2], same_heads) ||
        !options.are_for(views[0].size(2), views[1].size(2)))
      return nb::none();
    return computed(q, views, scale, options, heads_last,
                    context.is_none() ? current() : nb::borrow(context));
  }

  nb::object of_model(nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle scale,
                      const nb::dict& more, nb::handle harmless) {
    if (is_exact_torch(mask)) return nb::none();
    for (const auto [name, value] : more) {
      if (value.is_none() || (value.is(Py_False) && name.equal(output_attentions_))) continue;
      const int known = PySet_Contains(harmless.ptr(), name.ptr());
      if (known < 0) throw nb::python_error();
      if (known == 0) return nb::none();
    }
    const nb::object prepared = nb::getattr(mask, prepared_, nb::none());
    TorchOptions* options = nullptr;
    if (!nb::try_cast(prepared, options, false) || options == nullptr) return nb::none();
    return attention(q, k, v, scale, *options, true, false, nb::none());
  }

 private:
  bool is_heard() const {
    for (const Question& listener : listeners_)
      if (listener.is_true()) return true;
    return false;
  }

  // As they are, without anything that would have to be broadcast or said.
  static bool fit(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                  bool same_heads) {
    const bool grouped = k.size(1) > 0 && q.size(1) % k.size(1) == 0 && !same_heads;
    return q.dtype() == k.dtype() && q.dtype() == v.dtype() && q.device() == k.device() &&
           q.device() == v.device() && q.size(0) == k.size(0) && q.size(3) == k.size(3) &&
           (q.size(1) == k.size(1) || grouped) && k.size(0) == v.size(0) &&
           k.size(1) == v.size(1) && k.size(2) == v.size(2);
  }

  // A tensor [batch, heads, length, dim] that is what it shows: no gradient is lost, no sign.
  bool see(nb::handle tensor, bool gradients, ConstTensorView& view) const {
    if (gradients && has(tensor, requires_grad_.ptr())) return false;
    const nb::object negative = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), is_neg_.ptr()));
    if (!negative.is_valid()) throw nb::python_error();
    nb::dlpack::dltensor seen;
    if (negative.is(Py_True) || !see_torch(tensor, seen)) return false;
    const std::optional<DType> type = from_dlpack(seen.dtype);
    if (!type || !is_floating_point(*type) || seen.ndim != 4 || seen.strides == nullptr)
      return false;
    Device device;
    if (seen.device.device_type == nb::device::cuda::value) {
      device = {Device::Kind::cuda, seen.device.device_id};
      if (!cuda::why_unavailable(device.index).empty()) return false;
    } else if (seen.device.device_type != nb::device::cpu::value) {
      return false;
    }
    view =
        ConstTensorView(static_cast<char*>(seen.data) + seen.byte_offset, *type,
                        Shape(std::span(seen.shape, 4)), Shape(std::span(seen.strides, 4)), device);
    return true;
  }

  static nb::object computed(nb::handle like, const std::array<ConstTensorView, 3>& views,
                             nb::handle scale, TorchOptions& options, bool heads_last,
                             const nb::object& where) {
    const ConstTensorView &q = views[0], &k = views[1], &v = views[2];
    std::optional<double> number;
    if (!scale.is_none()) number = PyFloat_AS_DOUBLE(scale.ptr());
    std::optional<AttentionOptions> other;
    const AttentionOptions& used = options.with(number, other);
    Context& context = context_or_default(given_context(where));
    // As q lies: where that is [batch, length, heads, dim] transposed, heads are joined without a
    // copy.
    const bool by_length = heads_last || q.strides()[1] < q.strides()[2];
    const Shape shape = by_length ? Shape{q.size(0), q.size(2), q.size(1), v.size(3)}
                                  : Shape{q.size(0), q.size(1), q.size(2), v.size(3)};
    const Place place("attention", like, q.device(), context);
    NewArray made = place.make(shape, q.dtype());
    const TensorView out = by_length ? made.view().permute({0, 2, 1, 3}) : made.view();
    place.run([&](const Where& at) { attend::attention(q, k, v, out, used, {}, at); });
    return made.to_torch(heads_last ? made.view() : out);
  }

  // That of the last call, unless PyTorch has another number of threads since.
  nb::object current() const {
    const long threads = PyLong_AsLong(threads_.answer().ptr());
    if (kept_context == nullptr || threads != kept_threads) {
      PyObject* const before = kept_context;
      kept_context = current_.answer().release().ptr();
      kept_threads = threads;
      Py_XDECREF(before);
    }
    return nb::borrow(kept_context);
  }

  std::vector<Question> listeners_;
  Question gradients_, threads_, current_;
  nb::object requires_grad_, is_neg_, prepared_, output_attentions_;
};

}  // namespace

void bind_torch_calls(nb::module_& m) {
  nb::class_<TorchOptions>(m, "TorchOptions", R"(Options that are read once for many calls.

queries, keys   the lengths of the calls they are for; -1: any
)")
      .def(nb::init<const nb::dict&, std::int64_t, std::int64_t>(), "options"_a, "queries"_a = -1,
           "keys"_a = -1,
           nb::sig("def __init__(self, options: dict[str, Any], queries: int = -1, keys: int = -1) "
                   "-> None"))
      .def(
          "__reduce__",
          [](const TorchOptions& self) {
            return nb::make_tuple(nb::type<TorchOptions>(), self.arguments());
          },
          nb::sig("def __reduce__(self) -> tuple[Any, ...]"));

  nb::class_<TorchCalls>(m, "TorchCalls",
                         R"(attention() on PyTorch's tensors, for calls that nobody else listens to.

listeners   context variables, functions or objects: a call goes another way if one of them is true
gradients   a function: whether autograd records
threads     a function: how many threads PyTorch has
context     a function: the Context for as many
)")
      .def(nb::init<const nb::sequence&, nb::handle, nb::handle, nb::handle>(), "listeners"_a,
           "gradients"_a, "threads"_a, "context"_a,
           nb::sig("def __init__(self, listeners: Sequence[Any], gradients: Any, threads: Any, "
                   "context: Any) -> None"))
      .def(
          "plain", &TorchCalls::plain, "tensors"_a,
          nb::sig("def plain(self, *tensors: Any) -> bool"),
          "Whether these are tensors, no subclasses, and nobody listens to what is done with them.")
      .def("attention", &TorchCalls::attention, "q"_a.none(), "k"_a.none(), "v"_a.none(),
           "scale"_a.none(), "options"_a, "heads_last"_a = false, "same_heads"_a = false,
           "context"_a = nb::none(),
           nb::sig("def attention(self, q: Any, k: Any, v: Any, scale: float | None, options: "
                   "TorchOptions, heads_last: bool = False, same_heads: bool = False, "
                   "context: Context | None = None) -> Any"),
           R"(out [batch, heads, queries, dv], or with heads_last [batch, queries, heads, dv].

None: it is not such a call, or one whose arguments do not fit (with same_heads also of grouped
heads), which is said by another way.
)")
      .def("of_model", &TorchCalls::of_model,
           nb::sig("def of_model(self, q: Any, k: Any, v: Any, mask: Any, scale: float | None, "
                   "more: dict[str, Any], harmless: frozenset[str], /) -> Any"),
           R"(The same as a model calls it, with the TorchOptions in mask.prepared and heads last.

None also if `more` holds anything under another name than the harmless, besides None and
output_attentions=False.
)");
}

}  // namespace attend::python
