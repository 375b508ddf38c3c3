// Mistakes in the options that say how scores become weights.
#include "arguments.h"

#include <cmath>

namespace attend::test {
namespace {

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

std::vector<ErrorCase> option_errors() { return errors_of_both(kOptions); }

}  // namespace attend::test
