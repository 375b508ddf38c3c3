// Calls on tensors of a GPU: the same bits however they are made, nothing outside of the tensors,
// the queue's order, errors. Whether the numbers are right is conformance_test's question. Without
// a GPU all but the first few are skipped.
#include "core/strided.h"
#include "cuda/rows.h"
#include "cuda/sm90.h"
#include "plan/plan.h"
#include "support/device_tensor.h"
#include "support/fake_device.h"
#include "support/layer_numbers.h"
#include "support/thrown_by.h"

#include <attend/attention.h>
#include <attend/inspect.h>
#include <attend/plan.h>

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cmath>

namespace attend::test {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

// ---- Without a GPU -----------------------------------------------------------------------------

TEST(CudaRows, say_which_gpus_and_sizes_they_take) {
  ForwardProblem p;
  p.device = kGpu;
  p.type = DType::bf16;
  p.d = p.dv = 64;
  p.q_length = p.k_length = 10;
  p.scale = 0.125;
  EXPECT_EQ(cuda::declines_sm90(p, 90), "");
  EXPECT_EQ(cuda::declines_sm90(p, 80), "needs a GPU of sm_90, cuda:0 is sm_80");
  EXPECT_EQ(cuda::declines_portable(kGpu, 80), "");
  EXPECT_EQ(cuda::declines_portable(kGpu, 75), "needs a GPU of sm_80 or later, cuda:0 is sm_75");
  for (const std::int64_t d : {0, 1, 60, 264}) {
    ForwardProblem other = p;
    other.d = d;
    EXPECT_EQ(cuda::declines_sm90(other, 90),
              "takes d and dv that are multiples of 8 up to 256, "
              "not " +
                  std::to_string(d) + " and 64");
  }
  ForwardProblem negative = p;
  negative.scale = -1;
  EXPECT_EQ(cuda::declines_sm90(negative, 90), "takes scales from 2^-126 to 2^64, not -1");
  ForwardProblem long_one = p;
  long_one.k_length = std::int64_t{1} << 28;
  EXPECT_EQ(cuda::declines_sm90(long_one, 90), "takes lengths below 2^28, not 10 and 268435456");
  ForwardProblem paged = p;
  paged.keys = KeyAddressing::paged;
  paged.page_size = 48;
  EXPECT_EQ(cuda::declines_sm90(paged, 90), "");
  paged.page_size = 40;
  EXPECT_EQ(cuda::declines_sm90(paged, 90), "takes pages of multiples of 16 keys, not 40");
  ForwardProblem bytes = paged;
  bytes.own_k_type = bytes.k_scales = true;
  bytes.k_type = DType::i8;
  EXPECT_EQ(cuda::declines_sm90(bytes, 90),
            "takes keys and values of q's type without scales, or both of i8");
  bytes.own_v_type = bytes.v_scales = true;
  bytes.v_type = DType::i8;
  EXPECT_EQ(cuda::declines_sm90(bytes, 90), "");
  bytes.type = DType::f16;
  EXPECT_EQ(cuda::declines_sm90(bytes, 90),
            "takes keys of i8 with queries of bf16: scales times weights may be too small for f16");
  ForwardProblem window = p;
  window.offset_each = true;
  window.window_left = 3;
  EXPECT_EQ(cuda::declines_sm90(window, 90), "takes no window with a query offset of each");
}

// With one offset for all, positions count from query 0 on, and what is far away stays far away.
TEST(CudaRows, positions_of_32_bits_hide_what_those_of_64_hide) {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  const auto positions = [](std::int64_t offset, std::int64_t left, std::int64_t right) {
    Problem p;
    p.offset_given = true;
    p.window_left = left;
    p.window_right = right;
    Call call;
    call.offset = offset;
    const cuda::Sm90Positions found = cuda::sm90_positions(p, call);
    return std::pair(found.left, found.right);
  };
  using Pair = std::pair<int, int>;
  EXPECT_EQ(positions(5, kUnlimited, kUnlimited), Pair(cuda::kNoLimit, cuda::kNoLimit));
  EXPECT_EQ(positions(5, 3, 2), Pair(-2, 7));
  EXPECT_EQ(positions(kFar, kFar, 2), Pair(0, cuda::kNoLimit));
  EXPECT_EQ(positions(-kFar, 7, kFar), Pair(cuda::kNoLimit, 0));
  EXPECT_EQ(positions(-kFar, kUnlimited, 2), Pair(cuda::kNoLimit, -cuda::kNoLimit));
}

// ---- With one ----------------------------------------------------------------------------------

struct Trial {
  Tensor q, k, v, dout;
  AttentionOptions options{};
};
struct Found {
  Tensor out, lse, dq, dk, dv;
};

class Cuda : public testing::TestWithParam<std::tuple<DType, std::int64_t>> {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::why_unavailable(); !reason.empty())
      GTEST_SKIP() << "this machine has no GPU for it: it " << reason;
    queue = cuda::make_queue();
  }
  DType type() const { return std::get<0>(GetParam()); }
  std::int64_t d() const { return std::get<1>(GetParam()); }

  Trial make(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t q_length,
             std::int64_t k_length) const {
    return {numbers({batch, heads, q_length, d()}, type(), 1),
            numbers({batch, kv_heads, k_length, d()}, type(), 2),
            numbers({batch, kv_heads, k_length, d()}, type(), 3),
            numbers({batch, heads, q_length, d()}, type(), 4)};
  }
  DeviceTensor on_device(Tensor tensor) const { return {std::move(tensor), *queue}; }
  DeviceTensor empty(const Shape& shape, DType of) const {
    Tensor tensor(shape, of);
    std::memset(tensor.view().data(), 0xFF, static_cast<std::size_t>(tensor.count() * size_of(of)));
    return on_device(std::move(tensor));
  }
  DType statistic() const { return type() == DType::f64 ? DType::f64 : DType::f32; }

  // Forward and backward on the device; options: their tensors are on it already.
  Found run(const Trial& t) const {
    DeviceTensor q = on_device(t.q), k = on_device(t.k), v = on_device(t.v),
                 dout = on_device(t.dout), out = empty(t.q.shape(), type());
    DeviceTensor lse = empty({t.q.size(0), t.q.size(1), t.q.size(2)}, statistic());
    DeviceTensor dq = empty(t.q.shape(), type()), dk = empty(t.k.shape(), type()),
                 dv = empty(t.v.shape(), type());
    const Where where(default_context(), *queue);
    attention(q, k, v, out.view(), t.options, {.lse = lse.view()}, where);
    attention_backward({.q = q.view(),
                        .k = k.view(),
                        .v = v.view(),
                        .out = out.view(),
                        .lse = lse.view(),
                        .dout = dout.view()},
                       t.options, {.dq = dq.view(), .dk = dk.view(), .dv = dv.view()}, where);
    return {out.back(), lse.back(), dq.back(), dk.back(), dv.back()};
  }

  std::shared_ptr<Queue> queue;
};

