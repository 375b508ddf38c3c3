// What every call begins with: each rank tells the others which call it is in, what it was given,
// and whether that was in order. If a rank's arguments are wrong, or are not those of the others,
// all ranks know it before any of them waits for a message that will not come, and throw the same.
#pragma once

#include "distributed/wire.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::distributed {

// One number that all ranks must agree on.
struct RecordField {
  enum class Kind : std::uint8_t { integer, number, type, hash };
  // What was not given: of an integer the least, of a number a NaN, which no option may be.
  static constexpr std::int64_t kNoInteger = std::numeric_limits<std::int64_t>::min();
  static constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
  std::string name;
  Kind kind;
  std::uint64_t bits;
};

// Numbers of which the record holds a hash. They are sent only where hashes differ, so that it can
// be said which number does: there are as many on all ranks whose fields before that one agree.
struct RecordList {
  enum class Of : std::uint8_t { integers, numbers, form };  // form: type and shape of a tensor
  Of of = Of::integers;
  std::vector<std::uint64_t> values;
};

class Record {
 public:
  void integer(const std::string& name, std::optional<std::int64_t> value);
  void number(const std::string& name, std::optional<double> value);
  void type(const std::string& name, DType value);
  void list(const std::string& name, RecordList list);
  // Shape, type and, if it is small, the elements of a tensor.
  void tensor(const std::string& name, const ConstTensorView& view, bool elements);
  void options(const AttentionOptions& options);
  void layout(const std::string& name, const Layout& layout);
  // By name: which row of the kernel table computes depends on the Context and on the processor.
  void kernel(std::string_view name);
  const std::vector<RecordField>& fields() const noexcept { return fields_; }
  const std::string& kernels() const noexcept { return kernels_; }
  // Of a field that is a hash.
  const RecordList& list_of(std::size_t field) const { return lists_.at(field); }

 private:
  std::vector<RecordField> fields_;
  std::map<std::size_t, RecordList> lists_;  // by the field
  std::string kernels_;                      // in the order they were given, none twice
};

// After an exception in the middle of a call, which is at hand: other ranks wait for messages that
// will not come.
void fail_group(Group& group);

// Calls prepare(), which fills the record or throws, tells the other ranks, and hears from them.
// Throws on every rank, or on none but for PeerError.
void agree(const char* function, Wire& wire, std::int64_t call,
           const std::function<void(Record&)>& prepare);

}  // namespace attend::distributed
