// Does the command give the bits of the library's own calls?
#include "support/io_files.h"

#include <attend/attend.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace attend::test {
namespace {

Tensor numbers(const Shape& shape, double start) {
  Tensor tensor(shape);
  float* x = tensor.data<float>();
  for (std::int64_t n = 0; n < tensor.count(); ++n)
    x[n] = static_cast<float>(std::sin(start + 1.7 * static_cast<double>(n)));
  return tensor;
}

// Runs `attend apply` in the folder; the output file's tensor.
Tensor applied(const TemporaryFolder& folder, const std::string& flags) {
  const std::string line = "cd '" + folder.path().string() + "' && " ATTEND_COMMAND " apply " +
                           flags + " --output y.npy > /dev/null";
  EXPECT_EQ(std::system(line.c_str()), 0) << line;
  return load_npy(folder / "y.npy");
}

void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.shape(), b.shape());
  ASSERT_EQ(a.dtype(), b.dtype());
  EXPECT_EQ(std::memcmp(a.view().data(), b.view().data(),
                        static_cast<std::size_t>(a.count() * size_of(a.dtype()))),
            0);
}

TEST(command, attention_has_the_bits_of_the_library) {
  const TemporaryFolder folder;
  const Tensor q = numbers({2, 4, 9, 6}, 1), k = numbers({2, 2, 13, 6}, 2),
               v = numbers({2, 2, 13, 5}, 3), bias = numbers({4, 9, 13}, 4);
  save_npy(folder / "q.npy", q);
  save_npy(folder / "k.npy", k);
  save_npy(folder / "v.npy", v);
  save_npy(folder / "b.npy", bias);
  const Tensor sinks({0.5F, 1.0F, -1.0F, 0.0F}, {4});
  const AttentionOptions options{.softcap = 3,
                                 .causal = true,
                                 .bias = bias,
                                 .sinks = sinks,
                                 .dropout = {.p = 0.25, .seed = 11}};
  expect_same_bits(applied(folder,
                           "--q q.npy --k k.npy --v v.npy --causal --bias b.npy --softcap 3 "
                           "--sinks 0.5,1,-1,0 --dropout 0.25 --seed 11"),
                   attention(q, k, v, options));
}

TEST(command, a_layer_has_the_bits_of_the_library) {
  const TemporaryFolder folder;
  const MultiHeadAttention layer(
      {.model_dim = 12, .heads = 4, .key_heads = 2, .rotary = Rotary{.dim = 2}, .seed = 5});
  const Tensor x = numbers({2, 7, 12}, 1);
  layer.save(folder / "l.safetensors");
  save_npy(folder / "x.npy", x);
  const Tensor y = layer.forward(x, {.causal = true});
  expect_same_bits(applied(folder, "--weights l.safetensors --input x.npy --causal"), y);
  expect_same_bits(applied(folder,
                           "--input x.npy --causal --heads 4 --key-heads 2 --rotary halves "
                           "--rotary-dim 2 --seed 5"),
                   y);
}

TEST(command, a_block_has_the_bits_of_the_library) {
  const TemporaryFolder folder;
  const AttentionBlock block({.attention = {.model_dim = 12, .heads = 3, .seed = 5},
                              .cross = true,
                              .memory_dim = 8,
                              .hidden_dim = 20,
                              .placement = NormPlacement::pre});
  const Tensor x = numbers({2, 7, 12}, 1), memory = numbers({2, 4, 8}, 2);
  save_npy(folder / "x.npy", x);
  save_npy(folder / "m.npy", memory);
  const Tensor y = block.forward(x, memory, {.causal = true});
  expect_same_bits(applied(folder,
                           "--block --input x.npy --memory m.npy --heads 3 --hidden-dim 20 "
                           "--placement pre --causal --seed 5"),
                   y);
}

}  // namespace
}  // namespace attend::test
