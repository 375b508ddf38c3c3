// What a trial shows besides out and its gradients: weights, scores, windows of weights,
// statistics.
#pragma once

#include "property_compare.h"

namespace attend::test {

struct Shown {
  Tensor out, lse;
  Tensor weights, scores;  // [batch, heads, queries, keys], f64
};
// With a forward kernel forced; nothing if it declines.
std::optional<Shown> show(const Trial& trial, const KernelUnderTest& kernel, ScoreStage stage,
                          Context& context = default_context());

// Statistics of everything, a tile of the map for each pair.
std::vector<std::string> inspect_kernels();
std::optional<Statistics> statistics_of(const Trial& trial, const std::string& kernel,
                                        int threads = 1);

// Every weight, [batch, heads, queries, keys], by windows from the lse that attention() gives in
// its usual type.
std::vector<double> windows_of(const Trial& trial);

// What the statistics are by their definition, of a dense trial and its true weights.
struct StatisticsOfWeights {
  StatisticsOfWeights(const Trial& trial, const oracle::Results<double>& truth);
  std::vector<double> maximum, entropy;  // [rows]
  std::vector<double> sorted;            // [rows, top_k]
  std::vector<double> mass;              // [batch, heads, keys]
  std::vector<double> tiles;             // [batch, heads, queries, keys]; -1: hidden
};
inline constexpr std::int64_t kTopKeys = 3;

}  // namespace attend::test
