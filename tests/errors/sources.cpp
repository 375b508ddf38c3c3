// Just enough of C++ to find messages: comments, strings, balanced brackets, commas.
#include "sources.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace attend::test {
namespace {

// The end of the string or character literal that begins at `at`.
std::size_t literal_end(std::string_view s, std::size_t at) {
  const char quote = s[at];
  for (++at; at < s.size() && s[at] != quote; ++at) at += s[at] == '\\';
  return std::min(at + 1, s.size());
}

bool begins_literal(std::string_view s, std::size_t at) {
  const bool in_number = at > 0 && std::isalnum(static_cast<unsigned char>(s[at - 1]));
  return s[at] == '"' || (s[at] == '\'' && !in_number);  // 1'000 is no literal
}

// Calls use(position) for every character that is not in a literal, until use returns false.
template <class Use>
void for_code(std::string_view s, std::size_t at, Use use) {
  while (at < s.size()) {
    if (begins_literal(s, at)) at = literal_end(s, at);
    else if (!use(at++)) return;
  }
}

std::string without_comments(std::string_view source) {
  std::string s(source);
  for (std::size_t at = 0; at + 1 < s.size();) {
    std::size_t end = at;
    if (begins_literal(s, at)) {
      at = literal_end(s, at);
      continue;
    }
    if (s[at] == '/' && s[at + 1] == '/') end = std::min(s.find('\n', at), s.size());
    if (s[at] == '/' && s[at + 1] == '*') end = std::min(s.find("*/", at), s.size() - 2) + 2;
    for (; at < end; ++at)
      if (s[at] != '\n') s[at] = ' ';
    ++at;
  }
  return s;
}

// The text inside the brackets that open at `open`.
std::string_view inside(std::string_view s, std::size_t open) {
  int depth = 0;
  std::size_t end = s.size();
  for_code(s, open, [&](std::size_t at) {
    depth += s[at] == '(' || s[at] == '{';
    depth -= s[at] == ')' || s[at] == '}';
    if (depth == 0) end = at;
    return depth > 0;
  });
  return s.substr(open + 1, end - open - 1);
}

std::vector<std::string_view> split_arguments(std::string_view s) {
  std::vector<std::string_view> arguments;
  int depth = 0;
  std::size_t begin = 0;
  for_code(s, 0, [&](std::size_t at) {
    depth += s[at] == '(' || s[at] == '{' || s[at] == '[';
    depth -= s[at] == ')' || s[at] == '}' || s[at] == ']';
    if (s[at] == ',' && depth == 0) {
      arguments.push_back(s.substr(begin, at - begin));
      begin = at + 1;
    }
    return true;
  });
  arguments.push_back(s.substr(begin));
  return arguments;
}

struct Literal {
  std::size_t at;
  std::string text;
  bool joins_last;  // "a" "b" is one literal
};

std::vector<Literal> literals_in(std::string_view s) {
  std::vector<Literal> literals;
  bool code_between = true;
  for (std::size_t at = 0; at < s.size();) {
    if (!begins_literal(s, at)) {
      code_between |= !std::isspace(static_cast<unsigned char>(s[at]));
      ++at;
      continue;
    }
    const std::size_t end = literal_end(s, at);
    if (s[at] == '"') {
      std::string text;
      for (std::size_t n = at + 1; n + 1 < end; ++n) text += s[n] == '\\' ? s[++n] : s[n];
      literals.push_back({at, text, !code_between});
      code_between = false;
    }
    at = end;
  }
  return literals;
}

// What one argument can become.
std::vector<std::string> alternatives(std::string_view argument) {
  const std::string anything(1, kAnything);
  std::vector<std::string> texts;
  bool code = false, choice = false;
  for_code(argument, 0, [&](std::size_t at) {
    code |= !std::isspace(static_cast<unsigned char>(argument[at]));
    choice |= argument[at] == '?';
    return true;
  });
  for (const Literal& literal : literals_in(argument)) {
    if (literal.joins_last) texts.back() += literal.text;
    else texts.push_back(literal.text);
  }
  if (!code || choice) return texts.empty() ? std::vector{anything} : texts;
  std::string expression = anything;  // name + " is missing"
  for (const std::string& text : texts) expression += text + anything;
  return {expression};
}

// One pattern for each alternative of each argument, the other arguments being their first, or
// anything if they have a choice too.
std::vector<std::string> expand(std::string_view arguments) {
  std::vector<std::vector<std::string>> parts;
  for (const std::string_view argument : split_arguments(arguments))
    parts.push_back(alternatives(argument));
  std::vector<std::string> patterns;
  const auto pattern = [&](std::optional<std::size_t> chosen, std::size_t alternative) {
    std::string text;
    for (std::size_t n = 0; n < parts.size(); ++n)
      text += n == chosen            ? parts[n][alternative]
              : parts[n].size() == 1 ? parts[n][0]
                                     : std::string(1, kAnything);
    return text;
  };
  for (std::size_t n = 0; n < parts.size(); ++n)
    for (std::size_t other = 0; parts[n].size() > 1 && other < parts[n].size(); ++other)
      patterns.push_back(pattern(n, other));
  if (patterns.empty()) patterns.push_back(pattern({}, 0));
  return patterns;
}

std::string place(const std::string& file, std::string_view source, std::size_t at) {
  return file + ":" + std::to_string(1 + std::count(source.begin(), source.begin() + at, '\n'));
}

bool is_word(std::string_view s, std::size_t at, std::string_view word) {
  const auto part_of_name = [&](std::size_t n) {
    return n < s.size() && (std::isalnum(static_cast<unsigned char>(s[n])) || s[n] == '_');
  };
  return s.substr(at, word.size()) == word && !(at > 0 && part_of_name(at - 1)) &&
         !part_of_name(at + word.size());
}

}  // namespace

