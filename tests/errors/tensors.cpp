// Mistakes with Shape, the views and Tensor.
#include "error_case.h"

#include <attend/tensor.h>

namespace attend::test {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31, kTwo62 = std::int64_t{1} << 62;

// A tensor of 2 x 3, and what a mistake does to it.
ErrorCase with_tensor(std::string mistake, void (*make)(const Tensor& tensor),
                      std::string message) {
  return {std::move(mistake), [make] { make(Tensor({2, 3})); }, std::move(message)};
}

std::vector<ErrorCase> shapes() {
  return {
      {"shape_of_nine_dimensions", [] { Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}; },
       "tensor: 9 dimensions; at most 8 are allowed"},
      {"span_of_nine_dimensions", [] { Shape(std::vector<std::int64_t>(9)); },
       "tensor: 9 dimensions; at most 8 are allowed"},
      {"size_past_63_bits",
       [] {
         Shape{2, std::uint64_t{1} << 63};
       },
       "tensor: a size of 9223372036854775808; it must be below 2^63"},
      {"view_of_no_type", [] { ConstTensorView(nullptr, DType(77), {0}); },
       "tensor: DType(77) is no type"},
      {"tensor_of_no_type", [] { Tensor({2}, DType(9)); }, "tensor: DType(9) is no type"},
      {"view_on_no_device",
       [] {
         ConstTensorView(nullptr, DType::f32, {0}, Device{Device::Kind(2), 0});
       },
       "tensor: Device::Kind(2) is no kind of device"},
      {"count_that_overflows",
       [] {
         element_count({kTwo31, kTwo31, 2});
       },
       "tensor: [2147483648, 2147483648, 2] has 2^63 elements or more"},
      {"view_whose_count_overflows",
       [] {
         ConstTensorView(nullptr, DType::u8, {kTwo62, 2});
       },
       "tensor: [4611686018427387904, 2] has 2^63 elements or more"},
      {"view_of_2_to_the_64_elements",
       [] {
         ConstTensorView(nullptr, DType::u8, {kTwo62, 4});
       },
       "tensor: [4611686018427387904, 4] has 2^63 elements or more"},
      {"strided_view_whose_count_overflows",
       [] {
         ConstTensorView(nullptr, DType::u8, {kTwo62, 2}, {0, 0});
       },
       "tensor: [4611686018427387904, 2] has 2^63 elements or more"},
      {"tensor_whose_count_overflows",
       [] {
         Tensor({kTwo31, kTwo31, 2}, DType::f16);
       },
       "tensor: [2147483648, 2147483648, 2] has 2^63 elements or more"},
      {"empty_view_whose_strides_overflow",
       [] {
         ConstTensorView(nullptr, DType::f32, {0, kTwo31, kTwo31, 2});
       },
       "tensor: the strides of [0, 2147483648, 2147483648, 2] are 2^63 or more"},
      {"negative_size",
       [] {
         ConstTensorView(nullptr, DType::f32, {2, -1});
       },
       "tensor: [2, -1] has a negative size"},
      {"negative_size_of_a_tensor",
       [] {
         Tensor({-4, -4});
       },
       "tensor: [-4, -4] has a negative size"},
      {"negative_size_with_strides",
       [] {
         ConstTensorView(nullptr, DType::f32, {-kTwo62, 4}, {1, 1});
       },
       "tensor: [-4611686018427387904, 4] has a negative size"},
      {"strides_of_another_rank",
       [] {
         ConstTensorView(nullptr, DType::f32, {2, 3}, {3, 1, 1});
       },
       "tensor: 3 strides [3, 1, 1] for the 2 dimensions [2, 3]; each needs one"},
  };
}

