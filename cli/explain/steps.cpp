#include "steps.h"

#include "numbers.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace attend::cli {
namespace {

using Axis = Matrix::Axis;
constexpr std::int64_t kShaded = 24;  // rows and columns of a head that is shaded only

// Where a tensor's matrices lie: [batch, length, width] or [length, width].
std::vector<std::int64_t> lead_of(const Tensor& tensor, std::int64_t sequence) {
  return tensor.view().rank() == 2 ? std::vector<std::int64_t>{} : std::vector{sequence};
}

// A matrix [out, in] of a file as the formulas write it, [in, out].
Tensor transposed(const Tensor& weight) { return Tensor::copy_of(weight.view().permute({1, 0})); }
Tensor as_row(const Tensor& bias) {
  return Tensor::copy_of(ConstTensorView(bias.view().data(), bias.dtype(), {1, bias.size(0)}));
}

class Teller {
 public:
  Teller(Explanation& explanation, const Subject& subject)
      : e_(explanation), s_(subject), count_(weights().size(1)),
        group_(s_.k ? count_ / s_.k.size(1) : 1) {}

  void tell() {
    if (s_.layer) tell_projections();
    else tell_inputs();
    tell_scores();
    if (s_.q && s_.k)
      for (const std::int64_t h : s_.heads)
        e_.steps.push_back({.id = "geometry" + suffix(h),
                            .title = {"The same as norms and angles" + of_head(h),
                                      "用模长和夹角来看" + of_head_zh(h)},
                            .formula = "q_i . k_j = |q_i| |k_j| cos(angle)",
                            .table = geometry(s_.q, s_.k, {s_.sequence, h, h / group_}, e_)});
    tell_scaled();
    tell_softmax();
    tell_values();
    if (s_.trace.find("concat") != nullptr) tell_output();
    tell_other_heads();
    tell_not_finite();
  }

 private:
  const Tensor& weights() const { return s_.trace.at("weights"); }
  bool all_told() const { return static_cast<std::int64_t>(s_.heads.size()) == count_; }
  std::string suffix(std::int64_t h) const { return count_ == 1 ? "" : "_" + std::to_string(h); }
  std::string of_head(std::int64_t h) const {
    return count_ == 1 ? "" : ", head " + std::to_string(h);
  }
  std::string of_head_zh(std::int64_t h) const {
    return count_ == 1 ? "" : "（头 " + std::to_string(h) + "）";
  }

  // One matrix for each head that is told; `form` gives its rule.
  template <class Form>
  void add_each(Step& step, const std::string& name, const Tensor& tensor, Axis down, Axis across,
                Form&& form) const {
    for (const std::int64_t h : s_.heads) {
      Matrix m = matrix_of(name + suffix(h), tensor, {s_.sequence, h}, form(h));
      m.down = down;
      m.across = across;
      step.matrices.push_back(std::move(m));
    }
  }

  void add_qkv(Step& step, const char* name, const Tensor& tensor, std::int64_t group,
               const std::function<Origin(std::int64_t)>& origin) const {
    for (const std::int64_t h : s_.heads) {
      Matrix m = matrix_of(name + suffix(h), tensor, {s_.sequence, h / group}, origin(h));
      m.down = Axis::tokens;
      step.matrices.push_back(std::move(m));
    }
  }

  // ---- where q, k and v come from ------------------------------------------------------------

  void tell_inputs() {
    if (!s_.q) return;
    Step step{.id = "given",
              .title = {"Given: queries, keys, values", "给定：查询、键、值"},
              .formula = "Q, K, V",
              .shapes = "Q " + to_string(s_.q.shape()) + "  K " + to_string(s_.k.shape()) +
                        (s_.v ? "  V " + to_string(s_.v.shape()) : "")};
    const auto given = [](std::int64_t) { return Origin{}; };
    add_qkv(step, "Q", s_.q, 1, given);
    add_qkv(step, "K", s_.k, group_, given);
    if (s_.v) add_qkv(step, "V", s_.v, group_, given);
    e_.steps.push_back(std::move(step));
  }

