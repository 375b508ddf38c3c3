// What to say of a command line that cannot be understood.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace attend::cli {

// One line; an unknown command or flag brings the nearest one that exists.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace attend::cli
