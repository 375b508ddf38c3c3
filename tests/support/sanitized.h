// Whether a sanitizer watches this build: then tests of many cases take a part of them, for it
// looks at every access of each, ten times slower.
#pragma once

namespace attend::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace attend::test
