// The task that shows attention at work: a model that continues a repeated sequence must find the
// place where the present token stood before, and look at what followed it. One layer cannot: the
// key that holds the answer does not say what stood before it. A first layer must write that there
// (a previous-token head), and a second one search for it (an induction head).
#pragma once

#include <attend/model.h>

#include <vector>

namespace attend::cli {

//   tokens [batch, T]   targets [batch, T] (i64; kIgnore: not asked)
struct Batch {
  Tensor tokens, targets;
};
inline constexpr std::int64_t kIgnore = -100;

struct InductionOptions {
  std::int64_t vocabulary = 24;
  std::int64_t shortest = 6, longest = 12;  // the period
};

// Sequences of `period` different tokens, twice, each with a period of its own: a, b, c, a, b, c.
// What is asked are the tokens behind the second occurrence of a token: at query i >= period the
// target is token i + 1. Where a period is shorter than the longest, the row is filled up with
// token 0, which is not asked, and which no query before it sees.
struct InductionBatch : Batch {
  std::vector<std::int64_t> periods;
};
// Batch `number` of a stream: a pure function of its arguments.
InductionBatch induction_batch(const InductionOptions& options, std::uint64_t seed,
                               std::uint64_t stream, std::int64_t number, std::int64_t size);

struct InductionScores {
  double loss = 0;      // in nats, over what is asked
  double accuracy = 0;  // part of it where the likeliest token is the right one
  // scores[layer][head]: the mean weight, over the same queries i, of key i - period + 1, which is
  // behind the previous occurrence of the present token.
  std::vector<std::vector<double>> scores;

  // Best head of the last layer.
  std::size_t head() const;
  double score() const { return scores.back()[head()]; }
};
InductionScores induction_scores(const LanguageModel& model, const InductionBatch& batch,
                                 Context& context);

}  // namespace attend::cli
