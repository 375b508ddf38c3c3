// Layers on tensors of a GPU: every operation and layer beside the CPU's, a row's bits alone and
// among others, NaN, no rows, odd strides, and what is refused. Without a GPU all are skipped.
#include "api/context.h"
#include "layer/matmul.h"
#include "layer/run_rows.h"
#include "support/attention_layers.h"
#include "support/device_tensor.h"
#include "support/fake_device.h"
#include "support/thrown_by.h"
#include "support/widen.h"

#include <attend/block.h>
#include <attend/cuda.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attend::test {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

double unit_of(DType type) {  // half of the distance from 1 to the next number
  return type == DType::f64   ? 0x1p-53
         : type == DType::f32 ? 0x1p-24
         : type == DType::f16 ? 0x1p-11
                              : 0x1p-8;
}

Tensor widened_copy(const ConstTensorView& t) {
  if (!t) return {};
  Tensor wide(t.shape(), DType::f64);
  std::ranges::copy(widen(t), wide.data<double>());
  return wide;
}

class CudaLayers : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::why_unavailable(); !reason.empty())
      GTEST_SKIP() << "this machine has no GPU for it: it " << reason;
    queue = cuda::make_queue();
  }
  DType type() const { return GetParam(); }
  Where where() const { return {default_context(), *queue}; }
  Tensor there(const ConstTensorView& t) const { return Tensor::copy_of(t, kGpu, where()); }
  Tensor back(const ConstTensorView& t) const { return Tensor::copy_of(t, Device{}, where()); }

  // `found` of the device is about as near to the truth, of f64, as the host's. `size`: of the
  // terms of its sums, if that is not its own.
  void expect_as_near(const ConstTensorView& found, const ConstTensorView& host,
                      const ConstTensorView& truth, const std::string& what,
                      double size = 0) const {
    const std::vector<double> a = widen(back(found)), b = widen(host), t = widen(truth);
    ASSERT_EQ(a.size(), t.size()) << what;
    double error = 0, of_host = 0, largest = size;
    for (std::size_t n = 0; n < t.size(); ++n) {
      ASSERT_TRUE(std::isfinite(a[n])) << what << " " << n;
      error = std::max(error, std::abs(a[n] - t[n]));
      of_host = std::max(of_host, std::abs(b[n] - t[n]));
      largest = std::max(largest, std::abs(t[n]));
    }
    const double some = size_of(type()) == 2 ? 4 : 64;
    EXPECT_LE(error, 2 * of_host + some * unit_of(type()) * largest)
        << what << ": the host's is " << of_host << ", the largest number " << largest;
  }
  void expect_as_near(const std::vector<NamedTensor>& found, const std::vector<NamedTensor>& host,
                      const std::vector<NamedTensor>& truth, const std::string& what) const {
    ASSERT_EQ(found.size(), truth.size());
    for (std::size_t n = 0; n < found.size(); ++n) {
      EXPECT_EQ(found[n].name, truth[n].name);
      EXPECT_EQ(found[n].tensor.device(), kGpu);
      // A constant that is added to all keys changes no weight: its gradient is rounding.
      double size = 0;
      if (found[n].name.ends_with("k.bias"))
        for (const double v : widen(truth[n - 1].tensor)) size = std::max(size, 4 * std::abs(v));
      expect_as_near(found[n].tensor, host[n].tensor, truth[n].tensor, what + " " + found[n].name,
                     size);
    }
  }

  // Forward and training of a layer of one input: numbers, bits of a row alone, strides, training.
  template <class Layer>
  void examine(const Layer& layer, std::int64_t in, std::int64_t out, const std::string& what) {
    SCOPED_TRACE(what);
    const Layer gpu = layer.to(kGpu, where()), exact = layer.to(DType::f64);
    const Tensor x = numbers({3, 29, in}, type(), 5), dy = numbers({3, 29, out}, type(), 6);
    const Tensor on_x = there(x), on_dy = there(dy);
    const Tensor y = gpu.forward(on_x, where());
    EXPECT_EQ(y.device(), kGpu);
    expect_as_near(y, layer.forward(x), exact.forward(widened_copy(x)), "y");
    const Tensor whole = back(y);
    for (const std::int64_t b : {0, 2}) {
      const ConstTensorView one = on_x.view().slice(0, b, b + 1).slice(1, 7, 12);
      EXPECT_TRUE(same_bits(back(gpu.forward(one, where())),
                            part_of(part_of(whole, 0, b, b + 1), 1, 7, 12)))
          << "rows alone, " << b;
    }
    const Tensor across = there(Tensor::copy_of(x.view().permute({2, 0, 1})));
    const Tensor wide = there(numbers({3, 29, 2 * out + 1}, type(), 8));
    const TensorView odd = const_cast<Tensor&>(wide).view().slice(2, 1, 2 * out + 1, 2);
    gpu.forward_into(across.view().permute({1, 2, 0}), odd, where());
    EXPECT_TRUE(same_bits(back(odd), whole)) << "of any strides";

    auto [trained, saved] = gpu.forward_train(on_x, where());
    EXPECT_TRUE(same_bits(back(trained), whole)) << "trained";
    const LayerGradients found = gpu.backward(on_dy, saved, where());
    const auto host = layer.forward_train(x);
    const auto truth = exact.forward_train(widened_copy(x));
    const LayerGradients on_host = layer.backward(dy, host.second),
                         true_ones = exact.backward(widened_copy(dy), truth.second);
    expect_as_near(found.dx, on_host.dx, true_ones.dx, "dx");
    expect_as_near(found.parameters, on_host.parameters, true_ones.parameters, "gradient");
    const LayerGradients again = gpu.backward(on_dy, saved, where());
    for (std::size_t n = 0; n < found.parameters.size(); ++n)
      EXPECT_TRUE(same_bits(back(again.parameters[n].tensor), back(found.parameters[n].tensor)));

    const Tensor none = there(Tensor({0, 4, in}, type()));
    EXPECT_EQ(gpu.forward(none, where()).shape(), (Shape{0, 4, out}));
    const auto empty = gpu.forward_train(none, where());
    const LayerGradients zeros =
        gpu.backward(there(Tensor({0, 4, out}, type())), empty.second, where());
    for (const NamedTensor& g : zeros.parameters)
      for (const double v : widen(back(g.tensor))) ASSERT_EQ(v, 0) << g.name;

    Tensor poisoned = x;
    with_type(type(), [&]<class T>(T) { poisoned.at<T>({1, 3, 0}) = static_cast<T>(NAN); });
    const Tensor seen = back(gpu.forward(there(poisoned), where()));
    for (std::int64_t n = 0; n < seen.count(); ++n) {
      if (n / out == 29 + 3) EXPECT_TRUE(std::isnan(element(seen, n))) << n;
      else ASSERT_EQ(element(seen, n), element(whole, n)) << n;
    }
  }

  std::shared_ptr<Queue> queue;
};

