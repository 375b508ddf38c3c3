// bf16 by BFMMLA and BFDOT: the instructions against their model in plain C++, and attention's sums
// against sums of the model, bit for bit, in each of the ways in which keys and values are read.
#include "core/machine.h"
#include "layer/matmul.h"
#include "neon_bf16/instructions.h"
#include "support/bfdot_model.h"
#include "support/io_files.h"
#include "support/layer_numbers.h"
#include "support/property_memory.h"

#include <attend/attention.h>
#include <attend/plan.h>

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <limits>
#include <random>

namespace attend::test {
namespace {

class NeonBf16 : public testing::Test {
 protected:
  void SetUp() override {
    if (!this_machine().neon_bf16) GTEST_SKIP() << "this machine has no BFMMLA";
  }
};

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// ---- The instructions --------------------------------------------------------------------------

// Numbers whose exponents lie in a range, each of them below `share` of 256 replaced by one that is
// special.
Bf16Operands operands(std::mt19937& random, int lowest, int highest, unsigned share) {
  constexpr std::uint16_t kSpecial[] = {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1,
                                        0x0001, 0x807F, 0x7F7F, 0x0080};
  const auto number = [&] {
    if (random() % 256 < share) return kSpecial[random() % 9];
    const auto exponent = static_cast<std::uint32_t>(
        127 + lowest + static_cast<int>(random() % static_cast<unsigned>(highest - lowest + 1)));
    return static_cast<std::uint16_t>(random() % 2 << 15 | exponent << 7 | random() % 128);
  };
  Bf16Operands x;
  for (bf16& element : x.a) element.bits = number();
  for (bf16& element : x.b) element.bits = number();
  for (float& element : x.c)
    element = std::bit_cast<float>(static_cast<std::uint32_t>(number() << 16 | random() % 65536));
  return x;
}

float wide(bf16 x) { return static_cast<float>(x); }

void expect_model(const Bf16Operands& x, const std::string& what) {
  Bf16Operands made = x;
  bfmmla(made);
  for (int m = 0; m < 2; ++m)
    for (int n = 0; n < 2; ++n) {
      const float expected = bfdot_chain(
          x.c[2 * m + n], 0, 4, [&](std::int64_t k) { return wide(x.a[4 * m + k]); },
          [&](std::int64_t k) { return wide(x.b[4 * n + k]); });
      ASSERT_PRED2(same, made.c[2 * m + n], expected) << "BFMMLA, " << what;
    }
  for (int pair = 0; pair < 4; ++pair) {
    made = x;
    bfdot(made, pair);
    for (int n = 0; n < 4; ++n) {
      const float expected = bfdot_chain(
          x.c[n], 0, 2, [&](std::int64_t k) { return wide(x.a[2 * n + k]); },
          [&](std::int64_t k) { return wide(x.b[2 * pair + k]); });
      ASSERT_PRED2(same, made.c[n], expected) << "BFDOT, " << what;
    }
  }
}

TEST_F(NeonBf16, the_instructions_are_the_model) {
  struct Range {
    int lowest, highest;
    unsigned share;
    const char* what;
  };
  constexpr Range kRanges[] = {{-3, 0, 0, "plain numbers"},
                               {-12, 12, 0, "numbers of any size"},
                               {-30, 30, 0, "numbers of very different sizes"},
                               {60, 127, 0, "large numbers"},
                               {-70, -56, 0, "products at the least normal number"},
                               {-64, -62, 0, "and beside it"},
                               {-126, -100, 40, "numbers that vanish"},
                               {-20, 20, 3, "a few that are special"},
                               {-126, 127, 60, "anything"}};
  for (const Range& range : kRanges) {
    std::mt19937 random(7);
    for (int n = 0; n < 2000; ++n) {
      expect_model(operands(random, range.lowest, range.highest, range.share), range.what);
      if (HasFailure()) return;
    }
  }
}

TEST_F(NeonBf16, the_instructions_ignore_the_callers_rounding_mode) {
  std::mt19937 random(3);
  for (int n = 0; n < 100; ++n) {
    const Bf16Operands x = operands(random, -20, 20, 0);
    Bf16Operands expected = x;
    bfmmla(expected);
    for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
      Bf16Operands found = x;
      std::fesetround(mode);
      bfmmla(found);
      std::fesetround(FE_TONEAREST);
      ASSERT_EQ(std::memcmp(found.c, expected.c, sizeof(found.c)), 0) << mode;
    }
  }
}

// ---- Products ----------------------------------------------------------------------------------

Context by_row(int threads = 1) {
  return Context({.threads = threads,
                  .kernels = "product:cpu.neon_bf16.product,forward:cpu.neon_bf16.forward"});
}

// Numbers of all sizes, so that sums round at every step.
Tensor rough(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor(shape, DType::bf16);
  for (std::int64_t n = 0; n < tensor.count(); ++n) {
    const auto exponent = static_cast<std::uint32_t>(117 + random() % 12);
    tensor.data<bf16>()[n].bits =
        static_cast<std::uint16_t>(random() % 2 << 15 | exponent << 7 | random() % 128);
  }
  return tensor;
}

// Rows, columns and depths around the tiles, the chains and the blocks of 2048 steps; a and b both
// ways, b packed or not, each against a page that nobody may touch.
TEST_F(NeonBf16, every_product_is_the_models_sum) {
  Context context = by_row();
  constexpr std::int64_t kRows[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 25};
  constexpr std::int64_t kColumns[] = {12, 1, 4, 11, 24, 13, 5, 36, 8, 47};
  constexpr std::int64_t kDepths[] = {1, 2, 7, 8, 9, 100, 127, 128, 129, 300, 2048, 2049, 4130};
  int at = 0;
  for (const std::int64_t k : kDepths)
    for (int n = 0; n < (k > 1000 ? 2 : 10); ++n, ++at) {
      const std::int64_t rows = kRows[(at + n) % 10], columns = kColumns[at % 10];
      GuardedMemory memory(at % 2 == 0 ? GuardedMemory::Side::behind : GuardedMemory::Side::before);
      const auto guarded = [&](const Tensor& x) { return memory.place(x); };
      const TensorView a = guarded(rough({rows, k}, 1)), b = guarded(rough({k, columns}, 2)),
                       bias = guarded(rough({columns}, 3)),
                       across = guarded(Tensor::copy_of(a.permute({1, 0}))),
                       bt = guarded(Tensor::copy_of(b.permute({1, 0})));
      const PackedWeights ready =
          packed(bt.permute({1, 0}), product_row(DType::bf16, true, context), context);
      const Tensor empty({rows, columns}, DType::bf16);
      const TensorView c[] = {guarded(empty), guarded(empty), guarded(empty),
                              guarded(empty), guarded(empty), guarded(empty)};
      const Multiplication list[] = {{a, b, bias, c[0]},
                                     {a, bt.permute({1, 0}), bias, c[1]},
                                     {across.permute({1, 0}), b, bias, c[2]},
                                     {across.permute({1, 0}), bt.permute({1, 0}), bias, c[3]},
                                     {a, b, bias, c[4], &ready},
                                     {across.permute({1, 0}), b, bias, c[5], &ready}};
      matmul(list, context);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j) {
          const float sum = bfdot_sum(
                                k, 128,
                                [&](std::int64_t x) {
                                  return wide(a.at<bf16>({i, x}));
                                },
                                [&](std::int64_t x) {
                                  return wide(b.at<bf16>({x, j}));
                                }) +
                            wide(bias.at<bf16>({j}));
          ASSERT_PRED2(same, wide(c[0].at<bf16>({i, j})), wide(bf16(sum)))
              << rows << " x " << columns << " of " << k << " at " << i << ", " << j;
        }
      for (const TensorView& made : c) ASSERT_EQ(difference(made, c[0]), "") << rows << " " << k;
    }
}

