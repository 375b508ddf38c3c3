#include "words.h"

#include <algorithm>

namespace attend::cli {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

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

bool takes_value(const CLI::Option& option) {
  return option.nonpositional() && option.get_items_expected_max() > 0;
}

// The App itself says them only in the name of the type: "TEXT:{bash,zsh}".
std::vector<std::string> choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

std::vector<std::string> positional_words(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional())
      for (const std::string& word : choices(*option)) words.push_back(word);
  return words;
}

void suggest(CLI::Option& option, const std::vector<std::string>& words) {
  option.check(CLI::Validator([](std::string&) { return std::string(); },
                              "{" + CLI::detail::join(words, ",") + "}"));
}

bool takes_files(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional() && option->get_expected_max() > 1) return true;
  return false;
}

}  // namespace attend::cli