// ---- Tensors -----------------------------------------------------------------------------------

TEST_P(CudaLayers, tensors_go_there_and_back) {
  const Tensor x = numbers({3, 5, 7}, type(), 1);
  Tensor on = there(x);
  EXPECT_EQ(on.device(), kGpu);
  EXPECT_TRUE(same_bits(back(on), x));
  Tensor copy = on;
  const Tensor moved = std::move(on);
  EXPECT_TRUE(same_bits(back(copy), x));
  EXPECT_NE(copy.view().data(), moved.view().data());
  EXPECT_TRUE(same_bits(back(moved.view().permute({2, 0, 1}).slice(0, 5, 0, -2)),
                        Tensor::copy_of(x.view().permute({2, 0, 1}).slice(0, 5, 0, -2))));
  EXPECT_TRUE(same_bits(back(Tensor::copy_of(moved, kGpu, where())), x));
  EXPECT_EQ(thrown_by([&] { Tensor::copy_of(x, kGpu, default_context()); }),
            "InvalidArgument: tensor: memory of cuda:0 comes from a queue of it, which must be "
            "given");
  EXPECT_THROW(moved.view().at<float>({0, 0, 0}), InvalidArgument);
  queue.reset();  // the tensors keep it
  copy = Tensor();
}

// ---- Rows --------------------------------------------------------------------------------------

