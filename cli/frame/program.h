// The frame that all commands share. attend NAME is a file, NAME/command.cpp, with one function,
// add_NAME, which main.cpp calls; the rest of it is nobody else's business:
//
//   void add_info(Program& program) {
//     auto options = std::make_shared<InfoOptions>();
//     Flags& flags = program.add("info", "What this machine is.", "  attend info --json",
//                                [options](const Common& common, const Flags&) {
//                                  return info(*options, common);
//                                });
//     flags.add_size("--heads", options->heads, "Number of heads");
//   }
//
// Results go to stdout, everything else to stderr. A command returns its exit status, or throws:
// an Error of the library, or a UsageError, becomes one line on stderr and the status below.
#pragma once

#include "flags.h"
#include "json.h"
#include "status.h"
#include "usage_error.h"

#include <attend/context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class ParseError;
}

namespace attend::cli {

// What every command takes.
struct Common {
  bool json = false;         // one object on stdout, with a "schema"
  std::int64_t threads = 0;  // 0: ATTEND_THREADS, else one for each processor
  std::uint64_t seed = 0;    // of everything that is drawn
  bool seed_given = false;

  // `kernels` as in ContextOptions.
  std::unique_ptr<Context> context(const std::string& kernels = {}) const;
};

// What a command does; `flags` are its own, to see which were given.
using Action = std::function<int(const Common& common, const Flags& flags)>;

class Program {
 public:
  Program();
  ~Program();

  // A new command. `example` is one or more lines, indented by two spaces. `common`: it takes the
  // flags of Common.
  Flags& add(const std::string& name, const std::string& description, const std::string& example,
             Action action, bool common = true);
  int run(int argc, char** argv);

  // What the manual page and the completions are made of.
  struct CommandInfo {
    std::string name, description, footer;
    std::vector<FlagInfo> flags;
  };
  CommandInfo about() const;  // of the program itself
  std::vector<CommandInfo> commands() const;

 private:
  struct Command;
  void add_common(Command& command);
  int chosen();
  std::string mistake(const CLI::ParseError& error) const;

  std::unique_ptr<CLI::App> app_;
  std::vector<std::unique_ptr<Command>> commands_;
  Common common_;
};

// f64, f32, bf16, f16: the types that attention is computed in.
std::vector<std::string> type_names();
DType type_named(const std::string& name);

// ---- the commands ------------------------------------------------------------------------------

void add_apply(Program& program);
void add_bench(Program& program);
void add_check(Program& program);
void add_demo(Program& program);
void add_explain(Program& program);
void add_info(Program& program);
void add_inspect(Program& program);
void add_completion(Program& program);
void add_man(Program& program);
void add_train(Program& program);
void add_view(Program& program);

}  // namespace attend::cli
