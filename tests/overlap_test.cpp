// Whether tensors share memory: against sets of bytes for small views of every kind, and on the
// layouts of real tensors, where the search must end after a few steps. No address here is ever
// read or written.
#include "api/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <sstream>

namespace attend {
namespace {

constexpr std::intptr_t kBase = 1 << 20;

ConstTensorView view_at(std::intptr_t address, DType type, const Shape& shape,
                        const Shape& strides) {
  return {reinterpret_cast<const void*>(address), type, shape, strides};
}

std::string text_of(const ConstTensorView& view) {
  std::ostringstream os;
  os << name_of(view.dtype()) << " " << to_string(view.shape()) << " strides "
     << to_string(view.strides()) << " at " << reinterpret_cast<std::intptr_t>(view.data()) - kBase;
  return os.str();
}

// ---- Small views, byte by byte -----------------------------------------------------------------

struct Bytes {
  std::set<std::intptr_t> all;
  bool twice = false;  // some byte belongs to two elements
};

Bytes bytes_of(const ConstTensorView& view) {
  Bytes bytes;
  Shape index = view.shape();
  for (int dim = 0; dim < view.rank(); ++dim) index[dim] = 0;
  for (std::int64_t n = view.count(); n > 0; --n) {
    std::intptr_t address = reinterpret_cast<std::intptr_t>(view.data());
    for (int dim = 0; dim < view.rank(); ++dim)
      address += index[dim] * view.strides()[dim] * size_of(view.dtype());
    for (std::int64_t byte = 0; byte < size_of(view.dtype()); ++byte)
      bytes.twice |= !bytes.all.insert(address + byte).second;
    for (int dim = view.rank() - 1; dim >= 0 && ++index[dim] == view.size(dim); --dim)
      index[dim] = 0;
  }
  return bytes;
}

bool share_a_byte(const Bytes& a, const Bytes& b) {
  for (const std::intptr_t byte : a.all)
    if (b.all.contains(byte)) return true;
  return false;
}

class RandomViews {
 public:
  explicit RandomViews(std::uint64_t seed) : random_(seed) {}
  std::int64_t from_to(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random_);
  }
  // Strides up to `reach`, zero and negative ones too; every eighth view is empty.
  ConstTensorView next(std::int64_t reach) {
    constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::u8};
    const auto rank = static_cast<std::size_t>(from_to(0, 4));
    std::vector<std::int64_t> shape(rank), strides(rank);
    for (std::size_t dim = 0; dim < rank; ++dim) {
      shape[dim] = from_to(1, 4);
      strides[dim] = from_to(-reach, reach);
    }
    if (rank > 0 && from_to(0, 7) == 0) shape[0] = 0;
    return view_at(kBase + from_to(-40, 40), kTypes[from_to(0, 3)], Shape(shape), Shape(strides));
  }

 private:
  std::mt19937_64 random_;
};

TEST(Overlap, two_small_views_agree_with_their_sets_of_bytes) {
  int overlapping = 0, apart_within_reach = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    RandomViews random(seed);
    const std::int64_t reach = random.from_to(1, 20);
    const ConstTensorView a = random.next(reach), b = random.next(reach);
    const Bytes bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    const bool expected = share_a_byte(bytes_a, bytes_b);
    ASSERT_EQ(overlap(a, b), expected)
        << "seed " << seed << ": " << text_of(a) << "; " << text_of(b);
    ASSERT_EQ(overlap(b, a), expected)
        << "seed " << seed << ": " << text_of(b) << "; " << text_of(a);
    overlapping += expected;
    apart_within_reach += !expected && !bytes_a.all.empty() && !bytes_b.all.empty() &&
                          *bytes_a.all.begin() < *bytes_b.all.rbegin() &&
                          *bytes_b.all.begin() < *bytes_a.all.rbegin();
  }
  EXPECT_GT(overlapping, 5000) << "or the cases show little";
  EXPECT_GT(apart_within_reach, 1000) << "or the cases show little";
}

TEST(Overlap, a_small_view_with_itself_agrees_with_its_bytes) {
  int overlapping = 0, distinct = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    RandomViews random(seed);
    const ConstTensorView view = random.next(random.from_to(1, 60));
    const Bytes bytes = bytes_of(view);
    ASSERT_EQ(overlaps_itself(view), bytes.twice) << "seed " << seed << ": " << text_of(view);
    ASSERT_FALSE(spans_too_far(view)) << "seed " << seed << ": " << text_of(view);
    overlapping += bytes.twice;
    distinct += !bytes.twice && view.count() > 8;
  }
  EXPECT_GT(overlapping, 2000) << "or the cases show little";
  EXPECT_GT(distinct, 2000) << "or the cases show little";
}

TEST(Overlap, a_view_overlaps_its_own_slices) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    RandomViews random(seed);
    const ConstTensorView view = random.next(9);
    if (view.count() == 0) continue;
    ConstTensorView part = view;
    for (int dim = 0; dim < view.rank(); ++dim) {
      const std::int64_t begin = random.from_to(0, view.size(dim) - 1);
      part = part.slice(dim, begin, begin + 1);
    }
    ASSERT_TRUE(overlap(view, part)) << "seed " << seed << ": " << text_of(part);
  }
}

