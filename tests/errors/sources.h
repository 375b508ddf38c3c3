// The messages that the library's sources hold.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attend::test {

// What a statement such as fail(name, " is missing") can say: literal text, and kAnything where a
// value is put in. A choice (a ? "b" : "c") makes one pattern for each of its literals.
struct MessagePattern {
  std::string where;  // file:line
  std::string text;
};
inline constexpr char kAnything = '\1';

bool matches(std::string_view pattern, std::string_view message);

// Of every fail(...), throw Type(...) and, in functions that decline, return "...".
std::vector<MessagePattern> message_patterns(const std::string& file, std::string_view source);

// A line for each pattern that no message matches.
std::string uncovered(const std::vector<MessagePattern>& patterns,
                      const std::vector<std::string>& messages);

// Every string literal with its place.
std::vector<MessagePattern> string_literals(const std::string& file, std::string_view source);

}  // namespace attend::test