  void tell_projections() {
    Step input{
        .id = "input",
        .title = {"Input", "输入"},
        .formula = "X",
        .shapes = "X " + to_string(s_.query.shape()) +
                  (s_.query.view().rank() == 3 ? " [batch, token, feature]" : " [token, feature]")};
    input.matrices.push_back(matrix_of("X", s_.query, lead_of(s_.query, s_.sequence)));
    input.matrices.back().down = Axis::tokens;
    e_.steps.push_back(std::move(input));

    Step step{.id = "projections",
              .title = {"Projections, each head its own", "线性投影，每个头各有一份"},
              .formula = "Q_h = X W_h^Q   K_h = X W_h^K   V_h = X W_h^V",
              .shapes = "[T, d_model] [d_model, d_k] -> [T, d_k]"};
    const auto heads = s_.layer.split();
    const bool turned = s_.layer.options().rotary.has_value();
    using HeadWeights = MultiHeadAttention::HeadWeights;
    const auto add = [&](std::int64_t h, const char* letter, const Matrix& projected,
                         const Tensor& weight, const Tensor& bias) {
      const std::string w = "W" + suffix(h) + "^" + letter, b = "b" + suffix(h) + "^" + letter;
      Origin origin{Rule::product, {"X", w}};
      const Tensor matrix = transposed(weight);
      step.matrices.push_back(parameters_of(w, matrix));
      if (bias) {
        step.matrices.push_back(matrix_of(b, as_row(bias), {}));
        origin.from.push_back(b);
      }
      step.matrices.push_back(projected);
      Matrix& made = step.matrices.back();
      made.down = Axis::tokens;
      if (turned && *letter != 'V') return;
      made.origin = std::move(origin);
      add_sums(made, {s_.query, lead_of(s_.query, s_.sequence)}, {matrix, {}}, false);
    };
    for (const std::int64_t h : s_.heads) {
      const HeadWeights& head = heads[static_cast<std::size_t>(h)];
      const auto part = [&](const char* letter, const Tensor& tensor, std::int64_t group) {
        return matrix_of(letter + suffix(h), tensor, {s_.sequence, h / group});
      };
      add(h, "Q", part("Q", s_.q, 1), head.q, head.q_bias);
      add(h, "K", part("K", s_.k, group_), head.k, head.k_bias);
      add(h, "V", part("V", s_.v, group_), head.v, head.v_bias);
    }
    if (turned)
      step.remarks.push_back({"Q and K are shown turned to their positions (rotary).",
                              "Q 与 K 已按位置旋转（rotary）。"});
    e_.steps.push_back(std::move(step));
  }

  // ---- the four steps ------------------------------------------------------------------------

  void tell_scores() {
    Step step{.id = "scores",
              .title = {"Scores: every query with every key", "分数：每个查询对每个键"},
              .formula = "S = Q K^T",
              .shapes = "[Tq, d_k] [Tk, d_k]^T -> [Tq, Tk]"};
    add_each(step, "S", s_.trace.at("scores"), Axis::tokens, Axis::tokens, [&](std::int64_t h) {
      return s_.q && s_.k ? Origin{Rule::dot, {"Q" + suffix(h), "K" + suffix(h)}} : Origin{};
    });
    for (std::size_t n = 0; s_.q && s_.k && n < s_.heads.size(); ++n)
      add_sums(step.matrices[n], {s_.q, {s_.sequence, s_.heads[n]}},
               {s_.k, {s_.sequence, s_.heads[n] / group_}}, true);
    e_.steps.push_back(std::move(step));
  }

  void tell_scaled() {
    Step step{.id = "scaled_scores",
              .title = {"Scaled", "缩放"},
              .formula = s_.scale ? "Z = S x " + number_text(*s_.scale) : "Z = S x scale"};
    if (s_.q && s_.scale && std::abs(*s_.scale * std::sqrt(d_k()) - 1) < 1e-9)
      step.formula = "Z = S / sqrt(d_k) = S / sqrt(" + number_text(d_k()) + ")";
    add_each(step, "Z", s_.trace.at("scaled_scores"), Axis::tokens, Axis::tokens,
             [&](std::int64_t h) {
               return s_.scale ? Origin{Rule::scaled, {"S" + suffix(h)}, *s_.scale} : Origin{};
             });
    e_.steps.push_back(std::move(step));
    if (const Tensor* capped = s_.trace.find("softcapped_scores")) {
      Step cap{.id = "softcapped_scores",
               .title = {"Softcap", "软截断"},
               .formula = "C = softcap tanh(Z / softcap)"};
      add_each(cap, "C", *capped, Axis::tokens, Axis::tokens, [&](std::int64_t h) {
        return s_.softcap > 0 ? Origin{Rule::softcapped, {"Z" + suffix(h)}, s_.softcap} : Origin{};
      });
      e_.steps.push_back(std::move(cap));
    }
  }

  double d_k() const { return static_cast<double>(s_.q.size(3)); }

