// Weights of 8 bits: what quantize() makes of a matrix, and products with it: every row of the
// kernel table has the defined bits, for few rows and many, packed or not.
#include "layer/packing.h"
#include "plan/plan.h"
#include "support/attention_layers.h"
#include "support/property_memory.h"
#include "support/quantised_rows.h"

#include <attend/linear.h>

#include <limits>

namespace attend::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType type) {
  Tensor t(shape, type);
  with_type(type, [&]<class T>(T) {
    for (std::int64_t n = 0; n < t.count(); ++n)
      t.data<T>()[n] = static_cast<T>(values[static_cast<std::size_t>(n)]);
  });
  return t;
}

// A matrix of one row.
Linear of_row(const std::vector<double>& row, DType type = DType::f32) {
  return Linear(tensor_of(row, {1, static_cast<std::int64_t>(row.size())}, type)).quantize();
}
std::vector<int> numbers_of(const Linear& layer) {
  const auto* first = layer.weight().data<std::int8_t>();
  return {first, first + layer.weight().count()};
}
float scale_of(const Linear& layer) { return layer.weight_scales().data<float>()[0]; }

// Whole numbers from -128 to 127.
Tensor bytes(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  Tensor t(shape, DType::i8);
  for (std::int64_t n = 0; n < t.count(); ++n)
    t.data<std::int8_t>()[n] = static_cast<std::int8_t>(random() % 256);
  return t;
}

// ---- quantize ----------------------------------------------------------------------------------

TEST(EightBitWeights, a_weight_is_at_most_half_its_rows_scale_from_what_it_was) {
  expect_half_a_scale(500, [](const std::vector<double>& row, DType type) {
    const Linear layer = of_row(row, type);
    return QuantisedRow{numbers_of(layer), scale_of(layer)};
  });
}

TEST(EightBitWeights, a_row_depends_on_itself_alone) {
  const Tensor weight = numbers({6, 40}, DType::f32, 1);
  const Linear whole = Linear(weight).quantize();
  for (std::int64_t row = 0; row < 6; ++row) {
    const Linear alone = Linear(Tensor::copy_of(weight.view().slice(0, row, row + 1))).quantize();
    EXPECT_EQ(scale_of(alone), whole.weight_scales().data<float>()[row]);
    EXPECT_EQ(difference(alone.weight(), whole.weight().view().slice(0, row, row + 1)), "");
  }
}

// A row of zeros gives the bias; one that is not finite NaN, in its own output and no other.
TEST(EightBitWeights, rows_of_zeros_and_rows_that_are_not_finite) {
  for (const DType type : kFloatTypes)
    for (const double broken : {kNan, kInfinity, -kInfinity}) {
      const Linear plain(tensor_of({1, -2, 0, 0, 1, broken, 0.5, 0.25}, {4, 2}, type),
                         tensor_of({1, 2, 3, 4}, {4}, type));
      const Linear layer = plain.quantize();
      for (const std::int64_t rows : {1, 3, 20}) {
        const Tensor y = layer.forward(tensor_of(std::vector<double>(2 * 20, 1), {rows, 2}, type));
        for (std::int64_t r = 0; r < rows; ++r) {
          EXPECT_NEAR(value(y, {r, 0}), 0, 0.02);
          EXPECT_EQ(value(y, {r, 1}), 2);
          EXPECT_TRUE(std::isnan(value(y, {r, 2}))) << broken;
          EXPECT_NEAR(value(y, {r, 3}), 4.75, 0.02);
        }
      }
    }
}

// What is not finite in x reaches all of its row, and no other.
TEST(EightBitWeights, nan_in_x_stays_in_its_row) {
  const Linear layer = Linear({.in = 70, .out = 65, .seed = 1}).quantize();
  for (const std::int64_t rows : {2, 3, 9, 30}) {
    Tensor x = numbers({rows, 70}, DType::f32, 2);
    const Tensor before = layer.forward(x);
    x.data<float>()[69] = std::numeric_limits<float>::quiet_NaN();
    const Tensor after = layer.forward(x);
    for (std::int64_t n = 0; n < 65; ++n) EXPECT_TRUE(std::isnan(value(after, {0, n})));
    EXPECT_EQ(difference(after.view().slice(0, 1, rows), before.view().slice(0, 1, rows)), "");
  }
}

TEST(EightBitWeights, of_such_weights_or_of_none_are_what_they_were) {
  const Linear layer = Linear({.in = 7, .out = 5, .seed = 1}).quantize();
  EXPECT_TRUE(layer.quantized());
  EXPECT_EQ(lists_differ(layer.quantize().parameters(), layer.parameters()), "");
  EXPECT_FALSE(Linear().quantize());
  EXPECT_FALSE(Linear().quantized());
}

// Another type is that of x, y and the bias.
TEST(EightBitWeights, in_another_type_are_the_same_numbers) {
  const Linear layer = Linear({.in = 7, .out = 5, .seed = 1}).quantize();
  for (const DType type : kFloatTypes) {
    const Linear other = layer.to(type);
    EXPECT_EQ(other.dtype(), type);
    EXPECT_EQ(other.bias().dtype(), type);
    EXPECT_EQ(difference(other.weight(), layer.weight()), "");
    EXPECT_EQ(difference(other.weight_scales(), layer.weight_scales()), "");
    EXPECT_EQ(other.forward(numbers({2, 7}, type, 3)).dtype(), type);
  }
}

