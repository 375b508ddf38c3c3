// The matrix product: every element against a sum in f64, and its bits against everything that must
// not change them: tiles, strides, neighbours, threads.
#include "layer/matmul.h"

#include "api/context.h"
#include "core/interruption.h"
#include "layer/elementwise.h"
#include "layer/packing.h"
#include "plan/plan.h"
#include "support/amx_model.h"
#include "support/bfdot_model.h"
#include "support/io_files.h"
#include "support/layer_numbers.h"
#include "support/property_memory.h"
#include "support/vdpbf16_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attend::test {
namespace {

Tensor product(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& bias = {},
               Context& context = default_context()) {
  Tensor c({a.size(0), b.size(1)}, a.dtype());
  matmul(a, b, bias, c, context);
  return c;
}

// The product as defined, in f64 for f64 and f32 otherwise: the bits.
template <class Sum>
Sum defined_sum(const ConstTensorView& a, const ConstTensorView& b, std::int64_t i,
                std::int64_t j) {
  Sum total = 0;
  for (std::int64_t begin = 0; begin < a.size(1); begin += 256) {
    Sum block = 0;
    for (std::int64_t k = begin; k < std::min(begin + 256, a.size(1)); ++k)
      block += static_cast<Sum>(value(a, {i, k})) * static_cast<Sum>(value(b, {k, j}));
    total += block;
  }
  return total;
}

template <class T, class Sum>
void expect_sums(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& bias,
                 const ConstTensorView& c) {
  for (std::int64_t i = 0; i < c.size(0); ++i)
    for (std::int64_t j = 0; j < c.size(1); ++j) {
      Sum sum = defined_sum<Sum>(a, b, i, j);
      if (bias) sum += static_cast<Sum>(value(bias, {j}));
      // 16 bits from f32, whatever the sum was made in.
      using Wide = std::conditional_t<sizeof(T) == 2, float, Sum>;
      ASSERT_EQ(c.at<T>({i, j}), static_cast<T>(static_cast<Wide>(sum)))
          << c.shape() << " k " << a.size(1) << " at " << i << ", " << j;
    }
}

// The sums that matrix instructions make of 16-bit numbers (cpu/pairs_gemm.h,
// cpu/neon_bf16_gemm.cpp).
template <class E>
void expect_tile_sums(const ConstTensorView& a, const ConstTensorView& b,
                      const ConstTensorView& bias, const ConstTensorView& c,
                      std::string_view kernel) {
  const bool in_parts = std::is_same_v<E, f16> && kernel == "cpu.amx.product";
  const auto number = [&](const ConstTensorView& t, const Shape& index, int part = 0) {
    const E x = t.at<E>(index);
    if constexpr (std::is_same_v<E, f16>)
      if (in_parts) return part_of(x, part);
    return static_cast<float>(x);
  };
  for (std::int64_t i = 0; i < c.size(0); ++i)
    for (std::int64_t j = 0; j < c.size(1); ++j) {
      const auto of_a = [&](std::int64_t k, int part = 0) { return number(a, {i, k}, part); };
      const auto of_b = [&](std::int64_t k, int part = 0) { return number(b, {k, j}, part); };
      float sum = kernel == "cpu.neon_bf16.product" ? bfdot_sum(a.size(1), 128, of_a, of_b)
                  : kernel == "cpu.avx512_bf16.product"
                      ? vdpbf16_sum_of_products(a.size(1), of_a, of_b)
                      : tile_sum_of_products(a.size(1), in_parts ? 2 : 1, of_a, of_b);
      if (bias) sum += static_cast<float>(bias.at<E>({j}));
      ASSERT_EQ(c.at<E>({i, j}), tile_result<E>(sum))
          << c.shape() << " k " << a.size(1) << " at " << i << ", " << j;
    }
}

// Sums of the type's own, of f64 (the reference's), or of tiles.
void expect_defined(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& bias,
                    const ConstTensorView& c, Context& context = default_context()) {
  const auto* const row = &product_row(a.dtype(), static_cast<bool>(bias), context);
  const DType multiplied = row->multiplies(a.dtype());
  if (multiplied == DType::bf16) return expect_tile_sums<bf16>(a, b, bias, c, row->name);
  if (multiplied == DType::f16) return expect_tile_sums<f16>(a, b, bias, c, row->name);
  with_type(a.dtype(), [&]<class T>(T) {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (row->name.starts_with("reference.")) expect_sums<T, double>(a, b, bias, c);
    else expect_sums<T, Sum>(a, b, bias, c);
  });
}

// Inside somebody else's tasks, who were stopped.
TEST(Matmul, is_whole_where_the_tasks_around_it_are_to_stop) {
  Interrupt stopped{[](Interrupt&, bool) noexcept { return true; }, true};
  const Tensor a = numbers({1, 9000}, DType::f32, 1), b = numbers({9000, 3}, DType::f32, 2);
  const Tensor expected = product(a, b);
  const RunningTasks tasks(&stopped);
  EXPECT_EQ(difference(product(a, b), expected), "");
}

TEST(Matmul, every_tail_has_the_defined_bits) {
  for (const DType type : kFloatTypes)
    for (std::int64_t size = 1; size <= 33; ++size) {
      const std::int64_t n = 34 - size, k = size % 7 + 1;
      const Tensor a = numbers({size, k}, type, 1), b = numbers({k, n}, type, 2);
      const Tensor bias = numbers({n}, type, 3);
      expect_defined(a, b, bias, product(a, b, bias));
      expect_defined(a, b, {}, product(a, b));
    }
}

// Sizes around every tile, depths around the vectors and the blocks of 256; b as rows, as columns
// and packed, by the caller or, for many rows, once for all; a both ways. One row, and a few, read
// b where it lies if its columns are whole vectors and there is no bias. All but the
// packed b lies against a page that nobody may touch.
TEST(Matmul, every_instruction_set_has_the_defined_bits) {
  int ran = 0;
  const Machine machine = this_machine();
  for (const Kernel<Product>* kernel : kernel_table<Product>()) {
    Context context({.kernels = "product:" + std::string(kernel->name)});
    SCOPED_TRACE(kernel->name);
    bool takes_any = false;
    for (const DType type : kFloatTypes) {
      const ProductProblem problem{.device = {}, .type = type, .bias = true};
      if (!why_not(*kernel, problem, features_of(problem), machine).empty()) continue;
      takes_any = true;
      for (std::int64_t at = 1; at <= 45; ++at) {
        constexpr std::int64_t kDepths[] = {1, 3, 15, 16, 17, 33, 255, 256, 257, 300};
        constexpr std::int64_t kMany[] = {96, 97, 130, 241, 250};
        const std::int64_t m = at <= 40 ? at : kMany[at - 41];
        const std::int64_t n = m <= 4 ? 80 : 1 + m * 29 % 67;
        const std::int64_t k = at <= 40 ? kDepths[at % 10] : at % 2 == 0 ? 257 : 513;
        GuardedMemory memory(at % 3 == 0 ? GuardedMemory::Side::behind
                                         : GuardedMemory::Side::before);
        const auto guarded = [&](const Tensor& x) { return memory.place(x); };
        const TensorView a = guarded(numbers({m, k}, type, 1));
        const TensorView b = guarded(numbers({k, n}, type, 2));
        const TensorView across = guarded(Tensor::copy_of(a.permute({1, 0})));
        const TensorView bt = guarded(Tensor::copy_of(b.permute({1, 0})));
        const TensorView bias = guarded(numbers({n}, type, 3));
        const PackedWeights ready = packed(bt.permute({1, 0}), *kernel, context);
        const Tensor empty({m, n}, type);
        const TensorView c[] = {guarded(empty), guarded(empty), guarded(empty), guarded(empty),
                                guarded(empty)};
        const TensorView plain[] = {guarded(empty), guarded(empty), guarded(empty)};
        const Multiplication list[] = {{a, b, bias, c[0]},
                                       {a, bt.permute({1, 0}), bias, c[1]},
                                       {across.permute({1, 0}), b, bias, c[2]},
                                       {across.permute({1, 0}), b, bias, c[3], &ready},
                                       {a, b, bias, c[4], &ready},
                                       {a, b, {}, plain[0]},
                                       {a, bt.permute({1, 0}), {}, plain[1]},
                                       {a, b, {}, plain[2], &ready}};
        matmul(list, context);
        expect_defined(a, b, bias, c[0], context);
        expect_defined(a, b, {}, plain[0], context);
        for (const TensorView& made : plain)
          ASSERT_EQ(difference(made, plain[0]), "") << m << " " << k;
        for (const TensorView& made : c) ASSERT_EQ(difference(made, c[0]), "") << m << " " << k;
      }
    }
    ran += takes_any ? 1 : 0;
  }
  const int instruction_sets = machine.avx512 ? 2 : machine.avx2 || machine.neon ? 1 : 0;
  const int of_16_bits = (machine.amx_permitted ? 1 : 0) + (machine.amx_fp16 ? 1 : 0) +
                         (machine.avx512_bf16 ? 1 : 0) + (machine.neon_bf16 ? 1 : 0);
  EXPECT_EQ(ran, 2 + instruction_sets + of_16_bits);
}

// Calls use() with every row of this machine, forced, and each type that it takes.
template <class Use>
void for_each_row(Use use) {
  for (const Kernel<Product>* kernel : kernel_table<Product>()) {
    Context context({.kernels = "product:" + std::string(kernel->name)});
    SCOPED_TRACE(kernel->name);
    for (const DType type : kFloatTypes) {
      const ProductProblem problem{.device = {}, .type = type, .bias = true};
      if (why_not(*kernel, problem, features_of(problem), this_machine()).empty())
        use(context, type);
    }
  }
}

// Gradients of weights: a short depth and a's rows side by side; c of 16 bits is made on the way.
TEST(Matmul, gradients_of_weights_have_the_defined_bits) {
  for_each_row([](Context& context, DType type) {
    for (const std::int64_t k : {1, 20, 256, 300}) {
      const std::int64_t m = k < 256 ? 200 : 97, n = k < 256 ? 290 : 35;
      const Tensor dy = numbers({k, m}, type, 1), x = numbers({k, n}, type, 2);
      Tensor wide = numbers({m, n + 5}, type, 3);
      const Tensor before = wide;
      const TensorView c = wide.view().slice(1, 3, 3 + n);
      matmul(dy.view().permute({1, 0}), x, {}, c, context);
      expect_defined(dy.view().permute({1, 0}), x, {}, c, context);
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>(0, 3), {3 + n, 5 + n}})
        ASSERT_EQ(difference(wide.view().slice(1, begin, end), before.view().slice(1, begin, end)),
                  "")
            << k;
    }
  });
}

