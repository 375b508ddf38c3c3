// Text from a language model, one token at a time.
#include <attend/model.h>

#include "core/philox.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/flat.h"

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

// The likeliest word, or one drawn with the probabilities softmax(logits / temperature). Draw n is
// a pure function of the seed and n.
std::int64_t choose(std::vector<double>& logits, double temperature, std::uint64_t seed,
                    std::uint32_t n) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return largest - logits.begin();
  const double most = *largest;
  double sum = 0;
  for (double& logit : logits) sum += logit = std::exp((logit - most) / temperature);
  const auto words = philox({n, 0, 0, 0}, seed);
  double left = sum * (static_cast<double>(words[0]) * 0x1p-32);  // less than sum
  const auto found = std::find_if(logits.begin(), logits.end() - 1,
                                  [&](double weight) { return (left -= weight) < 0; });
  return found - logits.begin();
}

}  // namespace

std::vector<std::int64_t> LanguageModel::generate(const std::vector<std::int64_t>& prompt,
                                                  std::int64_t count, double temperature,
                                                  std::uint64_t seed, const Where& where) const {
  return generate(prompt, count, temperature, seed, options_.type, where);
}

std::vector<std::int64_t> LanguageModel::generate(const std::vector<std::int64_t>& prompt,
                                                  std::int64_t count, double temperature,
                                                  std::uint64_t seed, DType cache_type,
                                                  const Where& where) const {
  return reporting("generate", [&] {
    if (prompt.empty()) throw InvalidArgument("generate: the prompt is empty");
    if (count < 0) throw InvalidArgument(text("generate: count is ", count, ", less than 0"));
    if (!(std::isfinite(temperature) && temperature >= 0))
      throw InvalidArgument(
          text("generate: temperature is ", temperature, "; it must be finite and not negative"));
    std::vector<std::int64_t> all = prompt;
    std::vector<KvCache> caches = make_caches(1, cache_type);
    std::vector<double> logits(static_cast<std::size_t>(options_.vocabulary));
    std::size_t seen = all.size() - std::min(all.size(), static_cast<std::size_t>(options_.length));
    for (std::int64_t n = 0; n < count; ++n) {
      if (caches[0].length(0) == options_.length) {  // full: what stays moves to the front
        for (KvCache& cache : caches) cache.truncate(0, 0);
        seen =
            all.size() - static_cast<std::size_t>(std::max<std::int64_t>(options_.length / 2, 1));
      }
      const std::vector<std::int64_t> fresh(all.begin() + static_cast<std::ptrdiff_t>(seen),
                                            all.end());
      const auto size = static_cast<std::int64_t>(fresh.size());
      const Tensor y = forward(ConstTensorView(fresh.data(), {1, size}), caches, where);
      seen = all.size();
      load_row(flat(y), (size - 1) * options_.vocabulary, options_.vocabulary, logits.data());
      if (!std::all_of(logits.begin(), logits.end(), [](double z) { return std::isfinite(z); }))
        throw InvalidArgument("generate: a logit is not finite; are the weights?");
      all.push_back(choose(logits, temperature, seed, static_cast<std::uint32_t>(n)));
    }
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
    return all;
  });
}

}  // namespace attend