// ---- products ----------------------------------------------------------------------------------

// a [m, k] times the weights w [n, k], times the scales: the sums as defined (core/product.h), so
// that the results' bits are known. Products of these numbers are exact, so it does not matter
// whether a step is fused.
template <class T, class Sum>
std::vector<Sum> scaled_sums(const Tensor& a, const Tensor& w, const Tensor& scales) {
  const std::int64_t m = a.size(0), n = w.size(0), depth = a.size(1);
  std::vector<Sum> row(static_cast<std::size_t>(depth)), sums;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t k = 0; k < depth; ++k)
      row[static_cast<std::size_t>(k)] = static_cast<Sum>(widened(a.data<T>()[i * depth + k]));
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int8_t* const weights = w.data<std::int8_t>() + j * depth;
      Sum total = 0;
      for (std::int64_t begin = 0; begin < depth; begin += 256) {
        Sum block = 0;
        for (std::int64_t k = begin; k < std::min(begin + 256, depth); ++k)
          block += row[static_cast<std::size_t>(k)] * static_cast<Sum>(weights[k]);
        total += block;
      }
      sums.push_back(total * static_cast<Sum>(scales.data<float>()[j]));
    }
  }
  return sums;
}

template <class T, class Sum>
void expect_defined(const Kernel<Product>& kernel, std::int64_t m, std::int64_t n, std::int64_t k,
                    Context& context) {
  constexpr DType kType = dtype_of<T>();
  using Stored = std::conditional_t<std::is_same_v<T, double>, double, float>;  // by kernels
  const Tensor a = numbers({m, k}, kType, 1), w = bytes({n, k}, 2);
  const Tensor scales = numbers({n}, DType::f32, 3), bias = numbers({n}, kType, 4);
  const std::vector<Sum> sums = scaled_sums<T, Sum>(a, w, scales);
  GuardedMemory memory(m % 2 == 0 ? GuardedMemory::Side::behind : GuardedMemory::Side::before);
  const TensorView along = memory.place(a);
  const TensorView across = memory.place(Tensor::copy_of(a.view().permute({1, 0}))).permute({1, 0});
  const TensorView b = memory.place(w).permute({1, 0});
  const TensorView guarded_scales = memory.place(scales), guarded_bias = memory.place(bias);
  const PackedWeights ready = packed(b, kernel, context);
  struct Way {
    const char* name;
    ConstTensorView a, bias;
    const PackedWeights* packed;
  };
  for (const Way& way :
       {Way{"as they lie", along, guarded_bias, nullptr},
        Way{"packed", along, guarded_bias, &ready}, Way{"packed, no bias", along, {}, &ready},
        Way{"across", across, {}, &ready},
        Way{"across, as they lie", across, guarded_bias, nullptr}}) {
    const TensorView c = memory.place(Tensor({m, n}, kType));
    const Multiplication one[] = {{.a = way.a,
                                   .b = b,
                                   .row_bias = way.bias,
                                   .c = c,
                                   .packed = way.packed,
                                   .scales = guarded_scales}};
    matmul(one, context);
    for (std::int64_t x = 0; x < m * n; ++x) {
      Sum sum = sums[static_cast<std::size_t>(x)];
      if (way.bias) sum += static_cast<Sum>(widened(bias.data<T>()[x % n]));
      ASSERT_EQ(static_cast<const T*>(c.data())[x], static_cast<T>(static_cast<Stored>(sum)))
          << way.name << " " << c.shape() << " k " << k << " at " << x / n << ", " << x % n;
    }
  }
}

// Rows around the few that read bytes where they lie and around every tile, columns around a line
// of 64, depths around a block of 256.
TEST(EightBitWeights, every_instruction_set_has_the_defined_bits) {
  int ran = 0;
  const Machine machine = this_machine();
  for (const Kernel<Product>* kernel : kernel_table<Product>()) {
    Context context({.kernels = "product:" + std::string(kernel->name)});
    SCOPED_TRACE(kernel->name);
    for (const DType type : kFloatTypes) {
      const ProductProblem problem{
          .device = {}, .type = type, .bias = true, .eight_bit_weights = true};
      if (!why_not(*kernel, problem, features_of(problem), machine).empty()) continue;
      ++ran;
      constexpr std::int64_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 25, 49, 97, 250};
      constexpr std::int64_t kColumns[] = {1, 3, 63, 64, 65, 130, 48, 12, 300};
      constexpr std::int64_t kDepths[] = {1, 5, 16, 255, 256, 257, 520};
      const auto expect = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
        with_type(type, [&]<class T>(T) {
          using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
          if (kernel->name.starts_with("reference."))
            expect_defined<T, double>(*kernel, m, n, k, context);
          else expect_defined<T, Sum>(*kernel, m, n, k, context);
        });
      };
      for (std::size_t n = 0; n < std::size(kRows); ++n)
        expect(kRows[n], kColumns[n % 9], kDepths[n % 7]);
      for (std::size_t n = 0; n < std::size(kColumns); ++n)
        expect(1 + static_cast<std::int64_t>(n) % 3, kColumns[n], kDepths[(n + 3) % 7]);
    }
  }
  EXPECT_GE(ran, 8) << "generic and reference, four types";
}

