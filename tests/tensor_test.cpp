// Shapes, views and tensors.
#include <attend/context.h>
#include <attend/options.h>

#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <vector>

namespace attend {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// 0, 1, 2, ... in row-major order.
Tensor counting(const Shape& shape) {
  Tensor tensor(shape);
  for (std::int64_t n = 0; n < tensor.count(); ++n) tensor.data<float>()[n] = static_cast<float>(n);
  return tensor;
}

// The elements in row-major order, whatever the strides.
std::vector<float> elements(const ConstTensorView& view) {
  const Tensor copy = Tensor::copy_of(view);
  return {copy.data<float>(), copy.data<float>() + copy.count()};
}

// ---- Shape -------------------------------------------------------------------------------------

TEST(Shape, compares_prints_and_counts) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape, (Shape{2, 3, 4}));
  EXPECT_NE(shape, (Shape{2, 3}));
  EXPECT_NE(shape, (Shape{2, 3, 4, 0}));
  EXPECT_NE(Shape{}, Shape{0});
  EXPECT_EQ(to_string(shape), "[2, 3, 4]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{-1}), "[-1]");
  EXPECT_EQ(element_count(shape), 24);
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({kLargest}), kLargest);
  const std::vector<std::int64_t> values{5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(Shape(values), (Shape{5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(Shape, takes_integers_of_any_type) {
  const std::vector<float> rows(5);
  enum { kHeads = 2 };
  EXPECT_EQ((Shape{rows.size(), kHeads, 3U, std::int8_t{4}, -1}), (Shape{5, 2, 3, 4, -1}));
  EXPECT_EQ(Tensor({rows.size(), 2}).shape(), (Shape{5, 2}));
  static_assert(!std::is_constructible_v<Shape::Value, float>);
}

TEST(Shape, a_size_of_zero_makes_the_count_zero_whatever_stands_beside_it) {
  EXPECT_EQ(element_count({kLargest, kLargest, 0}), 0);
  EXPECT_EQ(element_count({0, kLargest, kLargest}), 0);
}

TEST(Shape, contiguous_strides_are_row_major) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Shape{});
  EXPECT_EQ(contiguous_strides({1, kLargest}), (Shape{kLargest, 1}));
  EXPECT_EQ(contiguous_strides({2, 0, 4}).rank(), 3);
}

TEST(Shape, devices_print) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{Device::Kind::cuda, 2}), "cuda:2");
}

// ---- Views -------------------------------------------------------------------------------------

TEST(View, nothing_is_none) {
  EXPECT_FALSE(ConstTensorView());
  EXPECT_FALSE(TensorView());
  EXPECT_TRUE(ConstTensorView(nullptr, DType::f32, {0}));
}

TEST(View, knows_type_shape_and_strides_of_a_pointer) {
  double values[6] = {0, 1, 2, 3, 4, 5};
  const TensorView view(values, {2, 3});
  EXPECT_EQ(view.dtype(), DType::f64);
  EXPECT_EQ(view.strides(), (Shape{3, 1}));
  EXPECT_EQ(view.rank(), 2);
  EXPECT_EQ(view.size(1), 3);
  EXPECT_EQ(view.count(), 6);
  view.at<double>({1, 2}) = 7;
  EXPECT_EQ(values[5], 7);
  const ConstTensorView column(values, {2}, {3});
  EXPECT_EQ(column.at<double>({1}), 3);
  const ConstTensorView scalar(values + 4, {});
  EXPECT_EQ(scalar.at<double>({}), 4);
}

TEST(View, permute_reorders_the_dimensions) {
  const Tensor t = counting({2, 3, 4});
  const ConstTensorView view = t.view().permute({2, 0, 1});
  EXPECT_EQ(view.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(view.strides(), (Shape{1, 12, 4}));
  for (std::int64_t a = 0; a < 2; ++a)
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t c = 0; c < 4; ++c)
        EXPECT_EQ(view.at<float>({c, a, b}), t.at<float>({a, b, c}));
  Tensor writable({2, 3});
  writable.view().permute({1, 0}).at<float>({2, 1}) = 5;
  EXPECT_EQ(writable.at<float>({1, 2}), 5);
}

