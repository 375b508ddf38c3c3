#include "program.h"

#include "glyphs.h"
#include "mistakes.h"

#include <attend/error.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>
#include <iostream>
#include <new>

namespace attend::cli {
namespace {

// One line of at most some 2000 bytes, whatever the message held: it may quote a whole argument, or
// every name in a file.
int fail(const std::string& command, std::string message, int status) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  std::cerr << "attend" << (command.empty() ? "" : " " + command) << ": "
            << shortened(printable(message), 2000) << '\n';
  return status;
}

// Whether all that was printed went where it should. Not all of it went through std::cout.
bool printed_all() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout;
}

Program::CommandInfo info_of(const CLI::App& app, const Flags& flags) {
  return {app.get_name(), app.get_description(), app.get_footer(), flags.all()};
}

int status_of_output(const std::string& command, int status) {
  return printed_all() ? status : fail(command, "standard output cannot be written", kUsage);
}

// CLI11 would take the next word for the value of --mask=.
std::string empty_assignment(int argc, char** argv) {
  for (int n = 1; n < argc; ++n) {
    std::string word = argv[n];
    if (word == "--") break;
    if (word.starts_with("--") && word.find('=') == word.size() - 1) return word;
  }
  return "";
}

// How often a positional argument may come is said by dots: CLI11 says "(3x)".
class Formatter : public CLI::Formatter {
 public:
  std::string make_option_usage(const CLI::Option* option) const override {
    const std::string name =
        make_option_name(option, true) + (option->get_expected_max() > 1 ? "..." : "");
    return option->get_required() ? name : "[" + name + "]";
  }
};

// The library's messages name the function that found the mistake: that is "attention", say, and
// helps; the command's own name comes from here.
int status_of_exception(const std::string& command) {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    return fail(command, error.what(), kMemory);
  } catch (const std::bad_alloc&) {
    return fail(command, "there is not enough memory", kMemory);
  } catch (const DeviceError& error) {
    return fail(command, error.what(), kDevice);
  } catch (const std::exception& error) {
    return fail(command, error.what(), kUsage);
  }
}

}  // namespace

std::unique_ptr<Context> Common::context(const std::string& kernels) const {
  return std::make_unique<Context>(
      ContextOptions{.threads = static_cast<int>(threads), .kernels = kernels});
}

struct Program::Command {
  CLI::App* app;
  Flags flags;
  Action action;
  bool common;
};

Program::Program()
    : app_(std::make_unique<CLI::App>("Multi-head attention, exact, from the shell.", "attend")) {
  app_->set_version_flag("--version", std::string("attend ") + version(),
                         "Prints the version and exits");
  app_->formatter(std::make_shared<Formatter>());
  app_->get_formatter()->label("SUBCOMMAND", "COMMAND");
  app_->get_formatter()->label("Subcommands", "Commands");
  app_->get_formatter()->column_width(26);
  app_->set_help_flag("-h,--help", "Prints this help and exits");
  app_->footer("attend COMMAND --help shows the flags of a command, with examples.");
}

Program::~Program() = default;

Flags& Program::add(const std::string& name, const std::string& description,
                    const std::string& example, Action action, bool common) {
  CLI::App& app = *app_->add_subcommand(name, description);
  app.footer("Example:\n" + example);
  app.group("Commands");
  app.set_help_flag();
  commands_.push_back(
      std::make_unique<Command>(Command{&app, Flags(app), std::move(action), common}));
  return commands_.back()->flags;
}

// Last, so that help shows a command's own options first.
void Program::add_common(Command& command) {
  Flags flags = command.flags.group(command.common ? "Common options" : "Options");
  if (command.common) {
    flags.add_switch("--json", common_.json, "Prints one JSON object instead of text");
    flags.add_whole("--threads", common_.threads, {0, 4096},
                    "Threads to use; 0: ATTEND_THREADS, else one for each processor");
    flags.add_seed("--seed", common_.seed, "Seed of all random numbers");
  }
  flags.add_help();
}

Program::CommandInfo Program::about() const { return info_of(*app_, Flags(*app_)); }

std::vector<Program::CommandInfo> Program::commands() const {
  std::vector<CommandInfo> list;
  for (const auto& command : commands_) list.push_back(info_of(*command->app, command->flags));
  return list;
}

int Program::chosen() {
  for (const auto& command : commands_) {
    if (!command->app->parsed()) continue;
    const std::string name = command->app->get_name();
    common_.seed_given = command->common && command->flags.given("--seed");
    try {
      return status_of_output(name, command->action(common_, command->flags));
    } catch (...) {
      return status_of_exception(name);
    }
  }
  std::cerr << app_->help();
  return kUsage;
}

// One line; an unknown command or flag brings the nearest one that exists.
std::string Program::mistake(const CLI::ParseError& error) const {
  const std::vector<CLI::App*> chosen = app_->get_subcommands();
  const std::string command = chosen.empty() ? "" : chosen[0]->get_name();
  const Flags flags(chosen.empty() ? *app_ : *chosen[0]);
  if (dynamic_cast<const CLI::RequiredError*>(&error)) {
    const std::string missing = missing_argument(flags.all());
    return missing.empty() ? error.what() : missing;
  }
  const std::vector<std::string> left = app_->remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || left.empty()) return error.what();
  std::vector<std::string> names;
  for (const auto& known : commands_) names.push_back(known->app->get_name());
  return unknown_word(left[0], command, flags.all(), names);
}

int Program::run(int argc, char** argv) {
  for (const auto& command : commands_) {
    add_common(*command);
    command->flags.refuse_empty_values();
  }
  try {
    if (const std::string word = empty_assignment(argc, argv); !word.empty())
      throw UsageError(word + " has no value");
    app_->parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return status_of_output("", app_->exit(done));
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> chosen = app_->get_subcommands();
    return fail(chosen.empty() ? "" : chosen[0]->get_name(), mistake(error), kUsage);
  } catch (...) {
    return status_of_exception("");
  }
  return chosen();
}

std::vector<std::string> type_names() { return {"f64", "f32", "bf16", "f16"}; }

DType type_named(const std::string& name) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    if (name_of(type) == name) return type;
  throw UsageError("there is no type " + name);
}

}  // namespace attend::cli
