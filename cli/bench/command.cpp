// attend bench: how fast the kernels are on this machine, beside what it could do at best.
#include "bench.h"

#include "files/outputs.h"
#include "frame/machine.h"
#include "frame/mistakes.h"
#include "frame/program.h"
#include "frame/terminal.h"
#include "frame/units.h"
#include "peak.h"

#include <attend/version.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>

namespace attend::cli {
namespace {

using cases::BenchCase;

constexpr std::size_t kMostFilter = 1000;

struct Options {
  std::vector<std::string> suites;  // names, or some with commas between them
  std::string filter, save, type = "f32";
  bool quick = false, list = false, peak = false;
};

// What is measured of a case.
struct Result {
  Work work;
  double seconds = 0, fastest = 0, slowest = 0;  // of a call: the median, and how far others lie
  double speed = 0, peak = 0;                    // 1 / second: operations, or bytes of decode
};

std::vector<BenchCase> cases_of(const Options& options) {
  const std::vector<std::string> known = cases::bench_suites();
  std::vector<std::string> suites;
  for (const std::string& names : options.suites) {
    std::istringstream words(names);
    for (std::string name; std::getline(words, name, ',');) suites.push_back(name);
  }
  for (const std::string& name : suites)
    if (std::count(known.begin(), known.end(), name) == 0)
      throw UsageError("--suite: there is no suite '" + name + "'" +
                       suggestion(name, known, "attend bench --list shows all"));
  std::regex filter;
  if (options.filter.size() > kMostFilter)  // the library's matcher calls itself for every letter
    throw UsageError("--filter has " + std::to_string(options.filter.size()) +
                     " bytes; it may have " + std::to_string(kMostFilter));
  try {
    filter = std::regex(options.filter);
  } catch (const std::regex_error&) {
    throw UsageError("--filter is no regular expression: " + options.filter);
  }
  std::vector<BenchCase> wanted;
  for (const BenchCase& measured : cases::bench_table(type_named(options.type))) {
    const bool suite = suites.empty()
                           ? options.list || !cases::only_by_name(measured.suite)
                           : std::count(suites.begin(), suites.end(), measured.suite) > 0;
    if (suite && (measured.quick || !options.quick) &&
        std::regex_search(cases::name(measured), filter))
      wanted.push_back(measured);
  }
  if (wanted.empty()) throw UsageError("no case has a name with " + options.filter);
  return wanted;
}

Json json_of(const BenchCase& measured) {
  const cases::Case& p = measured.problem;
  return {{"name", cases::name(measured)},
          {"suite", measured.suite},
          {"operation", cases::name_of(measured.operation)},
          {"type", name_of(p.type)},
          {"batch", p.batch},
          {"heads", p.heads},
          {"key_heads", p.kv_heads},
          {"queries", p.q_length},
          {"keys", p.k_length},
          {"d", p.d},
          {"causal", p.causal},
          {"quick", measured.quick},
          {"flops", cases::flops(measured)},
          {"bytes", cases::is_decode(measured) ? Json(cases::bytes_read(measured)) : Json()}};
}

int list(const std::vector<BenchCase>& all, const Common& common) {
  if (!common.json) {
    for (const BenchCase& measured : all) std::cout << cases::name(measured) << '\n';
    return kOk;
  }
  Json object = json_object("attend.bench.list/1");
  object["cases"] = Json::array();
  for (const BenchCase& measured : all) object["cases"].push_back(json_of(measured));
  print(object);
  return kOk;
}

// The machine at its best. Reading is measured over as much memory as a case reads: what fits into
// a cache is read faster than what does not.
class Peak {
 public:
  Peak(Context& context, DType type, bool quick)
      : context_(context), type_(type), seconds_(quick ? 0.1 : 0.6),
        flops_(measure_flops(context, type, seconds_)) {}

  double flops() const noexcept { return flops_.rate; }
  double reading(double bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    if (!reading_.contains(size)) reading_[size] = measure_reading(context_, size, seconds_);
    return reading_[size];
  }
  Json json() {
    Json object = {{"instructions", flops_.instructions},
                   {"type", name_of(flops_.type)},
                   {"threads", context_.threads()},
                   {"flops", flops_.rate},
                   {"read_bytes", reading(kLarge)}};
    for (const auto& [size, rate] : reading_)
      object["reading"].push_back({{"array_bytes", size}, {"bytes_per_second", rate}});
    return object;
  }
  std::string text() {
    char line[160];
    std::string how = flops_.instructions;
    if (type_ != DType::f32) how += " in " + std::string(name_of(flops_.type));
    if (type_ != flops_.type) how += ", not " + std::string(name_of(type_));
    std::snprintf(line, sizeof line, "%d %s: %.1f GFLOP/s (%s), %.1f GB/s read from memory",
                  context_.threads(), context_.threads() == 1 ? "thread" : "threads",
                  flops_.rate / 1e9, how.c_str(), reading(kLarge) / 1e9);
    return line;
  }

