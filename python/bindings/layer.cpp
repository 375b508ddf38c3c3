// Dicts of arrays, and the rest of what the bindings of layers share.
#include "layer.h"

#include "dlpack.h"

#include <map>
#include <memory>

namespace attend::python {
namespace {

// Calls body(name, array) for every entry of a dict.
template <class Body>
void each_named(nb::handle dict, const char* where, const char* name, const Body& body) {
  if (!nb::isinstance<nb::dict>(dict)) {
    raise_type_error(std::string(where) + ": " + name + " takes a dict of arrays by name, found " +
                     name_of_type(dict));
  }
  // A copy: reading an array may run Python, which may change the dict.
  const auto entries = nb::steal<nb::dict>(PyDict_Copy(dict.ptr()));
  for (const auto [key, value] : entries) {
    if (!nb::isinstance<nb::str>(key)) {
      raise_type_error(std::string(where) + ": the names in " + name + " are str, found " +
                       name_of_type(key));
    }
    body(text_of(key, std::string(where) + ": a name in " + name), value);
  }
}

// What is in use at the moment: by how many that look, or -1 by one that changes it. The GIL guards
// it.
std::map<const void*, int>& in_use() {
  static std::map<const void*, int> objects;
  return objects;
}

std::string in_brackets(nb::handle self, const std::string& text) {
  const auto name = nb::cast<std::string>(self.type().attr("__name__"));
  return "<attend." + name + (text.empty() ? "" : ": " + text) + ">";
}

}  // namespace

nb::dict show_parameters(std::vector<Parameter> parameters, nb::handle layer) {
  struct Owner {
    nb::object layer;
    ParameterView view;
  };
  nb::dict dict;
  for (const auto& [name, value] : parameters) {
    auto owner = std::make_unique<Owner>(Owner{nb::borrow(layer), value});
    const nb::capsule kept(owner.get(), [](void* p) noexcept { delete static_cast<Owner*>(p); });
    owner.release();
    dict[name.c_str()] = value.device() == Device{} ? show(value, kept) : show_torch(value, kept);
  }
  return dict;
}

nb::dict to_python(std::vector<NamedTensor>&& list, nb::handle like) {
  nb::dict dict;
  for (NamedTensor& named : list)
    dict[named.name.c_str()] = to_python(std::move(named.tensor), like);
  return dict;
}

nb::dict to_python(const Metadata& metadata) {
  nb::dict dict;
  for (const auto& [key, value] : metadata) dict[key.c_str()] = value;
  return dict;
}

Metadata to_metadata(nb::handle dict, const char* where) {
  const std::string start = std::string(where) + ": metadata";
  const auto items =
      nb::steal<nb::object>(PyMapping_Check(dict.ptr()) ? PyMapping_Items(dict.ptr()) : nullptr);
  if (!items) {
    PyErr_Clear();
    raise_type_error(start + " takes a dict of str, found " + name_of_type(dict));
  }
  Metadata metadata;
  for (const nb::handle item : items) metadata[text_of(item[0], start)] = text_of(item[1], start);
  return metadata;
}

NamedArrays read_named(nb::handle dict, const char* where, const char* name) {
  NamedArrays result;
  each_named(dict, where, name, [&](std::string key, nb::handle value) {
    result.arrays.push_back(read(value, {where, key.c_str()}));
    result.views.push_back({std::move(key), result.arrays.back().view});
  });
  return result;
}

NamedWritables write_named(nb::handle dict, const char* where, const char* name) {
  NamedWritables result;
  each_named(dict, where, name, [&](std::string key, nb::handle value) {
    result.arrays.push_back(write(value, {where, key.c_str(), Kind::floating}));
    result.parameters.push_back({std::move(key), result.arrays.back().view});
  });
  return result;
}

std::vector<NamedTensor> copy_named(nb::handle dict, const char* where, const char* name) {
  std::vector<NamedTensor> result;
  each_named(dict, where, name, [&](std::string key, nb::handle value) {
    const Array array = read(value, {where, key.c_str(), Kind::floating});
    result.push_back({std::move(key), Tensor::copy_of(array)});
  });
  return result;
}

Use::Use(const void* object, const char* what, bool changes) : object_(object) {
  int& users = in_use()[object];
  if (users < 0 || (changes && users > 0)) {
    throw Error(std::string(what) + " is in use by another thread; one at a time may change it");
  }
  users = changes ? -1 : users + 1;
}

Use::~Use() {
  const auto entry = in_use().find(object_);
  if (--entry->second <= 0) in_use().erase(entry);
}

std::optional<Device> to_device(nb::handle object) {
  const std::string name = string_of(object);
  if (name == "cpu") return Device{};
  if (name == "cuda") {
    const nb::object torch = loaded_torch_cuda();
    return Device{Device::Kind::cuda,
                  torch.is_valid() ? nb::cast<int>(torch.attr("current_device")()) : 0};
  }
  constexpr std::string_view kStart = "cuda:";
  if (!name.starts_with(kStart) || name.size() > kStart.size() + 4) return std::nullopt;
  int index = 0;
  for (const char digit : name.substr(kStart.size())) {
    if (digit < '0' || digit > '9') return std::nullopt;
    index = 10 * index + (digit - '0');
  }
  return name.size() > kStart.size() ? std::optional(Device{Device::Kind::cuda, index})
                                     : std::nullopt;
}

std::shared_ptr<Queue> current_queue(Device device) {
  void* stream = nullptr;
  const nb::object torch = loaded_torch_cuda();
  if (torch.is_valid() && cuda::why_unavailable(device.index).empty())
    stream = torch_stream(device.index);
  return cuda::make_queue(device.index, stream);
}

KvCache* to_cache(nb::handle cache, const char* where, bool optional) {
  if (optional && cache.is_none()) return nullptr;
  if (nb::isinstance<KvCache>(cache)) return nb::cast<KvCache*>(cache);
  raise_type_error(std::string(where) +
                   ": cache takes a KvCache, as make_cache() gives one, found " +
                   name_of_type(cache));
}

std::string described(nb::handle self, const std::vector<NamedView>& parameters) {
  std::string text;
  for (const auto& [name, tensor] : parameters)
    text += name + " " + to_string(tensor.shape()) + ", ";
  if (!parameters.empty()) text += name_of(parameters[0].tensor.dtype());
  return in_brackets(self, text);
}

std::string described(nb::handle self, const nb::dict& options,
                      const std::vector<NamedView>& parameters) {
  std::string text;
  for (const auto [key, value] : options)
    text += (text.empty() ? "" : ", ") + string_of(key) + "=" + string_of(nb::repr(value));
  std::int64_t count = 0;
  for (const NamedView& parameter : parameters) count += parameter.tensor.count();
  return in_brackets(self, text + "; " + std::to_string(count) + " parameters");
}

nb::object make_gradients(LayerGradients&& gradients, nb::handle like) {
  return nb::module_::import_("attend._types")
      .attr("LayerGradients")(to_python(std::move(gradients.dx), like),
                              to_python(std::move(gradients.parameters), like));
}

int choice(const std::string& value, std::span<const std::string_view> names, const char* what) {
  std::string list;
  for (std::size_t n = 0; n < names.size(); ++n) {
    if (value == names[n]) return static_cast<int>(n);
    list += (n == 0 ? "'" : n + 1 == names.size() ? " or '" : ", '") + std::string(names[n]) + "'";
  }
  throw InvalidArgument(std::string(what) + " is " + list + ", found '" + value + "'");
}

}  // namespace attend::python
