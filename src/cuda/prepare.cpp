#include "cuda/prepare.h"

#include "cuda/clamp.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace attend::cuda {
namespace {

constexpr std::string_view kClampModule = "clamp";

Strided list_of(void* data, DType type, std::int64_t row = 1) {
  return {
      .data = static_cast<std::byte*>(data), .type = type, .given = true, .stride = {row, 0, 0, 1}};
}

}  // namespace

Loans::~Loans() {
  for (std::size_t n = count_; n-- > 0;) queue_.give(loans_[n].memory, loans_[n].bytes);
}

void* Loans::take_bytes(std::int64_t count, std::size_t size) noexcept {
  constexpr Status kNoneLeft{Status::Kind::out_of_memory,
                             "the device has none left for a workspace"};
  Status why = kNoneLeft;
  std::size_t bytes = 0;
  if (count_ < loans_.size() &&
      !__builtin_mul_overflow(static_cast<std::size_t>(count), size, &bytes)) {
    if (void* const memory = queue_.take(bytes, why); memory != nullptr) {
      loans_[count_++] = {memory, bytes};
      return memory;
    }
  }
  const bool driver_said = why.kind == Status::Kind::out_of_memory && !queue_.has_callers_memory();
  status_ = driver_said ? kNoneLeft : why;
  return nullptr;
}

StreamQueue* stream_queue(Queue& queue, Status& status) noexcept {
  auto* const found = dynamic_cast<StreamQueue*>(&queue);
  if (found == nullptr)
    status = {Status::Kind::failed, "its queue is not one that attend::cuda::make_queue() made"};
  return found;
}

Status put(void* to, const void* from, std::size_t bytes, StreamQueue& queue) noexcept {
  PutArguments a;
  for (std::size_t done = 0; done < bytes; done += kPutBytes) {
    a.to = static_cast<unsigned char*>(to) + done;
    a.bytes = static_cast<int>(std::min<std::size_t>(bytes - done, kPutBytes));
    std::memcpy(a.data, static_cast<const unsigned char*>(from) + done,
                static_cast<std::size_t>(a.bytes));
    ATTEND_TRY(queue.start({kClampModule, "attend_put", 1, 256}, &a));
  }
  return {};
}

Status clamp_integers(const Problem& p, Call& call, Integers type, std::int64_t offset_limit,
                      Loans& loans, StreamQueue& queue) noexcept {
  ClampArguments a{p, call, {}, offset_limit};
  const bool wide = type == Integers::i64;
  const DType dtype = wide ? DType::i64 : DType::i32;
  bool any = false;
  const auto take = [&](bool given, void*& to, Strided& list, std::int64_t count) {
    if (!given) return;
    to = wide ? static_cast<void*>(loans.take<std::int64_t>(count))
              : static_cast<void*>(loans.take<std::int32_t>(count));
    list = list_of(to, dtype);
    any = true;
  };
  take(p.packed_queries, a.to.q_starts, call.cu_seqlens_q, p.batch + 1);
  take(p.keys == KeyAddressing::packed, a.to.k_starts, call.cu_seqlens_k, p.batch + 1);
  take(p.key_lengths, a.to.key_lengths, call.key_lengths, p.batch);
  take(p.offset_each, a.to.query_offset, call.query_offset, p.batch);
  if (loans.failed()) return loans.status();
  if (any && p.batch > 0)
    ATTEND_TRY(
        queue.start({kClampModule, wide ? "attend_clamp_i64" : "attend_clamp_i32", 1, 256}, &a));
  if (p.keys != KeyAddressing::paged) return {};
  const std::int64_t width = p.k_length / p.page_size, entries = p.batch * width;
  a.to.block_table = wide ? static_cast<void*>(loans.take<std::int64_t>(entries))
                          : static_cast<void*>(loans.take<std::int32_t>(entries));
  if (loans.failed()) return loans.status();
  ATTEND_TRY(queue.start({kClampModule, wide ? "attend_clamp_table_i64" : "attend_clamp_table_i32",
                          std::min<std::int64_t>(blocks_of(entries, 256), 1024), 256},
                         &a));
  call.block_table = list_of(a.to.block_table, dtype, width);
  return {};
}

}  // namespace attend::cuda
