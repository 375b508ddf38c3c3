// What `./run demo` shows: attention by hand on two tokens, then a sentence through eight heads.
//
// Every number comes out of the library; the checks compare it with plain loops written here. The
// projections around attention (X W^Q and so on) are loops of this file, since the library's part
// is what happens between them.
#include "print.h"

#include <attend/attend.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace {

using attend::Tensor;
using print::number;

// ---- 1  One head -------------------------------------------------------------------------------

// Row i of a [1, 1, 2, 2] tensor.
std::string row(const Tensor& t, int i, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%8.*f%8.*f ", decimals, t.at<double>({0, 0, i, 0}), decimals,
                t.at<double>({0, 0, i, 1}));
  return print::in("2", "│") + text + print::in("2", "│");
}

// A step: a name for each row in front, an explanation behind.
void show_step(const Tensor& t, const char* first, const char* second,
               const std::string& first_behind, const std::string& second_behind = {}) {
  std::printf("   %-11s %s  %s\n", first, row(t, 0, 4).c_str(), first_behind.c_str());
  std::printf("   %-11s %s%s%s\n", second, row(t, 1, 4).c_str(), second_behind.empty() ? "" : "  ",
              second_behind.c_str());
}

// The four steps as a textbook writes them, to hold the library's result against.
double largest_difference_to_loops(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& out) {
  double largest = 0;
  for (int i = 0; i < 2; ++i) {
    double p[2], sum = 0;
    for (int j = 0; j < 2; ++j) {
      double dot = 0;
      for (int x = 0; x < 2; ++x) dot += q.at<double>({0, 0, i, x}) * k.at<double>({0, 0, j, x});
      sum += p[j] = std::exp(dot / std::sqrt(2.0));
    }
    for (int x = 0; x < 2; ++x) {
      double o = 0;
      for (int j = 0; j < 2; ++j) o += p[j] / sum * v.at<double>({0, 0, j, x});
      largest = std::max(largest, std::abs(o - out.at<double>({0, 0, i, x})));
    }
  }
  return largest;
}

bool one_head() {
  print::heading("1  One head, two tokens");
  const attend::Shape shape{1, 1, 2, 2};
  const Tensor q({1.0, 3.0, 2.0, 0.5}, shape);
  const Tensor k({0.5, 2.0, 1.0, 3.0}, shape);
  const Tensor v({0.0, 4.0, 1.0, 2.0}, shape);
  Tensor out(shape, attend::DType::f64), dots = out, scores = out, weights = out;
  attend::attention(q, k, v, out, {.scale = 1}, {.scores = dots, .stage = attend::ScoreStage::raw});
  attend::attention(q, k, v, out, {}, {.weights = weights, .scores = scores});

  std::printf("The example of the single-head note: d_k = d_v = 2, a row is a token.\n\n");
  for (int i = 0; i < 2; ++i)
    std::printf("   %-11s %s  %s %s  %s %s\n", i == 0 ? "given     Q" : "", row(q, i, 1).c_str(),
                i == 0 ? "K" : " ", row(k, i, 1).c_str(), i == 0 ? "V" : " ", row(v, i, 1).c_str());

  const auto at = [](const Tensor& t, int i, int x, int decimals) {
    return number(t.at<double>({0, 0, i, x}), decimals);
  };
  std::printf("\n");
  show_step(dots, "1 scores", "Q K^T",
            at(q, 0, 0, 1) + " x " + at(k, 0, 0, 1) + " + " + at(q, 0, 1, 1) + " x " +
                at(k, 0, 1, 1) + " = " + at(dots, 0, 0, 1));
  print::remark("The note has 3.5 11 / 1.5 5.5: that is Q K, without the transpose.");
  show_step(scores, "", "/ sqrt(2)", at(dots, 0, 0, 1) + " / sqrt(2) = " + at(scores, 0, 0, 4));
  std::printf("\n   2 mask      nothing is hidden here\n\n");
  const auto bars = [&](int i) {
    return print::bar(weights.at<double>({0, 0, i, 0}), 10) + print::in("2", "│") +
           print::bar(weights.at<double>({0, 0, i, 1}), 10) + print::in("2", "│");
  };
  show_step(weights, "3 softmax", "by rows", bars(0), bars(1));
  print::remark("The note has 0.006 0.994 / 0.047 0.953: wrong even from its own scores.");
  std::printf("\n");
  show_step(out, "4 values", "weights V",
            at(weights, 0, 0, 4) + " x " + at(v, 0, 0, 1) + " + " + at(weights, 0, 1, 4) + " x " +
                at(v, 1, 0, 1) + " = " + at(out, 0, 0, 4));
  print::remark("The note has 0.994 2.012 / 0.953 2.094, the second row near the second");
  print::remark("value. It is not: that value weighs " + at(weights, 1, 1, 3) + " in it.");

  std::printf("\n");
  double off = 0;
  for (int i = 0; i < 2; ++i)
    off = std::max(
        off, std::abs(weights.at<double>({0, 0, i, 0}) + weights.at<double>({0, 0, i, 1}) - 1));
  const double difference = largest_difference_to_loops(q, k, v, out);
  const bool sums =
      print::check(off < 1e-14, "each row of weights sums to 1, " + print::within(off));
  return print::check(difference < 1e-14,
                      "the output equals plain loops, " + print::within(difference)) &&
         sums;
}