TEST(Overlap, none_and_empty_views_share_nothing) {
  const ConstTensorView some = view_at(kBase, DType::f32, {4}, {1});
  const ConstTensorView empty = view_at(kBase, DType::f32, {4, 0}, {0, 0});
  EXPECT_FALSE(overlap(some, {}));
  EXPECT_FALSE(overlap(empty, some));
  EXPECT_FALSE(overlaps_itself(empty));
  EXPECT_FALSE(overlaps_itself({}));
  EXPECT_FALSE(spans_too_far({}));
}

// ---- Real layouts ------------------------------------------------------------------------------

constexpr std::int64_t kBatch = 64, kHeads = 48, kLength = 131072, kD = 128;
constexpr int kFewSteps = 100;

struct Pair {
  const char* name;
  ConstTensorView a, b;
};

// Tensors that lie within each other's first and last byte and share none.
std::vector<Pair> interleaved_layouts() {
  const auto at = [](std::int64_t element, const Shape& shape, const Shape& strides) {
    return view_at(kBase + 4 * element, DType::f32, shape, strides);
  };
  const Shape heads_first{kBatch, kHeads, kLength, kD};
  const std::int64_t row = 3 * kHeads * kD, wide = kHeads * kD;
  return {
      {"q and v of [B, T, 3, H, d]", at(0, heads_first, {kLength * row, kD, row, 1}),
       at(2 * wide, heads_first, {kLength * row, kD, row, 1})},
      {"q and k of [B, T, H, 3, d]", at(0, heads_first, {kLength * row, 3 * kD, row, 1}),
       at(kD, heads_first, {kLength * row, 3 * kD, row, 1})},
      {"q and k of [B, H, T, d, 3]",
       at(0, heads_first, {kHeads * kLength * kD * 3, kLength * kD * 3, kD * 3, 3}),
       at(1, heads_first, {kHeads * kLength * kD * 3, kLength * kD * 3, kD * 3, 3})},
      {"q and k of grouped heads, [B, T, H + 2 Hk, d]",
       at(0, heads_first, {kLength * (wide + 16 * kD), kD, wide + 16 * kD, 1}),
       at(wide, {kBatch, 8, kLength, kD}, {kLength * (wide + 16 * kD), kD, wide + 16 * kD, 1})},
      {"even and odd heads",
       at(0, {kBatch, kHeads / 2, kLength, kD}, {wide * kLength, 2 * kLength * kD, kD, 1}),
       at(kLength * kD, {kBatch, kHeads / 2, kLength, kD},
          {wide * kLength, 2 * kLength * kD, kD, 1})},
      {"past and new keys of a cache",
       at(0, {kBatch, kHeads, kLength - 7, kD}, {wide * kLength, kLength * kD, kD, 1}),
       at((kLength - 7) * kD, {kBatch, kHeads, 7, kD}, {wide * kLength, kLength * kD, kD, 1})},
      {"the same, the new ones upside down",
       at(0, {kBatch, kHeads, kLength - 7, kD}, {wide * kLength, kLength * kD, kD, 1}),
       at((kLength - 1) * kD, {kBatch, kHeads, 7, kD}, {wide * kLength, kLength * kD, -kD, 1})},
      {"lse in the padding of rows",
       at(0, heads_first, {kHeads * kLength * 132, kLength * 132, 132, 1}),
       at(128, {kBatch, kHeads, kLength}, {kHeads * kLength * 132, kLength * 132, 132})},
      {"f64 lse in the padding of rows",
       at(0, heads_first, {kHeads * kLength * 132, kLength * 132, 132, 1}),
       view_at(kBase + 4 * 130, DType::f64, {kBatch, kHeads, kLength},
               {kHeads * kLength * 66, kLength * 66, 66})},
      {"left and right half of the heads' features",
       at(0, {kBatch, kHeads, kLength, kD / 2}, {wide * kLength, kD, wide, 1}),
       at(kD / 2, {kBatch, kHeads, kLength, kD / 2}, {wide * kLength, kD, wide, 1})},
      {"even and odd features (rotary pairs)",
       at(0, {kBatch, kHeads, kLength, kD / 2}, {wide * kLength, kD, wide, 2}),
       at(1, {kBatch, kHeads, kLength, kD / 2}, {wide * kLength, kD, wide, 2})},
      {"two batch elements of a shared buffer, one transposed",
       at(0, {1, kHeads, kLength, kD}, {0, kD, wide, 1}),
       at(wide * kLength, {1, kHeads, kLength, kD}, {0, kLength * kD, 1, kLength})},
      {"every second page of a pool and the others",
       at(0, {4096, kHeads, 16, kD}, {2 * wide * 16, 16 * kD, kD, 1}),
       at(wide * 16, {4096, kHeads, 16, kD}, {2 * wide * 16, 16 * kD, kD, 1})},
  };
}

