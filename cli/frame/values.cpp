#include "values.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace attend::cli {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

template <class Number>
std::optional<Number> digits_in(std::string_view word) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.remove_prefix(1);
  int base = 10;
  if (word.size() > 2 && (word.starts_with("0x") || word.starts_with("0X"))) {
    base = 16;
    word.remove_prefix(2);
    if (word[0] == '-') return std::nullopt;
  }
  Number number{};
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, number, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::optional<double> finite_in(std::string_view word) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.remove_prefix(1);
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, number);
  // Too large or too small: the nearest number, infinity or 0.
  if (error == std::errc::result_out_of_range)
    number = std::strtod(std::string(word).c_str(), nullptr);
  else if (error != std::errc()) return std::nullopt;
  if (stop != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::string digits(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

template <class Number, class Read>
std::optional<std::vector<Number>> list_in(std::string_view text, Read read) {
  std::vector<Number> numbers;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::optional<Number> number = read(text.substr(0, comma));
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    if (comma == std::string_view::npos) return numbers;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::optional<std::int64_t> whole_in(std::string_view word, Whole allowed) {
  const auto number = digits_in<std::int64_t>(word);
  return number && *number >= allowed.least && *number <= allowed.most ? number : std::nullopt;
}

std::optional<double> real_in(std::string_view word, Real allowed) {
  const auto number = finite_in(word);
  const bool inside = number && *number <= allowed.most &&
                      (allowed.open ? *number > allowed.least : *number >= allowed.least);
  return inside ? number : std::nullopt;
}

std::optional<std::uint64_t> seed_in(std::string_view word) {
  return digits_in<std::uint64_t>(word);
}

std::string wanted(Whole allowed) {
  const std::string least = std::to_string(allowed.least), most = std::to_string(allowed.most);
  return "a whole number " + (allowed.most == kLargest ? "of at least " + least + ", and below 2^63"
                                                       : "from " + least + " to " + most);
}

std::string wanted(Real allowed) {
  const Real all;
  std::string text = "a finite number";
  if (allowed.least == all.least && allowed.most == all.most) return text;
  if (allowed.most == all.most)
    return text + (allowed.open ? " above " : " of at least ") + digits(allowed.least);
  return text + " from " + digits(allowed.least) + " to " + digits(allowed.most);
}

std::optional<std::vector<std::int64_t>> whole_numbers_in(const std::string& text) {
  return list_in<std::int64_t>(text, digits_in<std::int64_t>);
}

std::optional<std::vector<double>> real_numbers_in(const std::string& text) {
  return list_in<double>(text, finite_in);
}

}  // namespace attend::cli
