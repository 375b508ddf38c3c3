#include "command.h"

#include "mistakes.h"

#include <attend/error.h>

#include <iostream>
#include <new>

namespace attend::cli {
namespace {

// One line, whatever the message held.
int fail(const CLI::App* command, std::string message, int status) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  std::cerr << "attend" << (command ? " " + command->get_name() : "") << ": " << message << '\n';
  return status;
}

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
  return std::make_unique<Context>(ContextOptions{.threads = threads, .kernels = kernels});
}

Program::Program() : app_("Multi-head attention, exact, from the shell.", "attend") {
  app_.set_version_flag("--version", std::string("attend ") + version(),
                        "Prints the version and ends");
  app_.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app_.get_formatter()->label("Subcommands", "Commands");
  app_.get_formatter()->column_width(26);
  app_.set_help_flag("-h,--help", "Prints this help and ends");
  app_.footer("attend COMMAND --help tells more of a command, with examples.");
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
    app.add_option("--threads", common_.threads, "Threads to use; 0: all of this machine's")
        ->check(CLI::Range(0, 1 << 16).description(""))
        ->type_name("N")
        ->group(group);
    app.add_option("--seed", common_.seed, "Seed of everything that is drawn")
        ->check([](const std::string& word) {  // or it would wrap around
          return word.starts_with("-") ? "a seed is at least 0, not " + word : std::string();
        })
        ->type_name("N")
        ->group(group);
  }
  app.set_help_flag("-h,--help", "Prints this help and ends")->group(group);
}

int Program::chosen() {
  for (const Command& command : commands_) {
    if (!command.app->parsed()) continue;
    common_.seed_given = command.common && command.app->count("--seed") > 0;
    try {
      const int status = command.work(common_);
      std::cout.flush();
      if (!std::cout) return fail(command.app, "standard output cannot be written", kUsage);
      return status;
    } catch (...) {
      return status_of_exception(command.app);
    }
  }
  std::cerr << app_.help();
  return kUsage;
}

int Program::run(int argc, char** argv) {
  for (const Command& command : commands_) add_common(command);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app_.exit(done);
  } catch (const CLI::ParseError& error) {
    const CLI::App* command = app_.get_subcommands().empty() ? nullptr : app_.get_subcommands()[0];
    return fail(command, explain(app_, error), kUsage);
  } catch (...) {
    return status_of_exception(nullptr);
  }
  return chosen();
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::int64_t& size,
                      const std::string& description) {
  return app.add_option(name, size, description)
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()).description(""))
      ->type_name("N");
}

std::vector<std::string> type_names() { return {"f64", "f32", "bf16", "f16"}; }

DType type_named(const std::string& name) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    if (name_of(type) == name) return type;
  throw UsageError("there is no type " + name);
}

CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : "|") + word;
  return option->check(CLI::IsMember(words))->option_text(text);
}

Json json_object(const std::string& schema) { return {{"schema", schema}}; }

// A file's name need not be UTF-8, JSON must be: what is not becomes U+FFFD.
void print(const Json& object) {
  std::cout << object.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace attend::cli
