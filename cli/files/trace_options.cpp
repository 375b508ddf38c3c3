// The options of attention, read off a trace. A trace holds scores before and after the mask, lse
// and weights, and no options: these are what must have been between them.
#include "cases/oracle/widen.h"
#include "shown.h"
#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attend::cli {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// scaled = scale * scores, at the largest score.
double scale_of(const std::vector<double>& scores, const std::vector<double>& scaled) {
  const auto largest = std::max_element(
      scores.begin(), scores.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  if (largest == scores.end() || *largest == 0 || !std::isfinite(*largest)) return 1;
  return scaled[static_cast<std::size_t>(largest - scores.begin())] / *largest;
}

// Whether exactly the keys behind the query are hidden, the last query meeting the last key.
bool is_causal(const std::vector<double>& added, const Shape& shape) {
  const std::int64_t queries = shape[2], keys = shape[3];
  for (std::int64_t n = 0; n < std::ssize(added); ++n) {
    const std::int64_t i = n / keys % queries, j = n % keys;
    const bool hidden = added[static_cast<std::size_t>(n)] == kMinusInfinity;
    if (hidden != (j > i + keys - queries)) return false;
  }
  return true;
}

// Where every head of every sequence has the same, one is enough.
Shape kept_once(std::vector<double>& added, const Shape& shape) {
  const auto square = static_cast<std::size_t>(shape[2] * shape[3]);
  for (std::size_t n = square; n < added.size(); ++n)
    if (added[n] != added[n - square]) return shape;
  added.resize(std::min(square, added.size()));
  return {1, 1, shape[2], shape[3]};
}

// What of a row's weight is on no key is on the sink: log of it + lse is the sink's score.
Tensor sinks_of(const std::vector<double>& weights, const std::vector<double>& lse,
                const Shape& shape, DType type) {
  const std::int64_t heads = shape[1], queries = shape[2], keys = shape[3];
  std::vector<double> sinks(static_cast<std::size_t>(heads), kMinusInfinity), most(sinks.size(), 0);
  for (std::int64_t row = 0; row < std::ssize(lse); ++row) {
    double rest = 1;
    for (std::int64_t j = 0; j < keys; ++j)
      rest -= weights[static_cast<std::size_t>(row * keys + j)];
    const auto h = static_cast<std::size_t>(row / queries % heads);
    if (rest <= most[h] || lse[static_cast<std::size_t>(row)] == kMinusInfinity) continue;
    most[h] = rest;
    sinks[h] = lse[static_cast<std::size_t>(row)] + std::log(rest);
  }
  constexpr double kRounding = 1e-4;  // what weights in f32 may miss without a sink
  if (*std::max_element(most.begin(), most.end()) < kRounding) return {};
  return converted(Tensor::copy_of(ConstTensorView(sinks.data(), {heads})), type);
}

}  // namespace

AttentionOptions options_of_trace(const TensorFile& file, const std::string& prefix,
                                  std::deque<Tensor>& tensors) {
  const auto numbers = [&](const char* name) { return oracle::widen(file.at(prefix + name)); };
  const std::vector<double> scaled = numbers("scaled_scores");
  std::vector<double> added = numbers("masked_scores");
  const Shape shape = file.at(prefix + "masked_scores").shape();
  const DType type = file.at(prefix + "lse").dtype();
  AttentionOptions options;
  options.scale = scale_of(numbers("scores"), scaled);
  bool hides = false, adds = false;
  for (std::size_t n = 0; n < added.size(); ++n) {
    if (added[n] != kMinusInfinity) added[n] -= scaled[n];
    hides |= added[n] == kMinusInfinity;
    adds |= std::isfinite(added[n]) && added[n] != 0;
  }
  const auto keep = [&](Tensor tensor) -> const Tensor& {
    return tensors.emplace_back(std::move(tensor));
  };
  const Shape kept = kept_once(added, shape);
  if (adds) {
    options.bias =
        keep(converted(Tensor::copy_of(ConstTensorView(added.data(), kept)), DType::f32));
  } else if (hides && is_causal(added, kept)) {
    options.causal = true;
  } else if (hides) {
    Tensor& mask = tensors.emplace_back(Tensor(kept, DType::u8));
    std::transform(added.begin(), added.end(), mask.data<std::uint8_t>(),
                   [](double x) { return x == kMinusInfinity ? 0 : 1; });
    options.mask = mask;
  }
  if (Tensor sinks = sinks_of(numbers("weights"), numbers("lse"), shape, type); sinks)
    options.sinks = keep(std::move(sinks));
  return options;
}

}  // namespace attend::cli
