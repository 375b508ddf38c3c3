// The order of names that people expect: "layers.2" before "layers.10".
#pragma once

#include <string_view>

namespace attend::cli {

// Whether a comes before b. Digits are compared as the numbers that they are, all else by letter.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace attend::cli
