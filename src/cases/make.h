// The parts of make(), shared by its source files alone.
#pragma once

#include "arena.h"
#include "instance.h"
#include "random.h"

namespace attend::cases {

// One stream of random numbers a tensor, so that an option does not change the data of the others.
// clang-format off
enum Stream : std::uint64_t {
  kQ, kK, kV, kDout, kDlse, kMask, kBias, kBlocks, kSinks, kKeyLengths, kSequences, kPages,
  kKeyTensors  // and from there on
};
// clang-format on

// How many queries and keys each batch element has, and on which pages.
struct Sequences {
  std::vector<std::int64_t> q_lengths, k_lengths;
  std::vector<std::int64_t> key_lengths;  // k_lengths, or as the case wants them
  std::int64_t pages = 0;
  std::vector<std::int64_t> block_table;  // [batch, pages of the longest]
  std::vector<bool> addressed;            // paged: [pages, page size], is it anybody's key?
};
Sequences sequences_of(const Case& problem);

// Numbers of i8 are about this many times the others, and their scales as many times smaller.
inline constexpr double kWholeNumbers = 40;

// The layout of everything but k and v, which alone may be broadcast.
Layout layout_of_rows(const Case& problem);

// The type of lse, sinks and alibi.
DType statistics_type(const Case& problem);

void make_tensors(const Sequences& sequences, Instance& instance);  // q k v out dout lse dlse ...
void make_options(const Sequences& sequences, Instance& instance);

}  // namespace attend::cases