TEST_P(CudaLayers, activations_are_the_references) {
  std::vector<double> at = {0.0, 1e-3, -1e-3, 50, -50, 5e4, -5e4, INFINITY, NAN};
  for (double x = -9; x < 9; x += 0.013) at.push_back(x);
  const auto count = static_cast<std::int64_t>(at.size());
  Tensor x({count}, type()), u = numbers({count}, type(), 2), d = numbers({count}, type(), 3);
  with_type(type(), [&]<class T>(T) {
    for (std::int64_t n = 0; n < count; ++n)
      x.data<T>()[n] = static_cast<T>(at[static_cast<std::size_t>(n)]);
  });
  const double real = type() == DType::f64 ? 0x1p-52 : 0x1p-23;
  const auto near = [&](const ConstTensorView& found, const Tensor& expected, const char* what) {
    const std::vector<double> a = widen(back(found)), b = widen(expected);
    for (std::size_t n = 0; n < a.size(); ++n) {
      if (std::isnan(b[n]) || std::isinf(b[n])) {
        EXPECT_TRUE(a[n] == b[n] || std::isnan(a[n])) << what << " at " << at[n];
        continue;
      }
      ASSERT_NEAR(a[n], b[n], 2 * unit_of(type()) * std::abs(b[n]) + 200 * real + 1e-37)
          << what << " at " << at[n];
    }
  };
  for (const Activation kind :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::swiglu}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const bool gated = kind == Activation::swiglu;
    const auto data = [](const Tensor& t) { return t.view().data(); };
    Tensor hidden({count}, type()), dup({count}, type()), dgate({count}, type());
    const Tensor& up = gated ? u : x;
    reference_row<ActivationForward>().run(
        {{}, type(), kind}, {count, data(up), gated ? data(x) : nullptr, hidden.view().data()},
        {0, 1});
    reference_row<ActivationBackward>().run({{}, type(), kind},
                                            {count, data(up), gated ? data(x) : nullptr, data(d),
                                             dup.view().data(), dgate.view().data()},
                                            {0, 1});
    const Tensor on_up = there(up), on_gate = there(x), on_d = there(d);
    Tensor on_hidden = there(x), on_dup = there(x), on_dgate = there(x);
    run_rows<ActivationForward>(
        {kGpu, type(), kind},
        {count, data(on_up), gated ? data(on_gate) : nullptr, on_hidden.view().data()}, 1, count,
        where());
    run_rows<ActivationBackward>({kGpu, type(), kind},
                                 {count, data(on_up), gated ? data(on_gate) : nullptr, data(on_d),
                                  on_dup.view().data(), on_dgate.view().data()},
                                 1, count, where());
    near(on_hidden, hidden, "value");
    near(on_dup, dup, "dup");
    if (gated) near(on_dgate, dgate, "dgate");
  }
}

TEST_P(CudaLayers, conversion_has_the_hosts_bits) {
  std::vector<std::uint64_t> patterns;
  for (std::uint64_t n = 0; n < 4096; ++n) patterns.push_back(n * 0x9E3779B97F4A7C15);
  for (std::uint64_t n = 0; n < 65536; n += 7) patterns.push_back(n << 48 | n << 32 | n << 16 | n);
  const auto bytes = static_cast<std::int64_t>(patterns.size() * 8);
  Tensor x({bytes / size_of(type())}, type());
  std::memcpy(x.view().data(), patterns.data(), static_cast<std::size_t>(bytes));
  const Tensor on = there(x);
  for (const DType to : kFloatTypes) {
    Tensor expected(x.shape(), to);
    reference_row<Convert>().run({{}, type(), to},
                                 {x.count(), x.view().data(), expected.view().data()}, {0, 1});
    Tensor made = there(Tensor(x.shape(), to));
    run_rows<Convert>({kGpu, type(), to}, {x.count(), on.view().data(), made.view().data()}, 1,
                      x.count(), where());
    const Tensor found = back(made);
    for (std::int64_t n = 0; n < x.count(); ++n) {
      const double a = element(found, n), b = element(expected, n);
      if (std::isnan(b)) ASSERT_TRUE(std::isnan(a) && std::signbit(a) == std::signbit(b)) << n;
      else ASSERT_EQ(a, b) << n << " to " << name_of(to);
    }
  }
}

