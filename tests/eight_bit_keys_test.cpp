// Keys and values of 8 bits with scales, by every row of the kernel table that takes them: what is
// hidden is hidden, what is not finite reaches what it must, and bits are those of any other way.
// That results are right is the business of the table of cases (conformance_test).
#include "support/io_files.h"
#include "support/layer_numbers.h"

#include <attend/attend.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace attend::test {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Keys {
  Tensor k, v, k_scales, v_scales;
};

struct Sizes {
  std::int64_t queries, keys, d, dv;
};
// Few rows of many keys, several tiles of several chunks, and less than a vector of anything.
constexpr Sizes kSizes[] = {{1, 600, 32, 32}, {70, 300, 24, 40}, {3, 9, 5, 3}};

Tensor whole_numbers(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  Tensor made(shape, DType::i8);
  for (std::int64_t n = 0; n < made.count(); ++n)
    made.data<std::int8_t>()[n] = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
  return made;
}

Tensor scales(std::int64_t keys, unsigned seed) {
  Tensor made = numbers({kBatch, kKeyHeads, keys}, DType::f32, seed);
  for (std::int64_t n = 0; n < made.count(); ++n)
    made.data<float>()[n] = (std::abs(made.data<float>()[n]) + 0.1F) / 100;
  return made;
}

Keys drawn_keys(const Sizes& s) {
  return {whole_numbers({kBatch, kKeyHeads, s.keys, s.d}, 1),
          whole_numbers({kBatch, kKeyHeads, s.keys, s.dv}, 2), scales(s.keys, 3),
          scales(s.keys, 4)};
}

AttentionOptions with_scales(const Keys& keys, AttentionOptions options = {}) {
  options.k_scales = keys.k_scales;
  options.v_scales = keys.v_scales;
  return options;
}

// Calls body(context, type, sizes, name) for every kernel and type that go together.
template <class Body>
void for_every_row(const Body& body) {
  int taken = 0;
  for (const KernelInfo& kernel : Context::kernels()) {
    if (kernel.operation != "forward" || kernel.only_if_forced) continue;
    Context context({.kernels = "forward:" + kernel.name});
    for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const Sizes& s : kSizes) {
        const Keys keys = drawn_keys(s);
        try {
          attention(numbers({kBatch, kHeads, 1, s.d}, type, 5), keys.k, keys.v, with_scales(keys),
                    context);
        } catch (const Unsupported&) {
          continue;
        }
        ++taken;
        body(context, type, s, kernel.name + " " + std::string(name_of(type)));
      }
  }
  EXPECT_GE(taken, 2 * 4 * 3) << "the reference and at least one fast row take every type";
}

// ---- contract 3 --------------------------------------------------------------------------------

TEST(EightBitKeys, scales_of_hidden_keys_change_no_bit) {
  for_every_row([](Context& context, DType type, const Sizes& s, const std::string& name) {
    const Tensor q = numbers({kBatch, kHeads, s.queries, s.d}, type, 5);
    const Tensor lengths = Tensor({s.keys - 4, s.keys / 2}, {kBatch});
    Keys keys = drawn_keys(s);
    const auto result = [&] {
      return attention(q, keys.k, keys.v,
                       with_scales(keys, {.causal = s.queries > 1, .key_lengths = lengths}),
                       context);
    };
    const Tensor before = result();
    for (Tensor* of : {&keys.k_scales, &keys.v_scales})
      for (std::int64_t b = 0; b < kBatch; ++b)
        for (std::int64_t h = 0; h < kKeyHeads; ++h)
          for (std::int64_t j = lengths.at<std::int64_t>({b}); j < s.keys; ++j)
            of->at<float>({b, h, j}) = j % 2 == 0 ? kNan : kInfinity;
    EXPECT_EQ(difference(result(), before), "") << name;
  });
}

// Causal: key j is seen by the last queries alone.
TEST(EightBitKeys, a_scale_of_nan_reaches_those_who_see_its_key) {
  for_every_row([](Context& context, DType type, const Sizes& s, const std::string& name) {
    if (s.queries == 1) return;
    const Tensor q = numbers({kBatch, kHeads, s.queries, s.d}, type, 5);
    const std::int64_t j = s.keys - 2;
    for (const bool of_value : {false, true}) {
      Keys keys = drawn_keys(s);
      const auto result = [&] {
        return attention(q, keys.k, keys.v, with_scales(keys, {.causal = true}), context);
      };
      const Tensor before = result();
      (of_value ? keys.v_scales : keys.k_scales).at<float>({1, 0, j}) = kNan;
      const Tensor after = result();
      for (std::int64_t b = 0; b < kBatch; ++b)
        for (std::int64_t h = 0; h < kHeads; ++h)
          for (std::int64_t i = 0; i < s.queries; ++i) {
            const auto row = [&](const Tensor& t) {
              return Tensor::copy_of(
                  t.view().slice(0, b, b + 1).slice(1, h, h + 1).slice(2, i, i + 1));
            };
            const bool sees = b == 1 && h < 2 && i + s.keys - s.queries >= j;
            if (!sees) EXPECT_EQ(difference(row(after), row(before)), "") << name;
            else
              with_type(type, [&]<class T>(T) {
                const Tensor found = row(after);
                for (std::int64_t x = 0; x < s.dv; ++x)
                  EXPECT_TRUE(std::isnan(widened(found.data<T>()[x]))) << name;
              });
          }
    }
  });
}

