// What the host hands to the kernels that prepare a call (clamp.cu).
#pragma once

#include "core/operation.h"

namespace attend::cuda {

// Where lengths, offsets and starts of sequences go, [batch] or [batch + 1] each, and pages; null:
// not given. All of one type, i64 or i32.
struct ClampedIntegers {
  void *q_starts = nullptr, *k_starts = nullptr, *key_lengths = nullptr, *query_offset = nullptr;
  void* block_table = nullptr;  // [batch, pages of a sequence]
};

struct ClampArguments {
  Problem problem;
  Call call;
  ClampedIntegers to;
  std::int64_t offset_limit;  // no offset is farther from 0
};

// Bytes that go to a device inside of a launch: nothing of the host's is read when it is done.
inline constexpr int kPutBytes = 3840;
struct PutArguments {
  unsigned char* to;
  int bytes;
  unsigned char data[kPutBytes];
};

// A tensor of 16 or 8 bits a number [batch, heads, length, d] from one layout to another.
struct CopyArguments {
  Strided from, to;
  std::int64_t batch, heads, length, d;
};

}  // namespace attend::cuda
