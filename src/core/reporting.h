// Every public function throws an attend::Error or nothing, also when memory for a message, a list
// or a plan ends. A call that was interrupted says its own name, not that of a function inside.
#pragma once

#include <attend/error.h>

#include <new>
#include <string>
#include <string_view>

namespace attend {

// After the name of a function. An Interrupted with other words is the hook's own.
inline constexpr std::string_view kInterrupted =
    ": interrupted; what it was to write is not complete";

template <class Body>
auto reporting(const char* function, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(std::string(function) + ": out of memory");
  } catch (const Interrupted& interrupted) {
    if (!std::string_view(interrupted.what()).ends_with(kInterrupted)) throw;
    throw Interrupted(std::string(function).append(kInterrupted));
  }
}

}  // namespace attend
