// Text as a terminal shows it: how many columns it takes, what of it must not reach the terminal
// as it is, and shades for numbers from 0 to 1.
#pragma once

#include <string>
#include <string_view>

namespace attend::cli {

// The same text with control characters, marks that turn the direction of writing, line separators
// and bytes that are no UTF-8 written as \x1b, \u202e and so on. Tokens are data: they may hold
// anything.
std::string printable(std::string_view utf8);

// At most about `limit` bytes of a text: what lies in the middle of a longer one is left out.
std::string shortened(const std::string& utf8, std::size_t limit);

// Columns that printable text takes: two for the letters of Chinese, Japanese and Korean.
std::size_t width_of(std::string_view utf8);

// Filled up with spaces behind (or in front), or cut to the width with a dot at the end.
std::string fitted(std::string_view utf8, std::size_t width, bool right = false);

// One column for a weight: " ", then four shades up to a full block; "?" for NaN.
const char* shade(double weight, bool unicode);

}  // namespace attend::cli
