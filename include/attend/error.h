// The six kinds of failure. Every message names the function, the rule, and what was
// found: "attention: k has 6 heads, q has 16; heads of q must be a multiple".
#pragma once

#include <attend/language.h>
#include <attend/version.h>

#include <stdexcept>
#include <string>

namespace attend {

struct ATTEND_API Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An argument breaks a rule. Nothing has been computed or written.
struct ATTEND_API InvalidArgument : Error {
  using Error::Error;
};

// The arguments are valid, but no kernel supports them; the message has each kernel's reason.
struct ATTEND_API Unsupported : Error {
  using Error::Error;
};

// Memory for a tensor or a workspace could not be allocated.
struct ATTEND_API OutOfMemory : Error {
  using Error::Error;
};

// A file could not be read or written, or does not hold what it should.
struct ATTEND_API FileError : Error {
  using Error::Error;
};

// A device reported a failure.
struct ATTEND_API DeviceError : Error {
  using Error::Error;
};

// The Context's `interrupt` said to stop. What the call was to write may be written in part; a
// KvCache is as it was before.
struct ATTEND_API Interrupted : Error {
  using Error::Error;
};

}  // namespace attend
