// What to say of a command line that cannot be understood.
#pragma once

#include "flags.h"

#include <string>
#include <vector>

namespace attend::cli {

// Which argument a command still needs; nothing, if all are there.
std::string missing_argument(const std::vector<FlagInfo>& flags);

// Of a word that no command or flag is called; `command` is empty where it should have been one.
std::string unknown_word(const std::string& given, const std::string& command,
                         const std::vector<FlagInfo>& flags,
                         const std::vector<std::string>& commands);

// "; did you mean X?", or "; otherwise" where no known word is near.
std::string suggestion(const std::string& word, const std::vector<std::string>& known,
                       const std::string& otherwise);

}  // namespace attend::cli
