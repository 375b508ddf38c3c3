// Are the gradients the derivatives of the forward pass? Differences in f64 for every option,
// without the oracle: the library is held against itself.
//
// The loss is L = sum(dout * out) + sum(dlse * lse), whose gradient attention_backward gives. Along
// a direction x of q, k, v, bias, sinks or alibi the fourth-order difference
//
//   dL/dx ~ (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12 h,   h = 1e-4
//
// errs by about h^4 = 1e-16 times the fifth derivative, and by 1e-16 / h = 1e-12 of |out| through
// rounding: far below the 1e-7 that is asked for.
#include "cases/instance.h"
#include "cases/random.h"
#include "support/property_trial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>

namespace attend::test {
namespace {

using cases::Case;
using cases::Instance;

constexpr double kStep = 1e-4;
constexpr double kTolerance = 1e-7;

// A case of the table, made so small that hundreds of forward passes cost nothing, with all
// gradients asked for. Broadcast inputs are left out: one of their elements stands for many.
Case shrunk(Case c) {
  c.type = DType::f64;
  c.k_type = c.v_type = {};
  c.seed = 1;
  c.batch = std::min<std::int64_t>(c.batch, 4);
  c.q_length = std::min<std::int64_t>(c.q_length, 6);
  c.k_length = std::min<std::int64_t>(c.k_length, 11);
  if (c.addressing == cases::Addressing::packed_self) c.k_length = c.q_length;
  c.d = std::min<std::int64_t>(c.d, 4);
  c.dv = std::min<std::int64_t>(c.dv, 3);
  c.block_q = std::min<std::int64_t>(c.block_q, 2);
  c.block_k = std::min<std::int64_t>(c.block_k, 3);
  c.page_size = std::min<std::int64_t>(c.page_size, 4);
  if (c.window_left != kUnlimited) c.window_left = std::min<std::int64_t>(c.window_left, 3);
  c.bias_f32 = c.weights = c.scores = c.lse_f64 = false;
  c.stage = ScoreStage::masked;
  c.width = cases::Width::same;
  c.lse = c.dlse = true;
  c.gradients = cases::Gradients::all;
  if (c.layout == cases::Layout::broadcast_batch || c.layout == cases::Layout::broadcast_heads)
    c.layout = cases::Layout::contiguous;
  return c;
}

std::vector<Case> shrunk_table() {
  std::vector<Case> all;
  std::set<std::string> seen;
  for (const Case& problem : cases::table()) {
    const Case small = shrunk(problem);
    if (seen.insert(cases::name(small)).second) all.push_back(small);
  }
  return all;
}

// The elements of a tensor that may be moved: those that are numbers.
struct Variable {
  const char* name;
  std::vector<double*> elements;
  std::vector<double> gradient;
};

Variable variable(const char* name, const ConstTensorView& view, const ConstTensorView& gradient) {
  Variable v{name, {}, {}};
  if (!view) return v;
  double* data = const_cast<double*>(static_cast<const double*>(view.data()));
  const std::vector<double> of_view = widen(gradient);
  for_each_element(view.shape(), view.strides(), [&](std::int64_t n, std::int64_t offset) {
    if (!std::isfinite(data[offset])) return;  // a page's unused slot, or a bias of -inf
    v.elements.push_back(data + offset);
    v.gradient.push_back(of_view[static_cast<std::size_t>(n)]);
  });
  return v;
}

// out and lse one after the other. lse of a row that sees nothing does not move, and counts as 0.
std::vector<double> results(const Instance& in) {
  run_forward({}, in.q, in.k, in.v, in.out, in.options, in.outputs_with_lse());
  std::vector<double> values = widen(in.out);
  for (const double lse : widen(in.lse)) values.push_back(std::isfinite(lse) ? lse : 0);
  return values;
}

class Differences {
 public:
  explicit Differences(Instance& instance) : in_(instance) {
    weights_ = widen(in_.dout);
    for (const double dlse : widen(in_.dlse)) weights_.push_back(dlse);
  }

