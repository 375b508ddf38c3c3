// The contract (docs/contract.md), points 1, 2 and 3: what the properties and traps do not show
// already. The size of errors is contract_error_test's subject, memory contract_memory_test's,
// calls that fail contract_failures_test's, threads contract_threads_test's.
#include "support/property_truth.h"

#include "cases/random.h"
#include "core/softmax_state.h"

#include <cmath>

namespace attend::test {
namespace {

// ---- 1 Exact -----------------------------------------------------------------------------------

// exp2(0) = 1: equal scores weigh exactly equal, and a sum of four of them is exact.
TEST(Contract, contract_1_four_equal_scores_weigh_a_quarter_each) {
  for (const DType type : cases::kTypes) {
    Tensor q({1, 1, 2, 3}, type), k = gaussian({1, 1, 4, 3}, type, 1), v({1, 1, 4, 1}, type);
    for (std::int64_t j = 0; j < 4; ++j) set_value(v, {0, 0, j, 0}, double(j * j));
    Tensor out({1, 1, 2, 1}, type), weights({1, 1, 2, 4}, type);
    AttentionOutputs outputs;
    outputs.weights = weights;
    for (const KernelUnderTest& kernel : forward_kernels(type)) {
      Plan::attention(q, k, v, out, {}, outputs, {kernel.name}).run(q, k, v, out, {}, outputs);
      for (const double weight : widen(weights)) EXPECT_EQ(weight, 0.25) << kernel.name;
      for (const double o : widen(out)) EXPECT_EQ(o, 3.5) << kernel.name << " " << name_of(type);
    }
  }
}

// A single visible key gives its value, to the bit, and its score, whatever the score. In f64 the
// weight is divided by itself with one rounding more.
TEST(Contract, contract_1_a_single_visible_key_gives_its_value) {
  for (const DType type : cases::kTypes)
    for (const double size : {0.0, 1e-3, 1.0, 30.0}) {
      Trial trial = make_trial({.type = type,
                                .batch = 2,
                                .heads = 3,
                                .kv_heads = 3,
                                .q_length = 11,
                                .k_length = 11,
                                .d = 7,
                                .dv = 9});
      trial.plain.window = {0, 0};  // query i sees key i alone
      trial.plain.scale = size;
      const Arguments a = trial.arguments();
      for (const KernelUnderTest& kernel : forward_kernels(type)) {
        SCOPED_TRACE(kernel.name + " " + std::string(name_of(type)) + " " + std::to_string(size));
        Written written = trial.empty_results(false);
        Tensor scores({2, 3, 11, 11}, type == DType::f64 ? DType::f64 : DType::f32);
        AttentionOutputs outputs;
        outputs.lse = written.lse;
        outputs.scores = scores;
        Plan::attention(a.q, a.k, a.v, written.out, a.options, outputs, {kernel.name})
            .run(a.q, a.k, a.v, written.out, a.options, outputs);
        const bool exact = type != DType::f64 || size == 0;
        EXPECT_TRUE(exact ? same_bits(trial.v, written.out)
                          : close(trial.v, written.out, 2 * unit_roundoff(DType::f64)));
        for (std::int64_t i = 0; i < 11; ++i) {
          const double s = value_at(scores, {1, 2, i, i});
          const double error =
              2 * unit_roundoff(written.lse.dtype()) * std::abs(s) + 4 * unit_roundoff(DType::f64);
          EXPECT_NEAR(value_at(written.lse, {1, 2, i}), s, error) << "row " << i;
        }
      }
    }
}

// ---- 2 Bitwise ---------------------------------------------------------------------------------

// Kernels are chosen by type, d, options and machine, never by batch, lengths, strides or threads.
TEST(Contract, contract_2_the_kernel_does_not_depend_on_sizes_strides_or_threads) {
  for (const DType type : cases::kTypes) {
    std::string forward, backward;
    for (const int threads : {1, 5})
      for (const std::int64_t batch : {0, 1, 40})
        for (const std::int64_t queries : {1, 3, 300})
          for (const std::int64_t keys : {0, 1, 7, 513})
            for (const bool permuted : {false, true}) {
              ContextOptions options;
              options.threads = threads;
              Context context(options);
              const std::int64_t heads = 4;
              const Shape of_q = {batch, heads, queries, 8}, of_k = {batch, heads, keys, 8};
              const auto make = [&](const Shape& s) {
                return permuted ? Tensor({s[0], s[2], s[1], s[3]}, type) : Tensor(s, type);
              };
              Tensor q = make(of_q), k = make(of_k), out = make(of_q), dq = make(of_q);
              const DType lse_type = type == DType::f64 ? DType::f64 : DType::f32;
              Tensor lse({batch, heads, queries}, lse_type);
              const auto view = [&](Tensor& t) {
                return permuted ? t.view().permute({0, 2, 1, 3}) : t.view();
              };
              AttentionGradients gradients;
              gradients.dq = view(dq);
              const Plan plan = Plan::attention(view(q), view(k), view(k), view(out),
                                                {.causal = true}, {}, {}, context);
              const Plan plan_backward =
                  Plan::attention_backward({.q = view(q),
                                            .k = view(k),
                                            .v = view(k),
                                            .out = view(out),
                                            .lse = lse,
                                            .dout = view(out)},
                                           {.causal = true}, gradients, {}, context);
              if (forward.empty()) forward = plan.kernel();
              if (backward.empty()) backward = plan_backward.kernel();
              EXPECT_EQ(plan.kernel(), forward) << to_string(of_q) << " " << to_string(of_k);
              EXPECT_EQ(plan_backward.kernel(), backward) << to_string(of_q) << to_string(of_k);
            }
  }
}

// What stands beside a row, in the batch and in other heads, changes no bit of it.
TEST(Contract, contract_2_neighbours_change_no_bit) {
  for (const DType type : cases::kTypes) {
    const Trial trial = make_trial({.type = type,
                                    .batch = 3,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .q_length = 6,
                                    .k_length = 300,
                                    .causal = true,
                                    .sinks = true,
                                    .width = cases::Width::f64});
    Trial other = trial;  // batch element 1 stays, and in it key head 1
    for (const auto member : {&Trial::q, &Trial::k, &Trial::v, &Trial::dout}) {
      Tensor& t = other.*member;
      const std::int64_t kept = t.size(1) / 2;
      const Tensor original = t;
      fill(t, NAN);
      for (std::int64_t h = kept; h < t.size(1); ++h)
        for (std::int64_t i = 0; i < t.size(2); ++i)
          for (std::int64_t x = 0; x < t.size(3); ++x)
            set_value(t, {1, h, i, x}, value_at(original, {1, h, i, x}));
    }
    for (const KernelUnderTest& kernel : all_kernels(type)) {
      const auto before = trial.run(kernel), after = other.run(kernel);
      ASSERT_TRUE(before && after);
      for (const auto member :
           {&Written::out, &Written::lse, &Written::dq, &Written::dk, &Written::dv}) {
        const Tensor& a = (*before).*member;
        const Tensor& b = (*after).*member;
        if (!a) continue;
        const std::vector<std::int64_t> heads = range(a.size(1) / 2, a.size(1));
        EXPECT_TRUE(same_bits(take(take(a, 0, {1}), 1, heads), take(take(b, 0, {1}), 1, heads)))
            << kernel.name << " " << name_of(type);
      }
    }
  }
}

// Keys are summed in chunks of 256 at absolute multiples, merged in ascending order. Each chunk's
// own sum is exact here; 1 and 1.5 units of half a last place make 1 + 2^-52, but in smaller,
// larger or shifted chunks they make 1.
TEST(Contract, contract_2_keys_are_summed_in_chunks_of_256_at_absolute_multiples) {
  const Tensor q({1, 1, 1, 1}, DType::f64), k({1, 1, 512, 1}, DType::f64);  // every weight is equal
  const std::pair<std::int64_t, std::int64_t> visible[] = {{0, 512}, {128, 384}};
  for (const auto& [begin, end] : visible) {
    Tensor v({1, 1, 512, 1}, DType::f64), out({1, 1, 1, 1}, DType::f64);
    Tensor mask({512}, DType::boolean);
    const auto keys = static_cast<double>(end - begin);
    for (std::int64_t j = begin; j < end; ++j) {
      mask.at<bool>({j}) = true;
      v.at<double>({0, 0, j, 0}) = (j < 256 ? 1 : 0x1.8p-53) * 2 / keys;
    }
    AttentionOptions options;
    options.mask = mask;
    for (const KernelUnderTest& kernel : forward_kernels()) {
      Plan::attention(q, k, v, out, options, {}, {kernel.name}).run(q, k, v, out, options);
      EXPECT_EQ(out.at<double>({0, 0, 0, 0}) * keys, 1 + 0x1p-52)
          << kernel.name << ", keys " << begin << " to " << end;
    }
  }
}

// The unit of a sum is a whole power of two: a sum that was rescaled as the maximum grew has
// the bits of one that knew the maximum from the start, and so has a sum that was cut in two.
TEST(Contract, contract_2_rescaling_changes_no_digit) {
  const cases::Random random(2, 2);
  for (std::uint64_t repeat = 0; repeat < 200; ++repeat) {
    std::vector<double> scores;
    for (std::uint64_t n = 0; n < 40; ++n) scores.push_back(20 * random.gaussian(40 * repeat + n));
    SoftmaxState grown;
    for (const double s : scores) grown.add(s);
    SoftmaxState known{.top = grown.top, .l = 0};
    for (const double s : scores) known.add(s);
    EXPECT_EQ(known.top, grown.top);
    EXPECT_EQ(known.l, grown.l) << "repeat " << repeat;

    SoftmaxState joined, rest;
    joined.add(scores.front());
    for (std::size_t n = 1; n < scores.size(); ++n) rest.add(scores[n]);
    const auto [mine, other] = joined.join(rest);
    for (const double factor : {mine, other})
      EXPECT_TRUE(factor == 0 || std::ilogb(factor) == std::log2(factor)) << factor;
  }
}

// ---- 3 Hidden means hidden ---------------------------------------------------------------------

// A cache that was never written holds anything: the bits are those of one filled with zeros.
TEST(Contract, contract_3_what_lies_behind_the_lengths_changes_no_bit) {
  for (const DType type : cases::kTypes)
    for (const std::int64_t length : {0, 1, 31, 256, 257, 300}) {
      Trial zeros = make_trial({.type = type,
                                .heads = 2,
                                .kv_heads = 1,
                                .q_length = 3,
                                .k_length = 300,
                                .causal = true,
                                .width = cases::Width::f64});
      zeros.key_lengths = integers_of({length});
      Trial garbage = zeros;
      for (std::int64_t j = length; j < 300; ++j)
        for (std::int64_t x = 0; x < 8; ++x) {
          set_value(zeros.k, {0, 0, j, x}, 0);
          set_value(zeros.v, {0, 0, j, x}, 0);
          set_value(garbage.k, {0, 0, j, x}, x % 2 == 0 ? NAN : INFINITY);
          set_value(garbage.v, {0, 0, j, x}, x % 2 == 0 ? -INFINITY : NAN);
        }
      for (const KernelUnderTest& kernel : all_kernels(type))
        EXPECT_TRUE(same_bits(*zeros.run(kernel), *garbage.run(kernel)))
            << kernel.name << " " << name_of(type) << ", " << length << " keys";
    }
}

}  // namespace
}  // namespace attend::test
