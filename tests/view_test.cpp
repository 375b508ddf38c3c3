// The writer of the page: texts, one sequence of a batch, and the bytes between C++ and the
// browser. That the numbers on a page are right is tested where pages can be read:
// python/tests/test_view.py and tests/web.
#include "core/text.h"
#include "support/thrown_by.h"
#include "support/view_page.h"
#include "view/blobs.h"
#include "view/single.h"

#include <attend/attention.h>
#include <attend/inspect.h>

#include <gtest/gtest.h>

#include <cmath>

namespace attend::test {
namespace {

using view::base64;
using view::deflated;
using view::log8;
using view::stored;

// ---- what is on the page -----------------------------------------------------------------------

TEST(ViewPage, hostile_texts_end_no_element_and_open_none) {
  Page page;
  const std::string hostile = "</script><!--<script>&\xE2\x80\xA8\xE2\x80\xAE\x1B[31m\xFF{{data}}";
  page.runs[0].tokens = {hostile, hostile, hostile};
  page.runs[0].name = page.runs[0].layers[0].name = hostile;
  page.options.title = "</title></script><!--<script>{{data}}";
  Page plain;
  plain.runs[0].tokens = {"a", "b", "c"};
  const auto count = [](const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
    return n;
  };
  for (const char* part : {"<script", "</script", "<!--", "\xE2\x80\xA8"})
    EXPECT_EQ(count(page.text(), part), count(plain.text(), part)) << part;
}

TEST(ViewPage, numbers_that_are_not_finite_are_said) {
  Page page;
  page.q.at<float>({0, 1, 2, 3}) = std::nanf("");
  EXPECT_NE(page.text().find("layer 0: q has 1 numbers that are not finite"), std::string::npos);
  page.options.batch = 1;
  EXPECT_NE(page.text().find("\"notes\":[]"), std::string::npos) << "the other sequence has none";
}

TEST(ViewPage, equal_inputs_give_equal_bytes) {
  const Page page;
  EXPECT_EQ(page.text(), page.text());
}

// ---- one sequence ------------------------------------------------------------------------------

// Packed and paged tensors show what the plain ones do.
TEST(ViewSingle, packed_and_paged_sequences_are_those_of_the_batch) {
  const Page page;
  const view::Single plain({.q = page.q, .k = page.k, .v = page.v}, 1, "");

  Tensor packed_q({1, 4, 6, 6}), packed_k({1, 2, 10, 6}), pages({5, 2, 2, 6});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t d = 0; d < 6; ++d) {
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < 3; ++i)
          packed_q.at<float>({0, h, 3 * b + i, d}) = page.q.at<float>({b, h, i, d});
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t j = 0; j < 5; ++j) {
          packed_k.at<float>({0, h, 5 * b + j, d}) = page.k.at<float>({b, h, j, d});
          if (b == 1) pages.at<float>({4 - j / 2, h, j % 2, d}) = page.k.at<float>({b, h, j, d});
        }
    }
  const Tensor starts_q({std::int64_t{0}, std::int64_t{3}, std::int64_t{6}}, {3});
  const Tensor starts_k({std::int64_t{0}, std::int64_t{5}, std::int64_t{10}}, {3});
  const view::Single packed({.q = packed_q,
                             .k = packed_k,
                             .options = {.cu_seqlens_q = starts_q, .cu_seqlens_k = starts_k}},
                            1, "");
  const Tensor table({std::int64_t{0}, std::int64_t{0}, std::int64_t{0}, std::int64_t{4},
                      std::int64_t{3}, std::int64_t{2}},
                     {2, 3});
  const Tensor lengths({std::int64_t{1}, std::int64_t{5}}, {2});
  const view::Single paged(
      {.q = page.q, .k = pages, .options = {.key_lengths = lengths, .block_table = table}}, 1, "");
  for (const view::Single* other : {&packed, &paged}) {
    EXPECT_EQ(other->query_offset, 2);
    EXPECT_EQ(other->key_length, 5);
    for (std::int64_t d = 0; d < 6; ++d) {
      EXPECT_EQ(other->q.at<float>({0, 3, 2, d}), plain.q.at<float>({0, 3, 2, d}));
      for (std::int64_t j = 0; j < 5; ++j)
        EXPECT_EQ(other->k.at<float>({0, 1, j, d}), plain.k.at<float>({0, 1, j, d}));
    }
  }
}