// A caller of a row's functions may ask for more columns of a c of 16 bits than tasks have.
TEST(Matmul, a_wide_range_of_a_c_of_16_bits) {
  for (const Kernel<Product>* kernel : kernel_table<Product>()) {
    const ProductProblem problem{.device = {}, .type = DType::f32};
    if (!why_not(*kernel, problem, features_of(problem), this_machine()).empty()) continue;
    for (const std::int64_t k : {0, 5, 300}) {
      const std::int64_t m = 110, n = 601;
      const Tensor a = numbers({k, m}, DType::f32, 1), b = numbers({k, n}, DType::bf16, 2);
      Tensor c({m, n}), rounded = numbers({m, n}, DType::bf16, 3), expected({m, n}, DType::bf16);
      Matrices<float> p{.m = m, .n = n, .k = k};
      p.a = a.data<float>();
      p.a_row = 1, p.a_depth = m;
      p.b_type = DType::bf16, p.narrow = b.data<bf16>();
      p.b_depth = n, p.b_column = 1;
      p.c = c.data<float>();
      p.c_row = n;
      kernel->f32.run(p, {0, m, 0, n});
      p.c = nullptr;
      p.c_type = DType::bf16, p.narrow_c = rounded.data<bf16>();
      kernel->f32.run(p, {0, m, 0, n});
      for (std::int64_t x = 0; x < m * n; ++x) expected.data<bf16>()[x] = bf16(c.data<float>()[x]);
      ASSERT_EQ(difference(rounded, expected), "") << kernel->name << " " << k;
    }
  }
}

