// What a call throws, as one line that a test can compare.
#pragma once

#include <attend/error.h>

#include <string>
#include <typeinfo>

namespace attend::test {

// "InvalidArgument: attention: q is missing", or "nothing".
template <class Call>
std::string thrown_by(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const auto is = [&](const std::type_info& type) { return typeid(error) == type; };
    const char* name = is(typeid(InvalidArgument)) ? "InvalidArgument"
                       : is(typeid(Unsupported))   ? "Unsupported"
                       : is(typeid(OutOfMemory))   ? "OutOfMemory"
                       : is(typeid(DeviceError))   ? "DeviceError"
                       : is(typeid(Interrupted))   ? "Interrupted"
                                                   : "another attend::Error";
    return std::string(name) + ": " + error.what();
  } catch (const std::exception& error) {
    return std::string("not an attend::Error: ") + error.what();
  }
  return "nothing";
}

}  // namespace attend::test
