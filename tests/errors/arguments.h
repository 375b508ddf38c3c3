// The arguments of one call of each function, with nothing wrong in them. A test breaks one thing.
#pragma once

#include "error_case.h"

#include <attend/attend.h>

#include <deque>
#include <initializer_list>

namespace attend::test {

// 2 batch elements, 4 heads over 2 key heads, 3 queries, 5 keys, d 6, dv 7; f32. No two sizes that
// could be mixed up are equal.
struct Arguments {
  Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  ConstTensorView q, k, v;
  AttentionOptions options;

  TensorView out;  // of attention
  AttentionOutputs outputs;

  ConstTensorView o, lse, dout, dlse;  // of attention_backward
  AttentionGradients gradients;
  BackwardInputs backward_inputs() const {
    return {.q = q, .k = k, .v = v, .out = o, .lse = lse, .dout = dout, .dlse = dlse};
  }

  std::vector<ConstTensorView> part_o, part_lse;  // of merge
  TensorView merged, merged_lse;

  std::int64_t visited = kUntouched;
  static constexpr std::int64_t kUntouched = 0x5A5A5A5A5A5A5A5A;

  // Memory that lives as long as the arguments: zeros, numbers, and what a call would write.
  ConstTensorView input(const Shape& shape, DType type = DType::f32);
  ConstTensorView integers(std::initializer_list<std::int64_t> values, DType type = DType::i64);
  ConstTensorView numbers(const Shape& shape, double value, DType type = DType::f32);
  TensorView output(const Shape& shape, DType type = DType::f32);

  void pack();           // sequences of 2 and 4 queries, 3 and 5 keys
  void page();           // 3 pages of 4 keys, sequences of 5 and 3 keys
  void move_to(Device);  // every tensor of both functions
  void sequences_have(std::int64_t batch, std::int64_t rows, const Shape& keys);

  bool untouched() const;  // whether every output still holds what output() put there

 private:
  std::deque<Tensor> memory_, written_;
};

using Break = std::function<void(Arguments&)>;

// The call with that mistake in it. A Plan for the same call must say the same.
ErrorCase forward_error(std::string mistake, Break break_it, std::string message);
ErrorCase backward_error(std::string mistake, Break break_it, std::string message);
ErrorCase merge_error(std::string mistake, Break break_it, std::string message);

// A mistake in q, k, v or the options. attention and attention_backward must refuse it alike,
// whether they are given memory for their results or make it.
struct InputError {
  const char* mistake;
  Break break_it;
  const char* message;
};
std::vector<ErrorCase> errors_of_both(const std::vector<InputError>& errors);

void run_forward(const Arguments& arguments, Context& context = default_context());
void run_backward(const Arguments& arguments, Context& context = default_context());
void run_merge(const Arguments& arguments, Context& context = default_context());

}  // namespace attend::test