// Inside of a long sum a row asks whether it is to stop, for a c of 16 bits as for any other.
TEST(Matmul, a_c_of_16_bits_stops_inside_of_a_sum) {
  struct Asked : Interrupt {
    int questions = 0;
  };
  for (const Kernel<Product>* kernel : kernel_table<Product>()) {
    const ProductProblem problem{.device = {}, .type = DType::f32};
    if (!why_not(*kernel, problem, features_of(problem), this_machine()).empty()) continue;
    constexpr std::int64_t kRows = 110, kColumns = 35, kSteps = 10000;
    const Tensor a = numbers({kSteps, kRows}, DType::f32, 1),
                 b = numbers({kSteps, kColumns}, DType::bf16, 2);
    Tensor c({kRows, kColumns}, DType::bf16);
    Matrices<float> p{.m = kRows, .n = kColumns, .k = kSteps};
    p.a = a.data<float>();
    p.a_row = 1, p.a_depth = kRows;
    p.b_type = DType::bf16, p.narrow = b.data<bf16>();
    p.b_depth = kColumns, p.b_column = 1;
    p.c_row = kColumns;
    p.c_type = DType::bf16, p.narrow_c = c.data<bf16>();
    Asked asked;
    asked.ask = [](Interrupt& self, bool) noexcept {
      ++static_cast<Asked&>(self).questions;
      return false;
    };
    kernel->f32.run(p, {0, kRows, 0, kColumns, &asked});
    EXPECT_GT(asked.questions, 0) << kernel->name;
  }
}