Tensor part(const Tensor& x, int dim, std::int64_t begin, std::int64_t end) {
  return Tensor::copy_of(x.view().slice(dim, begin, end));
}

TEST_P(Cuda, a_row_of_a_batch_has_the_bits_it_has_alone) {
  Trial all = make(3, 4, 2, 150, 170);
  all.options.causal = true;
  const Found together = run(all);
  Trial one{part(part(all.q, 0, 1, 2), 1, 2, 4), part(part(all.k, 0, 1, 2), 1, 1, 2),
            part(part(all.v, 0, 1, 2), 1, 1, 2), part(part(all.dout, 0, 1, 2), 1, 2, 4),
            all.options};
  const Found alone = run(one);
  EXPECT_TRUE(same_bits(part(part(together.out, 0, 1, 2), 1, 2, 4), alone.out));
  EXPECT_TRUE(same_bits(part(part(together.lse, 0, 1, 2), 1, 2, 4), alone.lse));
  EXPECT_TRUE(same_bits(part(part(together.dq, 0, 1, 2), 1, 2, 4), alone.dq));
  EXPECT_TRUE(same_bits(part(part(together.dk, 0, 1, 2), 1, 1, 2), alone.dk));
  EXPECT_TRUE(same_bits(part(part(together.dv, 0, 1, 2), 1, 1, 2), alone.dv));
  // Some queries by themselves, and one.
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{37, 90}, {149, 150}}) {
    Trial few{part(all.q, 2, begin, end), all.k, all.v, part(all.dout, 2, begin, end), all.options};
    few.options.query_offset = begin + 20;
    const Found found = run(few);
    EXPECT_TRUE(same_bits(part(together.out, 2, begin, end), found.out)) << begin;
    EXPECT_TRUE(same_bits(part(together.lse, 2, begin, end), found.lse)) << begin;
    EXPECT_TRUE(same_bits(part(together.dq, 2, begin, end), found.dq)) << begin;
  }
}

TEST_P(Cuda, repeated_calls_give_the_same_bits) {
  const Trial t = make(2, 4, 4, 300, 290);
  const Found first = run(t), second = run(t);
  EXPECT_TRUE(same_bits(first.out, second.out));
  EXPECT_TRUE(same_bits(first.dq, second.dq));
  EXPECT_TRUE(same_bits(first.dk, second.dk));
  EXPECT_TRUE(same_bits(first.dv, second.dv));
}

// One query a head has kernels of its own.
TEST_P(Cuda, a_query_alone_has_the_bits_it_has_among_many) {
  const Trial all = make(5, 16, 8, 100, 700);
  const Found together = run(all);
  const Trial one{part(part(part(all.q, 0, 3, 4), 1, 5, 6), 2, 71, 72),
                  part(part(all.k, 0, 3, 4), 1, 2, 3), part(part(all.v, 0, 3, 4), 1, 2, 3),
                  part(part(part(all.dout, 0, 3, 4), 1, 5, 6), 2, 71, 72)};
  const Found alone = run(one);
  const auto row = [](const Tensor& x) { return part(part(part(x, 0, 3, 4), 1, 5, 6), 2, 71, 72); };
  EXPECT_TRUE(same_bits(row(together.out), alone.out));
  EXPECT_TRUE(same_bits(row(together.lse), alone.lse));
  EXPECT_TRUE(same_bits(row(together.dq), alone.dq));
}

// Decode: other kernels take one query a head, whose heads go together, than many; eight at a time.
TEST_P(Cuda, a_query_has_the_bits_of_the_prompt_when_it_comes_by_itself) {
  for (const std::int64_t k_length : {257, 700, 2600})
    for (const double scale : {0.125, 40.0, 1e6}) {
      Trial prompt = make(2, k_length == 700 ? 22 : 12, 2, 60, k_length);
      prompt.options = {.scale = scale, .causal = true, .window = {.left = k_length / 2}};
      const Found all = run(prompt);
      for (const std::int64_t i : {0, 31, 59}) {
        Trial one{part(prompt.q, 2, i, i + 1), prompt.k, prompt.v, part(prompt.dout, 2, i, i + 1),
                  prompt.options};
        one.options.query_offset = k_length - 60 + i;
        const Found alone = run(one);
        EXPECT_TRUE(same_bits(part(all.out, 2, i, i + 1), alone.out)) << k_length << " " << scale;
        EXPECT_TRUE(same_bits(part(all.lse, 2, i, i + 1), alone.lse)) << k_length << " " << scale;
      }
    }
}

