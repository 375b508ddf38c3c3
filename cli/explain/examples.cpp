// The examples of the introductory notes. Every true number is computed here, by the library; what
// is written down are the inputs, and the notes' own numbers with the reason why they are wrong.
#include "frame/usage_error.h"
#include "sentence.h"
#include "steps.h"
#include "subjects.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace attend::cli {
namespace {

std::string rows_of(const Explanation& e, const std::string& matrix) {
  return rows_text(e.find(matrix)->cells);
}

// A matrix of the notes, and the true one beside it.
void correct(Explanation& e, const std::string& step, const std::string& matrix,
             const std::string& said, const Phrase& why) {
  const std::string truth = matrix + " = " + rows_of(e, matrix);
  e.step(step).claims.push_back(
      {{matrix + " = " + said, matrix + " = " + said}, {truth, truth}, why});
}

Tensor matrix(std::initializer_list<double> values, std::int64_t rows, std::int64_t columns) {
  return Tensor(values, {rows, columns});
}

// [out, in], as layers keep it, of the notes' [in, out].
Tensor turned(const Tensor& w) { return Tensor::copy_of(w.view().permute({1, 0})); }

std::string percent(double part) {
  char text[16];
  std::snprintf(text, sizeof text, "%.3f", part);
  return text;
}

}  // namespace

Explanation explain_single_head(Context& context) {
  const Shape shape{1, 1, 2, 2};
  Subject s{.q = Tensor({1.0, 3.0, 2.0, 0.5}, shape),
            .k = Tensor({0.5, 2.0, 1.0, 3.0}, shape),
            .v = Tensor({0.0, 4.0, 1.0, 2.0}, shape),
            .scale = 1 / std::sqrt(2.0),
            .heads = {0}};
  s.trace = trace_attention(s.q, s.k, s.v, {}, context);
  Explanation e{
      .name = "single-head",
      .title = {"One head, two tokens, step by step", "单头注意力：两个词元，逐步计算"},
      .opening = {{"Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, with d_k = d_v = 2. A "
                   "row is a token. Every number comes out of the library.",
                   "Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V，d_k = d_v = 2，"
                   "一行是一个词元。所有数字都由本库算出。"}}};
  add_steps(e, s);
  correct(e, "scores", "S", "[[3.5, 11], [1.5, 5.5]]",
          {"that is Q K: the transpose was forgotten, so rows met columns of K",
           "那是 Q K：忘了转置，乘的是 K 的列"});
  correct(e, "scaled_scores", "Z", "[[2.47, 7.78], [1.06, 3.89]]",
          {"it follows from the wrong scores", "由错误的分数得来"});
  correct(e, "weights", "A", "[[0.006, 0.994], [0.047, 0.953]]",
          {"wrong even from its own scores, which give [[0.005, 0.995], [0.056, 0.944]]",
           "即使用它自己的分数也不对：应得 [[0.005, 0.995], [0.056, 0.944]]"});
  correct(e, "heads", "O", "[[0.994, 2.012], [0.953, 2.094]]",
          {"it follows from the wrong weights", "由错误的权重得来"});
  const auto& a = e.find("A")->cells;
  e.step("heads").claims.push_back(
      {{"both outputs are near v_1 (v_2 there, where counting begins with 1)",
        "两个输出都接近 v_1（笔记从 1 数起，写作 v_2）"},
       {"output 0 is (weight " + percent(a[0][1]) + "), output 1 is not (" + percent(a[1][1]) + ")",
        "输出 0 是（权重 " + percent(a[0][1]) + "），输出 1 不是（" + percent(a[1][1]) + "）"},
       {"a quarter of output 1 is v_0", "输出 1 有四分之一来自 v_0"}});
  return e;
}