// NaN, of any payload, and infinities of b, wherever rows are few or many, along or across.
TEST(Matmul, what_is_not_finite_in_b_stays_in_its_column) {
  for_each_row([](Context& context, DType type) {
    const std::int64_t k = 300, n = 80;
    const Tensor b = numbers({k, n}, type, 2);
    Tensor broken = b;
    with_type(type, [&]<class T>(T) {
      if constexpr (sizeof(T) == 2) {
        constexpr std::uint16_t kInfinity = std::is_same_v<T, bf16> ? 0x7F80 : 0x7C00;
        broken.data<T>()[0 * n + 7].bits = kInfinity;
        broken.data<T>()[299 * n + 79].bits = kInfinity | 0x8001;  // a signalling NaN
        broken.data<T>()[256 * n + 33].bits = kInfinity | 0x0020;
      } else {
        broken.data<T>()[0 * n + 7] = std::numeric_limits<T>::infinity();
        broken.data<T>()[299 * n + 79] = std::numeric_limits<T>::signaling_NaN();
        broken.data<T>()[256 * n + 33] = std::numeric_limits<T>::quiet_NaN();
      }
    });
    const Tensor turned = Tensor::copy_of(broken.view().permute({1, 0}));
    const ConstTensorView as_rows = broken, as_columns = turned.view().permute({1, 0});
    for (const std::int64_t m : {1, 2, 3, 20, 60, 250}) {
      const Tensor a = numbers({m, k}, type, 1), expected = product(a, b, {}, context);
      const Tensor across = Tensor::copy_of(a.view().permute({1, 0}));
      for (const ConstTensorView& of_a : {a.view(), across.view().permute({1, 0})})
        for (const ConstTensorView& of_b : {as_rows, as_columns}) {
          const Tensor c = product(of_a, of_b, {}, context);
          for (std::int64_t j = 0; j < n; ++j) {
            if (j != 7 && j != 33 && j != 79) {
              ASSERT_EQ(difference(c.view().slice(1, j, j + 1), expected.view().slice(1, j, j + 1)),
                        "")
                  << m << " " << j;
            } else {
              for (std::int64_t i = 0; i < m; ++i)
                ASSERT_FALSE(std::isfinite(value(c, {i, j}))) << m << " " << j;
            }
          }
        }
    }
  });
}

