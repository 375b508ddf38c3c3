// What goes between the ranks.
#include "distributed/record.h"

#include "core/text.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

namespace attend::distributed {
namespace {

std::string value_of(const RecordField& field) {
  switch (field.kind) {
    case RecordField::Kind::integer: {
      const auto value = static_cast<std::int64_t>(field.bits);
      return value == RecordField::kNoInteger ? "none"
             : value == kUnlimited            ? "unlimited"
                                              : text(value);
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
  static constexpr std::size_t kMostFields = 96, kMostText = 600, kMostFunction = 24;
  std::int64_t call = 0;
  Status status = Status::ok;
  std::uint32_t count = 0;
  std::uint64_t bits[kMostFields] = {};
  char function[kMostFunction] = {};
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

// ---- What differs
// ---------------------------------------------------------------------------------

struct Lists {
  std::vector<std::uint64_t> mine, theirs, first;
};

// The lists of a rank and of rank 0, which they tell all.
std::shared_ptr<Lists> exchange_lists(Wire& wire, const RecordList& own, std::size_t rank) {
  const auto ranks = static_cast<std::size_t>(wire.size());
  const auto self = static_cast<std::size_t>(wire.rank());
  const auto bytes = [](std::vector<std::uint64_t>& list) {
    return MemoryBlocks{std::as_writable_bytes(std::span(list))};
  };
  Exchange exchange(wire);
  try {
    auto lists = std::make_shared<Lists>(Lists{own.values, own.values, own.values});
    std::vector<MemoryBlocks> send(ranks), receive(ranks);
    if (self == 0 || self == rank) send.assign(ranks, bytes(lists->mine));
    receive[0] = bytes(lists->first);
    receive[rank] = bytes(lists->theirs);
    send[self].clear();
    receive[self].clear();
    exchange.start(1, send, receive, {lists});
    exchange.wait();
    return lists;
  } catch (...) {
    fail_group(wire.group());
    throw;
  }
}

std::string form_in_words(const std::vector<std::uint64_t>& form) {
  if (form[0] == 0) return "none";
  std::vector<std::int64_t> sizes;
  for (std::size_t dim = 0; dim < form[1]; ++dim)
    sizes.push_back(static_cast<std::int64_t>(form[2 + dim]));
  return text(static_cast<DType>(form[0] - 1), " ", Shape(std::span<const std::int64_t>(sizes)));
}

// What a rank was given for a field, and what rank 0 was.
std::string difference(Wire& wire, const Record& record, std::size_t field, std::size_t rank,
                       std::uint64_t theirs, std::uint64_t first) {
  RecordField shown = record.fields()[field];
  const std::string name = shown.name;
  const auto both = [&](const std::string& place, const std::string& a, const std::string& b) {
    return text(name, place, " ", a, ", rank 0 ", b);
  };
  const auto value = [&](RecordField::Kind kind, std::uint64_t bits) {
    return value_of({name, kind, bits});
  };
  if (shown.kind != RecordField::Kind::hash)
    return both("", value(shown.kind, theirs), value(shown.kind, first));
  const RecordList& own = record.list_of(field);
  const std::shared_ptr<Lists> lists = exchange_lists(wire, own, rank);
  if (own.of == RecordList::Of::form)
    return both("", form_in_words(lists->theirs), form_in_words(lists->first));
  std::size_t n = 0;
  while (n + 1 < own.values.size() && lists->theirs[n] == lists->first[n]) ++n;
  const auto element = [&](std::uint64_t bits) {  // each is given, whatever it is: NaN is no "none"
    return own.of == RecordList::Of::numbers ? text(std::bit_cast<double>(bits))
                                             : text(static_cast<std::int64_t>(bits));
  };
  return both(text("[", n, "]"), element(lists->theirs[n]), element(lists->first[n]));
}

void compare(Wire& wire, const std::vector<Sent>& all, const Record& record) {
  const std::size_t ranks = all.size();
  const char* const function = all[0].function;  // on all ranks the same words
  Group& group = wire.group();
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
  for (std::size_t n = 0; n < record.fields().size(); ++n) {
    for (std::size_t r = 1; r < ranks; ++r) {
      if (all[r].bits[n] == all[0].bits[n]) continue;
      throw InvalidArgument(text(function, ": rank ", r, " was given ",
                                 difference(wire, record, n, r, all[r].bits[n], all[0].bits[n]),
                                 "; all ranks must describe one problem"));
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
    std::string_view(function).copy(mine.function, Sent::kMostFunction - 1);
    mine.status = status_of([&] { prepare(record); }, message);
    if (mine.status == Status::ok) message = record.kernels();
    mine.count = static_cast<std::uint32_t>(record.fields().size());
    if (mine.count > Sent::kMostFields) throw Error("record: too many fields");
    for (std::size_t n = 0; n < record.fields().size(); ++n) mine.bits[n] = record.fields()[n].bits;
    std::size_t end = std::min(message.size(), Sent::kMostText - 1);  // whole characters alone
    while (end < message.size() && end > 0 && (message[end] & 0xC0) == 0x80) --end;
    message.copy(mine.text, end);
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
  compare(wire, records->all, record);
}

}  // namespace attend::distributed
