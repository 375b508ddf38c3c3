#include "command.h"

#include "glyphs.h"
#include "mistakes.h"
#include "words.h"

#include <attend/error.h>

#include <cstdio>
#include <iostream>
#include <new>

namespace attend::cli {
namespace {

// One line of at most some 2000 bytes, whatever the message held: it may quote a whole argument, or
// every name in a file.
int fail(const CLI::App* command, std::string message, int status) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  std::cerr << "attend" << (command ? " " + command->get_name() : "") << ": "
            << shortened(printable(message), 2000) << '\n';
  return status;
}

// Whether all that was printed went where it should. Not all of it went through std::cout.
bool printed_all() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout;
}

int status_of_output(const CLI::App* command, int status) {
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
int status_of_exception(const CLI::App* command) {
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

Program::Program() : app_("Multi-head attention, exact, from the shell.", "attend") {
  app_.set_version_flag("--version", std::string("attend ") + version(),
                        "Prints the version and exits");
  app_.formatter(std::make_shared<Formatter>());
  app_.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app_.get_formatter()->label("Subcommands", "Commands");
  app_.get_formatter()->column_width(26);
  app_.set_help_flag("-h,--help", "Prints this help and exits");
  app_.footer("attend COMMAND --help shows the flags of a command, with examples.");
}

CLI::App& Program::add(const std::string& name, const std::string& description,
                       const std::string& example, std::function<int(const Common&)> work,
                       bool common) {
  CLI::App& app = *app_.add_subcommand(name, description);
  app.footer("Example:\n" + example);
  app.group("Commands");
  app.set_help_flag();
  commands_.push_back({&app, std::move(work), common});
  return app;
}

// Last, so that help shows a command's own options first.
void Program::add_common(const Command& command) {
  CLI::App& app = *command.app;
  const std::string group = command.common ? "Common options" : "Options";
  if (command.common) {
    app.add_flag("--json", common_.json, "Prints one JSON object instead of text")->group(group);
    add_whole(app, "--threads", common_.threads, {0, 4096},
              "Threads to use; 0: ATTEND_THREADS, else one for each processor")
        ->group(group);
    add_seed(app, "--seed", common_.seed, "Seed of all random numbers")->group(group);
  }
  app.set_help_flag("-h,--help", "Prints this help and exits")->group(group);
}

int Program::chosen() {
  for (const Command& command : commands_) {
    if (!command.app->parsed()) continue;
    common_.seed_given = command.common && command.app->count("--seed") > 0;
    try {
      return status_of_output(command.app, command.work(common_));
    } catch (...) {
      return status_of_exception(command.app);
    }
  }
  std::cerr << app_.help();
  return kUsage;
}

int Program::run(int argc, char** argv) {
  for (const Command& command : commands_) {
    add_common(command);
    for (CLI::Option* option : command.app->get_options())
      if (takes_value(*option) || option->get_positional()) refuse_empty(*option);
  }
  try {
    if (const std::string word = empty_assignment(argc, argv); !word.empty())
      throw UsageError(word + " has no value");
    app_.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return status_of_output(nullptr, app_.exit(done));
  } catch (const CLI::ParseError& error) {
    const CLI::App* command = app_.get_subcommands().empty() ? nullptr : app_.get_subcommands()[0];
    return fail(command, explain(app_, error), kUsage);
  } catch (...) {
    return status_of_exception(nullptr);
  }
  return chosen();
}

std::vector<std::string> type_names() { return {"f64", "f32", "bf16", "f16"}; }

DType type_named(const std::string& name) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    if (name_of(type) == name) return type;
  throw UsageError("there is no type " + name);
}

Json json_object(const std::string& schema) { return {{"schema", schema}}; }

// A file's name need not be UTF-8, JSON must be: what is not becomes U+FFFD.
void print(const Json& object) {
  std::cout << object.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace attend::cli
