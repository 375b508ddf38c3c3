#include "values.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace attend::cli {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

template <class Number>
std::optional<Number> whole_in(std::string_view word) {
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

std::optional<double> real_in(std::string_view word) {
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

std::string range_of(Whole allowed) {
  const std::string least = std::to_string(allowed.least), most = std::to_string(allowed.most);
  return allowed.most == kLargest ? "of at least " + least + ", and below 2^63"
                                  : "from " + least + " to " + most;
}

std::string range_of(Real allowed) {
  const Real all;
  if (allowed.least == all.least && allowed.most == all.most) return "";
  if (allowed.most == all.most)
    return (allowed.open ? " above " : " of at least ") + digits(allowed.least);
  return " from " + digits(allowed.least) + " to " + digits(allowed.most);
}

// `read` gives the number that a word is, if it may be that; the option then gets its digits.
template <class Read>
CLI::Validator checked(std::string what, Read read) {
  return CLI::Validator(
      [what = std::move(what), read](std::string& word) -> std::string {
        const auto number = read(word);
        if (!number) return "'" + word + "' is not " + what;
        if constexpr (std::is_same_v<decltype(number), const std::optional<double>>)
          word = digits(*number);
        else word = std::to_string(*number);
        return "";
      },
      "");
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

CLI::Validator whole_number(Whole allowed) {
  return checked("a whole number " + range_of(allowed), [allowed](const std::string& word) {
    const auto number = whole_in<std::int64_t>(word);
    return number && *number >= allowed.least && *number <= allowed.most ? number : std::nullopt;
  });
}

CLI::Validator real_number(Real allowed) {
  return checked("a finite number" + range_of(allowed), [allowed](const std::string& word) {
    const auto number = real_in(word);
    const bool inside = number && *number <= allowed.most &&
                        (allowed.open ? *number > allowed.least : *number >= allowed.least);
    return inside ? number : std::nullopt;
  });
}

CLI::Option* add_whole(CLI::App& app, const std::string& name, std::int64_t& value, Whole allowed,
                       const std::string& description) {
  return app.add_option(name, value, description)->transform(whole_number(allowed))->type_name("N");
}

CLI::Option* add_real(CLI::App& app, const std::string& name, double& value, Real allowed,
                      const std::string& description) {
  return app.add_option(name, value, description)->transform(real_number(allowed))->type_name("X");
}

CLI::Option* add_seed(CLI::App& app, const std::string& name, std::uint64_t& value,
                      const std::string& description) {
  return app.add_option(name, value, description)
      ->transform(checked("a whole number from 0 to 18446744073709551615 (2^64 - 1)",
                          [](const std::string& word) { return whole_in<std::uint64_t>(word); }))
      ->type_name("N");
}

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : "|") + word;
  return option->check(CLI::IsMember(words))->option_text(text);
}

// In front of the other checks, which would speak of what the value is not.
void refuse_empty(CLI::Option& option) {
  const std::string type = type_of(option);
  option.transform(CLI::Validator(
      [type](std::string& word) {
        return word.empty() ? "the value is empty; it takes " + type : std::string();
      },
      ""));
}

std::optional<std::vector<std::int64_t>> whole_numbers_in(const std::string& text) {
  return list_in<std::int64_t>(text, whole_in<std::int64_t>);
}

std::optional<std::vector<double>> real_numbers_in(const std::string& text) {
  return list_in<double>(text, real_in);
}

std::string type_of(const CLI::Option& option) {
  const std::string text = option.get_option_text();
  return text.empty() || text == " " ? option.get_type_name() : text;
}

}  // namespace attend::cli