// Every slice of every size up to 7, with every step, against the loop that it stands for.
TEST(View, slice_takes_what_a_loop_would_take) {
  for (std::int64_t size = 0; size <= 7; ++size) {
    const Tensor t = counting({size});
    for (std::int64_t step = -9; step <= 9; ++step) {
      if (step == 0) continue;
      const std::int64_t last = step > 0 ? size : size - 1, first = step > 0 ? 0 : -1;
      for (std::int64_t begin = first; begin <= last; ++begin) {
        for (std::int64_t end = first; end <= last; ++end) {
          if (step > 0 ? begin > end : begin < end) continue;
          std::vector<float> expected;
          for (std::int64_t x = begin; step > 0 ? x < end : x > end; x += step)
            expected.push_back(static_cast<float>(x));
          const ConstTensorView view = t.view().slice(0, begin, end, step);
          ASSERT_EQ(elements(view), expected) << "Tensor({" << size << "}).slice(0, " << begin
                                              << ", " << end << ", " << step << ")";
        }
      }
    }
  }
}

TEST(View, slice_of_one_dimension_leaves_the_others) {
  const Tensor t = counting({2, 5});
  EXPECT_EQ(elements(t.view().slice(1, 4, -1, -2)), (std::vector<float>{4, 2, 0, 9, 7, 5}));
  EXPECT_EQ(t.view().slice(1, 2, 2).shape(), (Shape{2, 0}));
  Tensor writable({2, 5});
  writable.view().slice(0, 1, 2).at<float>({0, 3}) = 8;
  EXPECT_EQ(writable.at<float>({1, 3}), 8);
}

TEST(View, slice_with_the_largest_steps_takes_one_element) {
  const Tensor t = counting({4, 3});
  for (const std::int64_t step : {kLargest, kLargest / 2})
    EXPECT_EQ(elements(t.view().slice(0, 1, 4, step)), (std::vector<float>{3, 4, 5}));
  for (const std::int64_t step : {-kLargest, -kLargest - 1})
    EXPECT_EQ(elements(t.view().slice(0, 2, -1, step)), (std::vector<float>{6, 7, 8}));
}

TEST(View, broadcast_repeats_dimensions_of_one_and_new_ones) {
  const Tensor t = counting({2, 1});
  const ConstTensorView view = t.view().broadcast_to({3, 2, 4});
  EXPECT_EQ(view.strides(), (Shape{0, 1, 0}));
  EXPECT_EQ(view.at<float>({2, 1, 3}), 1);
  EXPECT_EQ(view.at<float>({0, 0, 3}), 0);
  EXPECT_EQ(t.view().broadcast_to({2, 1}).shape(), (Shape{2, 1}));
  EXPECT_EQ(t.view().broadcast_to({0, 2, 0}).count(), 0);
  const Tensor scalar({2.5F}, Shape{});
  EXPECT_EQ(elements(scalar.view().broadcast_to({3})), (std::vector<float>{2.5, 2.5, 2.5}));
}

// ---- Tensor ------------------------------------------------------------------------------------

TEST(Tensor, is_made_of_zeros_or_of_values) {
  const Tensor zeros({3, 2}, DType::i32);
  for (std::int64_t n = 0; n < 6; ++n) EXPECT_EQ(zeros.data<std::int32_t>()[n], 0);
  const Tensor values({1.0, 2.0, 3.0, 4.0}, {2, 2});
  EXPECT_EQ(values.dtype(), DType::f64);
  EXPECT_EQ(values.at<double>({1, 0}), 3);
  EXPECT_EQ(Tensor({true, false}, {2}).dtype(), DType::boolean);
  EXPECT_EQ(Tensor({0, 7}, DType::f16).count(), 0);
  EXPECT_EQ(Tensor(Shape{}).count(), 1);
}

TEST(Tensor, memory_is_aligned_to_cache_lines) {
  for (std::int64_t size = 1; size < 100; size += 7)
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(Tensor({size}, DType::u8).data<std::uint8_t>()) % 64,
              0U);
}

TEST(Tensor, copies_are_deep) {
  Tensor a = counting({2, 2});
  const Tensor b = a;
  Tensor c;
  c = a;
  a.at<float>({0, 0}) = 99;
  EXPECT_EQ(b.at<float>({0, 0}), 0);
  EXPECT_EQ(c.at<float>({0, 0}), 0);
  EXPECT_NE(b.data<float>(), c.data<float>());
  Tensor& same = c;
  c = same;
  EXPECT_EQ(elements(c), (std::vector<float>{0, 1, 2, 3}));
  const Tensor none = Tensor(Tensor());
  EXPECT_FALSE(none);
  c = none;
  EXPECT_FALSE(c);
}

