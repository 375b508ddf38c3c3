#include "property_shown.h"

#include <algorithm>
#include <cmath>

namespace attend::test {

std::optional<Shown> show(const Trial& trial, const KernelUnderTest& kernel, ScoreStage stage,
                          Context& context) {
  const Arguments a = trial.arguments();
  const Extents e = extents_of(a);
  Written results = trial.empty_results(false);
  Shown shown{std::move(results.out), std::move(results.lse), {}, {}};
  shown.weights = Tensor({e.batch, e.heads, e.queries, e.keys}, DType::f64);
  shown.scores = Tensor({e.batch, e.heads, e.queries, e.keys}, DType::f64);
  const AttentionOutputs outputs{
      .lse = shown.lse, .weights = shown.weights, .scores = shown.scores, .stage = stage};
  try {
    run_forward(kernel, a.q, a.k, a.v, shown.out, a.options, outputs, context);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
  return shown;
}

std::vector<std::string> inspect_kernels() {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : Context::kernels())
    if (kernel.operation == "inspect" && is_under_test(kernel.name)) names.push_back(kernel.name);
  return names;
}

std::optional<Statistics> statistics_of(const Trial& trial, const std::string& kernel,
                                        int threads) {
  Context context({.threads = threads, .kernels = "inspect:" + kernel});
  const InspectOptions all{.top_k = kTopKeys, .tile_rows = 4096, .tile_columns = 4096};
  CallMemory memory(KernelUnderTest{kernel}.on_gpu());
  const ConstTensorView q = memory.in(trial.q), k = memory.in(trial.k);
  const AttentionOptions options = memory.in(trial.q, trial.k, trial.k, trial.options());
  const Where where = memory.begin(context);
  try {
    return inspect(q, k, options, all, where);
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

std::vector<double> windows_of(const Trial& trial) {
  const Arguments a = trial.arguments();
  const Extents e = extents_of(a);
  Tensor out(trial.empty_results(false).out.shape(), trial.q.dtype());
  Tensor lse({a.q.size(0), e.heads, a.q.size(2)},
             a.q.dtype() == DType::f64 ? DType::f64 : DType::f32);
  run_forward({}, a.q, a.k, a.v, out, a.options, {.lse = lse});
  CallMemory memory;
  const ConstTensorView q = memory.in(a.q), k = memory.in(a.k);
  const AttentionOptions options = memory.in(a.q, a.k, a.k, a.options);
  const Where where = memory.begin();
  std::vector<double> weights;
  for (std::int64_t b = 0; b < e.batch; ++b)
    for (std::int64_t h = 0; h < e.heads; ++h) {
      const WeightsWindow window{
          .batch = b, .head = h, .query = 0, .queries = e.queries, .key = 0, .keys = e.keys};
      for (const double w : widen(weights_of(q, k, lse, window, options, where)))
        weights.push_back(w);
    }
  return weights;
}

StatisticsOfWeights::StatisticsOfWeights(const Trial& trial, const oracle::Results<double>& truth) {
  const Extents e = extents_of(trial.arguments());
  mass.resize(static_cast<std::size_t>(e.batch * e.heads * e.keys));
  for (std::int64_t row = 0; row < e.batch * e.heads * e.queries; ++row) {
    double most = 0, sum = 0;
    std::vector<double> largest;
    for (std::int64_t j = 0; j < e.keys; ++j) {
      const auto pair = static_cast<std::size_t>(row * e.keys + j);
      const double w = truth.weights[pair];
      const bool visible = truth.masked[pair] != -INFINITY;
      tiles.push_back(visible ? w : -1);
      if (!visible) continue;
      most = std::max(most, w);
      if (w > 0) sum -= w * std::log(w);
      largest.push_back(w);
      mass[static_cast<std::size_t>(row / e.queries * e.keys + j)] += w;
    }
    maximum.push_back(most);
    entropy.push_back(sum);
    std::sort(largest.rbegin(), largest.rend());
    largest.resize(static_cast<std::size_t>(kTopKeys));
    sorted.insert(sorted.end(), largest.begin(), largest.end());
  }
}

}  // namespace attend::test