 private:
  static constexpr double kLarge = 512 << 20;  // more than the caches of most machines hold
  Context& context_;
  DType type_;  // of the cases
  double seconds_;
  PeakFlops flops_;
  std::map<std::size_t, double> reading_;
};

std::vector<Result> measure(const std::vector<BenchCase>& all, const Options& options,
                            const Common& common, Context& context, Peak& peak) {
  std::vector<Result> results(all.size());
  std::vector<Timed> timed;
  for (std::size_t n = 0; n < all.size(); ++n)
    timed.push_back({cases::name(all[n]), [&, n] {
                       BenchCase measured = all[n];
                       if (common.seed_given) measured.problem.seed = common.seed;
                       results[n].work = prepare(measured, context);
                       return std::exchange(results[n].work.run, {});
                     }});
  Progress progress("measuring", static_cast<std::int64_t>(all.size()));
  auto times = time_calls(timed, options.quick ? 0.1 : 0.5, [&](std::size_t n) {
    progress.show(static_cast<std::int64_t>(n), timed[n].name);
  });
  for (std::size_t n = 0; n < all.size(); ++n) {
    std::vector<double>& seconds = times[n];
    std::sort(seconds.begin(), seconds.end());
    Result& result = results[n];
    result.seconds = seconds[seconds.size() / 2];
    result.fastest = seconds.front();
    result.slowest = seconds.back();
    const bool decode = cases::is_decode(all[n]);
    const double read = cases::bytes_read(all[n]);
    result.speed = (decode ? read : cases::flops(all[n])) / result.seconds;
    result.peak = decode ? peak.reading(read) : peak.flops();
  }
  return results;
}

Json json_of(const BenchCase& measured, const Result& result) {
  Json object = json_of(measured);
  const char* unit = cases::is_decode(measured) ? "bytes_per_second" : "flops_per_second";
  object["seconds"] = result.seconds;
  object["fastest"] = result.fastest;
  object["slowest"] = result.slowest;
  object[unit] = result.speed;
  object["share_of_peak"] = result.speed / result.peak;
  object["kernel"] = result.work.kernel;
  object["workspace_bytes"] = result.work.workspace_bytes;
  object["plan"] = result.work.plan;
  return object;
}

void print_table(const std::vector<BenchCase>& all, const std::vector<Result>& results) {
  int width = 34;
  for (const BenchCase& measured : all)
    width = std::max(width, static_cast<int>(cases::name(measured).size()));
  std::printf("\n%-*s %9s  %7s  %16s  %7s  %10s  %s\n", width, "case", "time", "spread", "speed",
              "of peak", "workspace", "kernel");
  for (std::size_t n = 0; n < all.size(); ++n) {
    const Result& r = results[n];
    std::printf(
        "%-*s %9s  %5.0f %%  %8.1f %-7s  %5.0f %%  %10s  %s\n", width, cases::name(all[n]).c_str(),
        duration(r.seconds).c_str(), 100 * (r.slowest - r.fastest) / r.seconds, r.speed / 1e9,
        cases::is_decode(all[n]) ? "GB/s" : "GFLOP/s", 100 * r.speed / r.peak,
        bytes(static_cast<std::int64_t>(r.work.workspace_bytes)).c_str(), r.work.kernel.c_str());
  }
}

int bench(const Options& options, const Common& common) {
  const std::vector<BenchCase> all = cases_of(options);
  if (options.list) return list(all, common);
  Outputs outputs;
  if (!options.save.empty()) outputs.reserve_file(options.save);
  const auto context = common.context();
  Peak peak(*context, type_named(options.type), options.quick);
  for (const BenchCase& measured : all)
    if (cases::is_decode(measured)) peak.reading(cases::bytes_read(measured));
  const auto results =
      options.peak ? std::vector<Result>() : measure(all, options, common, *context, peak);

  Json object = json_object("attend.bench/1");
  object["version"] = version();
  object["processor"] = machine_info().model;
  object["type"] = options.type;
  object["peak"] = peak.json();
  object["cases"] = Json::array();
  for (std::size_t n = 0; n < results.size(); ++n)
    object["cases"].push_back(json_of(all[n], results[n]));
  if (!options.save.empty()) {
    outputs.put_file(options.save, [&](const std::filesystem::path& path) {
      save_bytes(path, object.text(2) + "\n");
    });
    outputs.write();
  }
  if (common.json) {
    print(object);
  } else {
    std::printf("%s\n", peak.text().c_str());
    if (!results.empty()) print_table(all, results);
  }
  return kOk;
}

}  // namespace

void add_bench(Program& program) {
  auto options = std::make_shared<Options>();
  Flags& flags = program.add(
      "bench", "Times the kernels on this machine, as shares of its peak.",
      "  attend bench --quick\n"
      "  attend bench --suite notes,long --threads 1 --save times.json\n"
      "  attend bench --suite gpt,decode --type bf16",
      [options](const Common& common, const Flags&) { return bench(*options, common); });
  flags.add_texts("--suite", options->suites, "Suites to measure; not given: all but the sweeps")
      .text("NAME,...");
  flags.add_text("--filter", options->filter, "Only cases whose name has this regular expression")
      .text("REGEX");
  flags.add_word("--type", options->type, "Type of the numbers", type_names());
  flags.add_switch("--quick", options->quick, "A few small cases, briefly");
  flags.add_switch("--list", options->list, "Prints the cases and exits");
  flags.add_switch("--peak", options->peak, "Measures the machine's peak alone");
  flags.add_text("--save", options->save, "Writes the JSON object into a file as well")
      .text("FILE");
}

}  // namespace attend::cli
