// The values that flags take: what is allowed, and what is said of anything else. CLI11 alone would
// read 010 as 8, stop at the largest number without a word, and take nan, inf and 1e400.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cli {

// Whole numbers, in decimal digits or as 0x and hexadecimal ones.
struct Whole {
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();
};
// Finite numbers. `open`: more than `least`, not equal to it.
struct Real {
  double least = std::numeric_limits<double>::lowest(), most = std::numeric_limits<double>::max();
  bool open = false;
};

// The number that a word is, if it is one and allowed.
std::optional<std::int64_t> whole_in(std::string_view word, Whole allowed);
std::optional<double> real_in(std::string_view word, Real allowed);
std::optional<std::uint64_t> seed_in(std::string_view word);  // from 0 to 2^64 - 1

// "a whole number from 1 to 8": what the word should have been.
std::string wanted(Whole allowed);
std::string wanted(Real allowed);

// The numbers of "3,5,2"; nothing, if it is something else.
std::optional<std::vector<std::int64_t>> whole_numbers_in(const std::string& text);
std::optional<std::vector<double>> real_numbers_in(const std::string& text);  // all finite

}  // namespace attend::cli