TEST_P(CudaLayers, norms_of_extreme_rows) {
  const double most = type() == DType::f64   ? std::numeric_limits<double>::max()
                      : type() == DType::f16 ? 65504
                                             : 3e38;
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
    Norm norm({.dim = 40, .kind = kind, .type = type()});
    draw_parameters(norm, 3);
    const Norm gpu = norm.to(kGpu, where());
    Tensor x = numbers({6, 40}, type(), 1);
    with_type(type(), [&]<class T>(T) {
      for (std::int64_t c = 0; c < 40; ++c) {
        x.at<T>({0, c}) = static_cast<T>(c % 2 == 0 ? most : -most);
        x.at<T>({1, c}) = static_cast<T>(0.0);
        x.at<T>({2, c}) = static_cast<T>(1e-7 * static_cast<double>(c));
        x.at<T>({3, c}) = static_cast<T>(1000.0 + static_cast<double>(c));
      }
      x.at<T>({4, 7}) = static_cast<T>(NAN);
    });
    const Tensor found = back(gpu.forward(there(x), where())), host = norm.forward(x);
    for (std::int64_t n = 0; n < host.count(); ++n) {
      if (n / 40 == 4) EXPECT_TRUE(std::isnan(element(found, n)));
      else
        ASSERT_NEAR(element(found, n), element(host, n),
                    2 * unit_of(type()) * std::abs(element(host, n)) + 1e-13)
            << n;
    }
  }
}

// ---- Products ----------------------------------------------------------------------------------

struct ProductShape {
  std::int64_t m, n, k;
};

