// The contract's first point: is every kernel at least about as exact as the textbook?
//
// Textbook means the four steps unfused, with S, P and O stored in the tensors' type: the rows
// textbook.*. Errors are taken against the oracle, over at least 10^4 elements of out, dq, dk and
// dv: root mean square at most 1.25 times the textbook's in f32, 1.0 times in bf16 and f16; largest
// at most twice the textbook's, plus one ulp of the largest value. In f64 the textbook has no
// narrower numbers to lose anything in, and the order of a sum alone makes a difference of 1.6:
// there it is 2 times, and 4 times.
#include "cases/instance.h"
#include "support/examination.h"
#include "support/property_trial.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <map>

namespace attend::test {
namespace {

using cases::Case;

struct Named {
  const char* name;
  Case problem;
};

// 4 heads x 40 queries x 64 features = 10240 elements of out; more than 256 keys, so that the sums
// over keys are cut once.
std::vector<Named> problems() {
  const Case plain{.heads = 4, .kv_heads = 4, .q_length = 40, .k_length = 300, .d = 64, .dv = 64};
  const auto with = [&](auto&& change) {
    Case problem = plain;
    change(problem);
    return problem;
  };
  return {
      {"plain", plain},
      {"causal", with([](Case& c) { c.causal = true; })},
      {"one chunk", with([](Case& c) { c.k_length = 40; })},
      {"wide heads", with([](Case& c) {
         c.heads = c.kv_heads = 2;
         c.d = c.dv = 128;
       })},
      {"heads of 512", with([](Case& c) {
         c.heads = c.kv_heads = 2;
         c.k_length = 40;
         c.d = 512;
         c.dv = 128;
       })},
      {"heads of 2048", with([](Case& c) {
         c.heads = c.kv_heads = 1;
         c.k_length = 40;
         c.d = 2048;
         c.dv = 256;
       })},
      {"outliers", with([](Case& c) { c.values = cases::Values::outliers; })},
      {"cold", with([](Case& c) { c.values = cases::Values::cold; })},
      {"padding, dlse", with([](Case& c) {
         c.mask = cases::Mask::per_key;
         c.dlse = true;
       })},
      {"softcap, alibi", with([](Case& c) {
         c.softcap = 5;
         c.alibi = true;
       })},
      {"sinks, dropout", with([](Case& c) {
         c.sinks = true;
         c.dropout = 0.1;
       })},
      {"grouped", with([](Case& c) {
         c.kv_heads = 1;
         c.q_length = 110;
         c.k_length = 520;
         c.d = c.dv = 24;
       })},
  };
}

struct Error {
  double squares = 0, largest = 0, largest_value = 0;
  std::size_t count = 0;

