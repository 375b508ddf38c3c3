// The clock of attend bench is Google Benchmark: how often to call, and the loop around it.
#include "bench.h"

#include <benchmark/benchmark.h>

#include <exception>

namespace attend::cli {
namespace {

// Keeps the times and prints nothing.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs)
      if (run.run_type == Run::RT_Iteration)
        seconds.push_back(run.real_accumulated_time / static_cast<double>(run.iterations));
  }
  std::vector<double> seconds;
};

}  // namespace

std::vector<std::vector<double>> time_calls(const std::vector<Timed>& all, double seconds,
                                            const std::function<void(std::size_t)>& turn) {
  std::vector<std::vector<double>> times;
  for (std::size_t n = 0; n < all.size(); ++n) {
    turn(n);
    const std::function<void()> run = all[n].make();
    std::exception_ptr failure;
    benchmark::ClearRegisteredBenchmarks();
    benchmark::RegisterBenchmark(all[n].name.c_str(),
                                 [&](benchmark::State& state) {
                                   try {
                                     for (auto _ : state) run();
                                   } catch (...) {
                                     failure = std::current_exception();
                                     state.SkipWithError("failed");
                                   }
                                 })
        ->UseRealTime()
        ->MinTime(seconds / kRepetitions)
        ->Repetitions(kRepetitions);
    Collector collector;
    benchmark::RunSpecifiedBenchmarks(&collector, nullptr, "all");
    if (failure) std::rethrow_exception(failure);
    times.push_back(std::move(collector.seconds));
  }
  return times;
}

}  // namespace attend::cli