TEST_P(CudaLayers, products_of_every_shape_and_layout) {
  const char* const rows[] = {"cuda.cublaslt.product", "cuda.portable.product"};
  for (const char* row : rows) {
    Context context({.kernels = "product:" + std::string(row)});
    const Where on(context, *queue);
    for (const auto& [m, n, k] : {ProductShape{1, 1, 1},
                                  {2, 3, 5},
                                  {7, 64, 40},
                                  {65, 33, 257},
                                  {130, 96, 520},
                                  {300, 8, 16},
                                  {64, 128, 1000},
                                  {3, 5, 0}})
      for (const int layout : {0, 1, 2, 3, 4}) {
        SCOPED_TRACE(testing::Message()
                     << row << " " << m << " " << n << " " << k << " " << layout);
        const Tensor a = numbers({m, k}, type(), 1), b = numbers({k, n}, type(), 2);
        const Tensor bias = numbers({n}, type(), 3), residual = numbers({m, n}, type(), 4),
                     gate = numbers({m, n}, type(), 5);
        const bool biased = layout != 1;
        const std::optional<Activation> activation = layout == 2 ? std::optional(Activation::gelu)
                                                     : layout == 3
                                                         ? std::optional(Activation::swiglu)
                                                         : std::nullopt;
        Tensor expected({m, n}, DType::f64);
        const Tensor wide_a = widened_copy(a), wide_b = widened_copy(b),
                     wide_bias = widened_copy(bias);
        matmul(wide_a, wide_b, biased ? ConstTensorView(wide_bias) : ConstTensorView(), expected,
               default_context());
        const Tensor on_a = there(layout == 2 ? Tensor::copy_of(a.view().permute({1, 0})) : a);
        const Tensor on_b = there(layout == 1 ? b : Tensor::copy_of(b.view().permute({1, 0})));
        const Tensor on_bias = there(bias), on_residual = there(residual), on_gate = there(gate);
        // One element in front, and odd rows: nothing is aligned.
        Tensor memory = there(numbers({m, n + 1}, type(), 9));
        const TensorView c =
            layout == 4 ? memory.view().slice(1, 1, n + 1) : memory.view().slice(1, 0, n);
        const Multiplication one[] = {
            {.a = layout == 2 ? on_a.view().permute({1, 0}) : on_a.view(),
             .b = layout == 1 ? on_b.view() : on_b.view().permute({1, 0}),
             .row_bias = biased ? ConstTensorView(on_bias) : ConstTensorView(),
             .c = c,
             .activation = activation,
             .gate = layout == 3 ? ConstTensorView(on_gate) : ConstTensorView(),
             .residual = layout >= 3 ? ConstTensorView(on_residual) : ConstTensorView()}};
        matmul(one, on);
        const Tensor found = back(c);
        const double sums =
            (type() == DType::f64 ? 0x1p-51 : 0x1p-22) * (1 + static_cast<double>(k));
        for (std::int64_t r = 0; r < m; ++r)
          for (std::int64_t x = 0; x < n; ++x) {
            double value_there = value(expected, {r, x}), slope = 1;
            if (layout == 2) value_there *= std::erfc(-value_there / std::sqrt(2.0)) / 2;
            if (layout == 3) {
              const double g = value(gate, {r, x});
              slope = std::abs(g);
              value_there *= g / (1 + std::exp(-g));
            }
            if (layout >= 3) value_there += value(residual, {r, x});
            ASSERT_NEAR(
                value(found, {r, x}), value_there,
                sums + unit_of(type()) * (3 * std::abs(value_there) +
                                          3 * slope * std::abs(value(expected, {r, x})) + 2))
                << r << " " << x;
          }
      }
  }
}

// The algorithm is chosen by type, n and k: no bit of a row depends on how many there are.
TEST_P(CudaLayers, a_row_of_a_product_has_the_same_bits_among_any_number) {
  const ProductShape shapes[] = {{300, 64, 64},   {300, 96, 40},    {300, 768, 768},
                                 {300, 1000, 33}, {300, 512, 2048}, {300, 4096, 1024},
                                 {300, 17, 3000}, {300, 2048, 512}};
  for (const bool across : {true, false})  // as x W^T is, and dy W
    for (const ProductShape& shape : shapes) {
      const std::int64_t m = shape.m, n = shape.n, k = shape.k;
      const Tensor a = there(numbers({m, k}, type(), 1)), bias = there(numbers({n}, type(), 3));
      const Tensor b = there(across ? numbers({n, k}, type(), 2) : numbers({k, n}, type(), 2));
      const ConstTensorView view = across ? b.view().permute({1, 0}) : b.view();
      const auto product = [&](std::int64_t begin, std::int64_t end) {
        Tensor c = Tensor::uninitialized({end - begin, n}, type(), kGpu, where());
        matmul(a.view().slice(0, begin, end), view,
               across ? ConstTensorView(bias) : ConstTensorView(), c, where());
        return back(c);
      };
      const Tensor all = product(0, m);
      int different = 0;
      for (std::int64_t rows = 1; rows < m; ++rows) {
        const std::int64_t begin = rows % 3 == 0 ? m - rows : rows % 3 == 1 ? 0 : (m - rows) / 2;
        if (!same_bits(product(begin, begin + rows), part_of(all, 0, begin, begin + rows)))
          ++different;
      }
      EXPECT_EQ(different, 0) << "of 299: n " << n << ", k " << k << (across ? ", W^T" : ", W");
      Tensor many = Tensor::uninitialized({20 * m, n}, type(), kGpu, where());
      const Tensor repeated = there([&] {
        const Tensor once = back(a);
        Tensor list({20 * m, k}, type());
        for (int time = 0; time < 20; ++time)
          std::memcpy(
              static_cast<std::byte*>(list.view().data()) + time * once.count() * size_of(type()),
              once.view().data(), static_cast<std::size_t>(once.count() * size_of(type())));
        return list;
      }());
      matmul(repeated, view, across ? ConstTensorView(bias) : ConstTensorView(), many, where());
      const Tensor found = back(many);
      EXPECT_TRUE(same_bits(part_of(found, 0, 13 * m, 14 * m), all)) << "of 6000";
    }
}