// What is done at the end has the bits of the same thing done after the product: on one thread and
// several, with c where it is wanted, of 16 bits, or a part of something wider.
TEST(Matmul, an_end_is_the_same_as_what_comes_after) {
  for (const int threads : {1, 3})
    for (const DType type : kFloatTypes)
      for (const std::int64_t m : {1, 5, 130})
        for (const bool wide : {false, true}) {
          const std::int64_t n = 300, k = 70;
          Context context({.threads = threads});
          const Tensor a = numbers({m, k}, type, 1), b = numbers({k, n}, type, 2),
                       bias = numbers({n}, type, 3), gate = numbers({m, n}, type, 4),
                       residual = numbers({m, n + 9}, type, 5);
          const ConstTensorView more = residual.view().slice(1, 2, 2 + n);
          for (const std::optional<Activation> activation :
               {std::optional<Activation>(), std::optional(Activation::gelu),
                std::optional(Activation::swiglu)}) {
            SCOPED_TRACE(std::string(name_of(type)) + " rows " + std::to_string(m));
            const bool gated = activation == Activation::swiglu;
            Tensor expected({m, n}, type), found({m, n + 5}, type), whole({m, n}, type);
            matmul(a, b, bias, expected, context);
            if (activation) {
              const ActivationProblem problem{{}, type, *activation};
              ContextState::of(context).row_for<ActivationForward>(problem).run(
                  problem,
                  {n, expected.view().data(), gated ? gate.view().data() : nullptr,
                   expected.view().data()},
                  {0, m});
            }
            add_to(expected, Tensor::copy_of(more), context);
            const TensorView c = wide ? found.view().slice(1, 3, 3 + n) : whole.view();
            const Multiplication one[] = {{.a = a,
                                           .b = b,
                                           .row_bias = bias,
                                           .c = c,
                                           .activation = activation,
                                           .gate = gated ? gate.view() : ConstTensorView(),
                                           .residual = more}};
            matmul(one, context);
            ASSERT_EQ(difference(c, expected), "");
          }
        }
}

// The row that packs weights is the one that runs without, whatever is asked for at the end.
TEST(Matmul, the_row_does_not_depend_on_packing) {
  for (const DType type : kFloatTypes)
    for (const bool biased : {false, true}) {
      Context context({.threads = 1});
      const Linear linear({.in = 70, .out = 90, .bias = biased, .type = type});
      const WeightPacking::Use use = WeightPacking::of(linear, context);
      ASSERT_NE(use.weights(), nullptr);
      const auto* const row = &product_row(type, biased, context);
      EXPECT_EQ(use.weights()->row, row);
      const Tensor x = numbers({9, 70}, type, 1), gate = numbers({9, 90}, type, 2),
                   residual = numbers({9, 90}, type, 3);
      for (const bool gated : {false, true})
        for (const bool more : {false, true}) {
          Tensor packed({9, 90}, type), open({9, 90}, type);
          Multiplication product{
              .a = x,
              .b = linear.weight().view().permute({1, 0}),
              .row_bias = linear.bias(),
              .c = open,
              .activation = gated ? Activation::swiglu : Activation::gelu,
              .gate = gated ? gate.view() : ConstTensorView(),
              .residual = more ? residual.view() : ConstTensorView(),
          };
          matmul({&product, 1}, context);
          product.c = packed;
          product.packed = use.weights();
          matmul({&product, 1}, context);
          EXPECT_EQ(difference(packed, open), "") << gated << more;
        }
      // Ends are no business of a row on the host.
      const ProductProblem ends{
          .device = {}, .type = type, .bias = biased, .activation = true, .residual = true};
      EXPECT_EQ(why_not(*row, ends, features_of(ends), this_machine()),
                "takes no an activation at the end, a residual at the end, relu");
    }
}

TEST(Matmul, every_small_size_is_near_the_sum_in_f64) {
  for (std::int64_t m = 1; m <= 33; m += 4)
    for (std::int64_t n = 1; n <= 33; ++n)
      for (std::int64_t k = 1; k <= 33; k += 8) {
        const Tensor a = numbers({m, k}, DType::f32, 1), b = numbers({k, n}, DType::f32, 2);
        const Tensor c = product(a, b);
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j)
            ASSERT_NEAR(c.at<float>({i, j}), defined_sum<double>(a, b, i, j), 1e-5);
      }
}

TEST(Matmul, sums_are_in_blocks_of_256) {
  for (const DType type : kFloatTypes)
    for (const std::int64_t k : {255, 256, 257, 511, 512, 513, 1000}) {
      const Tensor a = numbers({5, k}, type, 1), b = numbers({k, 9}, type, 2);
      expect_defined(a, b, {}, product(a, b));
    }
  // Where the order is seen: 2^24 + 1 is 2^24 in f32, but ones of a block of their own add up.
  Tensor a({1, 512}), b({512, 1});
  std::fill_n(a.data<float>(), 512, 1.0F);
  std::fill_n(b.data<float>() + 256, 256, 1.0F);
  b.data<float>()[0] = 0x1p24F;
  EXPECT_EQ(product(a, b).at<float>({0, 0}), 0x1p24F + 256);
  std::fill_n(b.data<float>(), 512, 0.0F);
  std::fill_n(b.data<float>() + 1, 255, 1.0F);
  b.data<float>()[0] = 0x1p24F;
  EXPECT_EQ(product(a, b).at<float>({0, 0}), 0x1p24F);
}