// Contract 1. The second half of the terms is minus the first, in another order: the truth is 0,
// and what comes out is what rounding made of the sums. Rounding to odd loses twice as much as to
// nearest: chains are shorter, but short sums are one chain whatever they are made by.
TEST_F(NeonBf16, sums_are_at_most_twice_as_inexact_as_chains_of_256) {
  Context pairs = by_row(), chains({.threads = 1, .kernels = "product:cpu.generic.product"});
  constexpr std::int64_t kRows = 40, kColumns = 40, kChain = 256;
  for (const std::int64_t half : {32, 128, 500, 1024}) {
    Tensor a = rough({kRows, 2 * half}, 1), b = rough({2 * half, kColumns}, 2);
    for (std::int64_t x = 0; x < half; ++x) {
      const std::int64_t minus = half + (x * 7 + 3) % half;
      for (std::int64_t i = 0; i < kRows; ++i) a.at<bf16>({i, minus}) = a.at<bf16>({i, x});
      for (std::int64_t j = 0; j < kColumns; ++j)
        b.at<bf16>({minus, j}).bits = b.at<bf16>({x, j}).bits ^ 0x8000;
    }
    const auto error = [&](Context& context) {
      Tensor c({kRows, kColumns}, DType::bf16);
      matmul(a, b, {}, c, context);
      double squares = 0;
      for (std::int64_t n = 0; n < c.count(); ++n) {
        const double off = std::abs(wide(c.data<bf16>()[n]));
        squares += off * off;
      }
      return std::sqrt(squares / (kRows * kColumns));
    };
    const double found = error(pairs), textbook = error(chains);
    EXPECT_GT(textbook, 0) << half;
    EXPECT_LE(found, (half < kChain ? 2 : 1.25) * textbook) << half;
  }
}

