// What the examples print with: headings and numbers. Colour only on a terminal, and not where
// NO_COLOR is set.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

namespace print {

inline bool coloured() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

// The text between the escape sequences of a colour ("1" bold, "2" dim, "32" green ...).
inline std::string in(std::string_view colour, std::string_view text) {
  if (!coloured()) return std::string(text);
  return "\033[" + std::string(colour) + "m" + std::string(text) + "\033[0m";
}

// A line of its own, underlined.
inline void heading(const std::string& text) {
  std::string line;
  for (std::size_t n = 0; n < text.size(); ++n) line += "─";
  std::printf("\n%s\n%s\n", in("1", text).c_str(), in("2", line).c_str());
}

inline std::string number(double value, int decimals = 4) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

// How far apart two things are that should be equal.
inline std::string within(double difference) {
  char text[64];
  std::snprintf(text, sizeof text, "to within %.1e", difference);
  return difference == 0 ? "exactly" : text;
}

}  // namespace print
