// Training: losses, gradients, learning rates, optimizers, loss scaling, checkpoints.
#include "layer.h"
#include "paths.h"

#include <attend/train.h>

#include <algorithm>
#include <map>

namespace attend::python {
namespace {

using namespace nb::literals;
using Path = std::filesystem::path;

nb::object make_loss(Loss&& loss, nb::handle like) {
  return nb::module_::import_("attend._types")
      .attr("Loss")(loss.value, to_python(std::move(loss.gradient), like), loss.count);
}

void bind_losses(nb::module_& m) {
  m.def(
      "cross_entropy",
      [](nb::handle logits, nb::handle targets, std::int64_t ignore, double label_smoothing,
         double gradient_scale, GivenContext context) {
        const Array x = read(logits, {"cross_entropy", "logits", Kind::floating});
        const Array t = read(targets, {"cross_entropy", "targets", Kind::whole});
        return make_loss(unlocked([&] {
                           return cross_entropy(x, t,
                                                {.ignore = ignore,
                                                 .label_smoothing = label_smoothing,
                                                 .gradient_scale = gradient_scale},
                                                context_or_default(context));
                         }),
                         logits);
      },
      "logits"_a, "targets"_a, nb::kw_only(), "ignore"_a = -100, "label_smoothing"_a = 0.0,
      "gradient_scale"_a = 1.0, "context"_a = nb::none(),
      nb::sig("def cross_entropy(logits: Array, targets: Array, *, ignore: int = -100, "
              "label_smoothing: float = 0.0, gradient_scale: float = 1.0, "
              "context: Context | None = None) -> Loss"),
      R"(The mean over the rows of -log softmax(logits)[target], with its gradient at the logits.

    logits [..., classes]   targets [...] (int64 or int32)

Rows with the target `ignore` do not count. gradient_scale multiplies the gradient alone, before it is
rounded: value of a LossScale.

>>> loss = attend.cross_entropy(numpy.zeros((2, 4)), numpy.array([1, 3]))
>>> round(loss.value, 4), loss.gradient.shape, loss.count
(1.3863, (2, 4), 2)
)");
  m.def(
      "mse",
      [](nb::handle prediction, nb::handle target, double gradient_scale, GivenContext context) {
        const Array x = read(prediction, {"mse", "prediction", Kind::floating});
        const Array t = read(target, {"mse", "target", Kind::floating});
        return make_loss(unlocked([&] {
                           return mse(x, t, {.gradient_scale = gradient_scale},
                                      context_or_default(context));
                         }),
                         prediction);
      },
      "prediction"_a, "target"_a, nb::kw_only(), "gradient_scale"_a = 1.0, "context"_a = nb::none(),
      nb::sig("def mse(prediction: Array, target: Array, *, gradient_scale: float = 1.0, "
              "context: Context | None = None) -> Loss"),
      R"(The mean over the elements of (prediction - target)^2, with its gradient at the prediction.

>>> attend.mse(numpy.ones(3), numpy.zeros(3)).value
1.0
)");
}

// Puts gradients into the order of what they belong to: a dict goes by names, the library by both.
// Names that are missing or left over are for the library to refuse.
template <class Named>
std::vector<NamedTensor> ordered(std::vector<NamedTensor> gradients,
                                 const std::vector<Named>& like) {
  std::map<std::string_view, std::size_t> place;
  for (std::size_t n = 0; n < like.size(); ++n) place.emplace(like[n].name, n);
  const auto at = [&](const NamedTensor& gradient) {
    const auto found = place.find(gradient.name);
    return found == place.end() ? like.size() : found->second;
  };
  std::stable_sort(gradients.begin(), gradients.end(),
                   [&](const NamedTensor& a, const NamedTensor& b) { return at(a) < at(b); });
  return gradients;
}

// Writes what the library made of a copy back into the dict's own arrays.
void write_back(const NamedWritables& to, const std::vector<NamedTensor>& from) {
  for (std::size_t n = 0; n < from.size(); ++n) {
    const TensorView& array = to.parameters[n].value;
    nb::object target = show(array, nb::none());
    target.attr("__setitem__")(nb::ellipsis(), show(from[n].tensor.view(), nb::none()));
  }
}

void bind_gradients(nb::module_& m) {
  m.def(
      "accumulate",
      [](nb::dict sum, nb::handle more) {
        std::vector<NamedTensor> total = copy_named(sum, "accumulate", "sum");
        const auto added = ordered(copy_named(more, "accumulate", "more"), total);
        const bool fresh = total.empty();
        const NamedWritables to = write_named(sum, "accumulate", "sum");
        unlocked([&] { accumulate(total, added); });
        if (fresh) sum.update(to_python(std::move(total), nb::handle()));
        else write_back(to, total);
      },
      "sum"_a, "more"_a,
      nb::sig("def accumulate(sum: dict[str, Any], more: Mapping[str, Array]) -> None"),
      R"(sum += more, name by name, in place. An empty sum becomes a copy, of 16-bit gradients in f32.

>>> total = {}
>>> for _ in range(2): attend.accumulate(total, {'a': numpy.ones(2)})
>>> total
{'a': array([2., 2.])}
)");
  m.def(
      "clip_gradients",
      [](nb::handle gradients, double max_norm) {
        const NamedWritables to = write_named(gradients, "clip_gradients", "gradients");
        std::vector<NamedTensor> copies = copy_named(gradients, "clip_gradients", "gradients");
        const double norm = unlocked([&] { return clip_gradients(copies, max_norm); });
        write_back(to, copies);
        return norm;
      },
      "gradients"_a, "max_norm"_a,
      nb::sig("def clip_gradients(gradients: Mapping[str, Array], max_norm: float) -> float"),
      R"(Scales all gradients, in place, to a common norm of at most max_norm.

Gives the norm they had.

>>> gradients = {'a': numpy.array([3.0, 4.0])}
>>> attend.clip_gradients(gradients, 1.0), gradients['a']
(5.0, array([0.6, 0.8]))
)");

  constexpr std::string_view decays[] = {"constant", "linear", "cosine"};
  nb::class_<LearningRate>(
      m, "LearningRate",
      R"(Rises to the peak over `warmup` steps, then stays, or falls to `minimum` at step `total`.

decay is 'constant', 'linear' or 'cosine'. Steps count from 0.

>>> attend.LearningRate(peak=0.1, warmup=10, total=100, decay='cosine').at(9)
0.1
)")
      .def(
          "__init__",
          [decays](LearningRate* self, double peak, std::int64_t warmup, std::int64_t total,
                   nb::handle decay, double minimum) {
            new (self) LearningRate{
                .peak = peak,
                .warmup = warmup,
                .total = total,
                .decay = choose<LearningRate::Decay>(decay, decays, "LearningRate: decay"),
                .minimum = minimum};
          },
          nb::kw_only(), "peak"_a = 1e-3, "warmup"_a = 0, "total"_a = 0, "decay"_a = "constant",
          "minimum"_a = 0.0,
          nb::sig("def __init__(self, *, peak: float = 0.001, warmup: int = 0, total: int = 0, "
                  "decay: str = 'constant', minimum: float = 0.0) -> None"))
      .def("at", &LearningRate::at, "step"_a, "The rate of a step.");
}

void bind_optimizers(nb::module_& m) {
  nb::class_<Optimizer>(m, "Optimizer", "What SGD and AdamW have in common.")
      .def(
          "step",
          [](Optimizer& self, nb::handle parameters, nb::handle gradients, double learning_rate) {
            const NamedWritables to = write_named(parameters, "Optimizer.step", "parameters");
            const auto by =
                ordered(copy_named(gradients, "Optimizer.step", "gradients"), to.parameters);
            const Change alone(&self, "Optimizer");
            unlocked([&] { self.step(to.parameters, by, learning_rate); });
          },
          "parameters"_a, "gradients"_a, "learning_rate"_a,
          nb::sig("def step(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], "
                  "learning_rate: float) -> None"),
          "Changes the parameters, in place, by the gradients of the same names.")
      .def_prop_ro("steps", &Optimizer::steps, "How many were made.")
      .def_prop_ro("kind", &Optimizer::kind, "'sgd' or 'adamw'")
      .def(
          "state",
          [](const Optimizer& self) {
            const Look looking(&self, "Optimizer");
            std::vector<NamedTensor> copies;
            for (const NamedView& named : self.state()) {
              copies.push_back({named.name, Tensor::copy_of(named.tensor)});
            }
            return to_python(std::move(copies), nb::handle());
          },
          nb::sig("def state(self) -> dict[str, Any]"), "What it remembers, as copies.")
      .def(
          "restore",
          [](Optimizer& self, std::int64_t steps, nb::handle state, nb::handle parameters) {
            const NamedWritables of = write_named(parameters, "Optimizer.restore", "parameters");
            const Change alone(&self, "Optimizer");
            self.restore(steps, copy_named(state, "Optimizer.restore", "state"), of.parameters);
          },
          "steps"_a, "state"_a, "parameters"_a,
          nb::sig("def restore(self, steps: int, state: Mapping[str, Array], "
                  "parameters: Mapping[str, Array]) -> None"),
          "Takes back what state() gave.");

  nb::class_<SGD, Optimizer>(m, "SGD",
                             R"(m = momentum m + g;  x -= learning_rate (m + weight_decay x)

>>> x = {'a': numpy.ones(2)}
>>> attend.SGD().step(x, {'a': numpy.ones(2)}, 0.5)
>>> x['a']
array([0.5, 0.5])
)")
      .def(
          "__init__",
          [](SGD* self, double momentum, bool nesterov, double weight_decay) {
            new (self)
                SGD({.momentum = momentum, .nesterov = nesterov, .weight_decay = weight_decay});
          },
          nb::kw_only(), "momentum"_a = 0.0, "nesterov"_a = false, "weight_decay"_a = 0.0);

  nb::class_<AdamW, Optimizer>(m, "AdamW", R"(Adam with decoupled weight decay.

    m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
    x -= learning_rate (weight_decay x + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon))

>>> x = {'a': numpy.ones(2)}
>>> attend.AdamW(weight_decay=0.0).step(x, {'a': numpy.ones(2)}, 0.5)
>>> x['a'].round(6)
array([0.5, 0.5])
)")
      .def(
          "__init__",
          [](AdamW* self, double beta1, double beta2, double epsilon, double weight_decay) {
            new (self) AdamW(
                {.beta1 = beta1, .beta2 = beta2, .epsilon = epsilon, .weight_decay = weight_decay});
          },
          nb::kw_only(), "beta1"_a = 0.9, "beta2"_a = 0.999, "epsilon"_a = 1e-8,
          "weight_decay"_a = 0.01);
}

void bind_loss_scale(nb::module_& m) {
  nb::class_<LossScale>(m, "LossScale", R"(Loss scaling, for models of f16.

The gradient of the loss is multiplied by the scale before the backward pass, and the parameters'
gradients are divided by it afterwards, so that small ones are not rounded to 0. A step whose gradients
overflow is left out, and the scale divided by `factor`; after `interval` good steps it is multiplied.

    loss = attend.cross_entropy(logits, targets, gradient_scale=scale.value)
    gradients = model.backward(loss.gradient, saved)
    finite = scale.unscale(gradients)
    if finite:
        attend.clip_gradients(gradients, 1.0)
        optimizer.step(model.parameters(), gradients, rate)
    scale.update(finite)

>>> scale = attend.LossScale()
>>> scale.unscale({'a': numpy.array([numpy.inf], numpy.float16)})
False
>>> scale.update(False)
>>> scale.value
32768.0
)")
      .def(
          "__init__",
          [](LossScale* self, double initial, double factor, std::int64_t interval) {
            new (self) LossScale({.initial = initial, .factor = factor, .interval = interval});
          },
          nb::kw_only(), "initial"_a = 65536.0, "factor"_a = 2.0, "interval"_a = 2000)
      .def_prop_ro("value", &LossScale::value, "The scale.")
      .def_prop_ro("good_steps", &LossScale::good_steps, "How many since the scale changed.")
      .def(
          "unscale",
          [](const LossScale& self, nb::dict gradients) {
            std::vector<NamedTensor> copies =
                copy_named(gradients, "LossScale.unscale", "gradients");
            if (!unlocked([&] { return self.unscale(copies); })) return false;
            for (auto& [name, tensor] : copies) {
              const nb::str key(name.c_str(), name.size());
              gradients[key] = to_python(std::move(tensor), gradients[key]);
            }
            return true;
          },
          "gradients"_a, nb::sig("def unscale(self, gradients: dict[str, Any]) -> bool"),
          R"(Divides the gradients by the scale; those of 16 bits become float32.

The dict has new arrays then. False, and nothing is changed, if any of them is not finite.
)")
      .def("update", &LossScale::update, "finite"_a, R"(Once a step, last, with what unscale() gave.

Refused if the gradients were not finite at a scale of 1, where scaling cannot be the cause.
)")
      .def("restore", &LossScale::restore, "value"_a, "good_steps"_a,
           "Takes back what value and good_steps were.");
}

void bind_checkpoints(nb::module_& m) {
  m.def(
      "save_checkpoint",
      [](nb::handle file, nb::handle parameters, const Optimizer& optimizer, nb::handle metadata,
         const LossScale* loss_scale) {
        const Path path = to_path(file, "save_checkpoint");
        const Metadata more = to_metadata(metadata, "save_checkpoint");
        const NamedArrays from = read_named(parameters, "save_checkpoint", "parameters");
        const Look looking(&optimizer, "Optimizer");
        unlocked([&] { save_checkpoint(path, from.views, optimizer, more, loss_scale); });
      },
      "path"_a, "parameters"_a, "optimizer"_a, "metadata"_a = nb::dict(),
      "loss_scale"_a = nb::none(),
      nb::sig("def save_checkpoint(path: str | os.PathLike[str], parameters: Mapping[str, Array], "
              "optimizer: Optimizer, metadata: Mapping[str, str] = {}, "
              "loss_scale: LossScale | None = None) -> None"),
      "Writes parameters, what the optimizer remembers and the loss scale as one safetensors "
      "file.");
  m.def(
      "load_checkpoint",
      [](nb::handle file, nb::handle parameters, Optimizer& optimizer, LossScale* loss_scale) {
        const Path path = to_path(file, "load_checkpoint");
        const NamedWritables to = write_named(parameters, "load_checkpoint", "parameters");
        const Change alone(&optimizer, "Optimizer");
        return to_python(
            unlocked([&] { return load_checkpoint(path, to.parameters, optimizer, loss_scale); }));
      },
      "path"_a, "parameters"_a, "optimizer"_a, "loss_scale"_a = nb::none(),
      nb::sig("def load_checkpoint(path: str | os.PathLike[str], parameters: Mapping[str, Array], "
              "optimizer: Optimizer, loss_scale: LossScale | None = None) -> dict[str, str]"),
      R"(Puts a checkpoint back into parameters, optimizer and loss scale, and gives its metadata.

Nothing is changed if anything does not fit. Training goes on with the bits it would have had.
)");
}

}  // namespace

void bind_train(nb::module_& m) {
  bind_losses(m);
  bind_gradients(m);
  bind_optimizers(m);
  bind_loss_scale(m);
  bind_checkpoints(m);
}

}  // namespace attend::python
