// Paths of files from Python, where a TensorFile may come instead.
#pragma once

#include "arrays.h"

#include <nanobind/stl/filesystem.h>

namespace attend::python {

inline std::filesystem::path to_path(nb::handle object, const char* where) {
  std::filesystem::path path;
  if (nb::try_cast(object, path)) return path;
  if (nb::isinstance<nb::str>(object)) {
    const std::string what = std::string(where) + ": path";
    text_of(object, what);
    throw InvalidArgument(what + " cannot be the name of a file: '" + string_of(object) + "'");
  }
  raise_type_error(std::string(where) +
                   ": path takes a str, an os.PathLike or a TensorFile, found " +
                   name_of_type(object));
}

}  // namespace attend::python