TEST_F(NeonBf16, rows_of_products_alone_and_threads_change_no_bit) {
  Context one = by_row(), three = by_row(3);
  const Tensor a = rough({70, 2100}, 1), b = rough({2100, 90}, 2);
  Tensor c({70, 90}, DType::bf16), other({70, 90}, DType::bf16);
  matmul(a, b, {}, c, one);
  matmul(a, b, {}, other, three);
  EXPECT_EQ(difference(other, c), "");
  for (const std::int64_t i : {0, 7, 8, 63, 69}) {
    Tensor row({1, 90}, DType::bf16);
    matmul(a.view().slice(0, i, i + 1), b, {}, row, one);
    EXPECT_EQ(difference(row, Tensor::copy_of(c.view().slice(0, i, i + 1))), "") << i;
  }
}

// NaN and infinities stay in their own row and column, whatever is missing of the tiles beside
// them.
TEST_F(NeonBf16, nan_and_infinity_reach_their_own_row_and_column) {
  Context context = by_row();
  for (const std::int64_t k : {7, 40}) {
    Tensor a = rough({13, k}, 1), b = rough({k, 17}, 2);
    Tensor before({13, 17}, DType::bf16), after({13, 17}, DType::bf16);
    matmul(a, b, {}, before, context);
    a.at<bf16>({3, k - 1}).bits = 0x7FC0;
    a.at<bf16>({5, 0}).bits = 0x7F80;
    b.at<bf16>({1, 16}).bits = 0x7FC0;
    matmul(a, b, {}, after, context);
    for (std::int64_t i = 0; i < 13; ++i)
      for (std::int64_t j = 0; j < 17; ++j) {
        const float found = wide(after.at<bf16>({i, j}));
        if (i == 3 || j == 16) EXPECT_TRUE(std::isnan(found)) << i << " " << j;
        else if (i == 5) EXPECT_TRUE(std::isinf(found)) << j;
        else EXPECT_EQ(after.at<bf16>({i, j}), before.at<bf16>({i, j})) << i << " " << j;
      }
  }
}

// ---- Attention ---------------------------------------------------------------------------------

constexpr const char* kRow = "cpu.neon_bf16.forward";

Tensor attend_by_row(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options = {}, DType type = DType::f32,
                     int threads = 1) {
  Context context = by_row(threads);
  Tensor out({q.size(0), q.size(1), q.size(2), v.size(3)}, type);
  attention(q, k, v, out, options, {}, context);
  return out;
}

// Few rows, which read keys as they lie, and many, for which keys are arranged.
TEST_F(NeonBf16, every_score_is_the_models_sum) {
  for (const std::int64_t d : {1, 7, 8, 31, 64, 100, 256, 300, 600})
    for (const std::int64_t rows : {1, 7, 12, 13, 29}) {
      constexpr std::int64_t kKeys = 77;
      const Tensor q = rough({1, 1, rows, d}, 1), k = rough({1, 1, kKeys, d}, 2);
      const Tensor v = rough({1, 1, kKeys, 5}, 3);
      Tensor out({1, 1, rows, 5}, DType::bf16), scores({1, 1, rows, kKeys}, DType::f32);
      const float scale = 0.3F;
      AttentionOptions options;
      options.scale = scale;
      AttentionOutputs outputs;
      outputs.scores = scores;
      Plan::attention(q, k, v, out, options, outputs, {kRow}).run(q, k, v, out, options, outputs);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < kKeys; ++j) {
          const float sum = bfdot_sum(
              d, 256, [&](std::int64_t x) { return wide(k.data<bf16>()[j * d + x]); },
              [&](std::int64_t x) { return wide(q.data<bf16>()[i * d + x]); });
          ASSERT_EQ(scores.data<float>()[i * kKeys + j], sum * scale)
              << "d " << d << ", rows " << rows << " at " << i << ", " << j;
        }
    }
}

