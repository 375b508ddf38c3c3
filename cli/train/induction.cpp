#include "induction.h"

#include "cases/random.h"
#include "files/tensors.h"

#include <attend/train.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace attend::cli {

InductionBatch induction_batch(const InductionOptions& options, std::uint64_t seed,
                               std::uint64_t stream, std::int64_t number, std::int64_t size) {
  const std::int64_t length = 2 * options.longest;
  InductionBatch batch{{Tensor({size, length}, DType::i64), Tensor({size, length}, DType::i64)},
                       std::vector<std::int64_t>(static_cast<std::size_t>(size))};
  const cases::Random random(seed, stream);
  std::vector<std::int64_t> words(static_cast<std::size_t>(options.vocabulary));
  for (std::int64_t row = 0; row < size; ++row) {
    // More draws a row than it needs, so that rows share none.
    auto draw = static_cast<std::uint64_t>(number * size + row) * 2 *
                static_cast<std::uint64_t>(options.vocabulary);
    const std::int64_t period =
        options.shortest + random.below(options.longest - options.shortest + 1, draw++);
    std::iota(words.begin(), words.end(), 0);
    for (std::int64_t n = 0; n < period; ++n)  // Fisher and Yates, as far as needed
      std::swap(words[n], words[n + random.below(options.vocabulary - n, draw++)]);
    batch.periods[row] = period;
    std::int64_t* tokens = batch.tokens.data<std::int64_t>() + row * length;
    std::int64_t* targets = batch.targets.data<std::int64_t>() + row * length;
    std::fill_n(targets, length, kIgnore);
    for (std::int64_t i = 0; i < 2 * period; ++i) tokens[i] = words[i % period];
    for (std::int64_t i = period; i + 1 < 2 * period; ++i) targets[i] = tokens[i + 1];
  }
  return batch;
}

std::size_t InductionScores::head() const {
  const std::vector<double>& heads = scores.back();
  return static_cast<std::size_t>(std::max_element(heads.begin(), heads.end()) - heads.begin());
}

InductionScores induction_scores(const LanguageModel& model, const InductionBatch& batch,
                                 Context& context) {
  const Trace trace = model.trace(batch.tokens, context);
  const Tensor logits = converted(trace.at("logits"), DType::f32);
  const Loss loss = cross_entropy(logits, batch.targets, {.ignore = kIgnore}, context);
  InductionScores result{loss.value, 0, {}};
  const auto for_queries = [&](auto use) {
    for (std::int64_t b = 0; b < batch.tokens.size(0); ++b)
      for (std::int64_t i = 0; i < batch.tokens.size(1); ++i)
        if (batch.targets.at<std::int64_t>({b, i}) != kIgnore) use(b, i);
  };
  for_queries([&](std::int64_t b, std::int64_t i) {
    const float* row = &logits.at<float>({b, i, 0});
    const auto likeliest = std::max_element(row, row + logits.size(2)) - row;
    result.accuracy += likeliest == batch.targets.at<std::int64_t>({b, i});
  });
  result.accuracy /= static_cast<double>(loss.count);
  for (std::size_t layer = 0; layer < model.blocks().size(); ++layer) {
    const Tensor weights =
        converted(trace.at("blocks." + std::to_string(layer) + ".attention.weights"), DType::f32);
    std::vector<double>& heads = result.scores.emplace_back();
    for (std::int64_t h = 0; h < weights.size(1); ++h) {
      double sum = 0;
      for_queries([&](std::int64_t b, std::int64_t i) {
        sum += weights.at<float>({b, h, i, i - batch.periods[b] + 1});
      });
      heads.push_back(sum / static_cast<double>(loss.count));
    }
  }
  return result;
}

}  // namespace attend::cli