TEST_P(CudaLayers, weights_of_8_bits) {
  Linear layer({.in = 130, .out = 70, .type = type()});
  draw_parameters(layer, 1);
  const Linear small = layer.quantize(), gpu = small.to(kGpu, where());
  EXPECT_TRUE(gpu.quantized());
  const Tensor x = numbers({5, 130}, type(), 2);
  expect_as_near(gpu.forward(there(x), where()), small.forward(x),
                 small.to(DType::f64).forward(widened_copy(x)), "y");
  const Linear home = gpu.to(Device{}, where());
  EXPECT_TRUE(same_bits(home.forward(x), small.forward(x)));
  EXPECT_THROW(gpu.backward(there(x), there(x), where()), Unsupported);
}

// ---- Layers ------------------------------------------------------------------------------------

TEST_P(CudaLayers, linear) {
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{48, 96}, {33, 7}, {1, 1}})
    for (const bool bias : {true, false}) {
      Linear layer({.in = in, .out = out, .bias = bias, .type = type()});
      draw_parameters(layer, 1);
      examine(layer, in, out, "linear " + std::to_string(in) + " " + std::to_string(out));
    }
}

TEST_P(CudaLayers, norms) {
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm})
    for (const std::int64_t dim : {2, 33, 256, 1025}) {
      Norm norm({.dim = dim, .kind = kind, .type = type()});
      draw_parameters(norm, 2);
      examine(norm, dim, dim, "norm " + std::to_string(dim));
    }
}

TEST_P(CudaLayers, feed_forward) {
  for (const Activation kind :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::swiglu}) {
    FeedForward layer({.model_dim = 24, .hidden_dim = 56, .activation = kind, .type = type()});
    draw_parameters(layer, 4);
    examine(layer, 24, 24, "feed_forward " + std::to_string(static_cast<int>(kind)));
  }
}

struct AttentionTrial {
  const char* name;
  MultiHeadAttentionOptions layer;
  bool causal;
};

std::vector<AttentionTrial> attention_trials(DType type) {
  return {{"plain", {.model_dim = 64, .heads = 4, .type = type}, false},
          {"grouped, rotary",
           {.model_dim = 64, .heads = 4, .key_heads = 2, .rotary = Rotary{}, .type = type},
           true},
          {"neighbours, no output projection",
           {.model_dim = 24,
            .heads = 3,
            .output_projection = false,
            .rotary = Rotary{.pairing = Rotary::Pairing::neighbours},
            .type = type},
           true},
          {"wide heads", {.model_dim = 128, .heads = 2, .bias = false, .type = type}, true}};
}