// Options that hide or change scores one by one; those of tensors are on the device.
TEST_P(Cuda, with_options_a_query_has_the_bits_it_has_among_many) {
  const Trial all = make(2, 4, 2, 150, 400);
  const Tensor bias = numbers({1, 4, 150, 400}, statistic(), 5),
               slopes = numbers({4}, statistic(), 6);
  Tensor mask({2, 1, 150, 400}, DType::boolean);
  for (std::int64_t n = 0; n < mask.count(); ++n)
    mask.data<bool>()[n] = n % 7 != 3 && n % 400 < 390;
  const DeviceTensor of_heads = on_device(slopes);
  for (int which = 0; which < 4; ++which) {
    const auto rows = [&](std::int64_t begin, std::int64_t end) {
      Trial t{part(all.q, 2, begin, end), all.k, all.v, part(all.dout, 2, begin, end)};
      t.options = {.causal = which != 1, .query_offset = begin + 250};
      std::vector<DeviceTensor> kept;
      if (which == 1 || which == 3)
        t.options.mask = kept.emplace_back(on_device(part(mask, 2, begin, end))).view();
      if (which >= 2) {
        t.options.bias = kept.emplace_back(on_device(part(bias, 2, begin, end))).view();
        t.options.alibi = of_heads.view();
      }
      if (which == 0 || which == 3) t.options.softcap = 2;
      if (which <= 1) t.options.sinks = of_heads.view();
      t.options.window.left = which == 2 ? 200 : kUnlimited;
      return run(t);
    };
    const Found together = rows(0, 150);
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{37, 90}, {149, 150}}) {
      const Found found = rows(begin, end);
      EXPECT_TRUE(same_bits(part(together.out, 2, begin, end), found.out)) << which << " " << begin;
      EXPECT_TRUE(same_bits(part(together.lse, 2, begin, end), found.lse)) << which << " " << begin;
    }
  }
}

TEST_P(Cuda, what_else_is_asked_for_changes_no_bit_of_out) {
  const Trial t = make(2, 4, 2, 60, 300);
  const Found expected = run(t);
  DeviceTensor q = on_device(t.q), k = on_device(t.k), v = on_device(t.v),
               out = empty(t.q.shape(), type());
  DeviceTensor weights = empty({2, 4, 60, 300}, type()), lse = empty({2, 4, 60}, DType::f64);
  attention(q, k, v, out.view(), {}, {.lse = lse.view(), .weights = weights.view()},
            Where(default_context(), *queue));
  EXPECT_TRUE(same_bits(out.back(), expected.out));
  const Tensor& shown = weights.back();
  for (std::int64_t i = 0; i < 60; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < 300; ++j) sum += value(shown, {1, 2, i, j});
    EXPECT_NEAR(sum, 1, 0.01) << i;
  }
}

TEST_P(Cuda, parts_of_the_keys_give_the_bits_of_all) {
  const Trial t = make(2, 2, 1, 40, 600);
  DeviceTensor q = on_device(t.q), k = on_device(t.k), v = on_device(t.v),
               out = empty(t.q.shape(), type());
  if (Plan::attention(q, k, v, out.view()).kernel() != "cuda.portable.forward")
    GTEST_SKIP() << "parts are the portable kernel's, and this is another's";
  DeviceTensor state = on_device(Tensor({2, 2, 40, d() + 4}, DType::f64));
  const Where where(default_context(), *queue);
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 256}, {256, 600}}) {
    AttentionOptions options;
    options.key_offset = begin;
    attention_partial(q, k.view().slice(2, begin, end), v.view().slice(2, begin, end), state.view(),
                      options, where);
  }
  finish_partial({state.view()}, out.view(), {}, where);
  EXPECT_TRUE(same_bits(out.back(), run(t).out));
}

TEST_P(Cuda, merged_results_are_nearly_those_of_all_keys) {
  const Trial t = make(2, 2, 1, 40, 500);
  const Found expected = run(t);
  DeviceTensor q = on_device(t.q), k = on_device(t.k), v = on_device(t.v);
  const DType wide = type() == DType::f64 ? DType::f64 : DType::f32;
  DeviceTensor o[] = {empty(t.q.shape(), wide), empty(t.q.shape(), wide)};
  DeviceTensor lse[] = {empty({2, 2, 40}, wide), empty({2, 2, 40}, wide)};
  DeviceTensor out = empty(t.q.shape(), wide), all = empty({2, 2, 40}, wide);
  const Where where(default_context(), *queue);
  for (int n = 0; n < 2; ++n) {
    const auto part_of = [&](const DeviceTensor& x) {
      return x.view().slice(2, n == 0 ? 0 : 256, n == 0 ? 256 : 500);
    };
    attention(q, part_of(k), part_of(v), o[n].view(), {}, {.lse = lse[n].view()}, where);
  }
  attend::merge({o[0].view(), o[1].view()}, {lse[0].view(), lse[1].view()}, out.view(), all.view(),
                where);
  const Tensor& joined = out.back();
  for (std::int64_t i = 0; i < 40; ++i) {
    EXPECT_NEAR(value(joined, {1, 1, i, 3}), value(expected.out, {1, 1, i, 3}), 0.01) << i;
    EXPECT_NEAR(value(all.back(), {1, 1, i}), value(expected.lse, {1, 1, i}), 1e-4) << i;
  }
}

