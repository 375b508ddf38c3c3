// The library's version. CMake reads these three numbers from here; they are written nowhere else.
// This header is C as well as C++.
#pragma once

#define ATTEND_VERSION_MAJOR 0
#define ATTEND_VERSION_MINOR 2
#define ATTEND_VERSION_PATCH 0

#define ATTEND_STRINGIFY_(x) #x
#define ATTEND_VERSION_STRING_(a, b, c) \
  ATTEND_STRINGIFY_(a) "." ATTEND_STRINGIFY_(b) "." ATTEND_STRINGIFY_(c)
#define ATTEND_VERSION \
  ATTEND_VERSION_STRING_(ATTEND_VERSION_MAJOR, ATTEND_VERSION_MINOR, ATTEND_VERSION_PATCH)

// What is part of the shared library's interface; everything else is compiled hidden.
#define ATTEND_API __attribute__((visibility("default")))

#ifdef __cplusplus
namespace attend {

// The version of the library that was linked, "major.minor.patch"; compare with ATTEND_VERSION.
ATTEND_API const char* version() noexcept;

}  // namespace attend
#endif
