// What the bindings of all layers share: parameters and gradients as dicts of arrays, the three
// calls of a layer with one input, and choices that Python spells as strings.
#pragma once

#include "bindings.h"
#include "place.h"

#include <attend/kv_cache.h>
#include <attend/parameter.h>

#include <span>
#include <string_view>

namespace attend::python {

// ---- dicts of arrays ---------------------------------------------------------------------------

// A layer's parameters: NumPy arrays that are its memory and keep it alive. As long as an array of
// a weight lives, or a view of it, the layer takes it for written.
nb::dict show_parameters(std::vector<Parameter> parameters, nb::handle layer);

template <class Layer>
nb::dict show_parameters(nb::handle layer) {
  return show_parameters(nb::cast<Layer&>(layer).writable_parameters(), layer);
}

nb::dict to_python(std::vector<NamedTensor>&& list, nb::handle like);
nb::dict to_python(const Metadata& metadata);
Metadata to_metadata(nb::handle dict, const char* where);

// Arrays by name, to be read or written; what must be kept while they are used is inside.
struct NamedArrays {
  std::vector<NamedView> views;
  std::vector<Array> arrays;
};
NamedArrays read_named(nb::handle dict, const char* where, const char* name);

struct NamedWritables {
  std::vector<Parameter> parameters;
  std::vector<WritableArray> arrays;
};
NamedWritables write_named(nb::handle dict, const char* where, const char* name);

// Copies, as gradients are handed to an optimizer.
std::vector<NamedTensor> copy_named(nb::handle dict, const char* where, const char* name);

// ---- calls -------------------------------------------------------------------------------------

// Something that changes while the GIL is released: by one thread at a time, while nobody looks.
// Made and destroyed with the GIL held. Here it throws where C++ would leave it to the caller.
class Use {
 public:
  Use(const void* object, const char* what, bool changes);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  const void* object_;
};

struct Change : Use {
  Change(const void* object, const char* what) : Use(object, what, true) {}
};
struct Look : Use {
  Look(const void* object, const char* what) : Use(object, what, false) {}
};

// Runs without the GIL. What it gives is made by then; Python's objects come after.
template <class Body>
auto unlocked(Body body) {
  const Unlocked unlocked;
  return body();
}

// A layer on a GPU takes arrays there, any other those of the host alone.
template <class Layer>
Devices devices_of(const Layer& layer) {
  if constexpr (requires { layer.device(); })
    if (layer.device() != Device{}) return Devices::any;
  return Devices::host;
}

// What call(where) gives, without the GIL; where: as the array lies.
template <class Call>
auto run_on(const char* name, const Array& like, Context& context, const Call& call) {
  const Place place(name, like, context);
  std::optional<decltype(call(std::declval<const Where&>()))> result;
  place.run([&](const Where& where) { result.emplace(call(where)); });
  return std::move(*result);
}

// The device that "cpu", "cuda", "cuda:1" or a torch.device names; none: it names something else.
// "cuda" is PyTorch's current one where PyTorch is loaded, else the first.
std::optional<Device> to_device(nb::handle object);

// PyTorch's current stream on a GPU, where PyTorch is loaded, else the default one.
std::shared_ptr<Queue> current_queue(Device device);

// A copy of a layer in memory of a device. From one GPU to another it goes by the host.
template <class Layer>
Layer moved(const Layer& layer, Device device) {
  const Device from = layer.device(), host{};
  if (from != host && device != host && from != device) return moved(moved(layer, host), device);
  const Device gpu = device != host ? device : from;
  const std::shared_ptr<Queue> queue = gpu != host ? current_queue(gpu) : nullptr;
  return unlocked([&] {
    return layer.to(device, queue ? Where(default_context(), *queue) : Where(default_context()));
  });
}

// The cache that an argument is; without one, if that may be, a null pointer.
KvCache* to_cache(nb::handle cache, const char* where, bool optional = false);

// The type that a cache is asked for in, if it is.
inline std::optional<DType> cache_type(nb::handle type, const char* where) {
  if (type.is_none()) return std::nullopt;
  return to_dtype(type, where);
}

// `lengths` counts new tokens of a cache; somebody without one means key_lengths.
inline void check_lengths(nb::handle lengths, const void* cache, const char* where) {
  if (cache || lengths.is_none()) return;
  throw InvalidArgument(std::string(where) + ": lengths= belongs to cache=; use key_lengths=");
}

nb::object make_gradients(LayerGradients&& gradients, nb::handle like);

// "<attend.Linear: weight [3, 4], bias [3], f32>", or what the layer was made with and how many
// numbers it holds.
std::string described(nb::handle self, const std::vector<NamedView>& parameters);
std::string described(nb::handle self, const nb::dict& options,
                      const std::vector<NamedView>& parameters);

// repr(layer), and layer(x) as other libraries have it.
template <class Layer, class... More, class Describe>
void bind_manners(nb::class_<Layer, More...>& type, Describe describe) {
  type.def("__repr__",
           [describe](nb::handle self) { return describe(self, nb::cast<const Layer&>(self)); });
  type.attr("__call__") = type.attr("forward");
}
template <class Layer, class... More>
void bind_manners(nb::class_<Layer, More...>& type) {
  bind_manners(type, [](nb::handle self, const Layer& layer) {
    return described(self, layer.parameters());
  });
}

// to() of a layer, whose class is `name`; and quantize(), if it has linear maps.
template <class Layer, class... More>
void bind_to(nb::class_<Layer, More...>& type, const char* name) {
  using namespace nb::literals;
  const std::string signature = std::string("def to(self, type: Any) -> ") + name;
  type.def(
      "to",
      [name](const Layer& self, nb::handle to) {
        const std::optional<Device> device = to_device(to);
        if constexpr (requires { self.device(); }) {
          if (device) return moved(self, *device);
        } else if (device && *device != Device{}) {
          throw Unsupported(std::string(name) + ": it computes on the CPU alone, to() found " +
                            to_string(*device));
        }
        const DType wanted = to_dtype(to, name);
        return unlocked([&] { return self.to(wanted); });
      },
      "type"_a, nb::sig(signature.c_str()),
      "A copy in another type, each weight rounded once: 'f64', 'f32', 'bf16' or 'f16'. Of layers "
      "that have a device also one in its memory: 'cuda', 'cuda:1', 'cpu'.");
  if constexpr (requires(const Layer& layer) { layer.device(); })
    type.def_prop_ro(
        "device", [](const Layer& self) { return to_string(self.device()); },
        "Where the weights are: 'cpu' or 'cuda:0'. Calls take arrays there.");
  if constexpr (requires(const Layer& layer) { layer.quantize(); }) {
    const std::string quantize = std::string("def quantize(self) -> ") + name;
    type.def(
            "quantize", [](const Layer& self) { return unlocked([&] { return self.quantize(); }); },
            nb::sig(quantize.c_str()),
            "A copy with weights of 8 bits, for inference: no gradients.")
        .def_prop_ro(
            "quantized", [](const Layer& self) { return self.quantized(); },
            "Whether weights are of 8 bits.");
  }
}

// The one input of a layer: what it holds, its name as in C++, and what a stub shows.
struct LayerInput {
  Kind kind = Kind::floating;
  const char* name = "x";
  const char* forward = "def forward(self, x: ArrayT, *, context: Context | None = None) -> ArrayT";
  const char* forward_train =
      "def forward_train(self, x: ArrayT, *, context: Context | None = None) -> "
      "tuple[ArrayT, Saved]";
};

// forward, forward_train, backward and parameters of a layer that maps x to y. `name` is the
// class's, for messages.
template <class Layer, class... More>
void bind_calls(nb::class_<Layer, More...>& type, const char* name, const LayerInput& input = {}) {
  using namespace nb::literals;
  using Saved = typename Layer::Saved;
  const auto no_context = "context"_a = nb::none();
  nb::class_<Saved>(type, "Saved", "What backward() needs from forward_train().");
  type.def(
          "forward",
          [name, input](const Layer& self, nb::handle x, GivenContext context) {
            const Array in = read(x, {name, input.name, input.kind, false, devices_of(self)});
            Tensor y = run_on(name, in, context_or_default(context),
                              [&](const Where& where) { return self.forward(in, where); });
            return to_python(std::move(y), x);
          },
          nb::arg(input.name).none(), nb::kw_only(), no_context, nb::sig(input.forward),
          "y = layer(x)")
      .def(
          "forward_train",
          [name, input](const Layer& self, nb::handle x, GivenContext context) {
            const Array in = read(x, {name, input.name, input.kind, false, devices_of(self)});
            auto [y, saved] =
                run_on(name, in, context_or_default(context),
                       [&](const Where& where) { return self.forward_train(in, where); });
            return nb::make_tuple(to_python(std::move(y), x), nb::cast(std::move(saved)));
          },
          nb::arg(input.name).none(), nb::kw_only(), no_context, nb::sig(input.forward_train),
          "(y, saved); backward() takes saved.")
      .def(
          "backward",
          [name](const Layer& self, nb::handle dy, const Saved& saved, GivenContext context) {
            const Array in = read(dy, {name, "dy", Kind::floating, false, devices_of(self)});
            LayerGradients gradients =
                run_on(name, in, context_or_default(context),
                       [&](const Where& where) { return self.backward(in, saved, where); });
            return make_gradients(std::move(gradients), dy);
          },
          "dy"_a.none(), "saved"_a, nb::kw_only(), no_context,
          nb::sig("def backward(self, dy: ArrayT, saved: Saved, *, "
                  "context: Context | None = None) -> LayerGradients"),
          "Gradients at x and at the parameters, given dy at y.")
      .def("parameters", show_parameters<Layer>, nb::sig("def parameters(self) -> dict[str, Any]"),
           "The weights by name: NumPy arrays that are the layer's memory, for reading and "
           "writing; on a GPU tensors of PyTorch.");
  bind_to(type, name);
  bind_manners(type);
}

// ---- choices -----------------------------------------------------------------------------------

// The enum value that a string names.
int choice(const std::string& value, std::span<const std::string_view> names, const char* what);

inline constexpr std::string_view kActivations[] = {"relu", "gelu", "gelu_tanh", "swiglu"};
inline constexpr std::string_view kPlacements[] = {"post", "pre", "none"};
inline constexpr std::string_view kNorms[] = {"layer_norm", "rms_norm"};
inline constexpr std::string_view kPairings[] = {"halves", "neighbours"};

template <class Enum>
Enum choose(nb::handle value, std::span<const std::string_view> names, const char* what) {
  return static_cast<Enum>(choice(text_of(value, what), names, what));
}
template <class Enum>
std::string chosen(Enum value, std::span<const std::string_view> names) {
  return std::string(names[static_cast<std::size_t>(value)]);
}
inline std::string chosen(DType type) { return std::string(name_of(type)); }

}  // namespace attend::python