// Rows that the copy engine cannot read as they lie are copied first.
TEST_P(Cuda, any_layout_gives_the_same_bits) {
  const Trial t = make(2, 2, 2, 70, 60);
  const Found expected = run(t);
  const auto apart = [&](const Tensor& x) {  // every row one element longer, and one in front
    Tensor wide({x.size(0), x.size(1), x.size(2), x.size(3) + 1}, x.dtype());
    const auto size = static_cast<std::size_t>(size_of(x.dtype()) * x.size(3));
    for (std::int64_t row = 0; row < x.count() / x.size(3); ++row)
      std::memcpy(static_cast<char*>(wide.view().data()) +
                      static_cast<std::size_t>(row * (x.size(3) + 1) + 1) *
                          static_cast<std::size_t>(size_of(x.dtype())),
                  static_cast<const char*>(x.view().data()) + static_cast<std::size_t>(row) * size,
                  size);
    return on_device(std::move(wide));
  };
  DeviceTensor q = apart(t.q), k = apart(t.k), v = apart(t.v), out = apart(t.q);
  const auto odd = [&](const DeviceTensor& x) { return x.view().slice(3, 1, d() + 1); };
  attention(odd(q), odd(k), odd(v), odd(out), {}, {}, Where(default_context(), *queue));
  EXPECT_TRUE(same_bits(part(out.back(), 3, 1, d() + 1), expected.out));
}

TEST_P(Cuda, hidden_nan_changes_no_bit) {
  Trial t = make(2, 2, 1, 90, 100);
  Tensor lengths({2}, DType::i32);
  lengths.data<std::int32_t>()[0] = 61;
  lengths.data<std::int32_t>()[1] = 100;
  const DeviceTensor there = on_device(lengths);
  t.options.key_lengths = there.view();
  t.options.causal = true;
  const Found expected = run(t);
  for (Tensor* x : {&t.k, &t.v})
    with_type(type(), [&]<class T>(T) {
      for (std::int64_t j = 61; j < 100; ++j) x->at<T>({0, 0, j, 3}) = static_cast<T>(NAN);
    });
  const Found found = run(t);
  EXPECT_TRUE(same_bits(found.out, expected.out));
  EXPECT_TRUE(same_bits(found.dq, expected.dq));
  EXPECT_TRUE(same_bits(part(found.dk, 2, 0, 61), part(expected.dk, 2, 0, 61)));
  EXPECT_TRUE(same_bits(part(found.dv, 2, 0, 61), part(expected.dv, 2, 0, 61)));
}

// The host cannot check what lies in memory of the device: numbers out of range are brought into
// it.
TEST_P(Cuda, lengths_out_of_range_do_no_harm) {
  Trial t = make(2, 2, 2, 40, 50);
  const Found whole = run(t);
  Tensor lengths({2}, DType::i64);
  lengths.data<std::int64_t>()[0] = std::int64_t{1} << 50;
  lengths.data<std::int64_t>()[1] = -7;
  const DeviceTensor there = on_device(lengths);
  t.options.key_lengths = there.view();
  const Found found = run(t);
  EXPECT_TRUE(same_bits(part(found.out, 0, 0, 1), part(whole.out, 0, 0, 1)));
  const Tensor none = part(found.out, 0, 1, 2);
  EXPECT_TRUE(same_bits(none, Tensor(none.shape(), none.dtype()))) << "it has no keys";
}

// Offsets of each sequence count from the first token, keys from key_offset on.
TEST_P(Cuda, offsets_of_each_and_a_key_offset_move_together) {
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{500}, std::int64_t{1} << 61}) {
    Trial t = make(2, 2, 1, 20, 60);
    t.options.causal = true;
    if (first > 0) t.options.key_offset = first;
    Tensor offsets({2}, DType::i64);
    offsets.data<std::int64_t>()[0] = first + 10;
    offsets.data<std::int64_t>()[1] = first + 33;
    const DeviceTensor there = on_device(offsets);
    t.options.query_offset = there.view();
    const Found both = run(t);
    for (std::int64_t b = 0; b < 2; ++b) {
      Trial one{part(t.q, 0, b, b + 1), part(t.k, 0, b, b + 1), part(t.v, 0, b, b + 1),
                part(t.dout, 0, b, b + 1)};
      one.options = {.causal = true, .query_offset = b == 0 ? 10 : 33};
      EXPECT_TRUE(same_bits(part(both.out, 0, b, b + 1), run(one).out)) << first << " " << b;
    }
  }
}

TEST_P(Cuda, starts_and_pages_out_of_range_do_no_harm) {
  Trial t = make(1, 2, 2, 64, 64);
  const Found expected = run(t);
  Tensor starts({4}, DType::i32);
  const std::int32_t wrong[] = {-5, 1000, 3, 1 << 30};
  std::memcpy(starts.data<std::int32_t>(), wrong, sizeof wrong);
  const DeviceTensor there = on_device(starts);
  t.options.cu_seqlens_q = there.view();
  t.options.max_q = t.options.max_k = 64;
  EXPECT_TRUE(same_bits(run(t).out, expected.out)) << "all of it is one sequence";
  t.options = {};
  Tensor table({1, 4}, DType::i32), lengths({1}, DType::i32);
  const std::int32_t pages[] = {-1, 1 << 29, 0, 0};
  std::memcpy(table.data<std::int32_t>(), pages, sizeof pages);
  lengths.data<std::int32_t>()[0] = 64;
  const DeviceTensor there_table = on_device(table), there_lengths = on_device(lengths);
  DeviceTensor q = on_device(t.q), out = empty(t.q.shape(), type());
  DeviceTensor k = on_device(numbers({2, 2, 16, d()}, type(), 5)),
               v = on_device(numbers({2, 2, 16, d()}, type(), 6));
  AttentionOptions options;
  options.block_table = there_table.view();
  options.key_lengths = there_lengths.view();
  attention(q, k, v, out.view(), options, {}, Where(default_context(), *queue));
  cuda::wait(*queue);
}