  // The scores that the softmax sees: what was masked, or what came before if nothing was.
  std::string seen_by_softmax() {
    const bool capped = s_.trace.find("softcapped_scores") != nullptr;
    std::string before = capped ? "C" : "Z";
    const Numbers old(s_.trace.at(capped ? "softcapped_scores" : "scaled_scores"));
    const Numbers now(s_.trace.at("masked_scores"));
    bool changed = false;
    for (const std::int64_t h : s_.heads)
      for (std::int64_t i = 0; i < now.rows(); ++i)
        for (std::int64_t j = 0; j < now.columns(); ++j) {
          const double a = old.at({s_.sequence, h}, i, j), b = now.at({s_.sequence, h}, i, j);
          changed = changed || (a != b && !(std::isnan(a) && std::isnan(b)));
        }
    Step step{.id = "masked_scores", .title = {"Mask", "掩码"}};
    if (!changed) {
      step.remarks.push_back(
          {"Nothing is hidden and nothing is added.", "没有隐藏，也没有加偏置。"});
      e_.steps.push_back(std::move(step));
      return before;
    }
    step.formula = "M = " + before + " + bias; -inf where hidden";
    add_each(step, "M", s_.trace.at("masked_scores"), Axis::tokens, Axis::tokens,
             [&](std::int64_t h) {
               return Origin{Rule::masked, {before + suffix(h)}};
             });
    step.remarks.push_back(
        {"A row in which every key is hidden gives zeros here. softmax over a row of -inf, as "
         "masked_fill leaves it, would be NaN.",
         "若一行的键全被隐藏，这里的结果是 0；而 masked_fill 之后直接 softmax 会得到 NaN。"});
    e_.steps.push_back(std::move(step));
    return "M";
  }

  void tell_softmax() {
    const std::string scores = seen_by_softmax();
    Step step{.id = "weights",
              .title = {"Softmax over each row", "逐行 softmax"},
              .formula =
                  "lse_i = log sum_j exp " + scores + "_ij   A_ij = exp(" + scores + "_ij - lse_i)",
              .shapes = "[Tq, Tk] -> [Tq, Tk]"};
    const Tensor& lse = s_.trace.at("lse");
    const Tensor column = Tensor::copy_of(ConstTensorView(
        lse.view().data(), lse.dtype(), {lse.size(0), lse.size(1), lse.size(2), 1}));
    add_each(step, "A", weights(), Axis::tokens, Axis::tokens, [&](std::int64_t h) {
      return Origin{Rule::softmax, {scores + suffix(h), "lse" + suffix(h)}};
    });
    for (Matrix& m : step.matrices) m.weights = true;
    add_each(step, "lse", column, Axis::tokens, Axis::positions, [&](std::int64_t h) {
      return s_.sinks ? Origin{} : Origin{Rule::lse, {scores + suffix(h)}};
    });
    if (s_.sinks)
      step.remarks.push_back({"A sink joins each sum, so a row of A sums to less than 1.",
                              "每个和里还有一个 sink，所以 A 的一行之和小于 1。"});
    e_.steps.push_back(std::move(step));
  }

  void tell_values() {
    Step step{.id = "heads",
              .title = {"Values: a mean, weighted by A", "加权求和"},
              .formula = "O = A V",
              .shapes = "[Tq, Tk] [Tk, d_v] -> [Tq, d_v]"};
    const bool known = s_.v || s_.trace.find("v_heads") != nullptr;
    add_each(step, "O", s_.trace.at("heads"), Axis::tokens, Axis::positions, [&](std::int64_t h) {
      return known ? Origin{Rule::product, {"A" + suffix(h), "V" + suffix(h)}} : Origin{};
    });
    e_.steps.push_back(std::move(step));
  }

  // ---- behind the heads ----------------------------------------------------------------------