TEST(Matmul, larger_than_a_panel) {
  for (const DType type : {DType::f64, DType::f32, DType::f16}) {
    const Tensor a = numbers({67, 300}, type, 1), b = numbers({300, 139}, type, 2);
    const Tensor bias = numbers({139}, type, 3);
    expect_defined(a, b, bias, product(a, b, bias));
  }
}

TEST(Matmul, an_empty_sum_is_the_bias) {
  for_each_row([](Context& context, DType type) {
    for (const std::int64_t m : {1, 3, 100})
      for (const bool across : {false, true}) {
        const Tensor rows({m, 0}, type), columns({0, m}, type), b({0, 4}, type),
            bias = numbers({4}, type, 1);
        const ConstTensorView a = across ? columns.view().permute({1, 0}) : rows.view();
        Tensor c = numbers({m, 4}, type, 2);
        matmul(a, b, bias, c, context);
        ASSERT_EQ(difference(c, bias.view().broadcast_to({m, 4})), "");
        matmul(a, b, {}, c, context);
        ASSERT_EQ(difference(c, Tensor({m, 4}, type)), "");
      }
  });
}

TEST(Matmul, nothing_is_made_of_nothing) {
  const Tensor a({0, 4}), b = numbers({4, 3}, DType::f32, 1), none({4, 0});
  EXPECT_EQ(product(a, b).shape(), (Shape{0, 3}));
  EXPECT_EQ(product(b.view().permute({1, 0}), none).shape(), (Shape{3, 0}));
}

TEST(Matmul, strides_change_no_bit) {
  for (const DType type : kFloatTypes) {
    const Tensor a = numbers({37, 61}, type, 1), b = numbers({61, 23}, type, 2);
    const Tensor bias = numbers({23}, type, 3);
    const Tensor expected = product(a, b, bias);

    const Tensor at = Tensor::copy_of(a.view().permute({1, 0}));
    const Tensor bt = Tensor::copy_of(b.view().permute({1, 0}));
    EXPECT_EQ(
        difference(product(at.view().permute({1, 0}), bt.view().permute({1, 0}), bias), expected),
        "");
    // Every second element of a larger matrix, backwards; c in the gaps of another.
    const auto spread = [&](const ConstTensorView& t) {
      Tensor large = numbers({2 * t.size(0), 3 * t.size(1)}, type, 4);
      const TensorView part =
          large.view().slice(0, 2 * t.size(0) - 1, -1, -2).slice(1, 3 * t.size(1) - 1, -1, -3);
      with_type(type, [&]<class T>(T) {
        for (std::int64_t i = 0; i < t.size(0); ++i)
          for (std::int64_t j = 0; j < t.size(1); ++j) part.at<T>({i, j}) = t.at<T>({i, j});
      });
      return large;
    };
    const auto part = [](Tensor& large) {
      return large.view().slice(0, large.size(0) - 1, -1, -2).slice(1, large.size(1) - 1, -1, -3);
    };
    Tensor large_a = spread(a), large_b = spread(b), large_c = spread(expected);
    const Tensor untouched = large_c;
    with_type(type, [&]<class T>(T) {
      for (std::int64_t i = 0; i < 37; ++i)
        for (std::int64_t j = 0; j < 23; ++j) part(large_c).at<T>({i, j}) = T{};
    });
    matmul(part(large_a), part(large_b), bias, part(large_c), default_context());
    EXPECT_EQ(difference(large_c, untouched), "") << "also what lies between c's elements";
  }
}

TEST(Matmul, a_row_is_the_same_alone_and_among_others) {
  for (const DType type : kFloatTypes) {
    const Tensor a = numbers({70, 300}, type, 1), b = numbers({300, 131}, type, 2);
    const Tensor c = product(a, b);
    for (const std::int64_t i : {0, 1, 3, 4, 63, 64, 69})
      EXPECT_EQ(difference(product(a.view().slice(0, i, i + 1), b), c.view().slice(0, i, i + 1)),
                "");
    for (const std::int64_t j : {0, 7, 8, 127, 128, 130})
      EXPECT_EQ(difference(product(a, b.view().slice(1, j, j + 1)), c.view().slice(1, j, j + 1)),
                "");
  }
}