// ---- Pages and 8 bits --------------------------------------------------------------------------

// Keys of some sequences: dense, or the same ones on pages in another order, with pages that are
// nobody's. Whatever no sequence sees is NaN, or of 8 bits far from all others.
struct Cache {
  Tensor k, v, k_scales, v_scales;  // scales: of 8 bits
  Tensor lengths, table;            // table: of pages
};

void copy_row(const Tensor& from, std::int64_t b, std::int64_t j, Tensor& to, std::int64_t page,
              std::int64_t slot) {
  const auto bytes = static_cast<std::size_t>(from.count() / from.size(0) / from.size(1) /
                                              from.size(2) * size_of(from.dtype()));
  for (std::int64_t h = 0; h < from.size(1); ++h)
    std::memcpy(static_cast<std::byte*>(to.view().data()) +
                    static_cast<std::size_t>((page * to.size(1) + h) * to.size(2) + slot) * bytes,
                static_cast<const std::byte*>(from.view().data()) +
                    static_cast<std::size_t>((b * from.size(1) + h) * from.size(2) + j) * bytes,
                bytes);
}

Tensor nowhere(Shape shape, DType type) {
  Tensor t(shape, type);
  std::memset(t.view().data(), type == DType::i8 ? 0x7F : 0xFF,
              static_cast<std::size_t>(t.count() * size_of(type)));
  return t;
}

// Key j of sequence b is on page (7 n + 3) mod pages, n its number among all: 7 and the number of
// pages have no common factor.
Cache on_pages(const Cache& dense, std::int64_t size) {
  const std::int64_t batch = dense.k.size(0), width = (dense.k.size(2) + size - 1) / size;
  std::int64_t pages = batch * width + 2;
  if (pages % 7 == 0) ++pages;
  const auto pool = [&](const Tensor& x) {
    if (!x) return Tensor();
    Shape shape = x.shape();
    shape[0] = pages;
    shape[2] = size;
    return nowhere(shape, x.dtype());
  };
  Cache paged{pool(dense.k),        pool(dense.v), pool(dense.k_scales),
              pool(dense.v_scales), dense.lengths, Tensor({batch, width}, DType::i32)};
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t n = 0; n < width; ++n) {
      const std::int64_t page = ((b * width + n) * 7 + 3) % pages;
      const std::int64_t length = dense.lengths.data<std::int32_t>()[b];
      // Of pages that are not seen there may be any number.
      paged.table.data<std::int32_t>()[b * width + n] = n * size < length
                                                            ? static_cast<std::int32_t>(page)
                                                        : n % 2 == 0 ? -5
                                                                     : 1 << 30;
      for (std::int64_t j = n * size; j < std::min((n + 1) * size, length); ++j) {
        copy_row(dense.k, b, j, paged.k, page, j % size);
        copy_row(dense.v, b, j, paged.v, page, j % size);
        if (!dense.k_scales) continue;
        copy_row(dense.k_scales, b, j, paged.k_scales, page, j % size);
        copy_row(dense.v_scales, b, j, paged.v_scales, page, j % size);
      }
    }
  return paged;
}

class CudaCache : public Cuda {
 protected:
  static constexpr std::int64_t kBatch = 3;

  // Keys of i8 for bf16 if `bytes`, else of the type.
  Cache make_cache(std::int64_t kv_heads, std::int64_t length, bool bytes) const {
    const Shape shape{kBatch, kv_heads, length, d()};
    Cache c;
    c.lengths = Tensor({kBatch}, DType::i32);
    if (!bytes) {
      c.k = numbers(shape, type(), 2);
      c.v = numbers(shape, type(), 3);
    } else {
      c.k = Tensor(shape, DType::i8);
      c.v = Tensor(shape, DType::i8);
      c.k_scales = numbers({kBatch, kv_heads, length}, statistic(), 5);
      c.v_scales = numbers({kBatch, kv_heads, length}, DType::f32, 6);
      for (Tensor* x : {&c.k, &c.v})
        for (std::int64_t n = 0; n < x->count(); ++n)
          x->data<std::int8_t>()[n] =
              static_cast<std::int8_t>((n * n * 7 + n * 13 + n / 251 + (x == &c.k)) % 256 - 128);
      for (Tensor* x : {&c.k_scales, &c.v_scales})
        for (std::int64_t n = 0; n < x->count(); ++n) x->data<float>()[n] *= 0.02F;
    }
    std::int32_t* const lengths = c.lengths.data<std::int32_t>();
    lengths[0] = static_cast<std::int32_t>(length);
    lengths[1] = static_cast<std::int32_t>(length / 2 + 3);
    lengths[2] = 1;
    return c;
  }

