// The words that a command line may hold, read off an App.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace attend::cli {

std::vector<std::string> command_names(const CLI::App& app);
std::vector<std::string> flag_names(const CLI::App& app);  // "--heads"

// Whether a comes before b as people count: "layers.2" before "layers.10". Digits are compared as
// the numbers that they are, all else by letter.
bool natural_less(std::string_view a, std::string_view b);

bool takes_value(const CLI::Option& option);

// The words that an option takes, where it takes only some: of CLI::IsMember, or of suggest().
std::vector<std::string> choices(const CLI::Option& option);
// Those of the positional arguments of a command.
std::vector<std::string> positional_words(const CLI::App& command);

// Words that completion offers for an option which takes others as well: files.
void suggest(CLI::Option& option, const std::vector<std::string>& words);
// Whether a command's positional arguments may be files.
bool takes_files(const CLI::App& command);

}  // namespace attend::cli