  void tell_output() {
    const Tensor& concat = s_.trace.at("concat");
    const std::int64_t d_v = s_.trace.at("heads").size(3);
    Step join{.id = "concat",
              .title = {"Concat: the heads side by side", "拼接：各头并排"},
              .formula = "concat = [O_0, O_1, ...]",
              .shapes = "h x [T, d_v] -> [T, h d_v]"};
    Origin origin{};
    if (all_told()) {
      origin = {Rule::joined, {}, static_cast<double>(d_v)};
      for (const std::int64_t h : s_.heads) origin.from.push_back("O" + suffix(h));
    }
    join.matrices.push_back(matrix_of("concat", concat, lead_of(concat, s_.sequence), origin));
    join.matrices.back().down = Axis::tokens;
    e_.steps.push_back(std::move(join));

    const Tensor* output = s_.trace.find("output");
    const Tensor* parts = s_.trace.find("contributions");
    if (output == nullptr || parts == nullptr) return;
    Step step{.id = "output",
              .title = {"Output projection", "输出投影"},
              .formula = "output = concat W^O",
              .shapes = "[T, h d_v] [h d_v, d_model] -> [T, d_model]"};
    Origin product{};
    if (s_.layer) {
      step.matrices.push_back(parameters_of("W^O", transposed(s_.layer.o().weight())));
      product = {Rule::product, {"concat", "W^O"}};
      if (s_.layer.o().bias()) {
        step.matrices.push_back(matrix_of("b^O", as_row(s_.layer.o().bias()), {}));
        product.from.push_back("b^O");
      }
    }
    Matrix m = matrix_of("output", *output, lead_of(*output, s_.sequence), product);
    m.down = Axis::tokens;
    if (s_.layer)
      add_sums(m, {concat, lead_of(concat, s_.sequence)}, {transposed(s_.layer.o().weight()), {}},
               false);
    step.matrices.insert(step.matrices.begin(), std::move(m));
    e_.steps.push_back(std::move(step));
    if (all_told()) tell_contributions(*parts, d_v);
  }

  void tell_contributions(const Tensor& parts, std::int64_t d_v) {
    Step step{.id = "contributions",
              .title = {"What each head contributes", "每个头的贡献"},
              .formula = "output = sum_h O_h W_h^O",
              .shapes = "W_h^O = W^O[h d_v : (h + 1) d_v, :]"};
    Origin sum{Rule::sum, {}};
    for (const std::int64_t h : s_.heads) {
      const std::string w = "W" + suffix(h) + "^O";
      Origin product{};
      if (s_.layer && count_ > 1) {
        const Tensor rows = Tensor::copy_of(
            s_.layer.o().weight().view().slice(1, h * d_v, (h + 1) * d_v).permute({1, 0}));
        step.matrices.push_back(
            matrix_of(w, rows, {}, {Rule::rows, {"W^O"}, static_cast<double>(h * d_v)}));
        product = {Rule::product, {"O" + suffix(h), w}};
      }
      step.matrices.push_back(matrix_of("C" + suffix(h), parts, {s_.sequence, h}, product));
      step.matrices.back().down = Axis::tokens;
      sum.from.push_back("C" + suffix(h));
    }
    if (e_.find("b^O") != nullptr) {
      step.remarks.push_back({"With the bias b^O added once, the sum of C is the output.",
                              "各 C 之和再加一次偏置 b^O，就是输出。"});
    } else {
      Matrix total = step.matrices.back();
      total.name = "sum of C";
      total.origin = sum;
      for (const std::int64_t h : s_.heads) {
        const Matrix part = matrix_of("", parts, {s_.sequence, h});
        for (std::size_t r = 0; r < total.cells.size(); ++r)
          for (std::size_t c = 0; c < total.cells[r].size(); ++c)
            total.cells[r][c] = (h == s_.heads[0] ? 0 : total.cells[r][c]) + part.cells[r][c];
      }
      step.matrices.push_back(std::move(total));
    }
    e_.steps.push_back(std::move(step));
  }

  void tell_other_heads() {
    if (all_told()) return;
    Step step{.id = "other_heads",
              .title = {"The weights of all heads, shaded", "所有头的权重（明暗图）"},
              .formula = "A_h"};
    for (std::int64_t h = 0; h < std::min<std::int64_t>(count_, 64); ++h) {
      Matrix m = matrix_of("head " + std::to_string(h), weights(), {s_.sequence, h}, {}, kShaded);
      m.down = m.across = Axis::tokens;
      m.weights = m.only_shades = true;
      step.matrices.push_back(std::move(m));
    }
    e_.steps.push_back(std::move(step));
  }

  void tell_not_finite() {
    for (const auto& [name, tensor] :
         {std::pair{"Q", &s_.q}, {"K", &s_.k}, {"V", &s_.v}, {"X", &s_.query}}) {
      if (!*tensor) continue;
      const std::int64_t count = summary_of(*tensor).not_finite;
      if (count == 0) continue;
      const std::string n = std::to_string(count);
      e_.opening.push_back(
          {std::string(name) + " holds " + n +
               " numbers that are not finite; what sees them is not finite either.",
           std::string(name) + " 中有 " + n + " 个数不是有限数；凡是看到它们的结果也不是有限数。"});
    }
  }

  Explanation& e_;
  const Subject& s_;
  const std::int64_t count_, group_;
};

}  // namespace

void add_steps(Explanation& explanation, const Subject& subject) {
  Teller(explanation, subject).tell();
}

}  // namespace attend::cli
