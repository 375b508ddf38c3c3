// Lists of parameters: names, sizes, and values from a file.
#include "core/printable.h"
#include "core/strided.h"
#include "core/text.h"
#include "layer/check.h"

#include <attend/parameter.h>

#include <algorithm>

namespace attend {
namespace {

template <class Named>
std::vector<Named> prefixed(std::string_view prefix, std::vector<Named> list) {
  return reporting("with_prefix", [&] {
    for (Named& named : list) named.name.insert(0, prefix);
    return std::move(list);
  });
}

// A list for a message: 'a', 'b', 'c'.
class Names {
 public:
  void add(std::string_view name) { list_ += (list_.empty() ? "" : ", ") + in_quotes(name); }
  bool empty() const { return list_.empty(); }
  std::string listed() const { return empty() ? "none" : printable(list_); }

 private:
  std::string list_;
};

void check_fits(const std::string& where, const std::string& name, const Tensor& found,
                const ConstTensorView& parameter) {
  const bool bytes = parameter.dtype() == DType::i8;
  if (bytes ? found.dtype() != DType::i8 : !is_floating_point(found.dtype()))
    throw FileError(text(where, "tensor ", in_quotes(name), " is ", found.dtype(),
                         bytes ? "; the parameter is i8, of quantize(), and takes i8 alone"
                               : "; a parameter needs a floating-point type"));
  if (found.shape() != parameter.shape())
    throw FileError(text(where, "tensor ", in_quotes(name), " is ", found.shape(),
                         "; the parameter is ", parameter.shape(),
                         parameter.rank() == 2 ? ", a weight matrix being [out, in]" : ""));
}

// Elements of one shape, each converted by a function.
template <class From, class To, class Convert>
void convert(const ConstTensorView& from, const TensorView& to, Convert converted) noexcept {
  const From* next = static_cast<const From*>(from.data());  // contiguous: a Tensor's
  Shape index = to.shape();
  std::fill_n(&index[0], index.rank(), 0);
  for (std::int64_t n = from.count(); n > 0; --n) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < to.rank(); ++dim) offset += index[dim] * to.strides()[dim];
    static_cast<To*>(to.data())[offset] = converted(*next++);
    for (int dim = to.rank() - 1; dim >= 0 && ++index[dim] == to.size(dim); --dim) index[dim] = 0;
  }
}

// Floating-point numbers are each rounded once; those of 8 bits are what they are.
void store_parameter(const ConstTensorView& from, const TensorView& to) noexcept {
  if (to.dtype() == DType::i8)
    return convert<std::int8_t, std::int8_t>(from, to, [](std::int8_t x) { return x; });
  with_type(from.dtype(), [&]<class From>(From) {
    with_type(to.dtype(), [&]<class To>(To) {
      convert<From, To>(from, to, [](From x) { return static_cast<To>(widened(x)); });
    });
  });
}

}  // namespace

std::vector<Parameter> with_prefix(std::string_view prefix, std::vector<Parameter> list) {
  return prefixed(prefix, std::move(list));
}
std::vector<NamedView> with_prefix(std::string_view prefix, std::vector<NamedView> list) {
  return prefixed(prefix, std::move(list));
}
std::vector<NamedTensor> with_prefix(std::string_view prefix, std::vector<NamedTensor> list) {
  return prefixed(prefix, std::move(list));
}

std::int64_t parameter_count(const std::vector<NamedView>& list) {
  std::int64_t count = 0;
  for (const NamedView& parameter : list) count += parameter.tensor ? parameter.tensor.count() : 0;
  return count;
}

void load_parameters(const TensorFile& file, const std::vector<Parameter>& parameters,
                     std::string_view prefix, bool allow_others) {
  reporting("load_parameters", [&] {
    const std::string where =
        "load_parameters: " + (file.path.empty() ? "" : printable(file.path.native()) + ": ");
    const auto full_name = [&](const Parameter& p) { return std::string(prefix) + p.name; };
    const auto find = [&](const Parameter& p) {
      const Tensor* tensor = file.find(full_name(p));
      return tensor != nullptr && *tensor ? tensor : nullptr;
    };

    Names missing, there, others;
    for (const Parameter& p : parameters)
      if (find(p) == nullptr) missing.add(full_name(p));
    for (const NamedTensor& t : file.tensors) {
      there.add(t.name);
      const bool known = std::any_of(parameters.begin(), parameters.end(),
                                     [&](const Parameter& p) { return full_name(p) == t.name; });
      if (!known && t.name.starts_with(prefix)) others.add(t.name);
    }
    if (!missing.empty())
      throw FileError(
          text(where, "there is no tensor ", missing.listed(), "; there are ", there.listed()));
    if (!others.empty() && !allow_others)
      throw FileError(text(where, "no parameter takes ", others.listed()));

    std::vector<const Tensor*> found;
    for (const Parameter& p : parameters) {
      check_readable("load_parameters", in_quotes(p.name).c_str(), p.value);
      if (p.value.dtype() != DType::i8) check_type("load_parameters", p.value.dtype());
      found.push_back(find(p));
      check_readable("load_parameters", in_quotes(full_name(p)).c_str(), *found.back());
      check_fits(where, full_name(p), *found.back(), p.value);
    }
    for (std::size_t n = 0; n < found.size(); ++n)  // nothing below can fail
      store_parameter(*found[n], parameters[n].value);
  });
}

}  // namespace attend
