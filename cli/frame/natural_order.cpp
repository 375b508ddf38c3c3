#include "natural_order.h"

#include <algorithm>

namespace attend::cli {

bool natural_less(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  // The number that a text begins with, without its zeros, taken off the text.
  const auto number = [&](std::string_view& text) {
    const std::size_t zeros = std::min(text.find_first_not_of('0'), text.size());
    std::size_t end = zeros;
    while (end < text.size() && digit(text[end])) ++end;
    const std::string_view found = text.substr(zeros, end - zeros);
    text.remove_prefix(end);
    return found;
  };
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (digit(a[0]) && digit(b[0])) {
      const std::string_view x = number(a), y = number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // "01" and "1" are two names
}

}  // namespace attend::cli
