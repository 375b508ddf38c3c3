// Mistakes in where the sequences are: lengths, packed sequences, pages and the scales of their
// keys.
#include "arguments.h"

namespace attend::test {
namespace {

constexpr Device kCuda{Device::Kind::cuda, 0};

const std::vector<InputError> kSequences = {
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
     "max_q is 3, but there is no cu_seqlens_q; max_q is for packed sequences"},
    {"max_k_of_a_batch", [](Arguments& a) { a.options.max_k = 5; },
     "max_k is 5, but there is no cu_seqlens_q; max_k is for packed sequences"},
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

}  // namespace

std::vector<ErrorCase> sequence_errors() { return errors_of_both(kSequences); }

}  // namespace attend::test
