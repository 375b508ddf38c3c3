// What is written shares memory: with itself, with something else that is written, with an input.
#include "arguments.h"

namespace attend::test {
namespace {

TensorView at(const TensorView& memory, std::int64_t byte, const Shape& shape,
              DType type = DType::f32) {
  return {static_cast<std::byte*>(memory.data()) + byte, type, shape};
}

// A place in an input that a careless caller writes to.
TensorView writable(const ConstTensorView& view, const Shape& shape, DType type = DType::f32) {
  return {const_cast<void*>(view.data()), type, shape};
}

std::vector<ErrorCase> of_attention() {
  return {
      forward_error(
          "out_with_a_stride_of_zero",
          [](Arguments& a) {
            a.out = {a.out.data(), DType::f32, {2, 4, 3, 7}, {84, 21, 0, 1}};
          },
          "out [2, 4, 3, 7] with strides [84, 21, 0, 1] has elements that share memory; outputs "
          "must "
          "not"),
      forward_error(
          "out_with_two_equal_strides",
          [](Arguments& a) {
            a.out = {a.out.data(), DType::f32, {2, 4, 3, 7}, {84, 21, 1, -1}};
          },
          "out [2, 4, 3, 7] with strides [84, 21, 1, -1] has elements that share memory; outputs "
          "must "
          "not"),
      forward_error(  // head 3 of query 0 is head 0 of query 1
          "out_whose_strides_meet",
          [](Arguments& a) {
            const TensorView memory = a.output({1000});
            a.out = {memory.data(), DType::f32, {2, 4, 3, 7}, {300, 20, 60, 1}};
          },
          "out [2, 4, 3, 7] with strides [300, 20, 60, 1] has elements that share memory; outputs "
          "must "
          "not"),
      forward_error(
          "out_whose_rows_share_one_element",
          [](Arguments& a) {
            a.out = {a.out.data(), DType::f32, {2, 4, 3, 7}, {72, 18, 6, 1}};
          },
          "out [2, 4, 3, 7] with strides [72, 18, 6, 1] has elements that share memory; outputs "
          "must "
          "not"),
      forward_error(
          "out_in_the_memory_of_q",
          [](Arguments& a) {
            a.v = a.input({2, 2, 5, 6});
            a.out = writable(a.q, {2, 4, 3, 6});
          },
          "out overlaps q in memory; outputs must not"),
      forward_error(
          "out_in_the_memory_of_k_upside_down",
          [](Arguments& a) {
            const TensorView memory = a.output({200});
            a.k = {memory.data(), DType::f32, {2, 2, 5, 6}};
            a.out = {&memory.at<float>({199}), {2, 4, 3, 7}, {-84, -21, -7, -1}};
          },
          "out overlaps k in memory; outputs must not"),
      forward_error(
          "out_in_the_memory_of_a_mask_of_bytes",
          [](Arguments& a) {
            a.options.mask = {
                static_cast<const std::byte*>(a.out.data()) + 84 * 4 - 1, DType::u8, {5}};
          },
          "out overlaps mask in memory; outputs must not"),
      forward_error(
          "lse_in_the_memory_of_out",
          [](Arguments& a) {
            a.outputs.lse = at(a.out, 84 * 8 - 4, {2, 4, 3});
          },
          "lse overlaps out in memory; outputs must not"),
      forward_error(
          "weights_in_the_memory_of_scores",
          [](Arguments& a) {
            const TensorView memory = a.output({2, 4, 3, 5});
            a.outputs.weights = memory;
            a.outputs.scores = memory;
          },
          "scores overlaps weights in memory; outputs must not"),
      forward_error(
          "visited_blocks_in_the_memory_of_out",
          [](Arguments& a) {
            a.options.blocks = {a.input({1, 1, 2, 2}, DType::boolean), 2, 3};
            a.outputs.visited_blocks = static_cast<std::int64_t*>(a.out.data());
          },
          "visited_blocks overlaps out in memory; outputs must not"),
  };
}

std::vector<ErrorCase> of_gradients() {
  return {
      backward_error(
          "dq_in_the_memory_of_q",
          [](Arguments& a) { a.gradients.dq = writable(a.q, a.q.shape()); },
          "dq overlaps q in memory; outputs must not"),
      backward_error(
          "dv_in_the_memory_of_dk",
          [](Arguments& a) {
            a.gradients.dv = at(a.gradients.dk, 0, {2, 2, 5, 7});
          },
          "dv overlaps dk in memory; outputs must not"),
      backward_error(  // one element too long: the last of dk is the first of dv
          "interleaved_gradients_that_share_an_element",
          [](Arguments& a) {
            const TensorView memory = a.output({2, 5, 25});
            a.gradients.dk = {memory.data(), DType::f32, {2, 2, 5, 6}, {125, 6, 25, 1}};
            a.gradients.dv = {&memory.at<float>({0, 0, 11}), {2, 2, 5, 7}, {125, 7, 25, 1}};
          },
          "dv overlaps dk in memory; outputs must not"),
      backward_error(
          "dbias_in_the_memory_of_bias",
          [](Arguments& a) {
            a.options.bias = a.input({3, 5});
            a.gradients.dbias = writable(a.options.bias, {3, 5});
          },
          "dbias overlaps bias in memory; outputs must not"),
      backward_error(
          "dsinks_with_a_stride_of_zero",
          [](Arguments& a) {
            a.options.sinks = a.input({4});
            a.gradients.dsinks = {a.output({4}).data(), DType::f32, {4}, {0}};
          },
          "dsinks [4] with strides [0] has elements that share memory; outputs must not"),
      backward_error(
          "dalibi_in_the_memory_of_dout",
          [](Arguments& a) {
            a.options.alibi = a.input({4});
            a.gradients.dalibi = writable(a.dout, {4});
          },
          "dalibi overlaps dout in memory; outputs must not"),
  };
}

std::vector<ErrorCase> of_merge() {
  return {
      merge_error(
          "out_in_the_memory_of_a_part",
          [](Arguments& a) {
            a.merged = writable(a.part_o[1], {2, 4, 3, 7});
          },
          "out overlaps o[1] in memory; outputs must not"),
      merge_error(
          "lse_out_in_the_memory_of_out",
          [](Arguments& a) {
            a.merged_lse = at(a.merged, 0, {2, 4, 3});
          },
          "lse_out overlaps out in memory; outputs must not"),
      merge_error(
          "lse_out_in_the_memory_of_an_lse",
          [](Arguments& a) {
            a.merged_lse = writable(a.part_lse[0], {2, 4, 3});
          },
          "lse_out overlaps lse[0] in memory; outputs must not"),
  };
}

}  // namespace

std::vector<ErrorCase> overlap_errors() {
  std::vector<ErrorCase> cases = of_attention();
  for (const auto& more : {of_gradients(), of_merge()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace attend::test
