// Numbers and small structs from Python: a struct is a tuple (a NamedTuple too) or a dict.
#pragma once

#include "arrays.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
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
    if constexpr (std::is_integral_v<T>) {
      if (PyLong_Check(value.ptr()))
        throw InvalidArgument(std::string(where) + ": " + std::string(name) +
                              " is out of range; it must be from " +
                              std::to_string(std::numeric_limits<T>::min()) + " to " +
                              std::to_string(std::numeric_limits<T>::max()));
    }
  }
  raise_type_error(std::string(where) + ": " + std::string(name) + " takes " + what + ", found " +
                   name_of_type(value));
}

// The arguments of a constructor that takes names alone. What was not given is not a valid handle.
class Keywords {
 public:
  Keywords(const nb::args& places, const nb::kwargs& keywords, const char* where,
           std::initializer_list<const char*> names, const char* example)
      : where_(where), example_(example), given_(keywords) {
    const std::string start = std::string(where) + ": ";
    if (places.size() > 0)
      raise_type_error(start + "arguments come by their names, " + std::to_string(places.size()) +
                       " came without; " + example);
    std::string list;
    for (const char* name : names) list += (list.empty() ? "" : ", ") + std::string(name);
    for (const auto [key, value] : given_) {
      const std::string found = string_of(key);
      if (std::none_of(names.begin(), names.end(), [&](const char* name) { return found == name; }))
        raise_type_error(start + "there is no argument '" + found + "'; there are " + list);
    }
  }
  nb::object get(const char* name) const {
    return given_.contains(name) ? nb::object(given_[name]) : nb::object();
  }
  template <class T>
  T whole(const char* name, T otherwise) const {
    const nb::object value = get(name);
    return value.is_valid() ? number<T>(value, where_, name, "a whole number") : otherwise;
  }
  std::int64_t needed(const char* name) const {
    if (!get(name).is_valid())
      raise_type_error(std::string(where_) + ": " + name + " is missing; " + example_);
    return whole<std::int64_t>(name, 0);
  }

 private:
  const char *where_, *example_;
  nb::kwargs given_;
};

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
