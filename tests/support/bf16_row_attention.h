// Attention by a Row (bf16_row.h) against sums of its model, bit for bit, in each of the ways in
// which keys and values are read.
#pragma once

#include "support/bf16_row.h"
#include "support/io_files.h"

#include <attend/attention.h>
#include <attend/plan.h>

#include <limits>
#include <utility>
#include <vector>

namespace attend::test {

template <class Row>
class Bf16Attention : public Bf16Row<Row> {};
TYPED_TEST_SUITE_P(Bf16Attention);

// Of a score: chains of 256 features, added.
template <class Row, class A, class B>
float sum_of_features(std::int64_t d, A a, B b) {
  float sum = Row::chain(0, 0, d < 256 ? d : 256, a, b);
  for (std::int64_t x = 256; x < d; x += 256)
    sum += Row::chain(0, x, d - x < 256 ? d : x + 256, a, b);
  return sum;
}

template <class Row>
Tensor attend_by_row(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const AttentionOptions& options = {}, DType type = DType::f32,
                     int threads = 1) {
  Context context = by_row<Row>(threads);
  Tensor out({q.size(0), q.size(1), q.size(2), v.size(3)}, type);
  attention(q, k, v, out, options, {}, context);
  return out;
}

// Few rows and many, for which keys are brought in other ways; rows of keys any distance apart.
TYPED_TEST_P(Bf16Attention, every_score_is_the_models_sum) {
  for (const std::int64_t d : {1, 7, 8, 31, 64, 100, 256, 300, 600})
    for (const std::int64_t rows : {1, 3, 7, 12, 13, 16, 29, 33}) {
      constexpr std::int64_t kKeys = 77;
      const Tensor q = rough({1, 1, rows, d}, 1), apart = rough({1, 1, kKeys, d + rows % 2}, 2);
      const ConstTensorView k = apart.view().slice(3, 0, d);
      const Tensor v = rough({1, 1, kKeys, 5}, 3);
      Tensor out({1, 1, rows, 5}, DType::bf16), scores({1, 1, rows, kKeys}, DType::f32);
      const float scale = 0.3F;
      AttentionOptions options;
      options.scale = scale;
      AttentionOutputs outputs;
      outputs.scores = scores;
      Plan::attention(q, k, v, out, options, outputs, {TypeParam::kForward})
          .run(q, k, v, out, options, outputs);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < kKeys; ++j) {
          const float sum = sum_of_features<TypeParam>(
              d,
              [&](std::int64_t x) {
                return wide(k.at<bf16>({0, 0, j, x}));
              },
              [&](std::int64_t x) { return wide(q.data<bf16>()[i * d + x]); });
          ASSERT_EQ(scores.data<float>()[i * kKeys + j], sum * scale)
              << "d " << d << ", rows " << rows << " at " << i << ", " << j;
        }
    }
}

// Of equal scores every weight is 1, and a row that sees 2^n keys is divided exactly. Values as
// they lie (up to four rows) and arranged; of every number of features in a block.
TYPED_TEST_P(Bf16Attention, every_value_is_the_models_sum) {
  for (const std::int64_t dv : {1, 4, 8, 20, 64})
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 12, 40}) {
      constexpr std::int64_t kKeys = 128;
      const Tensor q({1, 1, rows, 8}, DType::bf16), k = rough({1, 1, kKeys, 8}, 2),
                                                    v = rough({1, 1, kKeys, dv}, 3);
      AttentionOptions options;
      options.window = {63, 0};
      options.query_offset = kKeys - rows;
      const Tensor out = attend_by_row<TypeParam>(q, k, v, options);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t x = 0; x < dv; ++x) {
          const std::int64_t last = kKeys - rows + i, first = last - 63;
          const float sum = TypeParam::chain(
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
TYPED_TEST_P(Bf16Attention, keys_and_values_of_8_bits_have_their_scales) {
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
        Plan::attention(q, few_k, few_v, out, options, outputs, {TypeParam::kForward})
            .run(q, few_k, few_v, out, options, outputs);
        ASSERT_EQ(difference(attend_by_row<TypeParam>(q, k, v, options), out), "")
            << d << ", rows " << rows;
        for (std::int64_t i = 0; i < rows; ++i) {
          EXPECT_FALSE(std::isfinite(out.data<float>()[i * d])) << i;
          for (std::int64_t j = 0; j < kKeys; ++j) {
            const float sum = sum_of_features<TypeParam>(
                d, [&](std::int64_t x) { return wide(k.data<bf16>()[j * d + x]); },
                [&](std::int64_t x) { return wide(q.data<bf16>()[i * d + x]); });
            ASSERT_EQ(scores.data<float>()[i * kKeys + j], sum * 0.5F * k_scales.data<float>()[j])
                << d << ", rows " << rows << " at " << i << ", " << j;
          }
        }
      }
    }
}

