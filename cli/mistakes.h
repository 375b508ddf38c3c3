// What to say of a command line that cannot be understood.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace attend::cli {

// One line; an unknown command or flag brings the nearest one that exists.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

// "; did you mean X?", or "; otherwise" where no known word is near.
std::string suggestion(const std::string& word, const std::vector<std::string>& known,
                       const std::string& otherwise);

}  // namespace attend::cli