// ---- 2  Eight heads ----------------------------------------------------------------------------

constexpr int kTokens = 6, kModel = 512, kHeads = 8, kHeadSize = kModel / kHeads;
constexpr const char* kSentence[kTokens] = {"The", "cat", "sat", "on", "the", "mat"};
constexpr int kWord[kTokens] = {0, 1, 2, 3, 0, 4};  // "The" and "the" are one word
constexpr int kQuery = 2;                           // the token whose weights are shown

// Random numbers of mean 0 and the given variance, the same on every machine.
Tensor random(const attend::Shape& shape, double variance, unsigned seed) {
  std::mt19937 generator(seed);
  Tensor t(shape);
  for (std::int64_t n = 0; n < t.count(); ++n) {
    const double uniform = static_cast<double>(generator()) / 0x1p31 - 1;  // variance 1/3
    t.data<float>()[n] = static_cast<float>(uniform * std::sqrt(3 * variance));
  }
  return t;
}

// y[t, n] = sum_m x[t, m] w[m, n], over the rows m of w from `begin` to `end`.
Tensor multiply(const Tensor& x, const Tensor& w, int begin = 0, int end = kModel) {
  Tensor y({1, kTokens, kModel});
  for (int t = 0; t < kTokens; ++t) {
    float* row = y.data<float>() + t * kModel;
    for (int m = begin; m < end; ++m)
      for (int n = 0; n < kModel; ++n)
        row[n] += x.data<float>()[t * kModel + m] * w.data<float>()[m * kModel + n];
  }
  return y;
}

// [1, tokens, 512] seen as [1, heads, tokens, 64]: the same memory, other strides.
attend::ConstTensorView split(const Tensor& t) {
  return attend::ConstTensorView(t.data<float>(), {1, kTokens, kHeads, kHeadSize})
      .permute({0, 2, 1, 3});
}

void show_shape(const char* name, const attend::Shape& shape, const std::string& how) {
  std::printf("   %-9s %-15s %s\n", name, attend::to_string(shape).c_str(), how.c_str());
}

// What one token looks at, a line a head: a bar and a number for each token of the sentence.
void show_weights(const Tensor& weights) {
  std::printf("\nWhat \"%s\" looks at, in each head (a line sums to 1):\n\n           ",
              kSentence[kQuery]);
  for (const char* token : kSentence) std::printf("%-11s", token);
  double largest = 0;
  for (int h = 0; h < kHeads; ++h)
    for (int j = 0; j < kTokens; ++j)
      largest = std::max<double>(largest, weights.at<float>({0, h, kQuery, j}));
  for (int h = 0; h < kHeads; ++h) {
    std::printf("\n   head %d ", h);
    for (int j = 0; j < kTokens; ++j) {
      const double weight = weights.at<float>({0, h, kQuery, j});
      std::printf(" %s %s", print::bar(weight / largest, 5).c_str(), number(weight, 2).c_str());
    }
  }
  std::printf("\n\n");
  print::remark("The matrices W are random, so these patterns mean nothing yet.");
}