// Of equal scores every weight is 1, and a row that sees 2^n keys is divided exactly. Values as
// they lie (up to four rows) and arranged; of every number of features in a block.
TEST_F(NeonBf16, every_value_is_the_models_sum) {
  for (const std::int64_t dv : {1, 4, 8, 20, 64})
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 12, 40}) {
      constexpr std::int64_t kKeys = 128;
      const Tensor q({1, 1, rows, 8}, DType::bf16), k = rough({1, 1, kKeys, 8}, 2),
                                                    v = rough({1, 1, kKeys, dv}, 3);
      AttentionOptions options;
      options.window = {63, 0};
      options.query_offset = kKeys - rows;
      const Tensor out = attend_by_row(q, k, v, options);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t x = 0; x < dv; ++x) {
          const std::int64_t last = kKeys - rows + i, first = last - 63;
          const float sum = bfdot_chain(
              0, first / 2 * 2, last / 2 * 2 + 2,
              [&](std::int64_t j) { return j < first || j > last ? 0.0F : 1.0F; },
              [&](std::int64_t j) {
                return j < first || j > last ? 0.0F : wide(v.data<bf16>()[j * dv + x]);
              });
          ASSERT_EQ(out.data<float>()[i * dv + x], sum / 64)
              << "dv " << dv << ", rows " << rows << " at " << i << ", " << x;
        }
    }
}

// Whole numbers of 8 bits are multiplied as they are, and a score is then multiplied by its key's
// scale: the bits are those of the same numbers in bf16. Rows that read keys and values as they
// lie, and arranged; numbers in steps, too, and a last group that is not a whole one. The scale of
// one key is infinite, and goes into its numbers.
TEST_F(NeonBf16, keys_and_values_of_8_bits_have_their_scales) {
  constexpr std::int64_t kKeys = 301;
  std::mt19937 random(7);
  for (const std::int64_t d : {8, 20})
    for (const bool steps : {false, true}) {
      Tensor k({1, 1, kKeys, d}, DType::bf16), v({1, 1, kKeys, d}, DType::bf16);
      Tensor k8({1, 1, kKeys, 2 * d}, DType::i8), v8({1, 1, kKeys, 2 * d}, DType::i8);
      const auto stored = [&](Tensor& t) {
        return steps ? t.view().slice(3, 0, 2 * d, 2) : t.view().slice(3, 0, d);
      };
      const TensorView few_k = stored(k8), few_v = stored(v8);
      Tensor k_scales({1, 1, kKeys}, DType::f32), v_scales({1, 1, kKeys}, DType::f32);
      for (std::int64_t j = 0; j < kKeys; ++j) {
        for (std::int64_t x = 0; x < d; ++x) {
          const auto number = [&](bf16& wide_one, std::int8_t& one) {
            one = static_cast<std::int8_t>(static_cast<int>(random() % 256) - 128);
            wide_one = bf16(static_cast<float>(one));
          };
          number(k.at<bf16>({0, 0, j, x}), few_k.at<std::int8_t>({0, 0, j, x}));
          number(v.at<bf16>({0, 0, j, x}), few_v.at<std::int8_t>({0, 0, j, x}));
        }
        k_scales.data<float>()[j] = static_cast<float>(random() % 1000) * 1e-5F;
        v_scales.data<float>()[j] = static_cast<float>(random() % 1000) * 1e-3F;
      }
      v_scales.data<float>()[290] = std::numeric_limits<float>::infinity();
      AttentionOptions options;
      options.k_scales = k_scales, options.v_scales = v_scales;
      for (const std::int64_t rows : {1, 4, 5, 12, 13, 40}) {
        const Tensor q = rough({1, 1, rows, d}, 1);
        Tensor scores({1, 1, rows, kKeys}, DType::f32), out({1, 1, rows, d}, DType::f32);
        AttentionOutputs outputs;
        outputs.scores = scores;
        options.scale = 0.5;
        Plan::attention(q, few_k, few_v, out, options, outputs, {kRow})
            .run(q, few_k, few_v, out, options, outputs);
        ASSERT_EQ(difference(attend_by_row(q, k, v, options), out), "") << d << ", rows " << rows;
        for (std::int64_t i = 0; i < rows; ++i) {
          EXPECT_FALSE(std::isfinite(out.data<float>()[i * d])) << i;
          for (std::int64_t j = 0; j < kKeys; ++j) {
            const float sum = bfdot_sum(
                d, 256, [&](std::int64_t x) { return wide(k.data<bf16>()[j * d + x]); },
                [&](std::int64_t x) { return wide(q.data<bf16>()[i * d + x]); });
            ASSERT_EQ(scores.data<float>()[i * kKeys + j], sum * 0.5F * k_scales.data<float>()[j])
                << d << ", rows " << rows << " at " << i << ", " << j;
          }
        }
      }
    }
}