// Rows that do not take such weights say so, and another one takes their place.
TEST(EightBitWeights, matrix_instructions_decline_them_by_name) {
  for (const Kernel<Product>* kernel : kernel_table<Product>()) {
    if (kernel->bf16.run == nullptr) continue;
    const ProductProblem problem{.device = {}, .type = DType::bf16, .eight_bit_weights = true};
    EXPECT_NE(
        why_not(*kernel, problem, features_of(problem), this_machine()).find("weights of 8 bits"),
        std::string::npos)
        << kernel->name;
    Context forced({.kernels = "product:" + std::string(kernel->name)});
    const Linear layer = Linear({.in = 8, .out = 8, .type = DType::bf16}).quantize();
    EXPECT_THROW(layer.forward(numbers({2, 8}, DType::bf16, 1), forced), Unsupported);
  }
}

// One row alone has the bits it has among others, whatever the number of threads.
TEST(EightBitWeights, a_row_has_the_same_bits_in_any_batch) {
  for (const DType type : kFloatTypes) {
    const Linear layer = Linear({.in = 600, .out = 331, .type = type, .seed = 1}).quantize();
    const Tensor x = numbers({70, 600}, type, 2);
    Context one({.threads = 1}), four({.threads = 4});
    const Tensor y = layer.forward(x, one);
    EXPECT_EQ(difference(layer.forward(x, four), y), "");
    for (const std::int64_t rows : {1, 2, 7, 8, 9, 24})
      EXPECT_EQ(difference(layer.forward(x.view().slice(0, 3, 3 + rows), four),
                           y.view().slice(0, 3, 3 + rows)),
                "");
  }
}

// Contract 1: against the products with the numbers times their scales, in f64, no less exact than
// a layer whose weights are these, rounded to its type.
TEST(EightBitWeights, sums_are_as_exact_as_those_of_the_dequantised_weights) {
  const Tensor drawn = numbers({200, 500}, DType::f64, 1);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const Linear layer = Linear(drawn).quantize().to(type);
    Tensor exact({200, 500}, DType::f64);
    for (std::int64_t n = 0; n < exact.count(); ++n)
      exact.data<double>()[n] = layer.weight().data<std::int8_t>()[n] *
                                static_cast<double>(layer.weight_scales().data<float>()[n / 500]);
    const Linear truth(exact), plain = truth.to(type);
    for (const std::int64_t rows : {1, 60}) {
      double of_bytes = 0, of_plain = 0;
      for (unsigned seed = 0; seed < (rows == 1 ? 60U : 1U); ++seed) {
        const Tensor x = numbers({rows, 500}, type, 10 + seed);
        Tensor wide(x.shape(), DType::f64);
        for (std::int64_t n = 0; n < x.count(); ++n) wide.data<double>()[n] = element(x, n);
        const Tensor y = truth.forward(wide), a = layer.forward(x), b = plain.forward(x);
        for (std::int64_t n = 0; n < y.count(); ++n) {
          of_bytes += std::pow(element(a, n) - element(y, n), 2);
          of_plain += std::pow(element(b, n) - element(y, n), 2);
        }
      }
      EXPECT_GT(of_bytes, 0);
      EXPECT_LE(std::sqrt(of_bytes), std::sqrt(of_plain) * 1.25) << name_of(type) << " " << rows;
    }
  }
}

// ---- memory ------------------------------------------------------------------------------------

TEST(EightBitWeights, are_packed_once_and_a_change_is_seen) {
  Linear layer = Linear({.in = 40, .out = 33, .seed = 1}).quantize();
  const Tensor x = numbers({3, 40}, DType::f32, 1), before = layer.forward(x);
  EXPECT_TRUE(WeightPacking::is_packed(layer));
  {
    const std::vector<Parameter> views = layer.writable_parameters();
    ASSERT_EQ(views.size(), 3U);
    EXPECT_EQ(views[1].name, "weight_scales");
    std::int8_t& weight = static_cast<std::int8_t*>(views[0].value.data())[5];
    const std::int8_t kept = std::exchange(weight, std::int8_t{127});
    EXPECT_NE(difference(layer.forward(x), before), "");
    weight = kept;
    static_cast<float*>(views[1].value.data())[2] *= 2;
  }
  const Tensor changed = layer.forward(x);
  EXPECT_NE(difference(changed, before), "");
  EXPECT_EQ(difference(changed.view().slice(1, 3, 33), before.view().slice(1, 3, 33)), "");
  layer.forward(x);
  EXPECT_EQ(difference(layer.forward(x), changed), "");  // of a copy that was made anew
  EXPECT_TRUE(WeightPacking::is_packed(layer));
}

}  // namespace
}  // namespace attend::test
