// Numbers and small structs from Python: a struct is a tuple (a NamedTuple too) or a dict.
#pragma once

#include "arrays.h"

#include <array>
#include <string>
#include <string_view>
#include <type_traits>

namespace attend::python {

// NumPy's numbers are taken too, as what they are: nothing is rounded, nothing but a bool is a
// bool.
template <class T>
T number(nb::handle value, const char* where, std::string_view name, const char* what) {
  T result{};
  if constexpr (std::is_same_v<T, bool>) {
    if (nb::try_cast(value, result)) return result;
    const std::string type = name_of_type(value);
    if (type == "numpy.bool" || type == "numpy.bool_") return PyObject_IsTrue(value.ptr()) == 1;
  } else if (!std::is_integral_v<T> || PyIndex_Check(value.ptr())) {
    if (nb::try_cast(value, result)) return result;
  }
  raise_type_error(std::string(where) + ": " + std::string(name) + " takes " + what + ", found " +
                   name_of_type(value));
}

// The fields of a small struct given as a tuple (a NamedTuple too) or a dict. Missing ones are
// not valid handles.
template <std::size_t N>
std::array<nb::object, N> fields(nb::handle value, const char* where, std::string_view name,
                                 const std::array<const char*, N>& names) {
  std::array<nb::object, N> result;
  std::string list;
  for (const char* field : names) list += (list.empty() ? "" : ", ") + std::string(field);
  const std::string start = std::string(where) + ": " + std::string(name);
  if (nb::isinstance<nb::dict>(value)) {
    for (const auto [key, item] : nb::borrow<nb::dict>(value)) {
      const auto found = string_of(key);
      std::size_t field = 0;
      while (field < N && found != names[field]) ++field;
      if (field == N) raise_type_error(start + " has no '" + found + "', only (" + list + ")");
      result[field] = nb::borrow(item);
    }
    return result;
  }
  if (!nb::isinstance<nb::tuple>(value) && !nb::isinstance<nb::list>(value)) {
    raise_type_error(start + " takes a tuple or dict (" + list + "), found " + name_of_type(value));
  }
  const std::size_t size = nb::len(value);
  if (size > N) {
    throw InvalidArgument(start + " takes at most " + std::to_string(N) + " values (" + list +
                          "), found " + std::to_string(size));
  }
  for (std::size_t field = 0; field < size; ++field) result[field] = value[field];
  return result;
}

}  // namespace attend::python
