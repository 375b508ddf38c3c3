// Every public function throws an attend::Error or nothing, also when memory for a message, a list
// or a plan ends.
#pragma once

#include <attend/error.h>

#include <new>
#include <string>

namespace attend {

template <class Body>
auto reporting(const char* function, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(std::string(function) + ": out of memory");
  }
}

}  // namespace attend
