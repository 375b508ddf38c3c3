#include "distributed/record.h"

#include "core/text.h"

#include <attend/option_list.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

namespace attend::distributed {
namespace {

// FNV-1a
class Hash {
 public:
  void add(const void* bytes, std::size_t count) noexcept {
    const auto* from = static_cast<const unsigned char*>(bytes);
    for (std::size_t n = 0; n < count; ++n) value_ = (value_ ^ from[n]) * 0x100000001b3;
  }
  template <class T>
  void add(const T& value) noexcept {
    add(&value, sizeof value);
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

// What was not given: of an integer the least, of a number a NaN, which no option may be.
constexpr std::int64_t kNoInteger = std::numeric_limits<std::int64_t>::min();
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

std::string value_of(const RecordField& field) {
  switch (field.kind) {
    case RecordField::Kind::integer: {
      const auto value = static_cast<std::int64_t>(field.bits);
      return value == kNoInteger ? "none" : value == kUnlimited ? "unlimited" : text(value);
    }
    case RecordField::Kind::number: {
      const auto value = std::bit_cast<double>(field.bits);
      return std::isnan(value) ? "none" : text(value);
    }
    case RecordField::Kind::type:
      return field.bits == 0 ? "none" : text(static_cast<DType>(field.bits - 1));
    case RecordField::Kind::hash: break;
  }
  return "other";
}

// ---- The record on its way
// -----------------------------------------------------------------------

enum class Status : std::uint32_t { ok, invalid_argument, unsupported, out_of_memory, other };

struct Sent {
  static constexpr std::size_t kMostFields = 96, kMostText = 600;
  std::int64_t call = 0;
  Status status = Status::ok;
  std::uint32_t count = 0;
  std::uint64_t bits[kMostFields] = {};
  char text[kMostText] = {};  // what is wrong; if nothing is, the names of the kernels
};
static_assert(std::is_trivially_copyable_v<Sent>);

struct Records {
  Sent mine;
  std::vector<Sent> all;  // by rank
};

template <class Prepare>
Status status_of(const Prepare& prepare, std::string& message) {
  try {
    prepare();
    return Status::ok;
  } catch (const InvalidArgument& error) {
    message = error.what();
    return Status::invalid_argument;
  } catch (const Unsupported& error) {
    message = error.what();
    return Status::unsupported;
  } catch (const OutOfMemory& error) {
    message = error.what();
    return Status::out_of_memory;
  } catch (const std::bad_alloc&) {
    message = "out of memory";
    return Status::out_of_memory;
  } catch (const std::exception& error) {
    message = error.what();
    return Status::other;
  }
}

[[noreturn]] void throw_status(Status status, const std::string& message) {
  switch (status) {
    case Status::invalid_argument: throw InvalidArgument(message);
    case Status::unsupported: throw Unsupported(message);
    case Status::out_of_memory: throw OutOfMemory(message);
    default: throw Error(message);
  }
}

void compare(const char* function, Group& group, const std::vector<Sent>& all,
             const std::vector<RecordField>& names) {
  const std::size_t ranks = all.size();
  for (std::size_t r = 0; r < ranks; ++r)
    if (all[r].call != all[0].call) {
      group.fail(text("rank ", r, " was in call ", all[r].call, ", rank 0 in ", all[0].call));
      throw PeerError(text(function, ": rank ", r, " is in call ", all[r].call,
                           " of the group, rank 0 in ", all[0].call,
                           "; all ranks must make the same calls"));
    }
  for (std::size_t r = 0; r < ranks; ++r)
    if (all[r].status != Status::ok)
      throw_status(all[r].status, text("rank ", r, ": ", all[r].text));
  for (std::size_t n = 0; n < names.size(); ++n) {
    for (std::size_t r = 1; r < ranks; ++r) {
      if (all[r].bits[n] == all[0].bits[n]) continue;
      const RecordField theirs{names[n].name, names[n].kind, all[r].bits[n]},
          first{names[n].name, names[n].kind, all[0].bits[n]};
      const std::string what =
          names[n].kind == RecordField::Kind::hash
              ? text("rank ", r, " was given another ", names[n].name, " than rank 0")
              : text("rank ", r, " was given ", names[n].name, " ", value_of(theirs), ", rank 0 ",
                     value_of(first));
      throw InvalidArgument(text(function, ": ", what, "; all ranks must describe one problem"));
    }
  }
  for (std::size_t r = 1; r < ranks; ++r)
    if (std::strcmp(all[r].text, all[0].text) != 0)
      throw InvalidArgument(text(function, ": rank ", r, " computes with ", all[r].text,
                                 ", rank 0 with ", all[0].text,
                                 "; all ranks must use the same kernels (their Contexts can be "
                                 "told which)"));
}

}  // namespace

void Record::integer(const char* name, std::optional<std::int64_t> value) {
  fields_.push_back(
      {name, RecordField::Kind::integer, static_cast<std::uint64_t>(value.value_or(kNoInteger))});
}
void Record::number(const char* name, std::optional<double> value) {
  fields_.push_back(
      {name, RecordField::Kind::number, std::bit_cast<std::uint64_t>(value.value_or(kNoNumber))});
}
void Record::type(const char* name, DType value) {
  fields_.push_back({name, RecordField::Kind::type, static_cast<std::uint64_t>(value) + 1});
}
void Record::hash(const char* name, std::uint64_t value) {
  fields_.push_back({name, RecordField::Kind::hash, value});
}

void Record::tensor(const char* name, const ConstTensorView& view, bool elements) {
  Hash hash;
  if (view) {
    hash.add(view.dtype());
    for (const std::int64_t size : view.shape()) hash.add(size);
    if (elements && view.count() > 0) {
      const Tensor copy = Tensor::copy_of(view);
      hash.add(copy.view().data(), static_cast<std::size_t>(view.count() * size_of(view.dtype())));
    }
  }
  this->hash(name, hash.value());
}

// Lengths, offsets and numbers of a head are compared by their elements, masks and biases, which
// may be as large as memory, by shape and type.
void Record::options(const AttentionOptions& options) {
  for_each_option(options, [&](const Option& option, const auto& member) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, double> || std::is_same_v<Member, std::optional<double>>)
      number(option.name, member);
    else if constexpr (std::is_same_v<Member, bool>) integer(option.name, member ? 1 : 0);
    else if constexpr (std::is_same_v<Member, std::optional<std::int64_t>>)
      integer(option.name, member);
    else if constexpr (std::is_same_v<Member, TensorOrView>) {
      const bool of_rows = option.kind == OptionKind::key_tensor;
      if (of_rows) integer(option.name, member ? 1 : 0);
      else
        tensor(option.name, member,
               option.kind == OptionKind::integer_tensor || option.kind == OptionKind::head_tensor);
    }
  });
  integer("window.left", options.window.left);
  integer("window.right", options.window.right);
  integer("query_offset", options.query_offset.all());
  tensor("query_offset", options.query_offset.each(), true);
  tensor("blocks.visible", options.blocks.visible, false);
  integer("blocks.query_size", options.blocks.query_size);
  integer("blocks.key_size", options.blocks.key_size);
  const Dropout& dropout = options.dropout;
  number("dropout.p", dropout.p);
  integer("dropout.seed", static_cast<std::int64_t>(dropout.seed));
  integer("dropout.offset", dropout.offset);
  Hash origin;
  for (const std::int64_t value : {dropout.origin.b, dropout.origin.h, dropout.origin.i,
                                   dropout.origin.j, dropout.origin.heads})
    origin.add(value);
  hash("dropout.origin", origin.value());
}

void Record::layout(const char* name, const Layout& layout) {
  Hash hash;
  hash.add(layout.granule());
  for (std::int64_t s = 0; s < layout.sequences(); ++s) {
    hash.add(layout.length(s));
    for (std::int64_t at = 0; at < layout.length(s); at += layout.granule())
      hash.add(layout.owner(s, at));
  }
  this->hash(name, hash.value());
}

void Record::kernel(std::string_view name) {
  if (kernels_.find(name) != std::string::npos) return;
  kernels_ += (kernels_.empty() ? "" : " and ") + std::string(name);
}

void fail_group(Group& group) {
  try {
    throw;
  } catch (const std::exception& error) {
    group.fail(error.what());
  } catch (...) {
    group.fail("an exception of the caller's");
  }
}

void agree(const char* function, Wire& wire, std::int64_t call,
           const std::function<void(Record&)>& prepare) {
  const auto ranks = static_cast<std::size_t>(wire.size());
  const auto self = static_cast<std::size_t>(wire.rank());
  Record record;
  Exchange exchange(wire);
  // Not of the Context's memory: that this has none may be what is to be told.
  std::shared_ptr<Records> records;
  try {
    records = std::make_shared<Records>();
    records->all.resize(ranks);
    Sent& mine = records->mine;
    std::string message;
    mine.call = call;
    mine.status = status_of([&] { prepare(record); }, message);
    if (mine.status == Status::ok) message = record.kernels();
    mine.count = static_cast<std::uint32_t>(record.fields().size());
    if (mine.count > Sent::kMostFields) throw Error("record: too many fields");
    for (std::size_t n = 0; n < record.fields().size(); ++n) mine.bits[n] = record.fields()[n].bits;
    message.copy(mine.text, Sent::kMostText - 1);
    std::vector<MemoryBlocks> send(ranks, {std::as_writable_bytes(std::span(&mine, 1))}),
        receive(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      receive[r] = {std::as_writable_bytes(std::span(&records->all[r], 1))};
    send[self].clear();
    receive[self].clear();
    exchange.start(1, send, receive, {records});
    exchange.wait();
  } catch (...) {
    fail_group(wire.group());
    throw;
  }
  records->all[self] = records->mine;
  compare(function, wire.group(), records->all, record.fields());
}

}  // namespace attend::distributed
