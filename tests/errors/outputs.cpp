// Mistakes in what is written: outputs, gradients, and the parts and results of merge.
#include "arguments.h"

namespace attend::test {
namespace {

void set_type(Arguments& a, DType type) {
  for (ConstTensorView* view : {&a.q, &a.k, &a.v}) *view = a.input(view->shape(), type);
}

void give_blocks(Arguments& a) { a.options.blocks = {a.input({1, 1, 2, 2}, DType::boolean), 2, 3}; }

std::vector<ErrorCase> forward_outputs() {
  return {
      forward_error(
          "without_out", [](Arguments& a) { a.out = {}; }, "out is missing"),
      forward_error(
          "out_of_another_shape",
          [](Arguments& a) {
            a.out = a.output({2, 3, 4, 7});
          },
          "out is [2, 3, 4, 7]; it must be [2, 4, 3, 7]"),
      forward_error(
          "out_at_a_null_address",
          [](Arguments& a) {
            a.out = {nullptr, DType::f32, {2, 4, 3, 7}};
          },
          "out [2, 4, 3, 7] has a null address"),
      forward_error(
          "out_on_another_device",
          [](Arguments& a) {
            a.out = {a.out.data(), DType::f32, a.out.shape(), Device{Device::Kind::cuda, 3}};
          },
          "out is on cuda:3, q on cpu; all tensors must be on one device"),
      forward_error(
          "out_narrower_than_f32",
          [](Arguments& a) {
            a.out = a.output({2, 4, 3, 7}, DType::f16);
          },
          "out is f16; it must be f32 or f64"),
      forward_error(
          "out_of_the_other_16_bits",
          [](Arguments& a) {
            set_type(a, DType::f16);
            a.out = a.output({2, 4, 3, 7}, DType::bf16);
          },
          "out is bf16; it must be f16, f32 or f64"),
      forward_error(
          "out_narrower_than_f64", [](Arguments& a) { set_type(a, DType::f64); },
          "out is f32; it must be f64"),
      forward_error(
          "lse_of_another_shape",
          [](Arguments& a) {
            a.outputs.lse = a.output({2, 4, 3, 1});
          },
          "lse is [2, 4, 3, 1]; it must be [2, 4, 3]"),
      forward_error(
          "lse_of_16_bits",
          [](Arguments& a) {
            set_type(a, DType::bf16);
            a.outputs.lse = a.output({2, 4, 3}, DType::bf16);
          },
          "lse is bf16; it must be f32 or f64"),
      forward_error(
          "lse_narrower_than_f64",
          [](Arguments& a) {
            set_type(a, DType::f64);
            a.out = a.output({2, 4, 3, 7}, DType::f64);
          },
          "lse is f32; it must be f64"),
      forward_error(
          "weights_of_another_shape",
          [](Arguments& a) {
            a.outputs.weights = a.output({2, 4, 5, 3});
          },
          "weights is [2, 4, 5, 3]; it must be [2, 4, 3, 5]"),
      forward_error(
          "heads_of_no_weights", [](Arguments& a) { a.outputs.weight_heads = {1}; },
          "weight_heads is given, but weights are not asked for"),
      forward_error(
          "weights_of_a_head_that_is_not_there",
          [](Arguments& a) {
            a.outputs.weights = a.output({2, 2, 3, 5}), a.outputs.weight_heads = {1, 4};
          },
          "weight_heads holds 4; q has 4 heads, the first is 0"),
      forward_error(
          "weights_of_a_head_twice",
          [](Arguments& a) {
            a.outputs.weights = a.output({2, 3, 3, 5}), a.outputs.weight_heads = {3, 1, 3};
          },
          "weight_heads holds 3 twice"),
      forward_error(
          "weights_of_all_heads_where_two_are_chosen",
          [](Arguments& a) {
            a.outputs.weights = a.output({2, 4, 3, 5}), a.outputs.weight_heads = {3, 1};
          },
          "weights is [2, 4, 3, 5]; it must be [2, 2, 3, 5]"),
      forward_error(
          "weights_of_packed_sequences_in_one_row",
          [](Arguments& a) {
            a.pack(), a.outputs.weights = a.output({1, 4, 6, 8});
          },
          "weights is [1, 4, 6, 8]; it must be [2, 4, 4, 5]"),
      forward_error(
          "weights_of_integers",
          [](Arguments& a) {
            a.outputs.weights = a.output({2, 4, 3, 5}, DType::u8);
          },
          "weights is u8; it must be f32 or f64"),
      forward_error(
          "scores_of_another_shape",
          [](Arguments& a) {
            a.outputs.scores = a.output({3, 5});
          },
          "scores is [3, 5]; it must be [2, 4, 3, 5]"),
      forward_error(
          "scores_of_16_bits",
          [](Arguments& a) {
            a.outputs.scores = a.output({2, 4, 3, 5}, DType::bf16);
          },
          "scores is bf16; it must be f32 or f64"),
      forward_error(
          "scores_of_no_stage", [](Arguments& a) { a.outputs.stage = ScoreStage(77); },
          "stage is 77; it must be raw, softcapped or masked"),
      forward_error(
          "visited_blocks_without_blocks",
          [](Arguments& a) { a.outputs.visited_blocks = &a.visited; },
          "visited_blocks is asked for, but there are no blocks"),
      forward_error(
          "misaligned_visited_blocks",
          [](Arguments& a) {
            give_blocks(a);
            a.outputs.visited_blocks = reinterpret_cast<std::int64_t*>(
                static_cast<std::byte*>(a.output({16}, DType::u8).data()) + 4);
          },
          "visited_blocks is i64, but its address is not a multiple of 8"),
  };
}

std::vector<ErrorCase> backward_outputs() {
  return {
      backward_error(
          "without_out", [](Arguments& a) { a.o = {}; }, "out is missing"),
      backward_error(
          "without_lse", [](Arguments& a) { a.lse = {}; }, "lse is missing"),
      backward_error(
          "without_dout", [](Arguments& a) { a.dout = {}; }, "dout is missing"),
      backward_error(
          "out_of_another_shape",
          [](Arguments& a) {
            a.o = a.input({2, 4, 3, 6});
          },
          "out is [2, 4, 3, 6]; it must be [2, 4, 3, 7]"),
      backward_error(
          "lse_of_another_shape",
          [](Arguments& a) {
            a.lse = a.input({2, 4, 5});
          },
          "lse is [2, 4, 5]; it must be [2, 4, 3]"),
      backward_error(
          "dout_of_another_shape",
          [](Arguments& a) {
            a.dout = a.input({2, 4, 7, 3});
          },
          "dout is [2, 4, 7, 3]; it must be [2, 4, 3, 7]"),
      backward_error(
          "dlse_of_another_shape",
          [](Arguments& a) {
            a.dlse = a.input({4, 3});
          },
          "dlse is [4, 3]; it must be [2, 4, 3]"),
      backward_error(
          "out_narrower_than_q",
          [](Arguments& a) {
            a.o = a.input({2, 4, 3, 7}, DType::f16);
          },
          "out is f16; it must be f32 or f64"),
      backward_error(
          "lse_of_16_bits",
          [](Arguments& a) {
            a.lse = a.input({2, 4, 3}, DType::f16);
          },
          "lse is f16; it must be f32 or f64"),
      backward_error(
          "dout_of_integers",
          [](Arguments& a) {
            a.dout = a.input({2, 4, 3, 7}, DType::i8);
          },
          "dout is i8; it must be f32 or f64"),
      backward_error(
          "dlse_of_16_bits",
          [](Arguments& a) {
            a.dlse = a.input({2, 4, 3}, DType::bf16);
          },
          "dlse is bf16; it must be f32 or f64"),
      backward_error(
          "dq_of_another_shape",
          [](Arguments& a) {
            a.gradients.dq = a.output({2, 4, 3, 7});
          },
          "dq is [2, 4, 3, 7]; it must be [2, 4, 3, 6]"),
      backward_error(
          "dk_of_repeated_heads",
          [](Arguments& a) {
            a.gradients.dk = a.output({2, 4, 5, 6});
          },
          "dk is [2, 4, 5, 6]; it must be [2, 2, 5, 6]"),
      backward_error(
          "dk_of_whole_numbers",
          [](Arguments& a) {
            a.k = a.input({2, 2, 5, 6}, DType::i8);
            a.options.k_scales = a.input({2, 2, 5});
          },
          "dk is asked for, but k is i8; only floating-point tensors have gradients"),
      backward_error(
          "dv_of_another_type",
          [](Arguments& a) {
            a.gradients.dv = a.output({2, 2, 5, 7}, DType::f64);
          },
          "dv is f64; it must be f32"),
      backward_error(
          "dbias_of_the_full_shape",
          [](Arguments& a) {
            a.options.bias = a.input({3, 5});
            a.gradients.dbias = a.output({2, 4, 3, 5});
          },
          "dbias is [2, 4, 3, 5]; it must be [3, 5]"),
      backward_error(
          "dbias_of_another_type",
          [](Arguments& a) {
            set_type(a, DType::bf16);
            a.gradients = {.dbias = a.output({3, 5}, DType::bf16)};
            a.options.bias = a.input({3, 5});
          },
          "dbias is bf16; it must be f32"),
      backward_error(
          "dbias_without_bias",
          [](Arguments& a) {
            a.gradients.dbias = a.output({3, 5});
          },
          "dbias is asked for, but there is no bias"),
      backward_error(
          "dsinks_without_sinks", [](Arguments& a) { a.gradients.dsinks = a.output({4}); },
          "dsinks is asked for, but there is no sinks"),
      backward_error(
          "dalibi_without_alibi", [](Arguments& a) { a.gradients.dalibi = a.output({4}); },
          "dalibi is asked for, but there is no alibi"),
      backward_error(
          "without_any_gradient", [](Arguments& a) { a.gradients = {}; },
          "no gradient is asked for; dq, dk, dv, dbias, dsinks or dalibi is needed"),
  };
}

std::vector<ErrorCase> parts_and_results() {
  return {
      merge_error(
          "nothing", [](Arguments& a) { a.part_o.clear(), a.part_lse.clear(); },
          "there are no parts; at least one is needed"),
      merge_error(
          "another_count_of_lse", [](Arguments& a) { a.part_lse.pop_back(); },
          "there are 2 o and 1 lse; each part needs one of each"),
      merge_error(
          "without_an_o", [](Arguments& a) { a.part_o[1] = {}; }, "o[1] is missing"),
      merge_error(
          "without_an_lse", [](Arguments& a) { a.part_lse[0] = {}; }, "lse[0] is missing"),
      merge_error(
          "parts_on_two_devices",
          [](Arguments& a) {
            a.part_o[1] = {a.part_o[1].data(), DType::f32, {2, 4, 3, 7}, {Device::Kind::cuda, 0}};
          },
          "o[1] is on cuda:0, o[0] on cpu; all tensors must be on one device"),
      merge_error(
          "o_of_three_dimensions",
          [](Arguments& a) {
            a.part_o[0] = a.input({4, 3, 7});
          },
          "o[0] has 3 dimensions [4, 3, 7]; it must be [batch, heads, queries, dv]"),
      merge_error(
          "o_of_integers",
          [](Arguments& a) {
            a.part_o[1] = a.input({2, 4, 3, 7}, DType::i64);
          },
          "o[1] is i64; it must be f64, f32, bf16 or f16"),
      merge_error(
          "o_of_another_shape",
          [](Arguments& a) {
            a.part_o[1] = a.input({2, 4, 3, 8});
          },
          "o[1] is [2, 4, 3, 8]; it must be [2, 4, 3, 7]"),
      merge_error(
          "lse_of_another_shape",
          [](Arguments& a) {
            a.part_lse[1] = a.input({2, 4, 3, 1});
          },
          "lse[1] is [2, 4, 3, 1]; it must be [2, 4, 3]"),
      merge_error(
          "lse_of_16_bits",
          [](Arguments& a) {
            a.part_lse[0] = a.input({2, 4, 3}, DType::f16);
          },
          "lse[0] is f16; it must be f32 or f64"),
      merge_error(
          "without_out", [](Arguments& a) { a.merged = {}; }, "out is missing"),
      merge_error(
          "out_of_another_shape",
          [](Arguments& a) {
            a.merged = a.output({2, 4, 3, 6});
          },
          "out is [2, 4, 3, 6]; it must be [2, 4, 3, 7]"),
      merge_error(
          "out_of_integers",
          [](Arguments& a) {
            a.merged = a.output({2, 4, 3, 7}, DType::i32);
          },
          "out is i32; it must be f64, f32, bf16 or f16"),
      merge_error(
          "lse_out_of_another_shape",
          [](Arguments& a) {
            a.merged_lse = a.output({2, 3, 4});
          },
          "lse_out is [2, 3, 4]; it must be [2, 4, 3]"),
      merge_error(
          "lse_out_of_16_bits",
          [](Arguments& a) {
            a.merged_lse = a.output({2, 4, 3}, DType::bf16);
          },
          "lse_out is bf16; it must be f32 or f64"),
      merge_error(
          "lse_that_does_not_hold_sums",
          [](Arguments& a) {
            a.part_lse[0] = a.numbers({2, 4, 3}, 0, DType::f64);
            a.part_lse[1] = a.numbers({2, 4, 3}, -0x1p17);
            a.part_lse.push_back(a.numbers({2, 4, 3}, 0x1p45 + 60, DType::f64));
            a.part_lse.push_back(a.numbers({2, 4, 3}, 0x1p45, DType::f64));
            for (int n = 0; n < 2; ++n) a.part_o.push_back(a.part_o[0]);
          },
          "lse[2] and lse[3] are 35184372088892 and 35184372088832 at [0, 0, 0], too large to say "
          "how the parts compare; join partial states instead (attention_partial, finish_partial)"),
  };
}

}  // namespace

std::vector<ErrorCase> output_errors() {
  std::vector<ErrorCase> cases = forward_outputs();
  for (const auto& more : {backward_outputs(), parts_and_results()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace attend::test
