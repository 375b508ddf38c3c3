// What the heads look at: statistics of the weights, the name of what a head does, and the exact
// weights of a part of the matrix. The heads are constructed: head 0 looks at the previous token,
// head 1 has uniform weights.
#include "print.h"

#include <attend/attend.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace {

constexpr std::int64_t kTokens = 12;

// q_i . k_j is large where j = i - 1, in head 0; nothing is, in head 1.
attend::Tensor one_hot(std::int64_t shift, float size) {
  attend::Tensor t({1, 2, kTokens, kTokens});
  for (std::int64_t i = shift; i < kTokens; ++i) t.at<float>({0, 0, i, i - shift}) = size;
  return t;
}

bool run() {
  const attend::Tensor q = one_hot(1, 30), k = one_hot(0, 1);
  attend::Tensor tokens({kTokens}, attend::DType::i64);  // a b c a b c ...
  for (std::int64_t j = 0; j < kTokens; ++j) tokens.at<std::int64_t>({j}) = j % 3;

  // [inspect]
  const attend::AttentionOptions options{.scale = 1, .causal = true};
  const attend::Statistics s = attend::inspect(
      q, k, options, {.top_k = 2, .tokens = tokens, .tile_rows = 4, .tile_columns = 4});
  for (const attend::HeadStatistics& head : s.heads) {
    const attend::HeadLabel label = attend::label_of(head);
    std::printf("%-15s %.2f   entropy %.2f, largest weight %.2f, distance %.1f\n",
                label.name.c_str(), label.score, head.entropy, head.maximum, head.distance);
  }
  // The weights of queries 4 to 7 of head 0 on keys 2 to 7, from q, k and lse alone.
  const attend::Tensor p = attend::weights_of(
      q, k, s.lse, {.head = 0, .query = 4, .queries = 4, .key = 2, .keys = 6}, options);
  // [/inspect]

  bool good =
      print::check(attend::label_of(s.heads[0]).name == "previous token", "head 0 is named");
  good &= print::check(attend::label_of(s.heads[1]).name == "uniform", "head 1 is named");
  good &= print::check(p.at<float>({0, 1}) > 0.99F, "query 4 looks at key 3");
  good &=
      print::check(s.top_keys.at<std::int64_t>({0, 0, 4, 0}) == 3, "and so its largest key says");
  double mass = 0;
  for (std::int64_t j = 0; j < kTokens; ++j) mass += s.key_mass.at<float>({0, 1, j});
  good &=
      print::check(std::abs(mass - kTokens) < 1e-5, "what the keys receive is what the rows give");
  return good;
}

}  // namespace

int main() {
  try {
    return run() ? 0 : 1;
  } catch (const attend::Error& error) {
    std::fprintf(stderr, "inspect: %s\n", error.what());
    return 1;
  }
}
