// Memory of a Context for the time of a call. It goes back to the Context, for the next call: after
// the first one nothing is allocated.
#pragma once

#include <attend/context.h>

#include <cstddef>

namespace attend {

class Lease {
 public:
  Lease(Context& context, std::size_t bytes);  // aligned as workspaces are; throws OutOfMemory
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  std::byte* data() const noexcept { return data_; }

 private:
  Context& context_;
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace attend
