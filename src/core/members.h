// How many members an aggregate has, a base counting as one: for what must name all of them.
#pragma once

#include <cstddef>
#include <utility>

namespace attend {

struct AnyMember {
  template <class T>
  operator T() const;  // NOLINT: never called
};

template <class T, std::size_t... n>
constexpr bool made_of(std::index_sequence<n...>) {
  return requires { T{(static_cast<void>(n), AnyMember{})...}; };
}

template <class T, std::size_t kCount = 0>
constexpr std::size_t member_count() {
  if constexpr (made_of<T>(std::make_index_sequence<kCount + 1>()))
    return member_count<T, kCount + 1>();
  else return kCount;
}

}  // namespace attend