  // The derivative of the loss along a direction.
  double along(const Variable& v, const std::vector<double>& direction) const {
    std::vector<double> origin;
    for (const double* element : v.elements) origin.push_back(*element);
    const auto at = [&](double step) {
      for (std::size_t n = 0; n < origin.size(); ++n)
        *v.elements[n] = origin[n] + step * direction[n];
      return results(in_);
    };
    const auto far = at(2 * kStep), near = at(kStep), back = at(-kStep), far_back = at(-2 * kStep);
    for (std::size_t n = 0; n < origin.size(); ++n) *v.elements[n] = origin[n];
    double sum = 0;
    for (std::size_t n = 0; n < weights_.size(); ++n)
      sum += weights_[n] * (8 * (near[n] - back[n]) - (far[n] - far_back[n]));
    return sum / (12 * kStep);
  }

 private:
  Instance& in_;
  std::vector<double> weights_;
};

// Single coordinates first, then all of them at once.
constexpr int kCoordinates = 4, kDirections = 2;

std::vector<double> direction(const Variable& v, const cases::Random& random, int n) {
  std::vector<double> x(v.elements.size());
  if (n < kCoordinates) {
    const auto count = static_cast<std::int64_t>(x.size());
    x[static_cast<std::size_t>(random.below(count, static_cast<std::uint64_t>(n)))] = 1;
  } else {
    for (std::size_t e = 0; e < x.size(); ++e)
      x[e] = random.gaussian(1000 * static_cast<std::uint64_t>(n) + e);
  }
  return x;
}

struct Tally {
  std::int64_t checks = 0, sensitive = 0;
};

// Compares gradient and difference of one variable. A check is sensitive if it would have failed,
// had the gradient been 1 % larger.
void check(const Differences& differences, const Variable& v, const std::string& name,
           std::uint64_t seed, Tally& tally) {
  if (v.elements.empty()) return;
  double largest = 0;
  for (const double g : v.gradient) largest = std::max(largest, std::abs(g));
  bool sensitive = false;
  for (int n = 0; n < kCoordinates + kDirections; ++n) {
    const std::vector<double> x = direction(v, cases::Random(seed, 77), n);
    double given = 0, size = 0;
    for (std::size_t e = 0; e < x.size(); ++e) {
      given += v.gradient[e] * x[e];
      size += std::abs(v.gradient[e] * x[e]);
    }
    const double found = differences.along(v, x);
    // The last term is for a small coordinate beside large ones, and for gradients that are 0.
    const double allowed = kTolerance * size + 1e-9 * largest + 1e-9;
    ++tally.checks;
    EXPECT_NEAR(found, given, allowed) << "d" << v.name << ", check " << n << "\n"
                                       << "reproduce: gradient_test --case='" << name << "'";
    sensitive = sensitive || std::abs(found - 1.01 * given) > allowed;
    tally.sensitive += std::abs(found - 1.01 * given) > allowed;
  }
  EXPECT_TRUE(sensitive || largest < 1e-6)
      << "d" << v.name << ": no check would notice an error of 1 %, " << name;
}

Tally check_case(const Case& problem) {
  Instance in = cases::make(problem);
  results(in);
  run_backward({}, in.backward_inputs(), in.options, in.gradients);
  const AttentionGradients& g = in.gradients;
  const Variable variables[] = {variable("q", in.q, g.dq),
                                variable("k", in.k, g.dk),
                                variable("v", in.v, g.dv),
                                variable("bias", in.options.bias, g.dbias),
                                variable("sinks", in.options.sinks, g.dsinks),
                                variable("alibi", in.options.alibi, g.dalibi)};
  Tally tally;
  const Differences differences(in);
  for (const Variable& v : variables)
    check(differences, v, cases::name(problem), problem.seed, tally);
  return tally;
}

TEST(gradient, is_the_derivative_for_every_option) {
  Tally total;
  const std::vector<Case> all = shrunk_table();
  for (const Case& problem : all) {
    const Tally tally = check_case(problem);
    total.checks += tally.checks;
    total.sensitive += tally.sensitive;
  }
  std::printf("%zu cases, %lld differences, %lld of which would notice an error of 1 %%\n",
              all.size(), static_cast<long long>(total.checks),
              static_cast<long long>(total.sensitive));
  EXPECT_GE(2 * total.sensitive, total.checks);
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string argument = argc == 2 ? argv[1] : "";
  const std::string prefix = "--case=";
  if (argument.starts_with(prefix)) {
    attend::test::check_case(attend::cases::parse(argument.substr(prefix.size())));
    return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  }
  return RUN_ALL_TESTS();
}
