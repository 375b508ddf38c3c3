// Mistakes in q, k, v and the options. attention and attention_backward must refuse them alike.
#include "arguments.h"

#include <cmath>
#include <limits>

namespace attend::test {
namespace {

constexpr std::int64_t kTwo20 = std::int64_t{1} << 20;
constexpr Device kCuda{Device::Kind::cuda, 0};

struct InputError {
  const char* mistake;
  Break break_it;
  const char* message;
};

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
     "k is f64; it must be f32, bf16, f16 or i8"},
    {"v_of_another_type",
     [](Arguments& a) {
       a.v = a.input({2, 2, 5, 7}, DType::u8);
     },
     "v is u8; it must be f32, bf16, f16 or i8"},
    {"k_of_whole_numbers_without_scales",
     [](Arguments& a) {
       a.k = a.input({2, 2, 5, 6}, DType::i8);
     },
     "k is i8, but k_scales is missing; they say what its numbers mean"},
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

// ---- Lengths, packed sequences, pages ----------------------------------------------------------

const std::vector<InputError> kLengths = {
    {"packed_keys_without_packed_queries",
     [](Arguments& a) {
       a.options.cu_seqlens_k = a.integers({0, 5});
     },
     "cu_seqlens_k is given without cu_seqlens_q"},
    {"packed_q_with_a_batch",
     [](Arguments& a) {
       a.options.cu_seqlens_q = a.integers({0, 3});
     },
     "q has batch size 2; packed sequences have 1"},
    {"packed_k_with_a_batch",
     [](Arguments& a) {
       a.pack(), a.k = a.input({2, 2, 8, 6}), a.v = a.input({2, 2, 8, 7});
     },
     "k has batch size 2; packed sequences have 1"},
    {"cu_seqlens_of_two_dimensions",
     [](Arguments& a) {
       a.pack(), a.options.cu_seqlens_q = a.input({1, 3}, DType::i64);
     },
     "cu_seqlens_q is [1, 3]; it must be [sequences + 1]"},
    {"cu_seqlens_without_an_end",
     [](Arguments& a) { a.pack(), a.options.cu_seqlens_q = a.integers({}); },
     "cu_seqlens_q is [0]; it must be [sequences + 1]"},
    {"cu_seqlens_of_floats", [](Arguments& a) { a.pack(), a.options.cu_seqlens_q = a.input({3}); },
     "cu_seqlens_q is f32; it must be i32 or i64"},
    {"cu_seqlens_of_another_count",
     [](Arguments& a) {
       a.pack(), a.options.cu_seqlens_k = a.integers({0, 3, 5, 8});
     },
     "cu_seqlens_k is [4]; it must be [3]"},
    {"cu_seqlens_that_begin_late",
     [](Arguments& a) {
       a.pack(), a.options.cu_seqlens_q = a.integers({1, 2, 6});
     },
     "cu_seqlens_q begins with 1; it must begin with 0"},
    {"cu_seqlens_that_fall",
     [](Arguments& a) {
       a.pack(), a.options.cu_seqlens_k = a.integers({0, 9, 8}, DType::i32);
     },
     "cu_seqlens_k falls from 9 to 8 at 2; it must not decrease"},
    {"cu_seqlens_that_end_early",
     [](Arguments& a) {
       a.pack(), a.options.cu_seqlens_q = a.integers({0, 2, 5});
     },
     "cu_seqlens_q ends with 5, q has length 6; they must be equal"},
    {"cu_seqlens_of_q_that_do_not_fit_k",
     [](Arguments& a) { a.pack(), a.options.cu_seqlens_k = {}; },
     "cu_seqlens_q ends with 6, k has length 8; they must be equal"},
    {"packed_q_on_a_device_without_max_q", [](Arguments& a) { a.pack(), a.move_to(kCuda); },
     "max_q is missing; cu_seqlens_q is on cuda:0, where the host cannot read the length of the "
     "longest sequence"},
    {"packed_k_on_a_device_without_max_k",
     [](Arguments& a) {
       a.pack(), a.options.max_q = 4;
       a.move_to(kCuda);
     },
     "max_k is missing; cu_seqlens_k is on cuda:0, where the host cannot read the length of the "
     "longest sequence"},
    {"max_q_below_the_longest", [](Arguments& a) { a.pack(), a.options.max_q = 3; },
     "max_q is 3; the longest sequence of cu_seqlens_q has length 4, and it must be at least that"},
    {"max_k_below_the_longest", [](Arguments& a) { a.pack(), a.options.max_k = 4; },
     "max_k is 4; the longest sequence of cu_seqlens_k has length 5, and it must be at least that"},
    {"max_k_below_zero", [](Arguments& a) { a.pack(), a.options.max_k = -1; },
     "max_k is -1; it must be at least 0"},
    {"max_q_of_2_to_the_60",
     [](Arguments& a) { a.pack(), a.options.max_q = std::int64_t{1} << 60; },
     "batch, heads and length [2, 4, 1152921504606846976] multiply to more than 2^60"},
    {"max_q_of_a_batch", [](Arguments& a) { a.options.max_q = 3; },
     "max_q is 3, but there is no cu_seqlens_q; it is of packed sequences"},
    {"max_k_of_a_batch", [](Arguments& a) { a.options.max_k = 5; },
     "max_k is 5, but there is no cu_seqlens_q; it is of packed sequences"},
    {"max_k_of_pages", [](Arguments& a) { a.page(), a.options.max_k = 8; },
     "max_k is 8, but keys are on pages; block_table says how many there can be"},
    {"scales_of_another_type",
     [](Arguments& a) {
       a.options.k_scales = a.input({2, 2, 5}, DType::f64);
     },
     "k_scales is f64; it must be f32"},
    {"scales_of_another_shape",
     [](Arguments& a) {
       a.options.v_scales = a.input({2, 4, 5});
     },
     "v_scales is [2, 4, 5]; it must be [2, 2, 5]"},
    {"scales_of_a_batch_on_pages",
     [](Arguments& a) {
       a.page(), a.options.k_scales = a.input({2, 2, 5});
     },
     "k_scales is [2, 2, 5]; it must be [3, 2, 4]"},
    {"packed_keys_on_pages",
     [](Arguments& a) {
       a.pack();
       a.options.block_table = a.input({2, 2}, DType::i64);
       a.options.key_lengths = a.integers({5, 3});
     },
     "cu_seqlens_k and block_table are both given; keys are packed or on pages, not both"},
    {"more_keys_on_pages_than_can_be_counted",
     [](Arguments& a) {
       a.page();
       a.options.block_table = {
           a.options.block_table.data(), DType::i64, {2, std::int64_t{1} << 57}, {0, 0}};
     },
     "batch, heads and length [2, 2, 576460752303423488] multiply to more than 2^60"},
    {"block_table_of_floats",
     [](Arguments& a) {
       a.page(), a.options.block_table = a.input({2, 2});
     },
     "block_table is f32; it must be i32 or i64"},
    {"block_table_of_one_dimension",
     [](Arguments& a) {
       a.page(), a.options.block_table = a.integers({0, 1});
     },
     "block_table is [2]; it must be [2, pages of the longest sequence]"},
    {"block_table_of_another_batch",
     [](Arguments& a) {
       a.page(), a.options.block_table = a.input({3, 2}, DType::i64);
     },
     "block_table is [3, 2]; it must be [2, pages of the longest sequence]"},
    {"pages_without_lengths", [](Arguments& a) { a.page(), a.options.key_lengths = {}; },
     "block_table is given without key_lengths; pages need both"},
    {"pages_without_keys",
     [](Arguments& a) {
       a.page();
       a.k = a.input({3, 2, 0, 6}), a.v = a.input({3, 2, 0, 7});
     },
     "k has pages of 0 keys; at least 1 is needed"},
    {"pages_of_2_to_the_61_keys",
     [](Arguments& a) {
       a.page();
       a.options.block_table = a.integers({0}).broadcast_to({2, std::int64_t{1} << 59});
     },
     "block_table has 576460752303423488 pages of 4 keys, more than 2^60 in all"},
    {"page_that_is_not_there",
     [](Arguments& a) {
       a.page();
       a.options.block_table = a.integers({2, 0, 3, 0}).broadcast_to({2, 4});
       a.options.key_lengths = a.integers({5, 9});
     },
     "block_table[1, 2] is 3; it must be at least 0 and below 3, the pages of k"},
    {"page_below_zero",
     [](Arguments& a) {
       a.page();
       a.options.block_table = a.integers({-1, 0}).broadcast_to({2, 2});
     },
     "block_table[0, 0] is -1; it must be at least 0 and below 3, the pages of k"},
    {"key_lengths_of_another_batch",
     [](Arguments& a) {
       a.options.key_lengths = a.integers({5, 5, 5});
     },
     "key_lengths is [3]; it must be [2]"},
    {"key_lengths_of_bytes", [](Arguments& a) { a.options.key_lengths = a.input({2}, DType::u8); },
     "key_lengths is u8; it must be i32 or i64"},
    {"more_keys_than_there_are",
     [](Arguments& a) {
       a.options.key_lengths = a.integers({5, 6});
     },
     "key_lengths[1] is 6; it must be from 0 to 5"},
    {"fewer_keys_than_none",
     [](Arguments& a) {
       a.options.key_lengths = a.integers({-1, 5});
     },
     "key_lengths[0] is -1; it must be from 0 to 5"},
    {"more_keys_than_the_sequence_has",
     [](Arguments& a) {
       a.pack(), a.options.key_lengths = a.integers({4, 5});
     },
     "key_lengths[0] is 4; it must be from 0 to 3"},
    {"more_keys_than_the_pages_hold",
     [](Arguments& a) {
       a.page(), a.options.key_lengths = a.integers({5, 9});
     },
     "key_lengths[1] is 9; it must be from 0 to 8"},
};

// ---- Options -----------------------------------------------------------------------------------

const std::vector<InputError> kOptions = {
    {"infinite_scale", [](Arguments& a) { a.options.scale = HUGE_VAL; },
     "scale is inf; it must be finite"},
    {"nan_as_scale", [](Arguments& a) { a.options.scale = std::nan(""); },
     "scale is nan; it must be finite"},
    {"negative_softcap", [](Arguments& a) { a.options.softcap = -0.30000000000000004; },
     "softcap is -0.30000000000000004; it must be finite and at least 0 (0: none)"},
    {"infinite_softcap", [](Arguments& a) { a.options.softcap = HUGE_VAL; },
     "softcap is inf; it must be finite and at least 0 (0: none)"},
    {"negative_window_left", [](Arguments& a) { a.options.window.left = -1; },
     "window.left is -1; it must be at least 0 (kUnlimited: no limit)"},
    {"negative_window_right", [](Arguments& a) { a.options.window.right = -3; },
     "window.right is -3; it must be at least 0 (kUnlimited: no limit)"},
    {"far_query_offset", [](Arguments& a) { a.options.query_offset = std::int64_t{1} << 62; },
     "query_offset is 4611686018427387904; it must lie between -2^62 and 2^62"},
    {"far_query_offset_of_one",
     [](Arguments& a) {
       a.options.query_offset = a.integers({7, -(std::int64_t{1} << 62)});
     },
     "query_offset[1] is -4611686018427387904; it must lie between -2^62 and 2^62"},
    {"query_offset_of_floats", [](Arguments& a) { a.options.query_offset = a.input({2}); },
     "query_offset is f32; it must be i32 or i64"},
    {"query_offset_of_another_batch",
     [](Arguments& a) { a.options.query_offset = a.integers({1}); },
     "query_offset is [1]; it must be [2]"},
    {"far_key_offset", [](Arguments& a) { a.options.key_offset = -(std::int64_t{1} << 62); },
     "key_offset is -4611686018427387904; it must lie between -2^62 and 2^62"},
    {"key_offset_without_query_offset",
     [](Arguments& a) { a.options.causal = true, a.options.key_offset = 256; },
     "key_offset is 256 and query_offset is not given; a part of the keys needs both, the "
     "positions "
     "of query 0 and of key 0"},
    {"key_offset_with_a_window_alone",
     [](Arguments& a) { a.options.window.right = 3, a.options.key_offset = 0; },
     "key_offset is 0 and query_offset is not given; a part of the keys needs both, the positions "
     "of query 0 and of key 0"},
    {"key_offset_with_alibi_alone",
     [](Arguments& a) { a.options.alibi = a.input({4}), a.options.key_offset = 1; },
     "key_offset is 1 and query_offset is not given; a part of the keys needs both, the positions "
     "of query 0 and of key 0"},
    {"offsets_far_apart",
     [](Arguments& a) {
       a.options.query_offset = std::int64_t{1} << 61,
       a.options.key_offset = -(std::int64_t{1} << 61);
     },
     "query_offset is 2305843009213693952 and key_offset -2305843009213693952; they must be less "
     "than 2^62 apart"},
    {"offsets_of_one_far_apart",
     [](Arguments& a) {
       a.options.query_offset = a.integers({0, -(std::int64_t{1} << 61)});
       a.options.key_offset = std::int64_t{1} << 61;
     },
     "query_offset[1] is -2305843009213693952 and key_offset 2305843009213693952; they must be "
     "less than 2^62 apart"},
    {"dropout_from_two_keys_on",
     [](Arguments& a) {
       a.options.dropout = {.p = 0.5, .origin = {.j = 8}}, a.options.key_offset = 8;
     },
     "key_offset is 8 and dropout.origin.j 8; both say where the keys begin, give one"},
    {"dropout_before_the_first_key",
     [](Arguments& a) { a.options.dropout.p = 0.5, a.options.key_offset = -1; },
     "key_offset is -1; dropout draws for keys from position 0 on"},
    {"mask_of_floats",
     [](Arguments& a) {
       a.options.mask = a.input({3, 5});
     },
     "mask is f32; a mask is bool or integer (0 = hidden), give floats as bias"},
    {"mask_of_other_queries",
     [](Arguments& a) {
       a.options.mask = a.input({2, 1, 4, 5}, DType::boolean);
     },
     "mask is [2, 1, 4, 5]; each dimension must be 1 or as in [2, 4, 3, 5], [batch, heads, "
     "queries, "
     "keys] (fewer keys hide the rest)"},
    {"mask_of_more_keys", [](Arguments& a) { a.options.mask = a.input({6}, DType::u8); },
     "mask is [6]; each dimension must be 1 or as in [2, 4, 3, 5], [batch, heads, queries, keys] "
     "(fewer keys hide the rest)"},
    {"mask_of_five_dimensions",
     [](Arguments& a) {
       a.options.mask = a.input({1, 1, 1, 1, 5}, DType::i64);
     },
     "mask is [1, 1, 1, 1, 5]; each dimension must be 1 or as in [2, 4, 3, 5], [batch, heads, "
     "queries, keys] (fewer keys hide the rest)"},
    {"bias_of_bools",
     [](Arguments& a) {
       a.options.bias = a.input({3, 5}, DType::boolean);
     },
     "bias is bool; a bias is floating-point, give bools and integers as mask"},
    {"bias_of_another_type",
     [](Arguments& a) {
       a.options.bias = a.input({3, 5}, DType::bf16);
     },
     "bias is bf16; it must be f32"},
    {"bias_wider_than_f16",
     [](Arguments& a) {
       a.q = a.input(a.q.shape(), DType::f16), a.k = a.input(a.k.shape(), DType::f16);
       a.v = a.input(a.v.shape(), DType::f16), a.options.bias = a.input({3, 5}, DType::f64);
     },
     "bias is f64; it must be f16 or f32"},
    {"bias_of_other_heads",
     [](Arguments& a) {
       a.options.bias = a.input({2, 3, 5});
     },
     "bias is [2, 3, 5]; each dimension must be 1 or as in [2, 4, 3, 5], [batch, heads, queries, "
     "keys] (fewer keys hide the rest)"},
    {"alibi_of_another_type", [](Arguments& a) { a.options.alibi = a.input({4}, DType::f64); },
     "alibi is f64; it must be f32"},
    {"alibi_of_key_heads", [](Arguments& a) { a.options.alibi = a.input({2}); },
     "alibi is [2]; it must be [4]"},
    {"sinks_of_two_dimensions",
     [](Arguments& a) {
       a.options.sinks = a.input({1, 4});
     },
     "sinks is [1, 4]; it must be [4]"},
    {"sinks_of_integers", [](Arguments& a) { a.options.sinks = a.input({4}, DType::i32); },
     "sinks is i32; it must be f32"},
    {"block_sizes_alone",
     [](Arguments& a) {
       a.options.blocks = {{}, 16, 32};
     },
     "blocks has sizes 16 and 32, but no visible"},
    {"blocks_of_no_size",
     [](Arguments& a) {
       a.options.blocks = {a.input({1, 1, 1, 1}, DType::u8), 2, 0};
     },
     "blocks has sizes 2 and 0; both must be at least 1"},
    {"blocks_of_floats",
     [](Arguments& a) {
       a.options.blocks = {a.input({2, 3}), 2, 2};
     },
     "blocks.visible is f32; it must be bool or integer"},
    {"blocks_of_other_counts",
     [](Arguments& a) {
       a.options.blocks = {a.input({2, 4, 2, 2}, DType::u8), 2, 2};
     },
     "blocks.visible is [2, 4, 2, 2]; each dimension must be 1 or as in [2, 4, 2, 3], [batch, "
     "heads, "
     "query blocks, key blocks]"},
    {"dropout_of_more_than_all", [](Arguments& a) { a.options.dropout.p = 1.0000001; },
     "dropout.p is 1.0000001; it must be from 0 to 1"},
    {"nan_as_dropout", [](Arguments& a) { a.options.dropout.p = std::nan(""); },
     "dropout.p is nan; it must be from 0 to 1"},
    {"negative_dropout_origin",
     [](Arguments& a) { a.options.dropout = {.p = 0.5, .origin = {.b = 1, .j = -8, .heads = 9}}; },
     "dropout.origin is (1, 0, 0, -8) of 9 heads; all must be at least 0"},
    {"dropout_heads_that_do_not_fit",
     [](Arguments& a) { a.options.dropout = {.p = 0.5, .origin = {.h = 3, .heads = 6}}; },
     "dropout.origin is head 3 of 6; the 4 heads of q do not fit there"},
    {"dropout_head_without_their_count",
     [](Arguments& a) { a.options.dropout = {.p = 0.5, .origin = {.h = 1}}; },
     "dropout.origin is head 1 of 4; the 4 heads of q do not fit there"},
    {"dropout_of_too_many_keys",
     [](Arguments& a) {
       a.options.dropout = {.p = 0.5, .origin = {.j = (std::int64_t{1} << 35) - 4}};
     },
     "dropout draws for 2 x 4 heads, 3 queries and 5 keys from (0, 0, 0, 34359738364) on; it must "
     "not go past 2^32 heads, 2^32 queries and 2^35 keys"},
    {"dropout_of_too_many_queries",
     [](Arguments& a) {
       a.options.dropout = {.p = 0.5, .origin = {.i = (std::int64_t{1} << 32) - 2}};
     },
     "dropout draws for 2 x 4 heads, 3 queries and 5 keys from (0, 0, 4294967294, 0) on; it must "
     "not go past 2^32 heads, 2^32 queries and 2^35 keys"},
    {"dropout_of_too_many_heads",
     [](Arguments& a) {
       a.options.dropout = {.p = 0.5, .origin = {.b = (std::int64_t{1} << 30) - 1}};
     },
     "dropout draws for 2 x 4 heads, 3 queries and 5 keys from (1073741823, 0, 0, 0) on; it must "
     "not go past 2^32 heads, 2^32 queries and 2^35 keys"},
    {"dropout_whose_heads_overflow",
     [](Arguments& a) {
       a.options.dropout = {.p = 0.5, .origin = {.b = std::int64_t{1} << 32, .heads = kUnlimited}};
     },
     "dropout draws for 2 x 9223372036854775807 heads, 3 queries and 5 keys from (4294967296, 0, "
     "0, "
     "0) on; it must not go past 2^32 heads, 2^32 queries and 2^35 keys"},
};

}  // namespace

std::vector<ErrorCase> input_errors() {
  std::vector<ErrorCase> cases;
  for (const auto* table : {&kTensors, &kShapes, &kLengths, &kOptions}) {
    for (const auto& [mistake, break_it, message] : *table) {
      cases.push_back(forward_error(mistake, break_it, message));
      cases.push_back(backward_error(mistake, break_it, message));
      cases.push_back({std::string("attention_into_a_new_tensor_") + mistake,
                       [break_it = break_it] {
                         Arguments a;
                         break_it(a);
                         attention(a.q, a.k, a.v, a.options);
                       },
                       std::string("attention: ") + message});
      cases.push_back({std::string("backward_into_new_tensors_") + mistake,
                       [break_it = break_it] {
                         Arguments a;
                         break_it(a);
                         attention_backward(a.backward_inputs(), a.options);
                       },
                       std::string("attention_backward: ") + message});
    }
  }
  return cases;
}

}  // namespace attend::test
