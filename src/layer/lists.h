// Lists of parameters and of gradients, put together.
#pragma once

#include "layer/check.h"

#include <attend/parameter.h>

#include <initializer_list>
#include <iterator>
#include <type_traits>

namespace attend {

template <class T>
struct NamedMember {
  const char* name;
  T* tensor;
};

// The members that are there: of a const layer as NamedView, of another as Parameter. For memory
// that is never packed.
template <class Named, class T>
std::vector<Named> listed(const char* layer, std::initializer_list<NamedMember<T>> members) {
  return reporting(layer, [&] {
    std::vector<Named> list;
    for (const NamedMember<T>& member : members)
      if (*member.tensor) list.push_back({member.name, *member.tensor});
    return list;
  });
}

// Of a const layer the parameters for reading, of another for writing.
template <class Layer>
auto parameters_of(Layer& layer) {
  if constexpr (std::is_const_v<Layer>) return layer.parameters();
  else return layer.writable_parameters();
}

// The list of a layer behind what is there, with a prefix before each name.
template <class Named>
void append(std::vector<Named>& list, std::string_view prefix, std::vector<Named> part) {
  part = with_prefix(prefix, std::move(part));
  list.insert(list.end(), std::move_iterator(part.begin()), std::move_iterator(part.end()));
}

}  // namespace attend
