// attend check: does every kernel give the truth on this machine? The table of problems that the
// tests walk, each problem in four types, forward, backward and as statistics, against the formulas
// in f64 (for f64 in the widest numbers that the C library has).
#include "frame/mistakes.h"
#include "frame/program.h"
#include "frame/terminal.h"

#include "cases/oracle/examination.h"

#include <chrono>
#include <iomanip>
#include <iostream>
#include <map>
#include <mutex>

namespace attend::cli {
namespace {

struct Options {
  std::vector<std::string> kernels;
  std::string line;
  std::vector<std::string> types;
  double tolerance = 1;
  bool reduced = false, list = false;
};

// One kernel on one case.
struct Examined {
  std::string kernel, operation;
  oracle::Outcome outcome;
};

struct Tally {
  std::int64_t runs = 0, failures = 0, declined = 0;
  double worst = 0;  // error, as a part of the allowed
};

std::vector<cases::Case> cases_of(const Options& options) {
  std::vector<cases::Case> all;
  for (const cases::Case& problem : !options.line.empty() ? std::vector{cases::parse(options.line)}
                                    : options.reduced     ? cases::reduced_table()
                                                          : cases::table()) {
    for (const DType type : cases::kTypes) {
      const std::string name(name_of(type));
      const bool wanted = options.types.empty()
                              ? options.line.empty() || type == problem.type
                              : std::count(options.types.begin(), options.types.end(), name) > 0;
      if (!wanted) continue;
      all.push_back(problem);
      all.back().type = type;
    }
  }
  return all;
}

std::vector<KernelInfo> kernels_of(const Options& options) {
  std::vector<KernelInfo> rows;
  std::vector<std::string> names;
  for (const KernelInfo& kernel : Context::kernels()) {
    if (kernel.operation != "forward" && kernel.operation != "backward" &&
        kernel.operation != "inspect")
      continue;
    names.push_back(kernel.name);
    if (options.kernels.empty() ||
        std::count(options.kernels.begin(), options.kernels.end(), kernel.name) > 0)
      rows.push_back(kernel);
  }
  for (const std::string& name : options.kernels)
    if (std::count(names.begin(), names.end(), name) == 0)
      throw UsageError("there is no kernel " + name +
                       suggestion(name, names, "attend info lists all"));
  return rows;
}

std::vector<Examined> examine(const cases::Case& problem, const std::vector<KernelInfo>& kernels,
                              const oracle::Judgement& judgement) {
  oracle::Examination examination(problem, judgement);
  std::vector<Examined> runs;
  runs.reserve(kernels.size());
  for (const KernelInfo& kernel : kernels)
    runs.push_back({kernel.name, kernel.operation,
                    kernel.operation == "forward"    ? examination.forward(kernel.name)
                    : kernel.operation == "backward" ? examination.backward(kernel.name)
                                                     : examination.inspect(kernel.name)});
  return runs;
}

// All cases, side by side: [case][kernel].
std::vector<std::vector<Examined>> examine_all(const std::vector<cases::Case>& problems,
                                               const std::vector<KernelInfo>& kernels,
                                               double tolerance, Context& context) {
  const oracle::Judgement judgement{.tolerance = tolerance, .context = &context};
  std::vector<std::vector<Examined>> results(problems.size());
  std::mutex mutex;
  std::exception_ptr failure;
  std::int64_t done = 0;
  Progress progress("checking", static_cast<std::int64_t>(problems.size()));
  context.parallel_for(static_cast<std::int64_t>(problems.size()), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    try {
      results[at] = examine(problems[at], kernels, judgement);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    progress.show(++done, cases::name(problems[at]));
  });
  if (failure) std::rethrow_exception(failure);
  return results;
}

int list(const Options& options, const Common& common) {
  Json object = json_object("attend.check.list/1");
  object["cases"] = Json::array();
  for (const cases::Case& problem : cases_of(options)) {
    if (common.json) object["cases"].push_back(cases::name(problem));
    else std::cout << cases::name(problem) << '\n';
  }
  if (common.json) print(object);
  return kOk;
}

// A kernel that gave something else than the truth.
struct Failure {
  std::string kernel, problem, message;
};

int check(const Options& options, const Common& common) {
  const std::vector<KernelInfo> kernels = kernels_of(options);
  if (options.list) return list(options, common);
  const std::vector<cases::Case> problems = cases_of(options);
  const auto begin = std::chrono::steady_clock::now();
  const auto context = common.context();
  const auto results = examine_all(problems, kernels, options.tolerance, *context);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  std::map<std::pair<std::string, std::string>, Tally> tallies;
  std::map<std::string, std::int64_t> declined;
  std::vector<Failure> failures;
  Tally total;
  for (std::size_t n = 0; n < problems.size(); ++n) {
    for (const auto& [kernel, operation, outcome] : results[n]) {
      Tally& tally = tallies[{kernel, std::string(name_of(problems[n].type))}];
      if (outcome.declined) {
        ++tally.declined;
        ++declined[kernel + ": " + outcome.message];
        continue;
      }
      ++tally.runs, ++total.runs;
      tally.worst = std::max(tally.worst, outcome.worst);
      if (outcome.message.empty()) continue;
      ++tally.failures, ++total.failures;
      failures.push_back({kernel, cases::name(problems[n]), outcome.message});
    }
  }

  if (common.json) {
    Json object = json_object("attend.check/1");
    object["passed"] = total.failures == 0;
    object["cases"] = problems.size();
    object["runs"] = total.runs;
    object["failed"] = total.failures;
    object["seconds"] = seconds.count();
    object["kernels"] = Json::array();
    for (const auto& [key, tally] : tallies)
      object["kernels"].push_back({{"kernel", key.first},
                                   {"type", key.second},
                                   {"runs", tally.runs},
                                   {"failed", tally.failures},
                                   {"declined", tally.declined},
                                   {"largest_error", tally.worst}});
    object["declined"] = Json::object();
    for (const auto& [reason, times] : declined) object["declined"][reason] = times;
    object["failures"] = Json::array();
    for (const Failure& failure : failures)
      object["failures"].push_back(
          {{"kernel", failure.kernel}, {"case", failure.problem}, {"message", failure.message}});
    print(object);
  } else {
    for (const Failure& failure : failures) std::cout << failure.message << "\n\n";
    std::cout
        << "kernel                 type   runs  declined  failed  largest error, of the allowed\n";
    for (const auto& [key, tally] : tallies)
      std::cout << std::left << std::setw(23) << key.first << std::setw(5) << key.second
                << std::right << std::setw(6) << tally.runs << std::setw(10) << tally.declined
                << std::setw(8) << tally.failures << std::fixed << std::setprecision(3)
                << std::setw(15) << tally.worst << '\n';
    for (const auto& [reason, times] : declined)
      std::cout << "declined " << times << (times == 1 ? " time by " : " times by ") << reason
                << '\n';
    std::cout << problems.size() << " cases, " << total.runs << " runs, " << total.failures
              << " failed, " << std::setprecision(1) << seconds.count() << " s\n";
  }
  return total.failures == 0 ? kOk : kFailedCheck;
}

}  // namespace

void add_check(Program& program) {
  auto options = std::make_shared<Options>();
  Flags& flags = program.add(
      "check", "Compares every kernel with the formulas in f64, on this machine.",
      "  attend check --reduced\n"
      "  attend check --case 'type=bf16 heads=4 kv_heads=2 q=33 k=65 causal=1'",
      [options](const Common& common, const Flags&) { return check(*options, common); });
  flags.add_texts("--kernel", options->kernels, "Only this kernel; may be repeated")
      .value("NAME")
      .repeatable();
  flags.add_text("--case", options->line, "Only this case, written as --list and failures do")
      .value("WORDS");
  flags.add_texts("--type", options->types, "Only this type; may be repeated")
      .one_of(type_names())
      .repeatable();
  flags.add_switch("--reduced", options->reduced, "About sixty cases that use every option");
  flags.add_switch("--list", options->list, "Prints the cases and exits");
  flags.add_real("--tolerance", options->tolerance, {0, 1},
                 "Share of the allowed error that is accepted, from 0 to 1");
}

}  // namespace attend::cli