TEST_F(NeonBf16, rows_alone_and_threads_change_no_bit) {
  const Tensor q = rough({1, 2, 50, 40}, 1), k = rough({1, 2, 600, 40}, 2),
               v = rough({1, 2, 600, 28}, 3);
  const Tensor all = attend_by_row(q, k, v, {}, DType::bf16);
  EXPECT_EQ(difference(attend_by_row(q, k, v, {}, DType::bf16, 3), all), "");
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 8, 12, 13, 24, 25})
    for (std::int64_t i = 0; i + rows <= 50; i += 17) {
      const Tensor some = attend_by_row(q.view().slice(2, i, i + rows), k, v, {}, DType::bf16);
      ASSERT_EQ(difference(some, Tensor::copy_of(all.view().slice(2, i, i + rows))), "")
          << rows << " from " << i;
    }
}

// NaN and infinities in what is hidden, for few rows and many, and where the hidden stands in a
// group with what is seen.
TEST_F(NeonBf16, hidden_keys_and_values_change_no_bit) {
  for (const std::int64_t rows : {1, 3, 9, 30})
    for (const bool block : {false, true}) {
      const Tensor q = rough({1, 1, rows, 16}, 1);
      Tensor k = rough({1, 1, 90, 16}, 2), v = rough({1, 1, 90, 12}, 3);
      Tensor mask({1, 1, rows, 90}, DType::boolean);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < 90; ++j)
          mask.at<bool>({0, 0, i, j}) = block ? j >= 40 : (i + j) % 5 != 2;
      AttentionOptions options;
      options.mask = mask;
      const Tensor before = attend_by_row(q, k, v, options);
      const auto hide = [&](std::int64_t j, std::uint16_t bits) {
        for (std::int64_t x = 0; x < 16; ++x) k.at<bf16>({0, 0, j, x}).bits = bits;
        for (std::int64_t x = 0; x < 12; ++x) v.at<bf16>({0, 0, j, x}).bits = bits;
      };
      if (block)
        for (std::int64_t j = 0; j < 40; ++j) hide(j, j % 2 == 0 ? 0x7FC0 : 0xFF80);
      else hide(47, 0x7F80);
      const Tensor after = attend_by_row(q, k, v, options);
      for (std::int64_t i = 0; i < rows; ++i) {
        if (!block && (i + 47) % 5 != 2) continue;  // this one sees it
        ASSERT_EQ(difference(Tensor::copy_of(after.view().slice(2, i, i + 1)),
                             Tensor::copy_of(before.view().slice(2, i, i + 1))),
                  "")
            << rows << " rows, row " << i;
      }
    }
}

TEST_F(NeonBf16, subnormal_numbers_are_zero) {
  Tensor q({1, 1, 1, 1}, DType::bf16), k({1, 1, 1, 1}, DType::bf16), v({1, 1, 1, 2}, DType::bf16);
  v.data<bf16>()[0].bits = 0x0040;  // 2^-127
  v.data<bf16>()[1].bits = 0x0080;  // 2^-126
  const Tensor out = attend_by_row(q, k, v);
  EXPECT_EQ(out.data<float>()[0], 0);
  EXPECT_EQ(out.data<float>()[1], 0x1p-126F);
}

}  // namespace
}  // namespace attend::test
