// Every function of the library throws an attend::Error or nothing, also when memory for a list or
// a message ends.
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
