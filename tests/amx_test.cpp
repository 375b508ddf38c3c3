// The tiles of AMX: the instruction against its model in plain C++, attention, and what a caller
// finds afterwards. Products: amx/products.cpp.
#include "amx/test.h"
#include "amx/tiles.h"

#include "core/machine.h"
#include "layer/matmul.h"
#include "support/amx_model.h"
#include "support/io_files.h"
#include "support/layer_numbers.h"
#include "support/property_memory.h"

#include <attend/attention.h>
#include <attend/linear.h>
#include <attend/plan.h>

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <limits>

namespace attend::test {
namespace {

void expect_model(const TileOperands& x, const std::string& what) {
  TileOperands made = x;
  multiply_tiles(made);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      const float expected = tile_product(
          x.c[i][j], 32, [&](std::int64_t k) { return static_cast<float>(x.a[i][k]); },
          [&](std::int64_t k) { return static_cast<float>(x.b[k / 2][j][k % 2]); });
      ASSERT_PRED2(same, made.c[i][j], expected) << what << " at " << i << ", " << j;
    }
}

TEST_F(Amx, the_instruction_is_the_model) { for_ranges_of_numbers<TileOperands>(30, expect_model); }

TEST_F(Amx, the_instruction_ignores_the_callers_rounding_mode) {
  for_ranges_of_numbers<TileOperands>(1, [](const TileOperands& x, const std::string& what) {
    TileOperands expected = x;
    multiply_tiles(expected);
    for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
      TileOperands found = x;
      std::fesetround(mode);
      multiply_tiles(found);
      std::fesetround(FE_TONEAREST);
      ASSERT_EQ(std::memcmp(found.c, expected.c, sizeof(found.c)), 0) << mode << ", " << what;
    }
  });
}

Context amx() { return Context({.threads = 1, .kernels = "product:cpu.amx.product"}); }

// ---- The caller --------------------------------------------------------------------------------

TEST_F(Amx, a_callers_tiles_are_as_they_were) {
  Context context = amx();
  const Tensor a = rough<bf16>({40, 70}, 1), b = rough<bf16>({70, 50}, 2);
  Tensor alone({40, 50}, DType::bf16), within({40, 50}, DType::bf16);
  matmul(a, b, {}, alone, context);
  EXPECT_TRUE(tiles_are_released()) << "who has none has none afterwards";
  CallersTiles before;
  const CallersTiles after = around([&] { matmul(a, b, {}, within, context); }, before);
  EXPECT_EQ(before.data.size(), 8 * 1024U);
  EXPECT_EQ(after, before);
  EXPECT_EQ(difference(within, alone), "");
}

TEST_F(Amx, a_callers_tiles_are_as_they_were_after_attention) {
  const Tensor q = rough<bf16>({1, 9, 40, 64}, 3);
  for (const int threads : {1, 3}) {
    Context context({.threads = threads});
    Tensor lse({1, 9, 40}, DType::f32), out({1, 9, 40, 64}, DType::bf16);
    Tensor dq({1, 9, 40, 64}, DType::bf16);
    AttentionOutputs outputs;
    outputs.lse = lse;
    AttentionGradients gradients;
    gradients.dq = dq;
    const auto both = [&] {
      attention(q, q, q, out, {}, outputs, context);
      attention_backward({.q = q, .k = q, .v = q, .out = out, .lse = lse, .dout = q}, {}, gradients,
                         context);
    };
    both();
    EXPECT_TRUE(tiles_are_released());
    const Tensor alone = Tensor::copy_of(dq.view());
    CallersTiles before;
    const CallersTiles after = around(both, before);
    EXPECT_EQ(after, before) << threads;
    EXPECT_EQ(difference(dq, alone), "") << threads;
  }
}

