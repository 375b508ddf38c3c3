// Mistakes in q, k and v.
#include "arguments.h"

#include <limits>

namespace attend::test {
namespace {

constexpr std::int64_t kTwo20 = std::int64_t{1} << 20;
constexpr Device kCuda{Device::Kind::cuda, 0};

ConstTensorView shifted(const ConstTensorView& view, std::int64_t bytes) {
  return {static_cast<const std::byte*>(view.data()) + bytes, view.dtype(), view.shape()};
}

ConstTensorView with_strides(const ConstTensorView& view, const Shape& strides) {
  return {view.data(), view.dtype(), view.shape(), strides};
}

// ---- One tensor --------------------------------------------------------------------------------

const std::vector<InputError> kTensors = {
    {"without_q", [](Arguments& a) { a.q = {}; }, "q is missing"},
    {"without_k", [](Arguments& a) { a.k = {}; }, "k is missing"},
    {"without_v", [](Arguments& a) { a.v = {}; }, "v is missing"},
    {"k_on_another_device",
     [](Arguments& a) {
       a.k = {a.k.data(), DType::f32, a.k.shape(), kCuda};
     },
     "k is on cuda:0, q on cpu; all tensors must be on one device"},
    {"v_on_a_second_gpu",
     [](Arguments& a) {
       a.move_to(kCuda);
       a.v = {a.v.data(), DType::f32, a.v.shape(), Device{Device::Kind::cuda, 1}};
     },
     "v is on cuda:1, q on cuda:0; all tensors must be on one device"},
    {"mask_on_another_device",
     [](Arguments& a) {
       a.options.mask = {a.k.data(), DType::u8, {5}, kCuda};
     },
     "mask is on cuda:0, q on cpu; all tensors must be on one device"},
    {"q_of_2_to_the_61_elements",
     [](Arguments& a) {
       a.q = {a.q.data(), DType::f32, {kTwo20, kTwo20, kTwo20, 2}, {0, 0, 0, 0}};
     },
     "q [1048576, 1048576, 1048576, 2] has sizes that multiply to more than 2^60"},
    {"q_that_fits_nothing_and_repeats_its_rows",  // results of it have no room
     [](Arguments& a) {
       a.q = {a.q.data(), DType::f32, {2, 4, kTwo20 * kTwo20, 5}, {0, 0, 0, 0}};
     },
     "k has d 6, q has 5; they must be equal"},
    {"empty_q_that_is_huge_otherwise",
     [](Arguments& a) {
       a.q = {a.q.data(), DType::f32, {0, kTwo20 * kTwo20, kTwo20 * 2, 6}, {0, 0, 0, 0}};
     },
     "q [0, 1099511627776, 2097152, 6] has sizes that multiply to more than 2^60"},
    {"q_reaching_2_to_the_62_bytes",
     [](Arguments& a) {
       a.q = with_strides(a.q, {std::int64_t{1} << 60, 18, 6, 1});
     },
     "q [2, 4, 3, 6] with strides [1152921504606846976, 18, 6, 1] reaches further than 2^60 bytes"},
    {"k_whose_reach_overflows",
     [](Arguments& a) {
       a.k = with_strides(a.k, {1, 1, std::int64_t{1} << 62, 1});
     },
     "k [2, 2, 5, 6] with strides [1, 1, 4611686018427387904, 1] reaches further than 2^60 bytes"},
    {"k_whose_reaches_overflow_together",
     [](Arguments& a) {
       a.k = with_strides(a.k, {kUnlimited, kUnlimited, 1, 1});
     },
     "k [2, 2, 5, 6] with strides [9223372036854775807, 9223372036854775807, 1, 1] reaches further "
     "than 2^60 bytes"},
    {"v_with_the_least_stride",
     [](Arguments& a) {
       a.v = with_strides(a.v, {std::numeric_limits<std::int64_t>::min(), 1, 1, 1});
     },
     "v [2, 2, 5, 7] with strides [-9223372036854775808, 1, 1, 1] reaches further than 2^60 bytes"},
    {"q_at_a_null_address",
     [](Arguments& a) {
       a.q = {nullptr, DType::f32, {2, 4, 3, 6}};
     },
     "q [2, 4, 3, 6] has a null address"},
    {"misaligned_f32", [](Arguments& a) { a.q = shifted(a.q, 2); },
     "q is f32, but its address is not a multiple of 4"},
    {"misaligned_f64",
     [](Arguments& a) {
       a.v = shifted(a.input({2, 2, 5, 7}, DType::f64), 4);
     },
     "v is f64, but its address is not a multiple of 8"},
    {"misaligned_f16",
     [](Arguments& a) {
       a.k = shifted(a.input({2, 2, 5, 6}, DType::f16), 1);
     },
     "k is f16, but its address is not a multiple of 2"},
    {"misaligned_lengths",
     [](Arguments& a) {
       a.options.key_lengths = shifted(a.integers({1, 1}, DType::i32), 1);
     },
     "key_lengths is i32, but its address is not a multiple of 4"},
};

// ---- q, k and v together -----------------------------------------------------------------------

const std::vector<InputError> kShapes = {
    {"q_of_three_dimensions",
     [](Arguments& a) {
       a.q = a.input({4, 3, 6});
     },
     "q has 3 dimensions [4, 3, 6]; it must be [batch, heads, queries, d]"},
    {"k_of_five_dimensions",
     [](Arguments& a) {
       a.k = a.input({1, 2, 2, 5, 6});
     },
     "k has 5 dimensions [1, 2, 2, 5, 6]; it must be [batch, key heads, keys, d]"},
    {"v_without_dimensions", [](Arguments& a) { a.v = a.input({}); },
     "v has 0 dimensions []; it must be [batch, key heads, keys, dv]"},
    {"pages_of_k_of_three_dimensions",
     [](Arguments& a) {
       a.page(), a.k = a.input({3, 4, 6});
     },
     "k has 3 dimensions [3, 4, 6]; it must be [pages, key heads, page size, d]"},
    {"pages_of_v_of_three_dimensions",
     [](Arguments& a) {
       a.page(), a.v = a.input({3, 4, 7});
     },
     "v has 3 dimensions [3, 4, 7]; it must be [pages, key heads, page size, dv]"},
    {"q_of_integers",
     [](Arguments& a) {
       a.q = a.input({2, 4, 3, 6}, DType::i32);
     },
     "q is i32; it must be f64, f32, bf16 or f16"},
    {"q_of_bools",
     [](Arguments& a) {
       a.q = a.input({2, 4, 3, 6}, DType::boolean);
     },
     "q is bool; it must be f64, f32, bf16 or f16"},
    {"k_of_another_type",
     [](Arguments& a) {
       a.k = a.input({2, 2, 5, 6}, DType::f64);
     },
     "k is f64 and q f32; k must be f32, bf16, f16 or i8"},
    {"v_of_another_type",
     [](Arguments& a) {
       a.v = a.input({2, 2, 5, 7}, DType::u8);
     },
     "v is u8 and q f32; v must be f32, bf16, f16 or i8"},
    {"k_of_more_bits_than_q",
     [](Arguments& a) {
       a.q = a.input({2, 4, 3, 6}, DType::f16);
     },
     "k is f32 and q f16; k must be bf16, f16 or i8"},
    {"k_of_whole_numbers_without_scales",
     [](Arguments& a) {
       a.k = a.input({2, 2, 5, 6}, DType::i8);
     },
     "k is i8, but k_scales is missing; it says what the numbers mean"},
    {"d_of_zero",
     [](Arguments& a) {
       a.q = a.input({2, 4, 3, 0});
     },
     "q has d 0; it must be at least 1"},
    {"dv_of_zero",
     [](Arguments& a) {
       a.v = a.input({2, 2, 5, 0});
     },
     "v has dv 0; it must be at least 1"},
    {"k_with_another_d",
     [](Arguments& a) {
       a.k = a.input({2, 2, 5, 8});
     },
     "k has d 8, q has 6; they must be equal"},
    {"v_with_other_heads",
     [](Arguments& a) {
       a.v = a.input({2, 4, 5, 7});
     },
     "v has 4 heads, k has 2; they must be equal"},
    {"heads_that_are_no_multiple",
     [](Arguments& a) {
       a.k = a.input({2, 3, 5, 6}), a.v = a.input({2, 3, 5, 7});
     },
     "k has 3 heads, q has 4; heads of q must be a multiple"},
    {"heads_without_key_heads",
     [](Arguments& a) {
       a.k = a.input({2, 0, 5, 6}), a.v = a.input({2, 0, 5, 7});
     },
     "k has 0 heads, q has 4; heads of q must be a multiple"},
    {"v_of_another_batch",
     [](Arguments& a) {
       a.v = a.input({3, 2, 5, 7});
     },
     "v has batch size 3, k has 2; they must be equal"},
    {"v_with_other_pages",
     [](Arguments& a) {
       a.page(), a.v = a.input({2, 2, 4, 7});
     },
     "v has page count 2, k has 3; they must be equal"},
    {"v_with_more_keys",
     [](Arguments& a) {
       a.v = a.input({2, 2, 6, 7});
     },
     "v has 6 keys, k has 5; they must be equal"},
    {"v_with_larger_pages",
     [](Arguments& a) {
       a.page(), a.v = a.input({3, 2, 8, 7});
     },
     "v has 8 keys per page, k has 4; they must be equal"},
    {"k_of_another_batch",
     [](Arguments& a) {
       a.k = a.input({1, 2, 5, 6}), a.v = a.input({1, 2, 5, 7});
     },
     "k has batch size 1, q has 2; they must be equal"},
};

}  // namespace

std::vector<ErrorCase> input_errors() {
  std::vector<ErrorCase> cases = errors_of_both(kTensors);
  for (ErrorCase& error : errors_of_both(kShapes)) cases.push_back(std::move(error));
  return cases;
}

}  // namespace attend::test
