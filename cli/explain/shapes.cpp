// attend explain shapes: what shape everything in a layer has, for any sizes.
#include "frame/units.h"
#include "frame/usage_error.h"
#include "info/cost.h"
#include "subjects.h"

#include <attend/tensor.h>

#include <cmath>

namespace attend::cli {
Explanation explain_shapes(const LayerShape& s) {
  if (s.model_dim > 0 && s.heads > 0 && s.model_dim % s.heads != 0)
    throw UsageError("--heads " + std::to_string(s.heads) + " does not divide --model-dim " +
                     std::to_string(s.model_dim) + "; a head has model_dim / heads features");
  const LayerSizes sizes = filled_in(
      {.model_dim = s.model_dim, .heads = s.heads, .batch = s.batch, .queries = s.length});
  const Cost cost = cost_of(sizes);
  const std::int64_t d = sizes.d_k, joined = s.heads * d;
  Explanation e{
      .name = "shapes",
      .title = {"Shapes through a layer of multi-head attention", "形状在多头注意力层中的变化"},
      .opening = {
          {"B = " + std::to_string(s.batch) + " sequences of T = " + std::to_string(s.length) +
               " tokens, d_model = " + std::to_string(s.model_dim) +
               ", h = " + std::to_string(s.heads) + " heads of d_k = " + std::to_string(d) + ".",
           "B = " + std::to_string(s.batch) + " 个序列，每个 T = " + std::to_string(s.length) +
               " 个词元；d_model = " + std::to_string(s.model_dim) + "，h = " +
               std::to_string(s.heads) + " 个头，每头 d_k = " + std::to_string(d) + "。"}}};
  const Shape rows{s.batch, s.length, s.model_dim}, heads{s.batch, s.heads, s.length, d};
  const Shape square{s.batch, s.heads, s.length, s.length};

  Step flow{.id = "flow", .title = {"Flow", "流程"}};
  const Shape joined_rows{s.batch, s.length, joined};
  flow.drawing = {"X " + to_string(rows),
                  {"|   X W^Q, X W^K, X W^V          (not W X: a row is a token)",
                   "|   X W^Q, X W^K, X W^V          （不是 W X：一行是一个词元）"},
                  "Q, K, V " + to_string(joined_rows),
                  {"|   reshape to [B, T, h, d_k], then heads before the length (transpose)",
                   "|   reshape 成 [B, T, h, d_k]，再把头换到长度之前（transpose）"},
                  "Q, K, V " + to_string(heads),
                  {"|   Q K^T / sqrt(d_k)            every head by itself",
                   "|   Q K^T / sqrt(d_k)            每个头各算各的"},
                  "scores " + to_string(square),
                  {"|   mask, softmax over the last dimension", "|   掩码，对最后一维做 softmax"},
                  "weights " + to_string(square),
                  "|   weights V",
                  "heads " + to_string(heads),
                  {"|   heads behind the length again (transpose), then side by side",
                   "|   头换回长度之后（transpose），并排拼接"},
                  "concat " + to_string(joined_rows),
                  "|   concat W^O",
                  "output " + to_string(rows)};
  flow.claims.push_back(
      {{"reshape to [B, T, h, d_k], then Q K^T, then reshape back",
        "reshape 成 [B, T, h, d_k]，然后直接 Q K^T，再 reshape 回去"},
       {"heads move before the length first, and back before they are joined",
        "先把头换到长度之前（transpose），合并前再换回来"},
       {"without the transposes the product would pair heads with heads, inside one token",
        "少了 transpose，相乘的就是同一个词元内部的头与头"}});
  e.steps.push_back(std::move(flow));

  Step table{.id = "shapes", .title = {"Every tensor", "每个张量"}};
  table.table.header = {{"name", "名称"},
                        {"how", "怎么来"},
                        {"letters", "符号"},
                        {"shape", "形状"},
                        {"numbers", "元素个数"}};
  const auto row = [&](const Phrase& name, const Phrase& how, const char* letters,
                       const Shape& shape) {
    table.table.rows.push_back(
        {name, how, letters, to_string(shape), grouped(element_count(shape))});
  };
  row("X", {"input", "输入"}, "[B, T, d_model]", rows);
  row("W^Q W^K W^V", {"each", "各一个"}, "[d_model, h d_k]", {s.model_dim, joined});
  row("Q K V", {"X W, each", "X W，各一个"}, "[B, T, h d_k]", joined_rows);
  row({"by heads", "分头后"}, {"split, each", "拆分，各一个"}, "[B, h, T, d_k]", heads);
  row("scores", "Q K^T / sqrt(d_k)", "[B, h, T, T]", square);
  row("weights", "softmax", "[B, h, T, T]", square);
  row("heads", "weights V", "[B, h, T, d_k]", heads);
  row("concat", {"side by side", "并排"}, "[B, T, h d_k]", joined_rows);
  row("W^O", {"one", "一个"}, "[h d_k, d_model]", {joined, s.model_dim});
  row("output", "concat W^O", "[B, T, d_model]", rows);
  e.steps.push_back(std::move(table));

  Step costs{.id = "cost", .title = {"What it costs", "代价"}};
  costs.table.header = {{"", ""}, {"formula", "公式"}, {"here", "此处"}};
  costs.table.rows = {
      {{"parameters", "参数"},
       "4 d_model^2 (+ 4 d_model)",
       grouped(cost.weights) + " + " + grouped(cost.biases)},
      {{"FLOP, projections", "投影 FLOP"}, "8 B T d_model^2", operations(cost.projection_flops)},
      {{"FLOP, attention", "注意力 FLOP"}, "4 B T^2 d_model", operations(cost.attention_flops)},
      {{"equal at T", "两者相等的 T"}, "2 d_model", grouped(std::llround(cost.equal_length))},
      {{"weights, if kept (f32)", "权重矩阵（若保留，f32）"},
       "4 B h T^2 bytes",
       bytes(cost.matrix_bytes)}};
  costs.claims.push_back(
      {{"3 d_model^2 parameters", "参数量 3 d_model^2"},
       {"4 d_model^2 = " + grouped(cost.weights) + ", and " + grouped(cost.biases) + " biases",
        "4 d_model^2 = " + grouped(cost.weights) + "，另有偏置 " + grouped(cost.biases)},
       {"W^O was forgotten", "漏了 W^O"}});
  costs.claims.push_back(
      {{"splitting into heads lowers the cost from O(n^2 d_model) to O(n^2 d_k)",
        "拆成多头后复杂度从 O(n^2 d_model) 降到 O(n^2 d_k)"},
       {"that is one head; all h heads together still cost O(n^2 d_model)",
        "那是一个头；h 个头合计仍是 O(n^2 d_model)"},
       {"h times n^2 d_k is n^2 d_model; and the projections, 8 n d_model^2, come on top",
        "h 乘 n^2 d_k 就是 n^2 d_model；另外还有投影 8 n d_model^2"}});
  e.steps.push_back(std::move(costs));
  return e;
}

}  // namespace attend::cli