// Concat(head_0 ... head_7) W^O is the sum of head_h W^O_h, W^O_h being the rows of W^O that head h
// meets: every head has a contribution of its own to the output.
double largest_difference_to_contributions(const Tensor& concat, const Tensor& w_o,
                                           const Tensor& output) {
  std::vector<double> sum(static_cast<std::size_t>(output.count()), 0.0);
  for (int h = 0; h < kHeads; ++h) {
    const Tensor part = multiply(concat, w_o, h * kHeadSize, (h + 1) * kHeadSize);
    for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += part.data<float>()[n];
  }
  double largest = 0;
  for (std::size_t n = 0; n < sum.size(); ++n)
    largest = std::max(largest, std::abs(sum[n] - output.data<float>()[n]));
  return largest;
}

bool eight_heads() {
  print::heading("2  \"The cat sat on the mat\" through 8 heads");
  const Tensor words = random({5, kModel}, 1, 1);  // one embedding a word
  Tensor x({1, kTokens, kModel});
  for (int t = 0; t < kTokens; ++t)
    std::copy_n(words.data<float>() + kWord[t] * kModel, kModel, x.data<float>() + t * kModel);
  const attend::Shape square{kModel, kModel};
  const Tensor w_q = random(square, 1.0 / kModel, 2), w_k = random(square, 1.0 / kModel, 3);
  const Tensor w_v = random(square, 1.0 / kModel, 4), w_o = random(square, 1.0 / kModel, 5);

  const Tensor q = multiply(x, w_q), k = multiply(x, w_k), v = multiply(x, w_v);
  Tensor concat({1, kTokens, kModel}), scores({1, kHeads, kTokens, kTokens}), weights = scores;
  const attend::TensorView heads =  // attention writes the heads where concat wants them
      attend::TensorView(concat.data<float>(), {1, kTokens, kHeads, kHeadSize})
          .permute({0, 2, 1, 3});
  const attend::AttentionOutputs outputs{.weights = weights, .scores = scores};
  attend::attention(split(q), split(k), split(v), heads, {}, outputs);
  const Tensor output = multiply(concat, w_o);

  show_shape("X", x.shape(), "one row a token, model width 512");
  show_shape("Q, K, V", q.shape(), "X W^Q, X W^K, X W^V");
  show_shape("split", split(q).shape(),
             "the same memory: strides " + attend::to_string(split(q).strides()));
  show_shape("scores", scores.shape(), "Q K^T / sqrt(64), of every head");
  show_shape("weights", weights.shape(), "softmax of each row of scores");
  show_shape("heads", heads.shape(), "weights V");
  show_shape("concat", concat.shape(), "the heads beside each other: the same memory again");
  show_shape("output", output.shape(), "concat W^O");
  show_weights(weights);

  std::printf("\n");
  bool same = true;
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kTokens; ++i)
      same &= weights.at<float>({0, h, i, 0}) == weights.at<float>({0, h, i, 4});
  bool good = print::check(same,
                           "\"The\" and \"the\" weigh the same, to the bit: one word, and no "
                           "positions yet");
  const double difference = largest_difference_to_contributions(concat, w_o, output);
  good &=
      print::check(difference < 1e-5, "concat W^O equals the sum of the 8 heads' contributions, " +
                                          print::within(difference));

  print::heading("How it was done");
  std::printf(
      "%s",
      attend::Plan::attention(split(q), split(k), split(v), heads, {}, outputs).describe().c_str());
  return good;
}

}  // namespace

int main() {
  try {
    std::printf("%s\n", print::in("1", std::string("attend ") + attend::version()).c_str());
    const bool one = one_head(), eight = eight_heads();
    std::printf("\n%s\n", one && eight ? "All checks hold. Next: README.md, examples/options.cpp."
                                       : "A check FAILED.");
    return one && eight ? 0 : 1;
  } catch (const attend::Error& error) {
    std::fprintf(stderr, "demo: %s\n", error.what());
    return 1;
  }
}