  double rms() const { return std::sqrt(squares / static_cast<double>(count)); }
  void add(const Error& other) {
    squares += other.squares;
    largest = std::max(largest, other.largest);
    largest_value = std::max(largest_value, other.largest_value);
    count += other.count;
  }
};

// The largest of 10^4 errors is a matter of luck: a kernel that rounds in another order has another
// unlucky element. In f32, where the margin is small, several sets of data even it out.
int sets_of_data(DType type) { return type == DType::f32 ? 4 : 1; }

template <class Real>
Error error_of(const ConstTensorView& found, const std::vector<Real>& truth) {
  const std::vector<double> values = widen(found);
  Error error;
  error.count = values.size();
  for (std::size_t n = 0; n < values.size(); ++n) {
    const double e = std::abs(static_cast<double>(Real(values[n]) - truth[n]));
    if (std::isnan(e)) return {NAN, NAN, NAN, values.size()};
    error.squares += e * e;
    error.largest = std::max(error.largest, e);
    error.largest_value = std::max(error.largest_value, std::abs(static_cast<double>(truth[n])));
  }
  return error;
}

double ulp(DType type, double x) {
  return x == 0 ? 0 : 2 * unit_roundoff(type) * std::exp2(std::floor(std::log2(x)));
}

class ContractError : public testing::TestWithParam<DType> {
 protected:
  void judge(const std::string& kernel, const char* tensor, const Error& mine,
             const Error& textbook) {
    const DType type = GetParam();
    const double factor = type == DType::f64 ? 2 : type == DType::f32 ? 1.25 : 1;
    const double most =
        (type == DType::f64 ? 4 : 2) * textbook.largest + ulp(type, textbook.largest_value);
    std::printf("%-5s %-16s %-20s %-4s rms %.2e / %.2e = %.3f   largest %.2e / %.2e = %.3f\n",
                std::string(name_of(type)).c_str(), name_, kernel.c_str(), tensor, mine.rms(),
                textbook.rms(), mine.rms() / textbook.rms(), mine.largest, textbook.largest,
                mine.largest / textbook.largest);
    EXPECT_GE(mine.count, 10'000u) << reproduce(kernel, tensor);
    EXPECT_LE(mine.rms(), factor * textbook.rms()) << reproduce(kernel, tensor);
    EXPECT_LE(mine.largest, most) << reproduce(kernel, tensor);
  }

  // out by one kernel.
  Error forward(const std::string& kernel, const cases::Instance& in) const {
    Plan::attention(in.q, in.k, in.v, in.out, in.options, in.outputs_with_lse(), {kernel})
        .run(in.q, in.k, in.v, in.out, in.options, in.outputs_with_lse());
    return error(in.out, &Results<double>::out, &Results<Float128>::out);
  }

  // dq, dk, dv by one kernel, from out and lse that another one wrote.
  std::array<Error, 3> backward(const std::string& before, const std::string& kernel,
                                const cases::Instance& in) const {
    forward(before, in);
    AttentionGradients gradients = in.gradients;  // the textbook gives no others
    gradients.dsinks = gradients.dalibi = {};
    Plan::attention_backward(in.backward_inputs(), in.options, gradients, {kernel})
        .run_backward(in.backward_inputs(), in.options, gradients);
    return {error(gradients.dq, &Results<double>::dq, &Results<Float128>::dq),
            error(gradients.dk, &Results<double>::dk, &Results<Float128>::dk),
            error(gradients.dv, &Results<double>::dv, &Results<Float128>::dv)};
  }

  // Calls measure(kernel) for the rows that accept the problem.
  template <class Measure>
  void for_each_kernel(const char* operation, Measure&& measure) {
    for (const std::string& kernel : kernels_for(operation)) {
      if (kernel.starts_with("textbook.") || !takes_type(kernel, GetParam())) continue;
      try {
        measure(kernel);
      } catch (const Unsupported& refusal) {
        std::printf("%s: %s\n", kernel.c_str(), refusal.what());
      }
    }
  }

  void examine(const Named& named) {
    name_ = named.name;
    line_ = cases::name(named.problem);
    std::map<std::pair<std::string, const char*>, Error> errors;  // by kernel and tensor
    constexpr const char* kOut = "out";
    constexpr const char* kGradients[] = {"dq", "dk", "dv"};
    for (int set = 0; set < sets_of_data(GetParam()); ++set) {
      cases::Case problem = named.problem;
      problem.seed += static_cast<std::uint64_t>(set);
      const cases::Instance in = cases::make(problem);
      const Reader reader({in.q, in.k, in.v, in.dout, in.dlse, in.options});
      if (GetParam() == DType::f64) truth_ = truth<Float128>(reader);
      else truth_ = truth<double>(reader);
      const auto add_gradients = [&](const std::string& kernel, const std::array<Error, 3>& found) {
        for (std::size_t n = 0; n < 3; ++n) errors[{kernel, kGradients[n]}].add(found[n]);
      };
      errors[{"", kOut}].add(forward("textbook.forward", in));
      for_each_kernel("forward", [&](const std::string& kernel) {
        errors[{kernel, kOut}].add(forward(kernel, in));
      });
      add_gradients("", backward("textbook.forward", "textbook.backward", in));
      for_each_kernel("backward", [&](const std::string& kernel) {
        add_gradients(kernel, backward("", kernel, in));
      });
    }
    for (const auto& [of, error] : errors)
      if (!of.first.empty()) judge(of.first, of.second, error, errors.at({"", of.second}));
  }

 private:
  Error error(const ConstTensorView& found, std::vector<double> Results<double>::*member,
              std::vector<Float128> Results<Float128>::*member128) const {
    if (const auto* wide = std::get_if<Results<Float128>>(&truth_))
      return error_of(found, wide->*member128);
    return error_of(found, std::get<Results<double>>(truth_).*member);
  }
  std::string reproduce(const std::string& kernel, const char* tensor) const {
    return std::string(tensor) + " by " + kernel + " on " + line_ +
           "\nreproduce: contract_error_test --gtest_filter=*/" + std::string(name_of(GetParam()));
  }

  const char* name_ = "";
  std::string line_;
  std::variant<Results<double>, Results<Float128>> truth_;
};

TEST_P(ContractError, no_kernel_is_less_exact_than_the_textbook) {
  for (Named named : problems()) {
    named.problem.type = GetParam();
    examine(named);
  }
}

INSTANTIATE_TEST_SUITE_P(all, ContractError, testing::ValuesIn(cases::kTypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace attend::test
