// Memory of a Context for the time of a call. It goes back to the Context, for the next call: after
// the first one nothing is allocated.
#pragma once

#include <attend/context.h>

#include <cstddef>
#include <utility>

namespace attend {

struct ContextState;

class Lease {
 public:
  Lease(Context& context, std::size_t bytes);  // aligned as workspaces are; throws OutOfMemory
  Lease(ContextState& state, std::size_t bytes);
  Lease(Lease&& other) noexcept
      : state_(other.state_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  ~Lease();
  Lease& operator=(const Lease&) = delete;
  std::byte* data() const noexcept { return data_; }  // null of 0 bytes

 private:
  ContextState& state_;
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace attend