TEST(Matmul, infinities_reach_their_own_row_only) {
  Tensor a = numbers({3, 4}, DType::f32, 1), b = numbers({4, 5}, DType::f32, 2);
  const Tensor before = product(a, b);
  a.at<float>({1, 2}) = HUGE_VALF;
  const Tensor after = product(a, b);
  for (std::int64_t j = 0; j < 5; ++j) {
    EXPECT_TRUE(std::isinf(after.at<float>({1, j})));
    EXPECT_EQ(after.at<float>({0, j}), before.at<float>({0, j}));
    EXPECT_EQ(after.at<float>({2, j}), before.at<float>({2, j}));
  }
}

void threads_change_no_bit(std::int64_t rows) {
  const Tensor a = numbers({rows, 300}, DType::f32, 1), b = numbers({300, 270}, DType::f32, 2);
  Context one({.threads = 1});
  const Tensor expected = product(a, b, {}, one);
  for (int threads = 2; threads <= 4; ++threads) {
    Context context({.threads = threads});
    EXPECT_EQ(difference(product(a, b, {}, context), expected), "") << threads;
  }
  // A caller's own loop, in another order.
  Context own({.threads = 3, .parallel_for = [](int n, const std::function<void(int)>& body) {
                 while (n-- > 0) body(n);
               }});
  EXPECT_EQ(difference(product(a, b, {}, own), expected), "");
}

// b is packed by the tasks, and before them.
TEST(Matmul, threads_change_no_bit) {
  for (const std::int64_t rows : {60, 250}) threads_change_no_bit(rows);
}

// What is packed of a b serves all products of the list that have the same b, and no other.
TEST(Matmul, several_at_once_have_the_bits_of_each_alone) {
  for_each_row([](Context& context, DType type) {
    const Tensor a = numbers({300, 70}, type, 1), more = numbers({300, 70}, type, 2),
                 b = numbers({70, 90}, type, 3), other = numbers({70, 90}, type, 4);
    Tensor c[] = {Tensor({300, 90}, type), Tensor({300, 90}, type), Tensor({300, 90}, type)};
    const Multiplication list[] = {{.a = a, .b = b, .row_bias = {}, .c = c[0]},
                                   {.a = more, .b = b, .row_bias = {}, .c = c[1]},
                                   {.a = a, .b = other, .row_bias = {}, .c = c[2]}};
    matmul(list, context);
    EXPECT_EQ(difference(c[0], product(a, b, {}, context)), "");
    EXPECT_EQ(difference(c[1], product(more, b, {}, context)), "");
    EXPECT_EQ(difference(c[2], product(a, other, {}, context)), "");
  });
}

// One that is too large to be packed before is packed by the tasks.
TEST(Matmul, a_large_b_gives_the_same_bits) {
  const Tensor a = numbers({250, 2900}, DType::f32, 1), b = numbers({2900, 2900}, DType::f32, 2);
  const Tensor c = product(a, b);
  for (const std::int64_t i : {0, 95, 96, 239, 240, 249})
    EXPECT_EQ(difference(product(a.view().slice(0, i, i + 1), b), c.view().slice(0, i, i + 1)), "");
}

TEST(Matmul, a_small_problem_stays_on_the_caller) {
  int calls = 0;
  Context own({.threads = 4, .parallel_for = [&](int n, const std::function<void(int)>& body) {
                 ++calls;
                 while (n-- > 0) body(n);
               }});
  product(numbers({8, 8}, DType::f32, 1), numbers({8, 300}, DType::f32, 2), {}, own);
  EXPECT_EQ(calls, 0);
  product(numbers({80, 80}, DType::f32, 1), numbers({80, 300}, DType::f32, 2), {}, own);
  EXPECT_EQ(calls, 1);
  product(numbers({250, 300}, DType::f32, 1), numbers({300, 80}, DType::f32, 2), {}, own);
  EXPECT_EQ(calls, 3) << "b is packed first";
}

}  // namespace
}  // namespace attend::test
