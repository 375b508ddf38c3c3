// What every call begins with: each rank tells the others which call it is in, what it was given,
// and whether that was in order. If a rank's arguments are wrong, or are not those of the others,
// all ranks know it before any of them waits for a message that will not come, and throw the same.
#pragma once

#include "distributed/wire.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::distributed {

// One number that all ranks must agree on.
struct RecordField {
  enum class Kind : std::uint8_t { integer, number, type, hash };
  const char* name;
  Kind kind;
  std::uint64_t bits;
};

class Record {
 public:
  void integer(const char* name, std::optional<std::int64_t> value);
  void number(const char* name, std::optional<double> value);
  void type(const char* name, DType value);
  void hash(const char* name, std::uint64_t value);  // of more than is worth sending
  // Shape, type and, if it is small, the elements of a tensor.
  void tensor(const char* name, const ConstTensorView& view, bool elements);
  void options(const AttentionOptions& options);
  void layout(const char* name, const Layout& layout);
  // By name: which row of the kernel table computes depends on the Context and on the processor.
  void kernel(std::string_view name);
  const std::vector<RecordField>& fields() const noexcept { return fields_; }
  const std::string& kernels() const noexcept { return kernels_; }

 private:
  std::vector<RecordField> fields_;
  std::string kernels_;  // in the order they were given, none twice
};

// After an exception in the middle of a call, which is at hand: other ranks wait for messages that
// will not come.
void fail_group(Group& group);

// Calls prepare(), which fills the record or throws, tells the other ranks, and hears from them.
// Throws on every rank, or on none but for PeerError.
void agree(const char* function, Wire& wire, std::int64_t call,
           const std::function<void(Record&)>& prepare);

}  // namespace attend::distributed
