// The values that flags take: what is allowed, and what is said of anything else. CLI11 alone would
// read 010 as 8, stop at the largest number without a word, and take nan, inf and 1e400.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
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

CLI::Option* add_whole(CLI::App& app, const std::string& name, std::int64_t& value, Whole allowed,
                       const std::string& description);
CLI::Option* add_real(CLI::App& app, const std::string& name, double& value, Real allowed,
                      const std::string& description);
// From 0 to the largest number of 64 bits.
CLI::Option* add_seed(CLI::App& app, const std::string& name, std::uint64_t& value,
                      const std::string& description);
// A size, from 1 on.
inline CLI::Option* add_size(CLI::App& app, const std::string& name, std::int64_t& size,
                             const std::string& description) {
  return add_whole(app, name, size, {.least = 1}, description);
}

// The option takes one of these words; help and completion say which.
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words);

// The checks of the numbers above for an option that somebody else adds.
CLI::Validator whole_number(Whole allowed);
CLI::Validator real_number(Real allowed);

// What every flag that takes a value shares: an empty value is an error.
void refuse_empty(CLI::Option& option);

// The numbers of "3,5,2"; nothing, if it is something else.
std::optional<std::vector<std::int64_t>> whole_numbers_in(const std::string& text);
std::optional<std::vector<double>> real_numbers_in(const std::string& text);  // all finite

// What an option takes, for people: "FILE", "bash|zsh".
std::string type_of(const CLI::Option& option);

}  // namespace attend::cli
