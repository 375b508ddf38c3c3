// Gradients in f16 by the tiles of AMX: f16 has few exponents, so P and dS are multiplied with
// powers of two first (src/cpu/amx_gradients.h). What these must give is what the reference, which
// computes in f64, gives.
#include "amx/test.h"
#include "support/io_files.h"

#include <attend/attention.h>
#include <attend/plan.h>

#include <cmath>

namespace attend::test {
namespace {

class AmxF16Gradients : public Amx {
 protected:
  void SetUp() override {
    Amx::SetUp();
    if (!this_machine().amx_fp16) GTEST_SKIP() << "this machine has no AMX with f16";
  }
};

// Numbers of about `size`, of few digits, so that subnormal ones have them too.
Tensor of_size(const Shape& shape, double size, unsigned seed) {
  std::mt19937 random(seed);
  Tensor tensor(shape, DType::f16);
  for (std::int64_t n = 0; n < tensor.count(); ++n)
    tensor.data<f16>()[n] = f16(size * (static_cast<double>(random() % 31) - 15) / 8);
  return tensor;
}

struct Call {
  Tensor q, k, v, dout;
  AttentionOptions options = {};
};
struct Found {
  Tensor dq, dk, dv;
};

Found gradients_by(const char* kernel, const Call& call) {
  Tensor out(call.dout.shape(), DType::f16);
  Tensor lse({call.q.size(0), call.q.size(1), call.q.size(2)});
  AttentionOutputs outputs;
  outputs.lse = lse;
  attention(call.q, call.k, call.v, out, call.options, outputs);
  Found found{Tensor(call.q.shape(), DType::f16), Tensor(call.k.shape(), DType::f16),
              Tensor(call.v.shape(), DType::f16)};
  AttentionGradients gradients;
  gradients.dq = found.dq, gradients.dk = found.dk, gradients.dv = found.dv;
  const BackwardInputs inputs{
      .q = call.q, .k = call.k, .v = call.v, .out = out, .lse = lse, .dout = call.dout};
  Plan::attention_backward(inputs, call.options, gradients, {kernel})
      .run_backward(inputs, call.options, gradients);
  return found;
}
Found by_tiles(const Call& call) { return gradients_by("cpu.amx_fp16.backward", call); }

// Root of the mean square error, in parts of that of the numbers; and the latter.
struct Distance {
  double error, size;
};
Distance distance(const Tensor& found, const Tensor& truth) {
  double errors = 0, squares = 0;
  for (std::int64_t n = 0; n < truth.count(); ++n) {
    const double x = wide(found.data<f16>()[n]), y = wide(truth.data<f16>()[n]);
    errors += (x - y) * (x - y);
    squares += y * y;
  }
  return {std::sqrt(errors / squares), std::sqrt(squares / static_cast<double>(truth.count()))};
}

// P and dS are rounded to 11 bits each, the results too: by 2^-12 of their size, less in the mean.
// Without their powers of two, P or dS would be subnormal, 0 or infinite.
void expect_reference(const Call& call, const std::string& what, bool dq, bool dk, bool dv) {
  const Found found = by_tiles(call), truth = gradients_by("reference.backward", call);
  const auto expect = [&](const char* name, const Tensor& a, const Tensor& b, bool examined) {
    if (!examined) return;
    const Distance far = distance(a, b);
    EXPECT_GE(far.size, 0x1p-13) << name << " of " << what << ": too small to say anything";
    EXPECT_LE(far.error, 0x1p-11) << name << " of " << what;
  };
  expect("dq", found.dq, truth.dq, dq);
  expect("dk", found.dk, truth.dk, dk);
  expect("dv", found.dv, truth.dv, dv);
}

TEST_F(AmxF16Gradients, of_a_loss_that_is_not_scaled_keep_their_digits) {
  const Shape rows{1, 2, 70, 64}, keys{1, 2, 300, 64};
  const Tensor tiny = of_size(rows, 0x1p-21, 4), v = of_size(keys, 1, 3);
  expect_reference({of_size(rows, 0x1p-12, 1), of_size(keys, 0x1p12, 2), v, tiny}, "tiny dout",
                   true, false, false);
  expect_reference({of_size(rows, 0x1p12, 1), of_size(keys, 0x1p-12, 2), v, tiny}, "tiny dout",
                   false, true, false);
}

TEST_F(AmxF16Gradients, of_the_largest_dout_are_finite) {
  const Shape rows{1, 2, 70, 64}, keys{1, 2, 300, 64};
  const Tensor large = of_size(rows, 0x1p15, 4), v = of_size(keys, 0x1p6, 3);
  expect_reference({of_size(rows, 0x1p-12, 1), of_size(keys, 0x1p-12, 2), v, large}, "large dout",
                   true, true, false);
  expect_reference({of_size(rows, 0x1p-4, 1), of_size(keys, 0x1p-4, 2), v, of_size(rows, 0x1p5, 4)},
                   "dv of dout", false, false, true);
}

// A bias makes all weights but that of the last key small.
TEST_F(AmxF16Gradients, of_small_weights_keep_their_digits) {
  const Shape rows{1, 1, 40, 64}, keys{1, 1, 65, 64};
  Tensor bias({1, 1, 1, 65});
  for (std::int64_t j = 0; j < 64; ++j) bias.data<float>()[j] = -18;  // 2^-26
  Call call{of_size(rows, 0x1p-3, 1), of_size(keys, 0x1p-3, 2), of_size(keys, 1, 3),
            of_size(rows, 0x1p13, 4)};
  call.options.bias = bias;
  const Found found = by_tiles(call), truth = gradients_by("reference.backward", call);
  const auto first = [](const Tensor& t) { return Tensor::copy_of(t.view().slice(2, 0, 64)); };
  const Distance dv = distance(first(found.dv), first(truth.dv));
  EXPECT_GE(dv.size, 0x1p-13);
  EXPECT_LE(dv.error, 0x1p-11);
  const Distance dk = distance(first(found.dk), first(truth.dk));
  EXPECT_GE(dk.size, 0x1p-13);
  EXPECT_LE(dk.error, 0x1p-11);
}

// What dropout leaves is multiplied with up to 65536.
TEST_F(AmxF16Gradients, of_dropout_of_nearly_everything_are_finite) {
  const Shape rows{1, 4, 256, 64}, keys{1, 4, 256, 64};
  Call call{of_size(rows, 0x1p-3, 1), of_size(keys, 0x1p-3, 2), of_size(keys, 0x1p-5, 3),
            of_size(rows, 0x1p-5, 4)};
  call.options.dropout = {.p = 65535.0 / 65536, .seed = 3};
  expect_reference(call, "dropout", true, true, true);
}

// Even and odd rows see even and odd keys. Of the even ones the gradients are 2^30 times as large,
// or about as large: no bit of the others depends on it.
TEST_F(AmxF16Gradients, do_not_depend_on_the_sizes_of_hidden_ones) {
  const Shape rows{1, 1, 64, 32};
  Tensor mask({1, 1, 64, 64}, DType::boolean);
  for (std::int64_t i = 0; i < 64; ++i)
    for (std::int64_t j = 0; j < 64; ++j) mask.at<bool>({0, 0, i, j}) = i % 2 == j % 2;
  const auto with_even_rows_of = [&](double size, double q, double k) {
    Call call{of_size(rows, q, 1), of_size(rows, k, 2), of_size(rows, 1, 3),
              of_size(rows, 0x1p-16, 4)};
    const Tensor others = of_size(rows, size, 5);
    for (std::int64_t i = 0; i < 64; i += 2)
      for (std::int64_t x = 0; x < 32; ++x)
        call.dout.at<f16>({0, 0, i, x}) = others.at<f16>({0, 0, i, x});
    call.options.mask = mask;
    return by_tiles(call);
  };
  const auto odd = [](const Tensor& t) { return Tensor::copy_of(t.view().slice(2, 1, 64, 2)); };
  for (const double size : {0x1p-12, 0x1p12}) {  // dq is not small, then dk
    const Found large = with_even_rows_of(0x1p14, size, 1 / size);
    const Found small = with_even_rows_of(0x1p-16, size, 1 / size);
    EXPECT_EQ(difference(odd(large.dq), odd(small.dq)), "") << size;
    EXPECT_EQ(difference(odd(large.dk), odd(small.dk)), "") << size;
    EXPECT_EQ(difference(odd(large.dv), odd(small.dv)), "") << size;
  }
}

}  // namespace
}  // namespace attend::test