  // out and lse; kernel: which one it must have been, if it is given.
  std::pair<Tensor, Tensor> run_cache(const Tensor& q, const Cache& c, AttentionOptions options,
                                      std::string_view kernel = {}) const {
    const DeviceTensor on_q = on_device(q), k = on_device(c.k), v = on_device(c.v),
                       lengths = on_device(c.lengths);
    DeviceTensor out = empty(q.shape(), type());
    DeviceTensor lse = empty({q.size(0), q.size(1), q.size(2)}, statistic());
    DeviceTensor table, k_scales, v_scales;
    options.key_lengths = lengths.view();
    if (c.table) {
      table = on_device(c.table);
      options.block_table = table.view();
    }
    if (c.k_scales) {
      k_scales = on_device(c.k_scales);
      v_scales = on_device(c.v_scales);
      options.k_scales = k_scales.view();
      options.v_scales = v_scales.view();
    }
    const Plan plan = Plan::attention(on_q, k, v, out.view(), options, {.lse = lse.view()});
    if (!kernel.empty()) {
      EXPECT_EQ(plan.kernel(), kernel) << plan.describe();
    }
    attention(on_q, k, v, out.view(), options, {.lse = lse.view()},
              Where(default_context(), *queue));
    return {out.back(), lse.back()};
  }
  void expect_same(const std::pair<Tensor, Tensor>& a, const std::pair<Tensor, Tensor>& b,
                   const std::string& where) const {
    EXPECT_TRUE(same_bits(a.first, b.first)) << where;
    EXPECT_TRUE(same_bits(a.second, b.second)) << where;
  }
  // On pages of so many keys, of q's type or of 8 bits: what a Hopper GPU takes.
  std::string_view kernel_of(std::int64_t page, bool bytes) const {
    if (cuda::Gpu::find(0)->capability() != 90 || size_of(type()) != 2 || d() % 8 != 0)
      return "cuda.portable.forward";
    if (bytes ? type() != DType::bf16 : page % 16 != 0) return "cuda.portable.forward";
    return "cuda.sm90.forward";
  }

  void pages_are_as_dense_ones(bool bytes) const {
    for (const std::int64_t length : {40, 700, 1500}) {
      const Cache dense = make_cache(2, length, bytes);
      for (const std::int64_t queries : {1, 2, 70})
        for (const AttentionOptions& options :
             {AttentionOptions{}, AttentionOptions{.causal = true},
              AttentionOptions{.causal = true, .window = {.left = length / 3}}}) {
          const Tensor q = numbers({kBatch, 8, queries, d()}, type(), 1);
          const auto expected = run_cache(q, dense, options, kernel_of(16, bytes));
          for (const std::int64_t size : {16, 48, 64, 256, 1, 24}) {
            const std::string_view kernel = kernel_of(size, bytes);
            if (kernel != kernel_of(16, bytes) || (size == 1 && queries == 2)) continue;
            expect_same(run_cache(q, on_pages(dense, size), options, kernel), expected,
                        std::to_string(length) + " keys, " + std::to_string(queries) +
                            " queries, pages of " + std::to_string(size));
          }
        }
    }
  }

  // Each of the last queries of a prompt by itself, and all together.
  void tokens_are_as_the_prompt(bool bytes) const {
    constexpr std::int64_t kQueries = 40, kLength = 800;
    const Cache dense = make_cache(2, kLength, bytes), paged = on_pages(dense, 32);
    const Tensor q = numbers({kBatch, 12, kQueries, d()}, type(), 1);
    for (const double scale : {0.125, 1e5}) {
      const AttentionOptions options{.scale = scale, .causal = true};
      const auto all = run_cache(q, paged, options);
      for (const std::int64_t i : {0, 17, 39}) {
        Cache upto = paged;
        for (std::int64_t b = 0; b < kBatch; ++b) {
          auto& length = upto.lengths.data<std::int32_t>()[b];
          length = std::max(0, length - static_cast<std::int32_t>(kQueries - 1 - i));
        }
        const auto one = run_cache(part(q, 2, i, i + 1), upto, options);
        expect_same(one, {part(all.first, 2, i, i + 1), part(all.second, 2, i, i + 1)},
                    "query " + std::to_string(i) + " of scale " + std::to_string(scale));
      }
    }
  }
};

TEST_P(CudaCache, pages_have_the_bits_of_dense_keys) { pages_are_as_dense_ones(false); }
TEST_P(CudaCache, token_by_token_on_pages_has_the_bits_of_the_prompt) {
  tokens_are_as_the_prompt(false);
}
TEST_P(CudaCache, pages_of_8_bits_have_the_bits_of_dense_keys) { pages_are_as_dense_ones(true); }
TEST_P(CudaCache, token_by_token_of_8_bits_has_the_bits_of_the_prompt) {
  tokens_are_as_the_prompt(true);
}

// Scales that are powers of two change no bit of a sum.
TEST_P(CudaCache, eight_bits_are_the_same_keys_in_16) {
  if (size_of(type()) > 2) GTEST_SKIP() << "f32 and f64 are asked by conformance_test";
  Cache bytes = make_cache(2, 900, true);
  Cache wide;
  wide.k = Tensor(bytes.k.shape(), type());
  wide.v = Tensor(bytes.v.shape(), type());
  wide.lengths = bytes.lengths;
  const auto widen = [&](const Tensor& from, Tensor& scales, Tensor& to) {
    for (std::int64_t n = 0; n < scales.count(); ++n)
      scales.data<float>()[n] = n % 3 == 0 ? -0x1p-7F : 0x1p-6F;
    with_type(type(), [&]<class T>(T) {
      for (std::int64_t n = 0; n < from.count(); ++n)
        to.data<T>()[n] = static_cast<T>(static_cast<float>(from.data<std::int8_t>()[n]) *
                                         scales.data<float>()[n / d()]);
    });
  };
  widen(bytes.k, bytes.k_scales, wide.k);
  widen(bytes.v, bytes.v_scales, wide.v);
  for (const std::int64_t queries : {1, 50}) {
    const Tensor q = numbers({kBatch, 4, queries, d()}, type(), 1);
    const auto found = run_cache(q, bytes, {}), expected = run_cache(q, wide, {});
    if (kernel_of(16, true) == kernel_of(16, false)) {
      expect_same(found, expected, std::to_string(queries));
      continue;
    }
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t x = 0; x < d(); ++x)
        EXPECT_NEAR(value(found.first, {b, 3, queries - 1, x}),
                    value(expected.first, {b, 3, queries - 1, x}), 0.02)
            << b << " " << x;
  }
}