// An infinite scale makes infinities of a row's numbers, and NaN of its zeros.
TEST(EightBitKeys, infinite_scales_reach_what_they_do_in_the_reference) {
  Context reference({.kernels = "forward:reference.forward"});
  for_every_row([&](Context& context, DType type, const Sizes& s, const std::string& name) {
    const Tensor q = numbers({kBatch, kHeads, s.queries, s.d}, type, 5);
    const auto kind = [](double x) {
      return std::isnan(x) ? 2 : !std::isinf(x) ? 0 : x < 0 ? -1 : 1;
    };
    for (const float scale : {kInfinity, -kInfinity})
      for (const bool of_value : {false, true}) {
        Keys keys = drawn_keys(s);
        (of_value ? keys.v : keys.k).at<std::int8_t>({0, 1, 3, 0}) = 0;
        (of_value ? keys.v_scales : keys.k_scales).at<float>({0, 1, 3}) = scale;
        const Tensor found = attention(q, keys.k, keys.v, with_scales(keys), context),
                     wanted = attention(q, keys.k, keys.v, with_scales(keys), reference);
        with_type(type, [&]<class T>(T) {
          for (std::int64_t n = 0; n < found.count(); ++n)
            ASSERT_EQ(kind(widened(found.data<T>()[n])), kind(widened(wanted.data<T>()[n])))
                << name << (of_value ? " values " : " keys ") << scale << " " << n;
        });
      }
  });
}

// ---- contract 2 --------------------------------------------------------------------------------

TEST(EightBitKeys, a_row_alone_has_the_bits_of_the_whole) {
  for_every_row([](Context& context, DType type, const Sizes& s, const std::string& name) {
    const std::int64_t queries = s.queries == 1 ? 20 : s.queries;
    const Tensor q = numbers({kBatch, kHeads, queries, s.d}, type, 5);
    const Keys keys = drawn_keys(s);
    const std::int64_t offset = s.keys - queries;
    const Tensor whole = attention(
        q, keys.k, keys.v, with_scales(keys, {.causal = true, .query_offset = offset}), context);
    for (std::int64_t i = 0; i < queries; i += 3)
      EXPECT_EQ(
          difference(
              attention(q.view().slice(2, i, i + 1), keys.k, keys.v,
                        with_scales(keys, {.causal = true, .query_offset = offset + i}), context),
              whole.view().slice(2, i, i + 1)),
          "")
          << name << " query " << i;
  });
}

TEST(EightBitKeys, pages_have_the_bits_of_dense_keys) {
  constexpr std::int64_t kPage = 7;
  for_every_row([](Context& context, DType type, const Sizes& s, const std::string& name) {
    const Keys keys = drawn_keys(s);
    const std::int64_t each = (s.keys + kPage - 1) / kPage, pages = kBatch * each;
    Keys paged{Tensor({pages, kKeyHeads, kPage, s.d}, DType::i8),
               Tensor({pages, kKeyHeads, kPage, s.dv}, DType::i8),
               Tensor({pages, kKeyHeads, kPage}), Tensor({pages, kKeyHeads, kPage})};
    Tensor table({kBatch, each}, DType::i64);
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t j = 0; j < s.keys; ++j) {
        const std::int64_t page = (j / kPage) * kBatch + b;  // those of the batch take turns
        table.at<std::int64_t>({b, j / kPage}) = page;
        for (std::int64_t h = 0; h < kKeyHeads; ++h) {
          std::copy_n(&keys.k.at<std::int8_t>({b, h, j, 0}), s.d,
                      &paged.k.at<std::int8_t>({page, h, j % kPage, 0}));
          std::copy_n(&keys.v.at<std::int8_t>({b, h, j, 0}), s.dv,
                      &paged.v.at<std::int8_t>({page, h, j % kPage, 0}));
          paged.k_scales.at<float>({page, h, j % kPage}) = keys.k_scales.at<float>({b, h, j});
          paged.v_scales.at<float>({page, h, j % kPage}) = keys.v_scales.at<float>({b, h, j});
        }
      }
    const Tensor q = numbers({kBatch, kHeads, s.queries, s.d}, type, 5),
                 lengths = Tensor({s.keys, s.keys}, {kBatch});
    EXPECT_EQ(
        difference(
            attention(q, paged.k, paged.v,
                      with_scales(paged, {.key_lengths = lengths, .block_table = table}), context),
            attention(q, keys.k, keys.v, with_scales(keys, {.key_lengths = lengths}), context)),
        "")
        << name;
  });
}

}  // namespace
}  // namespace attend::test