// On pages and not: the keys and values of the page are those that the scales mean.
TEST(ViewSingle, keys_of_eight_bits_are_shown_as_what_they_mean) {
  const Page page;
  Tensor k({2, 2, 5, 6}, DType::i8), scales({2, 2, 5});
  for (std::int64_t n = 0; n < k.count(); ++n)
    k.data<std::int8_t>()[n] = static_cast<std::int8_t>(n % 251 - 125);
  for (std::int64_t n = 0; n < scales.count(); ++n)
    scales.data<float>()[n] = 0.25F * static_cast<float>(n + 1);
  const Tensor lengths({std::int64_t{5}, std::int64_t{5}}, {2});
  const Tensor table({std::int64_t{0}, std::int64_t{1}}, {2, 1});  // a page of 5 keys each
  const view::Single dense({.q = page.q, .k = k, .options = {.k_scales = scales}}, 1, "");
  const view::Single paged(
      {.q = page.q,
       .k = k,
       .v = page.v,
       .options = {.key_lengths = lengths, .block_table = table, .k_scales = scales}},
      1, "");
  for (const view::Single* one : {&dense, &paged}) {
    EXPECT_FALSE(one->options.k_scales);
    ASSERT_EQ(one->k.shape(), (Shape{1, 2, 5, 6}));
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t j = 0; j < 5; ++j)
        for (std::int64_t x = 0; x < 6; ++x)
          EXPECT_EQ(
              one->k.at<float>({0, h, j, x}),
              static_cast<float>(k.at<std::int8_t>({1, h, j, x})) * scales.at<float>({1, h, j}));
  }
}

// Whatever attention() takes is shown, with the numbers that it means.
TEST(ViewSingle, q_and_k_of_any_types_with_scales_or_without) {
  int shown = 0;
  for (const DType q_type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const DType k_type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i8})
      for (const int scaled : {0, 1, 2, 3}) {
        SCOPED_TRACE(text("q ", q_type, ", k ", k_type, ", scales ", scaled));
        Tensor q({1, 2, 3, 4}, q_type), k({1, 1, 5, 4}, k_type), scales({1, 1, 5});
        const auto put = [](const Tensor& t, std::int64_t n, double x) {
          const Strided to{
              static_cast<std::byte*>(const_cast<void*>(t.view().data())), t.dtype(), true, {}};
          if (t.dtype() == DType::i8)
            reinterpret_cast<std::int8_t&>(to.data[n]) = static_cast<std::int8_t>(x);
          else store(to, n, x);
        };
        for (std::int64_t n = 0; n < q.count(); ++n) put(q, n, static_cast<double>(n % 7) - 3);
        for (std::int64_t n = 0; n < k.count(); ++n) put(k, n, static_cast<double>(n % 5) - 2);
        for (std::int64_t n = 0; n < 5; ++n) put(scales, n, 0.25 * static_cast<double>(n + 1));
        AttentionOptions options;
        if ((scaled & 1) != 0) options.k_scales = scales;
        if ((scaled & 2) != 0) options.v_scales = scales;
        const std::string refused = thrown_by([&] { attention(q, k, k, options); });
        ViewRun run;
        run.layers.push_back({.q = q, .k = k, .v = k, .options = options});
        const std::string page = thrown_by([&] { view_page(std::span(&run, 1)); });
        EXPECT_EQ(page == "nothing", refused == "nothing") << page << "\n" << refused;
        if (refused != "nothing") continue;
        ++shown;
        const view::Single one(run.layers[0], 0, "");
        const Tensor lse = inspect(q, k, options).lse,
                     of_one = inspect(one.q, one.k, one.options).lse;
        for (std::int64_t i = 0; i < 3; ++i)
          EXPECT_NEAR(load(view::strided(lse), i), load(view::strided(of_one), i), 1e-5);
      }
  EXPECT_GE(shown, 40);
}

// Whole groups that share a key head, and a part of one: with what belongs to these heads alone.
TEST(ViewSingle, a_part_of_the_heads_has_the_numbers_that_they_have_among_all) {
  const Page page;
  Tensor mask({2, 4, 3, 5}, DType::u8), slopes({4}), sinks({4}), blocks({2, 4, 2, 3}, DType::u8);
  for (std::int64_t n = 0; n < mask.count(); ++n) mask.data<std::uint8_t>()[n] = n % 7 != 0;
  for (std::int64_t n = 0; n < blocks.count(); ++n) blocks.data<std::uint8_t>()[n] = n % 5 != 0;
  for (std::int64_t h = 0; h < 4; ++h) {
    slopes.data<float>()[h] = 0.1F * static_cast<float>(h);
    sinks.data<float>()[h] = static_cast<float>(h) - 1;
  }
  const Tensor bias = numbers({1, 4, 3, 5}, 8);
  const view::Single all(
      {.q = page.q,
       .k = page.k,
       .options =
           {.mask = mask, .bias = bias, .alibi = slopes, .sinks = sinks, .blocks = {blocks, 2, 2}}},
      1, "");
  const Tensor whole = inspect(all.q, all.k, all.options).lse;
  for (const auto& [from, count] : {std::pair{0, 4}, {0, 2}, {2, 2}, {1, 1}, {2, 1}}) {
    const view::Single::Part part = all.part(from, count);
    const Tensor lse = inspect(part.q, part.k, part.options).lse;
    ASSERT_EQ(lse.count(), 3 * count);
    for (std::int64_t n = 0; n < lse.count(); ++n)
      EXPECT_EQ(lse.data<float>()[n], whole.data<float>()[3 * from + n]) << from << " " << count;
  }
}