// Scales that no weight can be multiplied with; those of hidden keys are seen by nobody.
TEST_P(CudaCache, scales_that_are_not_finite_reach_those_who_see_them) {
  const Cache good = make_cache(1, 300, true);
  for (const std::int64_t queries : {1, 30}) {
    const Tensor q = numbers({kBatch, 2, queries, d()}, type(), 1);
    const AttentionOptions options{.causal = true};
    const auto expected = run_cache(q, good, options);
    Cache bad = good;
    for (Tensor* x : {&bad.k_scales, &bad.v_scales}) {
      x->at<float>({1, 0, 299}) = NAN;  // behind the length
      x->at<float>({2, 0, 1}) = INFINITY;
    }
    expect_same(run_cache(q, bad, options), expected, "hidden ones");
    bad.v_scales.at<float>({0, 0, 299}) = NAN;  // the last query sees it
    const auto found = run_cache(q, bad, options);
    for (std::int64_t i = 0; i < queries; ++i)
      EXPECT_EQ(std::isnan(value(found.first, {0, 1, i, 0})), i == queries - 1) << i;
    if (queries == 1) continue;
    EXPECT_TRUE(
        same_bits(part(found.first, 2, 0, queries - 1), part(expected.first, 2, 0, queries - 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(all, CudaCache,
                         testing::Values(std::tuple(DType::bf16, 64), std::tuple(DType::f16, 128),
                                         std::tuple(DType::bf16, 128), std::tuple(DType::bf16, 256),
                                         std::tuple(DType::bf16, 40), std::tuple(DType::f32, 16)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_d" +
                                  std::to_string(std::get<1>(test.param));
                         });

// ---- Statistics --------------------------------------------------------------------------------

// More keys than a chunk, and more than are listed first; lengths that no kernel may believe.
TEST_P(Cuda, statistics_are_nearly_those_of_the_host) {
  const Trial t = make(2, 4, 2, 90, 700);
  Tensor tokens({700}, DType::i64), lengths({2}, DType::i64), wrong({2}, DType::i64);
  for (std::int64_t j = 0; j < 700; ++j) tokens.data<std::int64_t>()[j] = j * j % 31;
  lengths.data<std::int64_t>()[0] = 700, wrong.data<std::int64_t>()[0] = std::int64_t{1} << 50;
  lengths.data<std::int64_t>()[1] = 513, wrong.data<std::int64_t>()[1] = 513;
  const InspectOptions asked{.top_k = 40, .tokens = tokens, .tile_rows = 8, .tile_columns = 5};
  const Statistics host = inspect(t.q, t.k, {.causal = true, .key_lengths = lengths}, asked);
  DeviceTensor q = on_device(t.q), k = on_device(t.k);
  const DeviceTensor on_wrong = on_device(wrong), on_tokens = on_device(tokens);
  InspectOptions there = asked;
  there.tokens = on_tokens.view();
  const AttentionOptions options{.causal = true, .key_lengths = on_wrong.view()};
  const Where where(default_context(), *queue);
  const Statistics found = inspect(q, k, options, there, where);
  ASSERT_EQ(found.heads.size(), host.heads.size());
  for (std::size_t h = 0; h < host.heads.size(); ++h) {
    const HeadStatistics &a = found.heads[h], &b = host.heads[h];
    EXPECT_EQ(a.rows, b.rows);
    for (const auto& member :
         {&HeadStatistics::lse, &HeadStatistics::entropy, &HeadStatistics::evenness,
          &HeadStatistics::maximum, &HeadStatistics::previous, &HeadStatistics::first,
          &HeadStatistics::diagonal, &HeadStatistics::local, &HeadStatistics::local_uniform,
          &HeadStatistics::duplicate, &HeadStatistics::induction})
      EXPECT_NEAR(a.*member, b.*member, 1e-5 * (1 + std::abs(b.*member))) << h;
    EXPECT_NEAR(a.distance, b.distance, 1e-5 * b.distance);
  }
  for (const auto& tensor :
       {&Statistics::lse, &Statistics::maximum, &Statistics::entropy, &Statistics::top_weights,
        &Statistics::key_mass, &Statistics::tile_mean, &Statistics::tile_maximum}) {
    ASSERT_EQ((found.*tensor).shape(), (host.*tensor).shape());
    with_type(statistic(), [&]<class T>(T) {
      if constexpr (sizeof(T) >= sizeof(float))
        for (std::int64_t n = 0; n < (host.*tensor).count(); ++n) {
          const auto a = static_cast<double>((found.*tensor).template data<T>()[n]);
          const auto b = static_cast<double>((host.*tensor).template data<T>()[n]);
          ASSERT_NEAR(a, b, 2e-5 * (1 + std::abs(b))) << n;
        }
    });
  }
  const WeightsWindow window{.batch = 1, .head = 3, .query = 20, .queries = 70, .keys = 700};
  const DeviceTensor lse = on_device(found.lse);
  const Tensor p = weights_of(q, k, lse, window, options, where);
  EXPECT_TRUE(same_bits(p, weights_of(q, k, found.lse, window, options, where)));
  for (std::int64_t i = 0; i < 70; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < 700; ++j) sum += value(p, {i, j});
    EXPECT_NEAR(sum, 1, 1e-5) << i;
  }
}

TEST_P(Cuda, statistics_need_a_queue_and_one_device) {
  const Trial t = make(1, 1, 1, 4, 4);
  const DeviceTensor q = on_device(t.q), k = on_device(t.k);
  EXPECT_EQ(thrown_by([&] { inspect(q, k); }),
            "InvalidArgument: inspect: the tensors are on cuda:0; a queue of it must be given");
  EXPECT_EQ(thrown_by([&] { inspect(q, t.k, {}, {}, Where(default_context(), *queue)); }),
            "InvalidArgument: inspect: k is on cpu, q on cuda:0; all tensors must be on one "
            "device");
}

// ---- The queue ---------------------------------------------------------------------------------

TEST_P(Cuda, a_plan_names_kernel_and_reasons) {
  const Trial t = make(1, 2, 2, 8, 8);
  DeviceTensor q = on_device(t.q), k = on_device(t.k), v = on_device(t.v),
               out = empty(t.q.shape(), type());
  const Plan plan = Plan::attention(q, k, v, out.view());
  const std::string words = plan.describe();
  EXPECT_NE(words.find("on cuda:0"), words.npos);
  EXPECT_NE(words.find("kernel     " + plan.kernel()), words.npos);
  EXPECT_TRUE(plan.kernel().starts_with("cuda.")) << words;
  const bool says_why = words.find("declined   cuda.sm90.forward: ") != words.npos;
  EXPECT_EQ(says_why, plan.kernel() == "cuda.portable.forward") << words;
  EXPECT_EQ(words.find("reads host memory"), words.npos) << words;
}

// Captured into a graph: what is launched twice is done twice. Its memory is the graph's, or the
// caller's.
TEST_P(Cuda, a_graph_can_hold_a_call) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto call = [&]<class... A>(const char* name, A... arguments) {
    const auto function = reinterpret_cast<int (*)(A...)>(dlsym(driver, name));
    ASSERT_NE(function, nullptr) << name;
    ASSERT_EQ(function(arguments...), 0) << name;
  };
  const Trial t = make(2, 4, 2, 100, 90);
  const Found expected = run(t);
  DeviceTensor q = on_device(t.q), k = on_device(t.k), v = on_device(t.v),
               out = empty(t.q.shape(), type());
  const cuda::Memory own(std::size_t{32} << 20);
  std::size_t used = 0;
  const cuda::QueueMemory functions{[&](std::size_t bytes) {
                                      std::byte* const memory =
                                          static_cast<std::byte*>(own.data()) + used;
                                      used += (bytes + 255) / 256 * 256;
                                      return used <= own.bytes() ? memory : nullptr;
                                    },
                                    [](void*, std::size_t) {}};
  void *context = nullptr, *stream = nullptr;
  call("cuDevicePrimaryCtxRetain", &context, 0);
  call("cuCtxPushCurrent_v2", context);
  call("cuStreamCreate", &stream, 1U);
  for (const bool of_caller : {false, true}) {
    void *graph = nullptr, *ready = nullptr;
    call("cuStreamBeginCapture_v2", stream, 2);
    const auto captured =
        of_caller ? cuda::make_queue(0, stream, functions) : cuda::make_queue(0, stream);
    attention(q, k, v, out.view(), {}, {}, Where(default_context(), *captured));
    call("cuStreamEndCapture", stream, &graph);
    EXPECT_FALSE(same_bits(out.back(), expected.out)) << "done while it was captured";
    call("cuGraphInstantiateWithFlags", &ready, graph, 0ULL);
    for (int twice = 0; twice < 2; ++twice) {
      call("cuGraphLaunch", ready, stream);
      cuda::wait(*captured);
      EXPECT_TRUE(same_bits(out.back(), expected.out)) << of_caller;
      cuda::copy(out.view().data(), t.q.view().data(),
                 static_cast<std::size_t>(t.q.count() * size_of(type())), *queue);
    }
  }
  call("cuCtxPopCurrent_v2", &context);
}

TEST_P(Cuda, another_kind_of_queue_is_refused) {
  const Trial t = make(1, 1, 1, 4, 4);
  DeviceTensor q = on_device(t.q), k = on_device(t.k), v = on_device(t.v),
               out = empty(t.q.shape(), type());
  FakeQueue fake;
  EXPECT_EQ(
      thrown_by([&] { attention(q, k, v, out.view(), {}, {}, Where(default_context(), fake)); }),
      "DeviceError: attention: cuda:0 failed: its queue is not one that "
      "attend::cuda::make_queue() made");
}

INSTANTIATE_TEST_SUITE_P(all, Cuda,
                         testing::Values(std::tuple(DType::bf16, 64), std::tuple(DType::f16, 128),
                                         std::tuple(DType::bf16, 256), std::tuple(DType::bf16, 40),
                                         std::tuple(DType::bf16, 30), std::tuple(DType::f32, 64),
                                         std::tuple(DType::f64, 20)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_d" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace attend::test