TEST(Tensor, moves_leave_none_behind) {
  Tensor a = counting({2, 2});
  const float* memory = a.data<float>();
  Tensor b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: that is the question
  EXPECT_EQ(a.shape(), Shape{});
  EXPECT_EQ(a.data<float>(), nullptr);
  EXPECT_EQ(b.data<float>(), memory);
  Tensor c({5});
  c = std::move(b);
  EXPECT_FALSE(b);  // NOLINT
  EXPECT_EQ(c.data<float>(), memory);
  Tensor& same = c;
  c = std::move(same);
  EXPECT_EQ(elements(c), (std::vector<float>{0, 1, 2, 3}));
}

TEST(Tensor, becomes_a_view) {
  Tensor t({2, 3});
  const TensorView writable = t;
  writable.at<float>({0, 1}) = 4;
  const Tensor& constant = t;
  const ConstTensorView view = constant;
  EXPECT_EQ(view.at<float>({0, 1}), 4);
  EXPECT_EQ(view.shape(), (Shape{2, 3}));
  EXPECT_FALSE(ConstTensorView(Tensor()));
}

TEST(Tensor, copy_of_reads_any_strides) {
  const Tensor t = counting({2, 3});
  EXPECT_EQ(elements(t.view().permute({1, 0})), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(elements(t.view().slice(1, 2, -1, -1)), (std::vector<float>{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(elements(t.view().slice(0, 1, 2).broadcast_to({2, 3})),
            (std::vector<float>{3, 4, 5, 3, 4, 5}));
  const Tensor copy = Tensor::copy_of(t.view().permute({1, 0}));
  EXPECT_EQ(copy.view().strides(), (Shape{2, 1}));
  EXPECT_FALSE(Tensor::copy_of({}));
  EXPECT_EQ(Tensor::copy_of({nullptr, DType::f32, {0, 3}}).shape(), (Shape{0, 3}));
  const std::uint8_t bytes[4] = {1, 2, 3, 4};
  EXPECT_EQ(Tensor::copy_of({&bytes[3], {4}, {-1}}).at<std::uint8_t>({3}), 1);
}

// Pieces that lie together are copied as one: every way of cutting a tensor of four dimensions into
// such pieces, against its elements one by one.
TEST(Tensor, copy_of_takes_every_element_from_its_place) {
  const Tensor t = counting({2, 3, 4, 5});
  const ConstTensorView v = t.view();
  std::vector<ConstTensorView> views = {v};
  for (const Shape& order :
       {Shape{0, 1, 3, 2}, {0, 2, 1, 3}, {1, 0, 2, 3}, {3, 2, 1, 0}, {2, 3, 0, 1}})
    views.push_back(v.permute(order));
  for (int dim = 0; dim < 4; ++dim) {
    const std::size_t count = views.size();
    for (std::size_t n = 0; n < count; ++n) {
      const std::int64_t size = views[n].size(dim);
      if (size == 0) continue;
      views.push_back(views[n].slice(dim, size > 1 ? 1 : 0, size));
      views.push_back(views[n].slice(dim, size - 1, -1, -1));
      if (dim % 2 == 0) continue;
      views.push_back(views[n].slice(dim, 0, size, 2));
      views.push_back(views[n].slice(dim, 0, 1));
      views.push_back(views[n].slice(dim, 0, 0));
    }
  }
  const std::size_t count = views.size();
  for (std::size_t n = 0; n < count; n += 7)
    if (views[n].size(1) == 1)
      views.push_back(
          views[n].broadcast_to({2, views[n].size(0), 3, views[n].size(2), views[n].size(3)}));
  EXPECT_GT(views.size(), count);
  for (const ConstTensorView& view : views) {
    const Tensor copy = Tensor::copy_of(view);
    ASSERT_EQ(copy.shape(), view.shape());
    Shape index = view.shape();
    for (std::int64_t n = 0; n < copy.count(); ++n) {
      for (std::int64_t dim = index.rank() - 1, rest = n; dim >= 0; --dim) {
        index[static_cast<int>(dim)] = rest % view.size(static_cast<int>(dim));
        rest /= view.size(static_cast<int>(dim));
      }
      ASSERT_EQ(copy.data<float>()[n], view.at<float>(index))
          << to_string(view.shape()) << " strides " << to_string(view.strides()) << " element "
          << n;
    }
  }
}

// A stride that is never taken may be anything: products of it must not be formed.
TEST(Tensor, copy_of_takes_no_stride_that_is_not_used) {
  const double values[2] = {1, 2};
  const std::int64_t large = std::int64_t{1} << 62;
  const Tensor one = Tensor::copy_of({values, {1, 2}, {large, 1}});
  EXPECT_EQ(one.at<double>({0, 1}), 2);
  EXPECT_EQ(Tensor::copy_of({values, {2, 1}, {1, -large}}).at<double>({1, 0}), 2);
  EXPECT_EQ(Tensor::copy_of({values, {3, 0, 7}, {large, large, large}}).shape(), (Shape{3, 0, 7}));
  EXPECT_EQ(Tensor::copy_of(ConstTensorView(values, Shape{})).at<double>({}), 1);
}

// ---- memory ------------------------------------------------------------------------------------

#if !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)  // under the sanitizer nothing is kept
TEST(Memory, a_large_block_serves_the_next_tensor_of_about_its_size) {
  const Context context;
  const Shape large{1 << 20};
  const void* memory = context.make_tensor(large).view().data();
  EXPECT_EQ(context.make_tensor(large).view().data(), memory);
  EXPECT_EQ(context.make_tensor({1'000'000}).view().data(), memory);
  const Tensor half = context.make_tensor({1 << 19});
  EXPECT_NE(half.view().data(), memory);
}
#endif

TEST(Memory, more_than_is_kept_comes_and_goes) {
  const Context context;
  std::vector<Tensor> many;
  for (int n = 0; n < 5; ++n) many.push_back(context.make_tensor({16 << 20}));  // 5 of 64 MiB
  [[maybe_unused]] const void* newest = many.back().view().data();
  many.clear();  // in order: the last is the newest
  const Tensor again = context.make_tensor({16 << 20});
  EXPECT_EQ(again.count(), 16 << 20);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
  EXPECT_TRUE(again.view().data() == newest ||
              context.make_tensor({16 << 20}).view().data() == newest);
#endif
}

TEST(Memory, threads_share_it) {
  const Context context;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &context] {
      for (int n = 0; n < 200; ++n) {
        Tensor tensor = context.make_tensor({(64 << 10) + n % 7 * 1000});
        float* data = tensor.data<float>();
        data[0] = data[tensor.count() - 1] = static_cast<float>(t);
        std::this_thread::yield();
        EXPECT_EQ(data[0], static_cast<float>(t));
        EXPECT_EQ(data[tensor.count() - 1], static_cast<float>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- TensorOrView ------------------------------------------------------------------------------

// Without an owner the next tensor of that size would take the memory.
TEST(TensorOrView, a_tensor_that_is_given_away_lives_as_long_as_the_options) {
  const auto bytes = [](std::uint8_t value) { return Tensor({value, value}, {2}); };
  AttentionOptions options;
  {
    const AttentionOptions first{.query_offset = Tensor({std::int64_t{7}}, {1}), .mask = bytes(3)};
    options = first;
  }
  const Tensor other = bytes(9), another({std::int64_t{9}}, {1});
  EXPECT_EQ(options.mask.at<std::uint8_t>({1}), 3);
  EXPECT_EQ(options.query_offset.each().at<std::int64_t>({0}), 7);
}

TEST(TensorOrView, its_parts_keep_the_tensor_that_was_given_away) {
  const auto bytes = [](std::uint8_t first) {
    return Tensor({first, std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3}}, {2, 2});
  };
  AttentionOptions options{.mask = bytes(7)};
  options.mask = options.mask.permute({1, 0});
  options.mask = options.mask.slice(1, 0, 1).broadcast_to({2, 3});
  options.query_offset =
      TensorOrView(Tensor({std::int64_t{7}, std::int64_t{8}}, {2})).slice(0, 1, 2);
  options.query_offset = options.query_offset.each();
  const Tensor other = bytes(9), another({std::int64_t{9}, std::int64_t{9}}, {2});
  EXPECT_EQ(options.mask.shape(), (Shape{2, 3}));
  EXPECT_EQ(options.mask.at<std::uint8_t>({0, 2}), 7);
  EXPECT_EQ(options.mask.at<std::uint8_t>({1, 2}), 1);
  EXPECT_EQ(options.query_offset.each().at<std::int64_t>({0}), 8);
}

TEST(TensorOrView, of_a_tensor_that_has_a_name_it_is_a_view) {
  Tensor mask({std::uint8_t{1}, std::uint8_t{0}}, {2});
  AttentionOptions options{.mask = mask};
  EXPECT_EQ(options.mask.data(), mask.view().data());
  options.mask = mask.view().slice(0, 1, 2);
  mask.at<std::uint8_t>({1}) = 5;
  EXPECT_EQ(options.mask.at<std::uint8_t>({0}), 5);
  options.mask = {};
  EXPECT_FALSE(options.mask);
  struct Array {  // of another library
    Tensor& tensor;
    operator ConstTensorView() const { return tensor; }
  };
  options.mask = Array{mask};
  EXPECT_EQ(options.mask.data(), mask.view().data());
}

}  // namespace
}  // namespace attend