std::vector<ErrorCase> elements_and_views() {
  return {
      {"element_of_no_address",
       [] { ConstTensorView(static_cast<const float*>(nullptr), {2}).at<float>({1}); },
       "at: the tensor [2] has no address"},
      {"element_of_no_tensor", [] { ConstTensorView().at<float>({}); }, "at: there is no tensor"},
      {"element_on_a_device",
       [] {
         ConstTensorView(nullptr, DType::f32, {2}, Device{Device::Kind::cuda, 0}).at<float>({0});
       },
       "at: the tensor is on cuda:0, not in host memory"},
      with_tensor(
          "element_of_another_type",
          [](const Tensor& t) {
            t.at<double>({0, 0});
          },
          "at: the tensor holds f32, not f64"),
      with_tensor(
          "index_past_the_end",
          [](const Tensor& t) {
            t.at<float>({1, 3});
          },
          "at: index [1, 3] is outside [2, 3]"),
      with_tensor(
          "index_below_zero",
          [](const Tensor& t) {
            t.at<float>({-1, 0});
          },
          "at: index [-1, 0] is outside [2, 3]"),
      with_tensor(
          "index_of_another_rank", [](const Tensor& t) { t.at<float>({0}); },
          "at: index [0] is outside [2, 3]"),
      with_tensor(
          "data_of_another_type", [](const Tensor& t) { t.data<bf16>(); },
          "data: the tensor holds f32, not bf16"),
      with_tensor(
          "permutation_with_one_twice",
          [](const Tensor& t) {
            t.view().permute({1, 1});
          },
          "permute: [1, 1] is not an order of the 2 dimensions of [2, 3]"),
      with_tensor(
          "permutation_of_too_few", [](const Tensor& t) { t.view().permute({0}); },
          "permute: [0] is not an order of the 2 dimensions of [2, 3]"),
      with_tensor(
          "permutation_out_of_range",
          [](const Tensor& t) {
            t.view().permute({0, 2});
          },
          "permute: [0, 2] is not an order of the 2 dimensions of [2, 3]"),
      with_tensor(
          "slice_of_no_dimension", [](const Tensor& t) { t.view().slice(2, 0, 1); },
          "slice: there is no dimension 2 in [2, 3]"),
      with_tensor(
          "slice_of_a_negative_dimension", [](const Tensor& t) { t.view().slice(-1, 0, 1); },
          "slice: there is no dimension -1 in [2, 3]"),
      with_tensor(
          "slice_past_the_end", [](const Tensor& t) { t.view().slice(1, 1, 4); },
          "slice: from 1 to 4 by 1 of a dimension of 3; it must be 0 <= from <= to <= size, or, "
          "with a negative step, -1 <= to <= from < size"),
      with_tensor(
          "slice_by_zero", [](const Tensor& t) { t.view().slice(1, 0, 3, 0); },
          "slice: from 0 to 3 by 0 of a dimension of 3; it must be 0 <= from <= to <= size, or, "
          "with a negative step, -1 <= to <= from < size"),
      with_tensor(
          "backward_slice_from_the_end", [](const Tensor& t) { t.view().slice(1, 3, -1, -1); },
          "slice: from 3 to -1 by -1 of a dimension of 3; it must be 0 <= from <= to <= size, or, "
          "with a negative step, -1 <= to <= from < size"),
      with_tensor(
          "broadcast_of_a_size_that_is_not_one",
          [](const Tensor& t) {
            t.view().broadcast_to({4, 3});
          },
          "broadcast_to: [2, 3] cannot be repeated to [4, 3]; a size must be 1 or equal"),
      with_tensor(
          "broadcast_to_fewer_dimensions", [](const Tensor& t) { t.view().broadcast_to({3}); },
          "broadcast_to: [2, 3] cannot be repeated to [3]; a size must be 1 or equal"),
      with_tensor(
          "broadcast_to_a_negative_size",
          [](const Tensor& t) {
            t.view().broadcast_to({-1, 2, 3});
          },
          "tensor: [-1, 2, 3] has a negative size"),
      with_tensor(
          "broadcast_whose_count_overflows",
          [](const Tensor& t) {
            t.view().broadcast_to({kTwo62, 2, 3});
          },
          "tensor: [4611686018427387904, 2, 3] has 2^63 elements or more"),
  };
}

std::vector<ErrorCase> memory() {
  return {
      {"values_that_do_not_fill_the_shape",
       [] {
         Tensor({1.0F, 2.0F, 3.0F}, {2, 2});
       },
       "tensor: 3 values for the 4 elements of [2, 2]"},
      {"values_for_a_huge_shape", [] { Tensor({1.0F}, {kTwo62}); },
       "tensor: 1 values for the 4611686018427387904 elements of [4611686018427387904]"},
      {"copy_of_no_address",
       [] {
         Tensor::copy_of({nullptr, DType::f32, {2}});
       },
       "copy_of: the tensor [2] has no address"},
      {"copy_of_device_memory",
       [] {
         Tensor::copy_of({nullptr, DType::f32, {2}, {Device::Kind::cuda, 1}});
       },
       "copy_of: the tensor is on cuda:1, not in host memory"},
      {"tensor_of_2_to_the_62_bytes", [] { Tensor({kTwo62}, DType::u8); },
       "tensor: no memory for the 4611686018427387904 bytes of [4611686018427387904] u8",
       "OutOfMemory"},
      {"tensor_of_2_to_the_65_bytes", [] { Tensor({kTwo62}, DType::f64); },
       "tensor: [4611686018427387904] of f64 is larger than memory can be"},
      // Rounded up to the alignment, these bytes would be none.
      {"tensor_of_2_to_the_64_bytes_less_two",
       [] { Tensor::uninitialized({kTwo62 + (kTwo62 - 1)}, DType::bf16); },
       "tensor: [9223372036854775807] of bf16 is larger than memory can be"},
  };
}

}  // namespace

std::vector<ErrorCase> tensor_errors() {
  std::vector<ErrorCase> cases = shapes();
  for (const auto& more : {elements_and_views(), memory()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace attend::test
