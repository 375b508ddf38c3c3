// Marks on the ways through the kernels: ATTEND_PATH(V, "few rows"), with a number or without. In
// the library they are nothing at all. The test `paths` compiles kernels once more, with
// ATTEND_PATHS the name of their file, runs the cases of the conformance test, and fails if there
// is a mark that none of them meets. A mark exists where the compiler makes code for it, so each
// kernel has those of its own tiles; what a tile has not is left out by `if constexpr`.
#pragma once

#ifdef ATTEND_PATHS

#include <atomic>

namespace attend {

struct PathName {
  char text[48] = {};
  consteval PathName(const char* name) {  // NOLINT(google-explicit-constructor): a name in a text
    for (int n = 0; name[n] != 0; ++n) text[n] = name[n];
  }
};

// One mark of one kernel file and element type; all of them are a list.
struct KernelPath {
  const char *file, *name;
  int bytes, number;  // of the element; 0: it has none
  KernelPath* next;
  std::atomic<bool> entered{false};
  inline static KernelPath* first = nullptr;

  KernelPath(const char* of, int size, const char* called, int counted)
      : file(of), name(called), bytes(size), number(counted), next(first) {
    first = this;
  }
  void enter() noexcept { entered.store(true, std::memory_order_relaxed); }
};

inline constexpr const char* kTilePaths[] = {"tile along, vectors", "tile streamed, vectors",
                                             "tile across, vectors", "tile of panels, vectors"};

namespace {
template <class V, PathName kName, int kNumber>
KernelPath kernel_path{ATTEND_PATHS, sizeof(typename V::T), kName.text, kNumber};
}  // namespace
}  // namespace attend

#define ATTEND_PATH_OF(V, name, number) kernel_path<V, PathName(name), number>.enter()
#define ATTEND_PATH_IF(condition, V, name) \
  if (condition) ATTEND_PATH_OF(V, name, 0)

#else

#define ATTEND_PATH_OF(V, name, number) static_cast<void>(0)
#define ATTEND_PATH_IF(condition, V, name) static_cast<void>(0)

#endif

#define ATTEND_PATH(V, name) ATTEND_PATH_OF(V, name, 0)
