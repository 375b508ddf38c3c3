// Cases about shapes and memory.
#include "table.h"

#include <iterator>

namespace attend::cases {
namespace {

Case shape(std::int64_t heads, std::int64_t kv_heads, std::int64_t q_length, std::int64_t k_length,
           std::int64_t d, std::int64_t dv) {
  Case problem;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.q_length = q_length;
  problem.k_length = k_length;
  problem.d = d;
  problem.dv = dv;
  return problem;
}

void add_lengths(Cases& cases) {
  constexpr std::int64_t kLengths[] = {1,  2,  3,  5,   7,   8,   9,   15,  16,  17,  31,  32,  33,
                                       63, 64, 65, 127, 129, 255, 256, 257, 511, 512, 513, 1000};
  constexpr std::int64_t kOthers[] = {6, 33, 1, 18, 65, 11, 24};
  int n = 0;
  for (const std::int64_t length : kLengths) {
    const std::int64_t other = kOthers[n % 7], d = length > 200 ? 8 : 20;
    const bool causal = n++ % 2 == 0;
    add(cases, shape(2, 1, other, length, d, d + 1), [&](Case& c) {
      c.causal = causal;
      c.weights = length < 100;
    });
    add(cases, shape(2, 1, length, other, d, d + 3), [&](Case& c) {
      c.causal = !causal;
      c.dlse = true;
    });
    if (length < 70)
      add(cases, shape(3, 3, length, length, 9, 8), [&](Case& c) { c.causal = causal; });
  }
  add(cases, shape(1, 1, 257, 513, 8, 6), [](Case& c) { c.causal = true; });
  cases.push_back(shape(1, 1, 130, 1025, 5, 8));
  add(cases, shape(3, 1, 2, 5, 4, 3), [](Case& c) { c.batch = 70; });
}

void add_head_sizes(Cases& cases) {
  constexpr std::int64_t kSizes[] = {1,  2,  3,  5,  7,   8,   16,  24,  31,  33,
                                     40, 64, 80, 96, 128, 160, 257, 300, 1100};
  constexpr int kCount = std::size(kSizes);
  for (int n = 0; n < kCount; ++n) {
    add(cases, shape(2, 1, 7, 19, kSizes[n], kSizes[n]), [&](Case& c) { c.causal = n % 2 == 0; });
    add(cases, shape(2, 2, 9, 13, kSizes[n], kSizes[(n * 7 + 5) % kCount]),
        [&](Case& c) { c.softcap = n % 3 == 0 ? 5 : 0; });
  }
}

void add_empty(Cases& cases) {
  Case base = shape(2, 1, 3, 5, 8, 8);
  base.batch = 2;
  base.weights = base.scores = true;
  const auto zero_each = [&](const Case& with_options) {
    add(cases, with_options, [](Case& c) { c.batch = 0; });
    add(cases, with_options, [](Case& c) { c.heads = 0; });
    add(cases, with_options, [](Case& c) { c.heads = c.kv_heads = 0; });
    add(cases, with_options, [](Case& c) { c.q_length = 0; });
    add(cases, with_options, [](Case& c) { c.k_length = 0; });
    add(cases, with_options, [](Case& c) { c.q_length = c.k_length = 0; });
  };
  zero_each(base);
  Case rich = base;
  rich.causal = rich.sinks = rich.alibi = rich.dlse = true;
  rich.mask = Mask::full;
  rich.bias = Bias::full;
  rich.blocks = BlockMask::full;
  rich.key_lengths = Lengths::full;
  zero_each(rich);
  for (const Addressing addressing :
       {Addressing::packed, Addressing::paged, Addressing::packed_paged}) {
    Case other = base;
    other.addressing = addressing;
    if (is_paged(other)) other.key_lengths = Lengths::full;
    zero_each(other);
  }
}

void add_heads(Cases& cases) {
  constexpr std::int64_t kHeads[][2] = {{1, 1}, {3, 3}, {4, 2}, {6, 2}, {6, 1}, {5, 1}, {8, 4}};
  for (const auto& [heads, kv_heads] : kHeads) {
    Case base = shape(heads, kv_heads, 11, 23, 16, 14);
    base.batch = 2;
    cases.push_back(base);
    add(cases, base, [](Case& c) {
      c.causal = c.sinks = c.alibi = true;
      c.bias = Bias::head_query_key;
    });
  }
}

void add_layouts(Cases& cases) {
  for (int n = 0; n < 9; ++n) {
    const auto layout = static_cast<Layout>(n);
    const auto with_layout = [&](auto&& change) {
      add(cases, small(), [&](Case& c) {
        c.layout = layout;
        change(c);
      });
    };
    with_layout([](Case&) {});
    with_layout([](Case& c) {
      c.mask = Mask::full;
      c.bias = Bias::full;
      c.weights = c.scores = c.dlse = true;
      c.k_length = 33;
    });
    with_layout([](Case& c) {
      c.addressing = Addressing::packed;
      c.batch = 3;
      c.causal = true;
      c.weights = true;
    });
    with_layout([](Case& c) {
      c.addressing = Addressing::paged;
      c.key_lengths = Lengths::mixed;
      c.batch = 3;
      c.page_size = 8;
      c.mask = Mask::per_key;
    });
  }
}

}  // namespace

void add_shapes(Cases& cases) {
  add_lengths(cases);
  add_head_sizes(cases);
  add_empty(cases);
  add_heads(cases);
  add_layouts(cases);
}

}  // namespace attend::cases