TYPED_TEST_P(Bf16Attention, rows_alone_and_threads_change_no_bit) {
  const Tensor q = rough({1, 2, 50, 40}, 1), k = rough({1, 2, 600, 40}, 2),
               v = rough({1, 2, 600, 28}, 3);
  const Tensor all = attend_by_row<TypeParam>(q, k, v, {}, DType::bf16);
  EXPECT_EQ(difference(attend_by_row<TypeParam>(q, k, v, {}, DType::bf16, 3), all), "");
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 8, 12, 13, 24, 25})
    for (std::int64_t i = 0; i + rows <= 50; i += 17) {
      const Tensor some =
          attend_by_row<TypeParam>(q.view().slice(2, i, i + rows), k, v, {}, DType::bf16);
      ASSERT_EQ(difference(some, Tensor::copy_of(all.view().slice(2, i, i + rows))), "")
          << rows << " from " << i;
    }
}

// NaN and infinities in what is hidden, for few rows and many, and where the hidden stands in a
// group with what is seen.
TYPED_TEST_P(Bf16Attention, hidden_keys_and_values_change_no_bit) {
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
      const Tensor before = attend_by_row<TypeParam>(q, k, v, options);
      const auto hide = [&](std::int64_t j, std::uint16_t bits) {
        for (std::int64_t x = 0; x < 16; ++x) k.at<bf16>({0, 0, j, x}).bits = bits;
        for (std::int64_t x = 0; x < 12; ++x) v.at<bf16>({0, 0, j, x}).bits = bits;
      };
      if (block)
        for (std::int64_t j = 0; j < 40; ++j) hide(j, j % 2 == 0 ? 0x7FC0 : 0xFF80);
      else hide(47, 0x7F80);
      const Tensor after = attend_by_row<TypeParam>(q, k, v, options);
      for (std::int64_t i = 0; i < rows; ++i) {
        if (!block && (i + 47) % 5 != 2) continue;  // this one sees it
        ASSERT_EQ(difference(Tensor::copy_of(after.view().slice(2, i, i + 1)),
                             Tensor::copy_of(before.view().slice(2, i, i + 1))),
                  "")
            << rows << " rows, row " << i;
      }
    }
}

// dq, dk and dv.
template <class Row>
std::vector<Tensor> gradients_by_row(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& dout, const AttentionOptions& options = {},
                                     int threads = 1) {
  Context context({.threads = threads, .kernels = std::string("backward:") + Row::kBackward});
  Tensor out(dout.shape(), DType::bf16), lse({q.size(0), q.size(1), q.size(2)});
  AttentionOutputs outputs;
  outputs.lse = lse;
  attention(q, k, v, out, options, outputs, context);
  std::vector<Tensor> found;
  for (const Tensor* of : {&q, &k, &v}) found.emplace_back(of->shape(), DType::bf16);
  AttentionGradients gradients;
  gradients.dq = found[0], gradients.dk = found[1], gradients.dv = found[2];
  attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout}, options,
                     gradients, context);
  return found;
}

// Of equal scores every weight is 1 / 64, and a dv one chain over the rows of a group: up to 96 (or
// 128) of wide heads.
TYPED_TEST_P(Bf16Attention, every_gradient_of_a_value_is_the_models_sum) {
  for (const std::int64_t dv : {1, 4, 8, 20, 64})
    for (const std::int64_t rows : {1, 2, 4, 5, 12, 13, 24, 40, 95}) {
      const Tensor q({1, 1, rows, 96}, DType::bf16), k = rough({1, 1, 64, 96}, 2);
      const Tensor v = rough({1, 1, 64, dv}, 3), dout = rough({1, 1, rows, dv}, 4);
      const Tensor found = gradients_by_row<TypeParam>(q, k, v, dout)[2];
      for (std::int64_t x = 0; x < dv; ++x) {
        const float sum = TypeParam::chain(
            0, 0, (rows + 1) / 2 * 2, [&](std::int64_t i) { return i < rows ? 1.0F / 64 : 0.0F; },
            [&](std::int64_t i) { return i < rows ? wide(dout.data<bf16>()[i * dv + x]) : 0.0F; });
        for (std::int64_t j = 0; j < 64; ++j)
          ASSERT_EQ(found.data<bf16>()[j * dv + x], bf16(sum))
              << "dv " << dv << ", rows " << rows << " at " << j << ", " << x;
      }
    }
}

