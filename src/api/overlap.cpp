// Two elements share a byte iff the distance of their addresses is small:
//
//   -size_a < base_a - base_b + sum_n stride_n * x_n < size_b,     low_n <= x_n <= high_n
//
// where each x_n is an index of a, a negated index of b, or, where both have the same stride, the
// difference of the two. The search fixes the x_n from the largest stride down and gives up a
// branch when the rest cannot reach the interval any more. With the nested strides of real tensors
// only a handful of values survive at each level.
#include "api/overlap.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <utility>

namespace attend {
namespace {

struct Term {
  std::int64_t stride = 0;  // in bytes, positive
  std::int64_t low = 0, high = 0;
};

struct Search {
  std::array<Term, 2 * kMaxRank> terms{};
  int count = 0;
  std::int64_t from = 0, to = 0;  // the interval that the sum must hit
  bool must_move = false;
  int steps = 0, max_steps = 0;

  // An index from low to high, in steps of `stride` elements of `size` bytes.
  void add(std::int64_t stride, std::int64_t size, std::int64_t low, std::int64_t high) noexcept {
    if (low == 0 && high == 0) return;  // the stride is never used, and may be anything
    stride *= size;
    if (stride < 0) {
      stride = -stride;
      low = -std::exchange(high, -low);
    }
    for (int n = 0; n < count; ++n) {
      if (terms[n].stride != stride) continue;
      terms[n].low += low;
      terms[n].high += high;
      return;
    }
    terms[count++] = {stride, low, high};
  }

  void sort() noexcept {
    std::sort(terms.begin(), terms.begin() + count,
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
  }

  // Whether terms[n...] can bring `sum` into the interval.
  bool hits(int n, std::int64_t sum, bool moved) noexcept {
    if (++steps > max_steps) return true;
    if (n == count) return sum >= from && sum <= to && (moved || !must_move);
    std::int64_t low = 0, high = 0;  // reach of the terms after n
    for (int rest = n + 1; rest < count; ++rest) {
      low += terms[rest].stride * terms[rest].low;
      high += terms[rest].stride * terms[rest].high;
    }
    const Term& term = terms[n];
    if (term.stride == 0) return hits(n + 1, sum, moved);  // any value will do
    const std::int64_t first = std::max(term.low, divide_up(from - sum - high, term.stride));
    const std::int64_t last = std::min(term.high, divide_down(to - sum - low, term.stride));
    for (std::int64_t x = first; x <= last; ++x)
      if (hits(n + 1, sum + term.stride * x, moved || x != 0)) return true;
    return false;
  }

  static std::int64_t divide_down(std::int64_t a, std::int64_t b) noexcept {
    return a / b - (a % b < 0);
  }
  static std::int64_t divide_up(std::int64_t a, std::int64_t b) noexcept {
    return a / b + (a % b > 0);
  }
};

bool empty(const ConstTensorView& view) noexcept {
  return !view || std::any_of(view.shape().begin(), view.shape().end(),
                              [](std::int64_t size) { return size == 0; });
}

}  // namespace

ByteRange byte_range_of(const ConstTensorView& view) noexcept {
  const std::int64_t size = size_of(view.dtype());
  const auto base = reinterpret_cast<std::intptr_t>(view.data());
  ByteRange bytes{base, base + size - 1};
  for (int dim = 0; dim < view.rank(); ++dim) {
    if (view.size(dim) == 1) continue;
    const std::int64_t reach = (view.size(dim) - 1) * view.strides()[dim] * size;
    (reach < 0 ? bytes.first : bytes.last) += reach;
  }
  return bytes;
}

bool spans_too_far(const ConstTensorView& view) noexcept {
  if (empty(view)) return false;
  std::int64_t total = 0;
  for (int dim = 0; dim < view.rank(); ++dim) {
    std::int64_t reach = 0;
    if (view.size(dim) == 1) continue;
    if (view.strides()[dim] == std::numeric_limits<std::int64_t>::min() ||
        __builtin_mul_overflow(view.size(dim) - 1, std::abs(view.strides()[dim]), &reach) ||
        __builtin_add_overflow(total, reach, &total))
      return true;
  }
  return total > (std::int64_t{1} << 60) / size_of(view.dtype());  // room for differences of two
}

bool overlaps_itself(const ConstTensorView& view, int max_steps) noexcept {
  if (empty(view)) return false;
  const std::int64_t size = size_of(view.dtype());
  Search search;
  search.max_steps = max_steps;
  search.must_move = true;
  search.from = -(size - 1);
  search.to = size - 1;
  for (int dim = 0; dim < view.rank(); ++dim) {
    const std::int64_t last = view.size(dim) - 1;
    if (last > 0 && view.strides()[dim] == 0) return true;
    // Two dimensions with the same stride meet at once: (1, 0) and (0, 1).
    for (int other = 0; last > 0 && other < dim; ++other)
      if (view.size(other) > 1 && std::abs(view.strides()[other]) == std::abs(view.strides()[dim]))
        return true;
    search.add(view.strides()[dim], size, -last, last);
  }
  search.sort();
  return search.hits(0, 0, false);
}

bool overlap(const ConstTensorView& a, const ConstTensorView& b, int max_steps) noexcept {
  if (empty(a) || empty(b)) return false;
  const ByteRange bytes_a = byte_range_of(a), bytes_b = byte_range_of(b);
  if (bytes_a.last < bytes_b.first || bytes_b.last < bytes_a.first) return false;

  const std::int64_t size_a = size_of(a.dtype()), size_b = size_of(b.dtype());
  const std::int64_t distance =
      reinterpret_cast<std::intptr_t>(a.data()) - reinterpret_cast<std::intptr_t>(b.data());
  Search search;
  search.max_steps = max_steps;
  search.from = -(size_a - 1);
  search.to = size_b - 1;
  for (int dim = 0; dim < a.rank(); ++dim) search.add(a.strides()[dim], size_a, 0, a.size(dim) - 1);
  for (int dim = 0; dim < b.rank(); ++dim)
    search.add(b.strides()[dim], size_b, -(b.size(dim) - 1), 0);
  search.sort();
  return search.hits(0, distance, false);
}

}  // namespace attend
