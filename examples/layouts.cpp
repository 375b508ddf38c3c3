// Tensors as most models keep them, [batch, tokens, heads, head size]: attention and its gradient
// read and write them in place. With grouped heads (GQA) and a sliding window.
#include "print.h"

#include <attend/attend.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 2, kTokens = 40, kHeads = 8, kKeyHeads = 2, kHeadSize = 16;

std::vector<float> numbers(std::int64_t heads, double phase) {
  std::vector<float> x(static_cast<std::size_t>(kBatch * kTokens * heads * kHeadSize));
  for (std::size_t n = 0; n < x.size(); ++n)
    x[n] = static_cast<float>(std::sin(0.7 * static_cast<double>(n) + phase));
  return x;
}

bool run() {
  const std::vector<float> q_memory = numbers(kHeads, 0), dout_memory = numbers(kHeads, 3);
  const std::vector<float> k_memory = numbers(kKeyHeads, 1), v_memory = numbers(kKeyHeads, 2);
  std::vector<float> out_memory(q_memory.size()), dq_memory(q_memory.size());
  std::vector<float> dk_memory(k_memory.size()), dv_memory(v_memory.size());

  // [layouts]
  // attend wants [batch, heads, tokens, head size]: the same memory with two strides exchanged.
  const auto in = [](const std::vector<float>& memory, std::int64_t heads) {
    return attend::ConstTensorView(memory.data(), {kBatch, kTokens, heads, kHeadSize})
        .permute({0, 2, 1, 3});
  };
  const auto out_of = [](std::vector<float>& memory, std::int64_t heads) {
    return attend::TensorView(memory.data(), {kBatch, kTokens, heads, kHeadSize})
        .permute({0, 2, 1, 3});
  };
  const auto q = in(q_memory, kHeads), dout = in(dout_memory, kHeads);
  const auto k = in(k_memory, kKeyHeads), v = in(v_memory, kKeyHeads);  // 4 query heads share one
  const auto out = out_of(out_memory, kHeads);

  const attend::AttentionOptions options{.causal = true, .window = {.left = 8}};
  attend::Tensor lse({kBatch, kHeads, kTokens});
  attend::attention(q, k, v, out, options, {.lse = lse});
  attend::attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout},
                             options,
                             {.dq = out_of(dq_memory, kHeads),
                              .dk = out_of(dk_memory, kKeyHeads),
                              .dv = out_of(dv_memory, kKeyHeads)});
  // [/layouts]

  // The same from copies in attend's own order: the bits do not depend on the strides.
  const attend::Tensor q2 = attend::Tensor::copy_of(q), k2 = attend::Tensor::copy_of(k);
  const attend::Tensor v2 = attend::Tensor::copy_of(v);
  const attend::Tensor out2 = attend::attention(q2, k2, v2, options);
  const attend::BackwardResult d = attend::attention_backward(
      {.q = q2, .k = k2, .v = v2, .out = out2, .lse = lse, .dout = attend::Tensor::copy_of(dout)},
      options);
  bool same_out = true, same_dk = true;
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t i = 0; i < kTokens; ++i)
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t x = 0; x < kHeadSize; ++x) {
          same_out &= out.at<float>({b, h, i, x}) == out2.at<float>({b, h, i, x});
          if (h >= kKeyHeads) continue;
          const std::int64_t n = ((b * kTokens + i) * kKeyHeads + h) * kHeadSize + x;
          same_dk &= dk_memory[static_cast<std::size_t>(n)] == d.dk.at<float>({b, h, i, x});
        }
  return print::check(same_out, "out is where the caller wants it, the same bits") &&
         print::check(same_dk, "and so is dk");
}

}  // namespace

int main() {
  try {
    return run() ? 0 : 1;
  } catch (const attend::Error& error) {
    std::fprintf(stderr, "layouts: %s\n", error.what());
    return 1;
  }
}