// A part of the keys is shown by its own numbers: query 0 is at the part's key `query_offset`.
TEST(ViewSingle, a_part_of_the_keys_is_shown_where_its_queries_are) {
  const Page page;
  const view::Single part({.q = page.q,
                           .k = page.k,
                           .options = {.causal = true, .query_offset = 257, .key_offset = 256}},
                          1, "");
  EXPECT_EQ(part.query_offset, 1);
  EXPECT_EQ(part.positions(0).end, 2);
  EXPECT_FALSE(part.options.key_offset);
}

// ---- bytes -------------------------------------------------------------------------------------

TEST(ViewBytes, base64_is_that_of_rfc_4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("\xFF\xFE\xFD\xFC"), "//79/A==");
}

TEST(ViewJson, texts_are_ascii_without_markup_whatever_bytes_they_hold) {
  const auto json = [](const char* text) { return view::Json(text).text(); };
  EXPECT_EQ(json("</a>&b"), R"("\u003c/a\u003e\u0026b")");
  EXPECT_EQ(json("\"\\\n\x7F"), R"("\"\\\n\u007f")");
  EXPECT_EQ(json("\u2028\U0001f600"), R"("\u2028\ud83d\ude00")");
  EXPECT_EQ(json("a\xFF\xC0\xAF"), R"("a\ufffd\ufffd\ufffd")");  // no beginning, too long
  EXPECT_EQ(json("\xED\xA0\x80z"), R"("\ufffd\ufffd\ufffdz")");  // half of a surrogate pair
  EXPECT_EQ(json("\xE2\x82"), R"("\ufffd")");                    // cut off
}

TEST(ViewJson, numbers_have_the_fewest_digits_and_are_finite_or_null) {
  EXPECT_EQ(view::Json(0.1).text(), "0.1");
  EXPECT_EQ(view::Json(1e23).text(), "1e+23");
  EXPECT_EQ(view::Json(5e-324).text(), "5e-324");
  EXPECT_EQ(view::Json(std::nan("")).text(), "null");
  EXPECT_EQ(view::Json(-HUGE_VAL).text(), "null");
}

TEST(ViewBytes, log8_is_the_nearest_of_its_steps) {
  EXPECT_EQ(log8(0), 0);
  EXPECT_EQ(log8(-1), 0);
  EXPECT_EQ(log8(std::nan("")), 0);
  EXPECT_EQ(log8(1), 255);
  EXPECT_EQ(log8(0.5), 247);
  EXPECT_EQ(log8(1e-30), 1);
  for (double p = 1; p > 1e-9; p *= 0.99) {
    const double shown = std::exp2((log8(p) - 255) / 8.0);
    EXPECT_LE(std::abs(std::log2(shown / p)), 1.0 / 16 + 1e-9) << p;
  }
}

TEST(ViewBytes, log16_is_the_nearest_of_its_steps) {
  EXPECT_EQ(view::log16(1), 0);
  EXPECT_EQ(view::log16(1.0001), 0);
  EXPECT_EQ(view::log16(0.5), 2048);
  EXPECT_EQ(view::log16(0), 65535);
  EXPECT_EQ(view::log16(-1), 65535);
  EXPECT_EQ(view::log16(std::nan("")), 65535);
  EXPECT_EQ(view::log16(std::exp2(-32)), 65535);
  EXPECT_EQ(view::log16(std::exp2(-65534 / 2048.0)), 65534);
  for (double p = 1; p > std::exp2(-31); p *= 0.9993)
    EXPECT_LE(std::abs(std::exp2(-view::log16(p) / 2048.0) / p - 1), 1.7e-4) << p;
}

TEST(ViewBytes, numbers_in_16_bits_have_a_scale_or_are_not_finite) {
  view::Blobs blobs;
  EXPECT_EQ(blobs.add_halved({3}, {131072.0F, 65536.0F, 0.0F}).text(),
            R"({"blob":0,"type":"log16","shape":[3],"scale":131072})");
  EXPECT_EQ(blobs.add_halved({1}, {0.0F}).text(),
            R"({"blob":1,"type":"log16","shape":[1],"scale":1})");
  EXPECT_EQ(blobs.add_halved({2}, {1.0F, std::nanf("")}).text(),
            R"({"blob":2,"type":"f16","shape":[2]})");
}

TEST(ViewBytes, bytes_without_zlib_are_stored_in_blocks) {
  using namespace std::string_literals;
  EXPECT_EQ(stored(""), "\x01\x00\x00\xFF\xFF"s);
  EXPECT_EQ(stored("abc"), "\x01\x03\x00\xFC\xFF"s + "abc");
  const std::string many(65535 + 2, 'x');
  EXPECT_EQ(stored(many),
            "\x00\xFF\xFF\x00\x00"s + many.substr(2) + "\x01\x02\x00\xFD\xFF"s + "xx");
  EXPECT_LE(deflated(many).size(), stored(many).size());
}

}  // namespace
}  // namespace attend::test
