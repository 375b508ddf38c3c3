// Tokens that were appended to a cache are forgotten when the pass that did so fails.
#pragma once

#include "layer/scratch.h"

#include <attend/kv_cache.h>

namespace attend {

class Undo {
 public:
  Undo(KvCache& cache, const Where& where)
      : cache_(cache), before_(where, {{cache.key_lengths().shape(), DType::i64}}) {
    for (std::int64_t b = 0; b < lengths().size(0); ++b) at(b) = cache.length(b);
  }
  ~Undo() {
    if (!keep_)
      for (std::int64_t b = 0; b < lengths().size(0); ++b) cache_.truncate(b, at(b));
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

  const TensorView& lengths() const noexcept { return before_.tensors[0]; }  // before: [batch]
  void keep() noexcept { keep_ = true; }

 private:
  std::int64_t& at(std::int64_t b) const { return static_cast<std::int64_t*>(lengths().data())[b]; }

  KvCache& cache_;
  const Scratch<1> before_;
  bool keep_ = false;
};

}  // namespace attend