// Scores of attention, of every size of tile and group: blocks of 32 features, then the scale.
TEST_F(Amx, every_score_of_attention_is_the_models_sum) {
  for (const std::int64_t d : {1, 31, 32, 33, 64, 100, 128}) {
    const Tensor q = numbers({1, 1, 37, d}, DType::bf16, 1),
                 k = numbers({1, 1, 77, d}, DType::bf16, 2);
    const Tensor v = numbers({1, 1, 77, 5}, DType::bf16, 3);
    Tensor out({1, 1, 37, 5}, DType::bf16), scores({1, 1, 37, 77}, DType::f32);
    const float scale = 0.3F;
    AttentionOptions options;
    options.scale = scale;
    AttentionOutputs outputs;
    outputs.scores = scores;
    Plan::attention(q, k, v, out, options, outputs, {"cpu.amx.forward"})
        .run(q, k, v, out, options, outputs);
    for (std::int64_t i = 0; i < 37; ++i)
      for (std::int64_t j = 0; j < 77; ++j) {
        float sum = 0;
        for (std::int64_t x = 0; x < d; x += 32)
          sum = tile_product(
              sum, std::min<std::int64_t>(32, d - x),
              [&](std::int64_t n) { return static_cast<float>(k.data<bf16>()[j * d + x + n]); },
              [&](std::int64_t n) { return static_cast<float>(q.data<bf16>()[i * d + x + n]); });
        ASSERT_EQ(scores.data<float>()[i * 77 + j], sum * scale)
            << "d " << d << " " << i << " " << j;
      }
  }
}

// A weight times a scale of values is a number of bf16, which ends at 3.39e38 and has no subnormal
// ones: 0 must stay 0, and a value of 1e-36 must weigh though its scale is 1e-38.
TEST_F(Amx, scales_of_values_may_be_as_large_or_small_as_f32) {
  for (const float scale : {std::numeric_limits<float>::max(), 0x1p-126F, 0x1p-130F}) {
    const Tensor q({1, 1, 1, 4}, DType::bf16), k({1, 1, 2, 4}, DType::i8);
    const Tensor v({std::int8_t{127}, std::int8_t{0}, std::int8_t{64}, std::int8_t{0}},
                   {1, 1, 2, 2});
    const Tensor ones({1.0F, 1.0F}, {1, 1, 2}), scales({scale, scale}, {1, 1, 2});
    const Tensor bias({0.0F, -1.0F}, {1, 1, 1, 2});  // so that a weight is below 1
    Tensor out({1, 1, 1, 2}, DType::f32);
    const AttentionOptions options{.bias = bias, .k_scales = ones, .v_scales = scales};
    Plan::attention(q, k, v, out, options, {}, {"cpu.amx.forward"}).run(q, k, v, out, options);
    const double w = std::exp(-1.0), expected = scale * (127 + 64 * w) / (1 + w);
    const auto found = static_cast<double>(out.data<float>()[0]);
    if (scale > 1) EXPECT_TRUE(std::isinf(found)) << found;
    else EXPECT_NEAR(found, expected, expected / 64) << scale;
    EXPECT_EQ(out.data<float>()[1], 0) << scale;
  }
}

// Who is asked whether to stop may use tiles himself, and leave none.
TEST_F(Amx, a_hook_that_releases_the_tiles_changes_no_bit) {
  const Tensor a = rough<bf16>({700, 9000}, 1), b = rough<bf16>({9000, 64}, 2);
  Tensor alone({700, 64}, DType::bf16), asked({700, 64}, DType::bf16);
  Context plain({.threads = 1});
  matmul(a, b, {}, alone, plain);
  int times = 0;
  ContextOptions options;
  options.threads = 1;
  options.interrupt = [&] {
    ++times;
    release_tiles();
    return false;
  };
  Context context(options);
  for (int n = 0; n < 200 && times < 3; ++n) {
    matmul(a, b, {}, asked, context);
    ASSERT_EQ(difference(asked, alone), "");
  }
  EXPECT_GE(times, 3);
  const Tensor q =
      rough<bf16>({40, 16, 30, 64}, 3);  // short heads: most are asked about between two
  Tensor out({40, 16, 30, 64}, DType::bf16), with_hook({40, 16, 30, 64}, DType::bf16);
  attention(q, q, q, out, {}, {}, plain);
  times = 0;
  for (int n = 0; n < 100000 && times < 3; ++n) {
    attention(q, q, q, with_hook, {}, {}, context);
    ASSERT_EQ(difference(with_hook, out), "");
  }
  EXPECT_GE(times, 3);
}