TEST_P(CudaLayers, multi_head_attention) {
  for (const AttentionTrial& trial : attention_trials(type())) {
    SCOPED_TRACE(trial.name);
    const MultiHeadAttention layer = drawn(trial.layer, 3), gpu = layer.to(kGpu, where()),
                             exact = layer.to(DType::f64);
    const std::int64_t width = trial.layer.model_dim;
    const Tensor x = numbers({2, 37, width}, type(), 1), dy = numbers({2, 37, width}, type(), 2);
    const Tensor on_x = there(x), on_dy = there(dy);
    const AttentionOptions options{.causal = trial.causal};
    const Tensor y = gpu.forward(on_x, options, {}, where());
    expect_as_near(y, layer.forward(x, options), exact.forward(widened_copy(x), options), "y");
    const Tensor one = gpu.forward(on_x.view().slice(0, 1, 2), options, {}, where());
    EXPECT_TRUE(same_bits(back(one), part_of(back(y), 0, 1, 2))) << "a sequence alone";

    auto [trained, saved] = gpu.forward_train(on_x, options, where());
    EXPECT_TRUE(same_bits(back(trained), back(y)));
    const auto found = gpu.backward(on_dy, saved, where());
    auto [host_y, host_saved] = layer.forward_train(x, options);
    auto [true_y, true_saved] = exact.forward_train(widened_copy(x), options);
    const auto host = layer.backward(dy, host_saved);
    const auto truth = exact.backward(widened_copy(dy), true_saved);
    expect_as_near(found.dx, host.dx, truth.dx, "dx");
    expect_as_near(found.parameters, host.parameters, truth.parameters, "gradient");

    // Lengths and offsets of the device; keys and values of their own.
    const Tensor lengths = lengths_tensor({20, 33}), on_lengths = there(lengths);
    AttentionOptions of_host = options, of_gpu = options;
    of_host.key_lengths = lengths;
    of_gpu.key_lengths = on_lengths.view();
    const Tensor key = numbers({2, 33, width}, type(), 7), on_key = there(key);
    expect_as_near(
        gpu.forward(on_x, on_key, on_key, of_gpu, {}, where()), layer.forward(x, key, key, of_host),
        exact.forward(widened_copy(x), widened_copy(key), widened_copy(key), of_host), "cross");
  }
}

TEST_P(CudaLayers, packed_sequences_with_rotary_positions) {
  const MultiHeadAttention layer = drawn(
                               {.model_dim = 32, .heads = 2, .rotary = Rotary{}, .type = type()}),
                           gpu = layer.to(kGpu, where());
  const Tensor x = numbers({1, 30, 32}, type(), 1), starts = lengths_tensor({0, 11, 11, 30});
  const Tensor on_starts = there(starts);
  AttentionOptions host{.causal = true, .cu_seqlens_q = starts};
  AttentionOptions on{.causal = true, .cu_seqlens_q = on_starts.view(), .max_q = 19, .max_k = 19};
  expect_as_near(gpu.forward(there(x), on, {}, where()), layer.forward(x, host),
                 layer.to(DType::f64).forward(widened_copy(x), host), "y");
}

TEST_P(CudaLayers, blocks) {
  for (const NormPlacement placement :
       {NormPlacement::pre, NormPlacement::post, NormPlacement::none})
    for (const bool cross : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(placement) << " " << cross);
      AttentionBlock layer({.attention = {.model_dim = 32, .heads = 2, .type = type()},
                            .cross = cross,
                            .memory_dim = cross ? 24 : 0,
                            .hidden_dim = 48,
                            .activation = cross ? Activation::swiglu : Activation::gelu,
                            .placement = placement,
                            .norm = cross ? NormKind::rms_norm : NormKind::layer_norm});
      draw_parameters(layer, 5);
      const AttentionBlock gpu = layer.to(kGpu, where()), exact = layer.to(DType::f64);
      const Tensor x = numbers({2, 21, 32}, type(), 1), dy = numbers({2, 21, 32}, type(), 2);
      const Tensor memory = cross ? numbers({2, 17, 24}, type(), 3) : Tensor();
      const Tensor on_x = there(x), on_dy = there(dy), on_memory = cross ? there(memory) : Tensor();
      const AttentionOptions self{.causal = true};
      const auto view = [](const Tensor& t) { return t ? ConstTensorView(t) : ConstTensorView(); };
      const Tensor wide_memory = widened_copy(memory);
      const Tensor y = gpu.forward(on_x, view(on_memory), self, {}, where());
      expect_as_near(y, layer.forward(x, view(memory), self),
                     exact.forward(widened_copy(x), view(wide_memory), self), "y");
      const Tensor one = gpu.forward(on_x.view().slice(0, 1, 2),
                                     cross ? on_memory.view().slice(0, 1, 2) : ConstTensorView(),
                                     self, {}, where());
      EXPECT_TRUE(same_bits(back(one), part_of(back(y), 0, 1, 2))) << "a sequence alone";
      auto [trained, saved] = gpu.forward_train(on_x, view(on_memory), self, {}, where());
      EXPECT_TRUE(same_bits(back(trained), back(y))) << "trained";
      const auto found = gpu.backward(on_dy, saved, where());
      auto [host_y, host_saved] = layer.forward_train(x, view(memory), self);
      auto [true_y, true_saved] = exact.forward_train(widened_copy(x), view(wide_memory), self);
      const auto host = layer.backward(dy, host_saved);
      const auto truth = exact.backward(widened_copy(dy), true_saved);
      expect_as_near(found.dx, host.dx, truth.dx, "dx");
      if (cross) expect_as_near(found.dmemory, host.dmemory, truth.dmemory, "dmemory");
      expect_as_near(found.parameters, host.parameters, truth.parameters, "gradient");
    }
}