bool matches(std::string_view pattern, std::string_view message) {
  // Each piece of text at its first place; the last one must end the message.
  std::size_t at = 0;
  bool anywhere = false;
  while (!pattern.empty()) {
    if (pattern.front() == kAnything) {
      anywhere = true;
      pattern.remove_prefix(1);
      continue;
    }
    const std::string_view piece = pattern.substr(0, pattern.find(kAnything));
    pattern.remove_prefix(piece.size());
    const std::size_t found = pattern.empty() && message.size() >= piece.size()
                                  ? message.size() - piece.size()
                                  : message.find(piece, at);
    const bool here =
        found != message.npos && found >= at && message.substr(found, piece.size()) == piece;
    if (!here || (!anywhere && found != at)) return false;
    at = found + piece.size();
    anywhere = false;
  }
  return anywhere || at == message.size();
}

std::vector<MessagePattern> message_patterns(const std::string& file, std::string_view source) {
  const std::string code = without_comments(source);
  const std::string_view s = code;
  std::vector<MessagePattern> patterns;
  const auto add = [&](std::size_t at, const std::string& before, std::string_view arguments) {
    for (const std::string& text : expand(arguments))
      patterns.push_back({place(file, s, at), before + text});
  };
  const std::string anything(1, kAnything);
  for_code(s, 0, [&](std::size_t at) {
    if (is_word(s, at, "fail") && s[at + 4] == '(' && s.substr(at - 5, 5) != "void ") {
      add(at, anything + ": ", inside(s, at + 4));
    } else if (is_word(s, at, "throw") && s[at + 5] != ';') {
      std::string_view arguments = inside(s, s.find('(', at));
      const std::size_t first = arguments.find_first_not_of(" \n");
      if (arguments.substr(first, 5) == "text(") arguments = inside(arguments, first + 4);
      add(at, "", arguments);
    } else if (s.substr(at, 12) == "std::string " && s.substr(at + 12, 8) == "declines") {
      const std::size_t open = s.find('{', at);
      if (s.find(';', at) < open) return true;  // a declaration
      for (const Literal& literal : literals_in(inside(s, open)))
        patterns.push_back(
            {place(file, s, open + 1 + literal.at), anything + literal.text + anything});
    }
    return true;
  });
  return patterns;
}

std::vector<MessagePattern> string_literals(const std::string& file, std::string_view source) {
  const std::string code = without_comments(source);
  std::vector<MessagePattern> found;
  for (const Literal& literal : literals_in(code))
    found.push_back({place(file, code, literal.at), literal.text});
  return found;
}

std::string uncovered(const std::vector<MessagePattern>& patterns,
                      const std::vector<std::string>& messages) {
  std::string lines;
  for (const MessagePattern& pattern : patterns) {
    if (std::any_of(messages.begin(), messages.end(),
                    [&](const std::string& message) { return matches(pattern.text, message); }))
      continue;
    std::string shown = pattern.text;
    std::replace(shown.begin(), shown.end(), kAnything, '*');
    lines += pattern.where + ": no test produces \"" + shown + "\"\n";
  }
  return lines;
}

}  // namespace attend::test