// -inf in dS is a number like any other: only in P it is the mark of a hidden pair.
TEST_F(Amx, infinities_reach_dk) {
  const Tensor q = rough<bf16>({1, 1, 4, 32}, 1), k = rough<bf16>({1, 1, 20, 32}, 2),
               v = rough<bf16>({1, 1, 20, 32}, 3);
  const Tensor dout = rough<bf16>({1, 1, 4, 32}, 4);
  Tensor out({1, 1, 4, 32}, DType::bf16), lse({1, 1, 4}), dlse({1, 1, 4});
  AttentionOutputs outputs;
  outputs.lse = lse;
  attention(q, k, v, out, {}, outputs);
  dlse.data<float>()[2] = -std::numeric_limits<float>::infinity();
  for (const char* kernel : {"cpu.amx.backward", "reference.backward"}) {
    Tensor dk({1, 1, 20, 32}, DType::bf16);
    AttentionGradients gradients;
    gradients.dk = dk;
    const BackwardInputs inputs{
        .q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout, .dlse = dlse};
    Plan::attention_backward(inputs, {}, gradients, {kernel}).run_backward(inputs, {}, gradients);
    for (std::int64_t x = 0; x < dk.count(); ++x)
      ASSERT_FALSE(std::isfinite(static_cast<float>(dk.data<bf16>()[x]))) << kernel << " " << x;
  }
}

// Sums that are finite, times a scale that makes them infinite, in two chunks: NaN, as in any sum
// of f32.
TEST_F(Amx, scores_beyond_the_largest_number_are_nan) {
  Tensor q({1, 1, 1, 32}, DType::bf16), k({1, 1, 512, 32}, DType::bf16),
      v({1, 1, 512, 1}, DType::bf16);
  for (int x = 0; x < 32; ++x) {
    q.data<bf16>()[x] = bf16(1.0F);
    k.data<bf16>()[x] = bf16(1e8F);
    k.data<bf16>()[300 * 32 + x] = bf16(2e8F);
  }
  v.data<bf16>()[0] = bf16(1.0F);
  v.data<bf16>()[300] = bf16(3.0F);
  Tensor out({1, 1, 1, 1}, DType::bf16);
  AttentionOptions options;
  options.scale = 1e30;
  Plan::attention(q, k, v, out, options, {}, {"cpu.amx.forward"}).run(q, k, v, out, options);
  EXPECT_TRUE(std::isnan(static_cast<float>(out.data<bf16>()[0])));
}

// A subnormal result of normal numbers, wherever it is written.
TEST_F(Amx, subnormal_results_do_not_depend_on_strides) {
  const Tensor q({1, 1, 3, 8}, DType::bf16);
  for (const std::int64_t keys : {64, 512})
    for (const std::int64_t dv : {8, 16, 24}) {
      const Tensor k({1, 1, keys, 8}, DType::bf16);
      Tensor v({1, 1, keys, dv}, DType::bf16), wide({1, 1, 3, 2 * dv}, DType::bf16);
      for (std::int64_t x = 0; x < keys / 2 * dv; ++x) v.data<bf16>()[x] = bf16(0x1p-126F);
      Tensor out({1, 1, 3, dv}, DType::bf16);
      const TensorView apart(wide.data<bf16>(), {1, 1, 3, dv}, {6 * dv, 6 * dv, 2 * dv, 2});
      Plan::attention(q, k, v, out, {}, {}, {"cpu.amx.forward"}).run(q, k, v, out);
      Plan::attention(q, k, v, apart, {}, {}, {"cpu.amx.forward"}).run(q, k, v, apart);
      for (std::int64_t x = 0; x < out.count(); ++x) {
        ASSERT_EQ(static_cast<float>(out.data<bf16>()[x]), 0x1p-127F) << keys << " " << dv;
        ASSERT_EQ(static_cast<float>(wide.data<bf16>()[2 * x]), 0x1p-127F) << keys << " " << dv;
      }
    }
}

// 16 bits are the tiles' business, and no other type: these are declined by name.
TEST_F(Amx, is_chosen_for_16_bits_alone) {
  Context context({.threads = 1});
  EXPECT_EQ(product_row(DType::bf16, true, context).name, "cpu.amx.product");
  EXPECT_EQ(product_row(DType::f16, true, context).name,
            this_machine().amx_fp16 ? "cpu.amx_fp16.product" : "cpu.amx.product");
  EXPECT_NE(product_row(DType::f32, true, context).name, "cpu.amx.product");
  Context forced = amx();
  const Linear linear({.in = 4, .out = 4});
  EXPECT_THROW(linear.forward(Tensor({1, 4}), forced), Unsupported);
}

}  // namespace
}  // namespace attend::test
