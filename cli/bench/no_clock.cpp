// In place of bench_clock.cpp where Google Benchmark was not there when attend was built.
#include "bench.h"
#include "frame/usage_error.h"

namespace attend::cli {

std::vector<std::vector<double>> time_calls(const std::vector<Timed>&, double,
                                            const std::function<void(std::size_t)>&) {
  throw UsageError(
      "this program was built without Google Benchmark, which times the calls: install it "
      "(apt-get install libbenchmark-dev) and build attend again; --list and --peak need none");
}

}  // namespace attend::cli
