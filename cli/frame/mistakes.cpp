#include "mistakes.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace attend::cli {
namespace {

// Letters to insert, remove, change or swap with their neighbour (Damerau and Levenshtein, each
// place touched once), by the usual table of three rows.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(last, row);
  }
  return last[b.size()];
}

// The known words that `word` may have been meant for: near ones, or those it is the beginning of.
std::vector<std::string> near(const std::string& word, const std::vector<std::string>& known) {
  std::size_t least = std::max<std::size_t>(1, word.size() / 3);
  std::vector<std::string> found;
  for (const std::string& candidate : known) {
    const bool begins = word.size() > 2 && candidate.starts_with(word);
    const std::size_t away = begins ? 1 : distance(word, candidate);
    if (away > least) continue;
    if (away < least) found.clear();
    least = away;
    found.push_back(candidate);
  }
  return found;
}

// Flags of 0.1 that have another name now.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
    {"--lang", "--language"},
    {"--norm-placement", "--placement"},
    {"--memory-mask", "--cross-mask"},
    {"--memory-lengths", "--cross-key-lengths"},
    {"--block-query-size", "--blocks-query-size"},
    {"--block-key-size", "--blocks-key-size"},
    {"--width", "--model-dim"},
    {"--lr", "--learning-rate"},
    {"--page", "--html"},
};

}  // namespace

std::string suggestion(const std::string& word, const std::vector<std::string>& known,
                       const std::string& otherwise) {
  const std::vector<std::string> found = near(word, known);
  if (found.empty()) return "; " + otherwise;
  std::string text = "; did you mean ";
  for (std::size_t n = 0; n < found.size() && n < 3; ++n) text += (n > 0 ? " or " : "") + found[n];
  return text + "?";
}

std::string missing_argument(const std::vector<FlagInfo>& flags) {
  for (const FlagInfo& flag : flags)
    if (flag.positional && flag.required && flag.given.empty())
      return flag.name + " is missing: " + flag.description;
  return "";
}

std::string unknown_word(const std::string& given, const std::string& command,
                         const std::vector<FlagInfo>& flags,
                         const std::vector<std::string>& commands) {
  const std::string word = given.substr(0, given.find('='));
  const std::string help = "attend " + (command.empty() ? "" : command + " ") + "--help lists all";
  std::vector<std::string> names;
  for (const FlagInfo& flag : flags)
    if (!flag.positional) names.push_back(flag.name);
  for (const auto& [old, now] : kRenamed)
    if (word == old && std::count(names.begin(), names.end(), now) > 0)
      return "there is no flag " + word + " any more; it is called " + std::string(now) + " now";
  if (word.starts_with("-")) return "there is no flag " + word + suggestion(word, names, help);
  if (command.empty()) return "there is no command " + word + suggestion(word, commands, help);
  return "'" + given + "' is not expected" + suggestion("--" + word, names, help);
}

}  // namespace attend::cli