// ---- What is refused ---------------------------------------------------------------------------

TEST_P(CudaLayers, what_only_the_host_does_says_so) {
  const MultiHeadAttention layer({.model_dim = 16, .heads = 2, .type = type()});
  const MultiHeadAttention gpu = layer.to(kGpu, where());
  const Tensor x = numbers({1, 4, 16}, type(), 1), on_x = there(x);
  const std::string there_alone =
      " takes host memory alone, found cuda:0; make a copy in it: to() of a layer, "
      "Tensor::copy_of()";
  EXPECT_EQ(thrown_by([&] { gpu.heads(on_x, {}, where()); }),
            "Unsupported: multi_head_attention: heads()" + there_alone);
  EXPECT_EQ(thrown_by([&] { gpu.trace(on_x, {}, where()); }),
            "Unsupported: multi_head_attention: trace()" + there_alone);
  EXPECT_EQ(thrown_by([&] { gpu.make_cache(1, 8); }),
            "Unsupported: multi_head_attention: a KvCache" + there_alone);
  EXPECT_EQ(thrown_by([&] { static_cast<void>(gpu.split()); }),
            "Unsupported: multi_head_attention: split()" + there_alone);
  EXPECT_EQ(thrown_by([&] { gpu.quantize(); }),
            "Unsupported: multi_head_attention: quantize()" + there_alone);
  EXPECT_EQ(thrown_by([&] { gpu.to(DType::f64); }),
            "Unsupported: multi_head_attention: to() another type" + there_alone);
  EXPECT_THROW(gpu.forward_train(on_x, {.window = {.left = 2}}, where()), Unsupported);
  EXPECT_EQ(thrown_by([&] { gpu.forward(on_x); }),
            "InvalidArgument: multi_head_attention: the tensors are on cuda:0; a queue of it must "
            "be given");
  EXPECT_EQ(thrown_by([&] { gpu.forward(x, {}, {}, where()); }),
            "InvalidArgument: multi_head_attention: query is on cpu, the layer on cuda:0; both "
            "must be on one device");
  EXPECT_EQ(thrown_by([&] { layer.forward(on_x, {}, {}, where()); }),
            "InvalidArgument: multi_head_attention: query is on cuda:0, not in host memory");
  const Linear linear = gpu.q();
  EXPECT_EQ(
      thrown_by([&] { linear.forward(x, where()); }),
      "InvalidArgument: linear: x is on cpu, the layer on cuda:0; both must be on one device");
  Tensor y = Tensor::uninitialized({1, 4, 16}, type(), kGpu, where());
  EXPECT_EQ(thrown_by([&] { linear.forward_into(on_x, const_cast<Tensor&>(on_x), where()); }),
            "InvalidArgument: linear: y overlaps x in memory; outputs must not");
  FakeQueue fake;
  EXPECT_EQ(thrown_by([&] { linear.forward_into(on_x, y, Where(default_context(), fake)); }),
            "DeviceError: product: cuda:0 failed: its queue is not one that "
            "attend::cuda::make_queue() made");
}

INSTANTIATE_TEST_SUITE_P(all, CudaLayers,
                         testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace attend::test
