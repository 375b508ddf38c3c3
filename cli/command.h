// The frame that all commands share. A command is one file with one function, add_NAME, which
// main.cpp calls; the rest of it is nobody else's business:
//
//   void add_info(Program& program) {
//     auto options = std::make_shared<InfoOptions>();
//     CLI::App& app = program.add("info", "What this machine is.", "  attend info --json",
//                                 [options](const Common& common) { return info(*options, common);
//                                 });
//     app.add_option("--heads", options->heads, "Number of heads");
//   }
//
// Results go to stdout, everything else to stderr. A command returns its exit status, or throws:
// an Error of the library, or a UsageError, becomes one line on stderr and the status below.
#pragma once

#include "usage_error.h"
#include "values.h"

#include <attend/context.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <string>

namespace attend::cli {

enum Status : int {
  kOk = 0,
  kFailedCheck = 1,
  kUsage = 2,
  kMemory = 3,
  kDevice = 4,
  kInterrupted = 130,  // as shells show a process that SIGINT ended
};

// What every command takes.
struct Common {
  bool json = false;         // one object on stdout, with a "schema"
  std::int64_t threads = 0;  // 0: ATTEND_THREADS, else one for each processor
  std::uint64_t seed = 0;    // of everything that is drawn
  bool seed_given = false;

  // `kernels` as in ContextOptions.
  std::unique_ptr<Context> context(const std::string& kernels = {}) const;
};

class Program {
 public:
  Program();

  // A new command. `example` is one or more lines, indented by two spaces. `common`: it takes the
  // flags of Common.
  CLI::App& add(const std::string& name, const std::string& description, const std::string& example,
                std::function<int(const Common&)> work, bool common = true);

  CLI::App& app() noexcept { return app_; }
  int run(int argc, char** argv);

 private:
  struct Command {
    CLI::App* app;
    std::function<int(const Common&)> work;
    bool common;
  };
  void add_common(const Command& command);
  int chosen();

  CLI::App app_;
  std::vector<Command> commands_;
  Common common_;
};

// f64, f32, bf16, f16: the types that attention is computed in.
std::vector<std::string> type_names();
DType type_named(const std::string& name);

// ---- output ------------------------------------------------------------------------------------

using Json = nlohmann::ordered_json;  // keys stay in the order in which they were put in

// {"schema": "attend.info/1"}: where every object on stdout begins, with the command's name. The
// number grows when a field changes its meaning or goes away; new fields may come at any time.
Json json_object(const std::string& schema);
void print(const Json& object);

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
