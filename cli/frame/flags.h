// The flags of a command: how they are declared, and which were given. CLI11 reads the command
// line; its headers take seconds to compile, so flags.cpp and program.cpp alone include them.
#pragma once

#include "values.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace attend::cli {

// A flag or an argument as help, completion and messages show it, with what was given.
struct FlagInfo {
  std::string name;       // "--heads"; of an argument "FILES"
  std::string all_names;  // "-h,--help"
  std::string description, group;
  std::string value;               // what it takes, for people: "FILE", "bash|zsh"
  std::vector<std::string> words;  // that it takes, or that completion offers
  bool positional = false, takes_value = false, repeats = false, required = false;
  std::vector<std::string> given;  // once the command line was read; of a switch "true"
};

// One flag while it is declared. Each function changes it and returns it.
class Flag {
 public:
  explicit Flag(CLI::Option& option) : option_(&option) {}

  // What stands for the value in help: "FILE". text() also replaces what CLI11 would say more.
  Flag value(const std::string& name) const;
  Flag text(const std::string& all) const;
  Flag one_of(const std::vector<std::string>& words) const;   // nothing else is taken
  Flag suggest(const std::vector<std::string>& words) const;  // completion offers them
  // What is wrong with a value, or nothing.
  Flag check(std::function<std::string(const std::string&)> mistake) const;
  Flag times(int least, int most) const;  // values of one list
  Flag repeatable() const;                // one value each time
  Flag required() const;
  Flag needs(const Flag& other) const;
  Flag show_default() const;

 private:
  friend class Flags;
  CLI::Option* option_;
};

class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(&app) {}
  // The same: what is added to it is shown under this heading.
  Flags group(const std::string& heading) const;

  // `value` must live as long as the program.
  Flag add_switch(const std::string& name, bool& value, const std::string& description);
  Flag add_text(const std::string& name, std::string& value, const std::string& description);
  Flag add_file(const std::string& name, std::string& value, const std::string& description);
  Flag add_texts(const std::string& name, std::vector<std::string>& value,
                 const std::string& description);
  Flag add_word(const std::string& name, std::string& value, const std::string& description,
                const std::vector<std::string>& words);
  Flag add_whole(const std::string& name, std::int64_t& value, Whole allowed,
                 const std::string& description);
  Flag add_whole(const std::string& name, std::optional<std::int64_t>& value, Whole allowed,
                 const std::string& description);
  Flag add_size(const std::string& name, std::int64_t& value, const std::string& description) {
    return add_whole(name, value, {.least = 1}, description);
  }
  Flag add_real(const std::string& name, double& value, Real allowed,
                const std::string& description);
  Flag add_real(const std::string& name, std::optional<double>& value, Real allowed,
                const std::string& description);
  Flag add_seed(const std::string& name, std::uint64_t& value, const std::string& description);
  Flag add_help();

  // In front of all other checks, which would speak of what an empty value is not.
  void refuse_empty_values();

  bool has(const std::string& name) const;
  bool given(const std::string& name) const;
  std::vector<FlagInfo> all() const;
  // The first flag of a group that was given, or nothing.
  std::optional<std::string> given_of(const std::string& group) const;

 private:
  Flag add_number(const std::string& name, const std::string& description,
                  std::function<bool(const std::string&)> take, const std::string& wanted);
  Flag grouped(CLI::Option& option) const;

  CLI::App* app_;
  std::string group_ = "Options";
};

}  // namespace attend::cli