TEST(Overlap, interleaved_tensors_are_told_apart_in_a_few_steps) {
  for (const auto& [name, a, b] : interleaved_layouts()) {
    EXPECT_FALSE(overlap(a, b, kFewSteps)) << name << ": " << text_of(a) << "; " << text_of(b);
    EXPECT_FALSE(overlap(b, a, kFewSteps)) << name << ": " << text_of(b) << "; " << text_of(a);
    EXPECT_FALSE(overlaps_itself(a, kFewSteps)) << name << ": " << text_of(a);
    EXPECT_FALSE(overlaps_itself(b, kFewSteps)) << name << ": " << text_of(b);
  }
}

// The same layouts, moved by less than an element: now they do overlap.
TEST(Overlap, interleaved_tensors_one_byte_too_far_are_noticed) {
  for (const auto& [name, a, b] : interleaved_layouts()) {
    for (const std::intptr_t bytes : {-1, 1}) {
      const ConstTensorView moved = view_at(reinterpret_cast<std::intptr_t>(b.data()) + bytes,
                                            b.dtype(), b.shape(), b.strides());
      if (overlap(a, moved)) continue;
      // Padding may take the byte; then the other way must not.
      const ConstTensorView other = view_at(reinterpret_cast<std::intptr_t>(b.data()) - bytes,
                                            b.dtype(), b.shape(), b.strides());
      EXPECT_TRUE(overlap(a, other)) << name << ": " << text_of(a) << "; " << text_of(moved);
    }
  }
}

TEST(Overlap, every_order_of_dimensions_is_distinct_in_a_few_steps) {
  const Shape shape{kBatch, kHeads, kLength, kD};
  const ConstTensorView plain(reinterpret_cast<const void*>(kBase), DType::f16, shape);
  std::vector<std::int64_t> order{0, 1, 2, 3};
  do {
    ConstTensorView view = plain.permute(Shape(order));
    EXPECT_FALSE(overlaps_itself(view, kFewSteps)) << text_of(view);
    for (int dim = 0; dim < 4; ++dim) view = view.slice(dim, view.size(dim) - 1, -1, -1);
    EXPECT_FALSE(overlaps_itself(view, kFewSteps)) << text_of(view);
    EXPECT_TRUE(overlap(view, plain)) << text_of(view);
  } while (std::next_permutation(order.begin(), order.end()));
}

// ---- The limits --------------------------------------------------------------------------------

// Eight strides that are almost the same: every combination would have to be tried.
TEST(Overlap, a_search_that_would_take_forever_counts_as_overlap) {
  const auto tangled = [](std::intptr_t address, std::int64_t stride) {
    return view_at(address, DType::u8, {40, 40, 40, 40, 40, 40, 40, 40},
                   {stride, stride + 210, stride + 462, stride + 770, stride + 1190, stride + 1386,
                    stride + 1848, stride + 2310});
  };
  const ConstTensorView even = tangled(kBase, 1 << 20), odd = tangled(kBase + 1, (1 << 20) + 42);
  EXPECT_TRUE(overlap(even, odd)) << "though one's addresses are all even, the other's all odd";
}

TEST(Overlap, no_view_reaches_further_than_2_to_the_60_bytes) {
  const std::int64_t limit = std::int64_t{1} << 60;
  const auto far = [](DType type, const Shape& shape, const Shape& strides) {
    return spans_too_far(view_at(kBase, type, shape, strides));
  };
  EXPECT_FALSE(far(DType::u8, {2}, {limit}));
  EXPECT_TRUE(far(DType::u8, {2}, {limit + 1}));
  EXPECT_FALSE(far(DType::u8, {2}, {-limit}));
  EXPECT_TRUE(far(DType::u8, {2}, {-limit - 1}));
  EXPECT_FALSE(far(DType::f64, {2}, {limit / 8}));
  EXPECT_TRUE(far(DType::f64, {2}, {limit / 8 + 1}));
  EXPECT_TRUE(far(DType::u8, {2, 2}, {limit / 2 + 1, -limit / 2}));
  EXPECT_TRUE(far(DType::u8, {std::int64_t{1} << 40, 2}, {std::int64_t{1} << 30, 0}));
  EXPECT_TRUE(far(DType::u8, {2}, {std::numeric_limits<std::int64_t>::min()}));
  EXPECT_FALSE(far(DType::f64, {1}, {std::numeric_limits<std::int64_t>::min()}));
  EXPECT_FALSE(far(DType::f64, {0, 2}, {1, std::numeric_limits<std::int64_t>::max()}));
}

TEST(Overlap, views_at_the_limit_are_searched_without_overflow) {
  const std::int64_t limit = std::int64_t{1} << 60;
  const ConstTensorView up = view_at(kBase, DType::u8, {2, 1}, {limit, 3 * limit});
  const ConstTensorView down = view_at(kBase, DType::u8, {2, 1}, {-limit, -3 * limit});
  EXPECT_TRUE(overlap(up, down));
  EXPECT_FALSE(overlaps_itself(up));
  const ConstTensorView beside = view_at(kBase + 1, DType::u8, {2, 2}, {-limit + 2, 2});
  EXPECT_FALSE(overlap(up, beside));
  EXPECT_FALSE(overlaps_itself(beside));
}

}  // namespace
}  // namespace attend
