#include "sentence.h"

#include "files/tensors.h"

#include <cmath>

namespace attend::cli {
namespace {

constexpr std::int64_t kModel = 512, kHeads = 8, kSize = kModel / kHeads;
constexpr std::int64_t kWord = 0, kPosition = 64, kClass = 128;  // where x holds what
constexpr std::int64_t kMost = 32;  // words and positions that a head tells apart
constexpr double kScale = 8;        // sqrt(kSize): the layer divides by it
constexpr double kMatch = 24, kNear = 2, kBehind = 36, kRest = 6;

enum Class : std::int64_t { determiner, noun, verb, preposition };

// Features of a head: the first kMost speak of positions, the next of words or of classes.
using HeadWeights = MultiHeadAttention::HeadWeights;

HeadWeights empty_head() {
  HeadWeights head;
  head.q = head.k = head.v = Tensor({kSize, kModel});
  head.o = Tensor({kModel, kSize});
  for (std::int64_t n = 0; n < kSize; ++n) head.v.at<float>({n, kWord + n}) = 1;
  return head;
}

// score(i, j) of query and key positions: k marks its position, q holds the row of wanted scores.
template <class Score>
void score_positions(HeadWeights& head, Score&& score) {
  for (std::int64_t j = 0; j < kMost; ++j) {
    head.k.at<float>({j, kPosition + j}) = 1;
    for (std::int64_t i = 0; i < kMost; ++i)
      head.q.at<float>({j, kPosition + i}) = static_cast<float>(kScale * score(i, j));
  }
}

// A query of one class looks for the next word of another.
HeadWeights relation(Class from, Class to) {
  HeadWeights head = empty_head();
  score_positions(head, [](std::int64_t i, std::int64_t j) {
    return j == 0 ? kRest : j > i ? -kNear * static_cast<double>(j - i) : -kBehind;
  });
  head.q.at<float>({kMost, kClass + from}) = static_cast<float>(kScale * kMatch);
  head.k.at<float>({kMost, kClass + to}) = 1;
  return head;
}

HeadWeights position(std::int64_t back) {  // back 0: the first token, 1: the previous one
  HeadWeights head = empty_head();
  score_positions(head, [back](std::int64_t i, std::int64_t j) {
    return (back == 0 ? j == 0 : j == i - back) ? kMatch : j == 0 ? kRest : 0.0;
  });
  return head;
}

// The word as it stands somewhere else: what a word finds in itself is taken away again.
HeadWeights same_word() {
  HeadWeights head = empty_head();
  score_positions(head, [](std::int64_t i, std::int64_t j) {
    const double rest = j == 0 ? kRest : 0;
    return i == j ? rest - (j == 0 ? kMatch : kBehind) : rest;
  });
  for (std::int64_t word = 0; word < kMost; ++word) {
    head.q.at<float>({kMost + word, kWord + word}) = static_cast<float>(kScale * kMatch);
    head.k.at<float>({kMost + word, kWord + word}) = 1;
  }
  return head;
}

HeadWeights random_head() {
  HeadWeights head = empty_head();
  const double spread = 1 / std::sqrt(2.0);
  for (const auto& [weight, stream] : {std::pair{&head.q, 1u}, {&head.k, 2u}}) {
    const Tensor numbers = drawn(weight->shape(), DType::f32, 7, stream);
    for (std::int64_t n = 0; n < numbers.count(); ++n)
      weight->data<float>()[n] = static_cast<float>(spread * numbers.data<float>()[n]);
  }
  return head;
}

}  // namespace

Sentence make_sentence() {
  Sentence s{.words = {"The", "cat", "sat", "on", "the", "mat"},
             .ids = {0, 1, 2, 3, 0, 4},
             .x = Tensor({6, kModel}),
             .layer = {},
             .heads = {}};
  const Class classes[] = {determiner, noun, verb, preposition, determiner, noun};
  for (std::int64_t i = 0; i < 6; ++i) {
    s.x.at<float>({i, kWord + s.ids[static_cast<std::size_t>(i)]}) = 1;
    s.x.at<float>({i, kPosition + i}) = 1;
    s.x.at<float>({i, kClass + classes[i]}) = 1;
  }
  const std::vector<std::int64_t> any(6, -1);
  const std::tuple<const char*, const char*, HeadWeights, std::vector<std::int64_t>> heads[] = {
      {"previous token", "前一个词", position(1), {0, 0, 1, 2, 3, 4}},
      {"first token", "第一个词", position(0), {0, 0, 0, 0, 0, 0}},
      {"same word", "相同的词", same_word(), {4, 0, 0, 0, 0, 0}},
      {"noun to the next verb", "名词 → 后面的动词", relation(noun, verb), {0, 2, 0, 0, 0, 0}},
      {"determiner to its noun",
       "限定词 → 它的名词",
       relation(determiner, noun),
       {1, 0, 0, 0, 5, 0}},
      {"preposition to its object",
       "介词 → 它的宾语",
       relation(preposition, noun),
       {0, 0, 0, 5, 0, 0}},
      {"uniform", "均匀", empty_head(), any},
      {"random, a control", "随机（对照）", random_head(), any}};
  std::vector<HeadWeights> matrices;
  for (const auto& [name, chinese, head, keys] : heads) {
    const auto h = static_cast<std::int64_t>(matrices.size());
    matrices.push_back(head);
    for (std::int64_t n = 0; n < kSize; ++n)
      matrices.back().o.at<float>({h * kSize + n, n}) = 1;  // W^O is the identity
    s.heads.push_back({name, chinese, keys});
  }
  s.layer =
      MultiHeadAttention::join({.model_dim = kModel, .heads = kHeads, .bias = false}, matrices);
  return s;
}

}  // namespace attend::cli