Explanation explain_two_heads(Context& context) {
  const Tensor w1 = matrix({0.1, 0.4, -0.2, 0.3, 1.0, -0.5, 0.5, 0.2}, 4, 2);
  const Tensor w2 = matrix({-0.3, 0.2, 1.1, 0.6, -0.4, 0.8, 0.7, -0.1}, 4, 2);
  const Tensor w_o = matrix(
      {0.5, -0.2, 1.1, 0.3, 0.1, 0.8, -0.4, 0.6, -0.3, 0.7, 0.2, 1.0, 0.9, -0.5, 0.3, -0.8}, 4, 4);
  // The notes give no K and V. Ours are crossed, so that a missing transpose would show.
  const auto head = [&](const Tensor& q, const Tensor& k, std::int64_t h) {
    MultiHeadAttention::HeadWeights one;
    one.q = one.v = turned(q);
    one.k = turned(k);
    one.o = turned(Tensor::copy_of(w_o.view().slice(0, 2 * h, 2 * h + 2)));
    return one;
  };
  Subject s{.scale = 1 / std::sqrt(2.0), .heads = {0, 1}};
  s.layer =
      MultiHeadAttention::join({.model_dim = 4, .heads = 2, .bias = false, .type = DType::f64},
                               {head(w1, w2, 0), head(w2, w1, 1)});
  s.query = matrix({1, 0.5, -1, 2, -0.5, 1, 0.3, -2}, 2, 4);
  s.trace = s.layer.trace(s.query, {}, context);
  s.q = s.trace.at("q_heads");
  s.k = s.trace.at("k_heads");
  s.v = s.trace.at("v_heads");
  Explanation e{
      .name = "two-heads",
      .title = {"Two heads, from X to the output", "两个头：从 X 到输出"},
      .opening = {{"d_model = 4, h = 2, d_k = d_v = 2. Heads count from 0 here, from 1 in "
                   "the notes. The notes stop at Q; K, V and all that follows are "
                   "completed by us with their own matrices: K_0 = Q_1, K_1 = Q_0, V = Q.",
                   "d_model = 4，h = 2，d_k = d_v = 2。这里头从 0 数起，笔记从 1 数起。"
                   "笔记只算到 Q；K、V 及之后由我们用它自己的矩阵补全：K_0 = Q_1，"
                   "K_1 = Q_0，V = Q。"}}};
  add_steps(e, s);
  const Phrase why{"the product X W^Q was not carried out right: check any cell by hand",
                   "X W^Q 的乘法算错了：任取一格手算即知"};
  correct(e, "projections", "Q_0", "[[0.85, -0.05], [-0.29, 0.74]]", why);
  correct(e, "projections", "Q_1", "[[2.15, 0.65], [-1.32, 1.02]]", why);
  e.step("output").claims.push_back(
      {"MultiHead = Concat(head_0, ..., head_{h-1})",
       "MultiHead = Concat(head_0, ..., head_{h-1}) W^O",
       {"the notes' own summary has it right", "笔记自己的汇总公式是对的"}});
  e.step("contributions")
      .claims.push_back(
          {{"Output = f(sum head_i W_i^O), non-linear", "Output = f(sum head_i W_i^O)，非线性组合"},
           {"Output = sum head_i W_i^O", "Output = sum head_i W_i^O"},
           {"there is no f: what a head adds, it adds linearly",
            "没有 f：各头的贡献是线性相加的"}});
  return e;
}

Explanation explain_sentence(std::int64_t head, Context& context) {
  const Sentence sentence = make_sentence();
  if (head < 0 || head >= static_cast<std::int64_t>(sentence.heads.size()))
    throw UsageError("--head is " + std::to_string(head) + ", the layer has 8 heads: 0 to 7");
  Subject s{.scale = 1 / 8.0, .layer = sentence.layer, .query = sentence.x, .heads = {head}};
  s.trace = s.layer.trace(s.query, {}, context);
  s.q = s.trace.at("q_heads");
  s.k = s.trace.at("k_heads");
  s.v = s.trace.at("v_heads");
  const SentenceHead& told = sentence.heads[static_cast<std::size_t>(head)];
  Explanation e{
      .name = "sentence",
      .title = {"\"The cat sat on the mat\" through 8 heads",
                "“The cat sat on the mat” 穿过 8 个头"},
      .opening =
          {{"The layer is CONSTRUCTED: its weights were written by hand, not learned, so that each "
            "head does what its name says. Width 512, 8 heads of 64. Shown in full: head " +
                std::to_string(head) + ", " + told.name + " (--head N for another).",
            "这一层是人工构造的：权重是写定的，不是学来的，好让每个头名副其实。宽 512，8 个头，"
            "每头 64。完整展示的是头 " +
                std::to_string(head) + "：" + told.name_zh + "（--head N 换一个）。"}},
      .tokens = sentence.words};
  add_steps(e, s);
  Step list{.id = "relations", .title = {"What each head finds", "每个头找到什么"}};
  list.table.header = {
      {"head", "头"}, {"constructed to find", "构造目标"}, {"example", "例子"}, {"weight", "权重"}};
  const Tensor& weights = s.trace.at("weights");
  for (std::size_t h = 0; h < sentence.heads.size(); ++h) {
    const SentenceHead& one = sentence.heads[h];
    std::size_t i = 0;  // a query whose key is not where the row rests, if there is one
    while (i + 1 < one.keys.size() && one.keys[i] <= 0) ++i;
    const std::int64_t j = one.keys[i];
    const double weight =
        weights.at<float>({0, static_cast<std::int64_t>(h), static_cast<std::int64_t>(i),
                           std::max<std::int64_t>(j, 0)});
    list.table.rows.push_back(
        {std::to_string(h), Phrase(one.name, one.name_zh),
         j < 0 ? "-" : sentence.words[i] + " -> " + sentence.words[static_cast<std::size_t>(j)],
         j < 0 ? "-" : percent(weight)});
  }
  list.remarks.push_back(
      {"A row without a match puts its weight on token 0.", "没有匹配的行，权重落在词元 0 上。"});
  list.claims.push_back(
      {{"a head (their second) sees position, as \"on\" and \"mat\" are adjacent",
        "某个头（笔记的第二个）关注位置信息，如 on 与 mat 相邻"},
       {"\"on\" and \"mat\" are two apart; head 5 relates them by class, not by place",
        "on 与 mat 相隔两个位置；头 5 靠词类而不是位置把它们联系起来"},
       {"\"the\" stands between them", "中间隔着 the"}});
  e.steps.push_back(std::move(list));
  return e;
}

}  // namespace attend::cli