// NaN in a row, a key and a value that hide from all others but each other, in the middle of
// groups.
TYPED_TEST_P(Bf16Attention, hidden_numbers_change_no_bit_of_gradients) {
  for (const std::int64_t rows : {5, 30, 130}) {
    Tensor q = rough({1, 2, rows, 16}, 1), k = rough({1, 2, 290, 16}, 2),
           v = rough({1, 2, 290, 12}, 3), dout = rough({1, 2, rows, 12}, 4);
    Tensor mask({1, 1, rows, 290}, DType::boolean);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < 290; ++j) mask.at<bool>({0, 0, i, j}) = (i == 3) == (j == 45);
    AttentionOptions options;
    options.mask = mask;
    const std::vector<Tensor> before = gradients_by_row<TypeParam>(q, k, v, dout, options);
    EXPECT_EQ(difference(gradients_by_row<TypeParam>(q, k, v, dout, options, 3)[1], before[1]), "");
    for (std::int64_t h = 0; h < 2; ++h) {
      q.at<bf16>({0, h, 3, 1}).bits = dout.at<bf16>({0, h, 3, 2}).bits = 0x7FC0;
      k.at<bf16>({0, h, 45, 3}).bits = v.at<bf16>({0, h, 45, 4}).bits = 0x7F80;
    }
    const std::vector<Tensor> after = gradients_by_row<TypeParam>(q, k, v, dout, options);
    for (int n = 0; n < 3; ++n) {
      const std::int64_t place = n == 0 ? 3 : 45, length = n == 0 ? rows : 290;
      const auto part = [&](const Tensor& t, std::int64_t from, std::int64_t to) {
        return Tensor::copy_of(t.view().slice(2, from, to));
      };
      for (const auto& [from, to] :
           {std::pair{std::int64_t{0}, place}, std::pair{place + 1, length}})
        ASSERT_EQ(difference(part(after[n], from, to), part(before[n], from, to)), "")
            << rows << " rows, gradient " << n;
    }
  }
}

// A product too small for f32, at any place among pairs that are hidden: not -0, which would tell
// which of these were computed.
TYPED_TEST_P(Bf16Attention, gradients_that_vanish_are_positive_zeros) {
  constexpr std::int64_t kRows = 128, kKeys = 32, kWidth = 96;  // wide: large groups of rows
  const Tensor q({1, 1, kRows, kWidth}, DType::bf16), k({1, 1, kKeys, kWidth}, DType::bf16);
  const Tensor v = rough({1, 1, kKeys, kWidth}, 3);
  for (std::int64_t i = 0; i < kRows; ++i) {  // alone sees the first two keys, each with 1 / 2
    Tensor mask({1, 1, kRows, kKeys}, DType::boolean), dout({1, 1, kRows, kWidth}, DType::bf16);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t j = 0; j < kKeys; ++j) mask.at<bool>({0, 0, r, j}) = (r == i) == (j < 2);
    for (std::int64_t x = 0; x < kWidth; ++x) dout.at<bf16>({0, 0, i, x}).bits = 0x8080;  // -2^-126
    AttentionOptions options;
    options.mask = mask;
    const Tensor dv = gradients_by_row<TypeParam>(q, k, v, dout, options)[2];
    for (std::int64_t x = 0; x < 2 * kWidth; ++x)
      ASSERT_EQ(dv.data<bf16>()[x].bits, 0) << "row " << i;
  }
}

TYPED_TEST_P(Bf16Attention, subnormal_numbers_are_zero) {
  Tensor q({1, 1, 1, 1}, DType::bf16), k({1, 1, 1, 1}, DType::bf16), v({1, 1, 1, 2}, DType::bf16);
  v.data<bf16>()[0].bits = 0x0040;  // 2^-127
  v.data<bf16>()[1].bits = 0x0080;  // 2^-126
  const Tensor out = attend_by_row<TypeParam>(q, k, v);
  EXPECT_EQ(out.data<float>()[0], 0);
  EXPECT_EQ(out.data<float>()[1], 0x1p-126F);
}

REGISTER_TYPED_TEST_SUITE_P(Bf16Attention, every_score_is_the_models_sum,
                            every_value_is_the_models_sum,
                            keys_and_values_of_8_bits_have_their_scales,
                            rows_alone_and_threads_change_no_bit,
                            hidden_keys_and_values_change_no_bit,
                            every_gradient_of_a_value_is_the_models_sum,
                            hidden_numbers_change_no_bit_of_gradients,
                            gradients_that_vanish_are_positive_zeros, subnormal_numbers_are_zero);

}  // namespace attend::test
