#include "arguments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace attend::test {
namespace {

constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kD = 6, kDv = 7;
constexpr auto kSentinel = std::byte{0x5A};

// Runs the call; what it throws must leave every output as it was.
template <class Call>
void leaves_outputs_untouched(const Arguments& arguments, Call call) {
  try {
    call();
  } catch (...) {
    EXPECT_TRUE(arguments.untouched()) << "an output was written before the error";
    throw;
  }
}

}  // namespace

Arguments::Arguments() {
  sequences_have(2, 3, {2, kKeyHeads, 5});
  part_o = {input({2, 4, 3, 7}), input({2, 4, 3, 7})};
  part_lse = {input({2, 4, 3}), input({2, 4, 3})};
  merged = output({2, 4, 3, 7});
  merged_lse = output({2, 4, 3});
}

// Everything in the shapes that follow from q [batch, heads, rows, d] and `keys`, the first three
// sizes of k.
void Arguments::sequences_have(std::int64_t batch, std::int64_t rows, const Shape& keys) {
  q = input({batch, kHeads, rows, kD});
  k = input({keys[0], keys[1], keys[2], kD});
  v = input({keys[0], keys[1], keys[2], kDv});
  out = output({batch, kHeads, rows, kDv});
  outputs = {.lse = output({batch, kHeads, rows})};
  o = input(out.shape());
  lse = input({batch, kHeads, rows});
  dout = input(out.shape());
  dlse = input({batch, kHeads, rows});
  gradients = {.dq = output(q.shape()), .dk = output(k.shape()), .dv = output(v.shape())};
}

void Arguments::pack() {
  sequences_have(1, 6, {1, kKeyHeads, 8});
  options.cu_seqlens_q = integers({0, 2, 6});
  options.cu_seqlens_k = integers({0, 3, 8});
}

void Arguments::page() {
  sequences_have(2, 3, {3, kKeyHeads, 4});
  memory_.push_back(
      Tensor({std::int64_t{2}, std::int64_t{0}, std::int64_t{1}, std::int64_t{0}}, {2, 2}));
  options.block_table = memory_.back();
  options.key_lengths = integers({5, 3});
}

void Arguments::move_to(Device device) {
  const auto move = [&](auto& view) {
    if (view)
      view = {const_cast<void*>(static_cast<const ConstTensorView&>(view).data()), view.dtype(),
              view.shape(), view.strides(), device};
  };
  for (ConstTensorView* view : std::initializer_list<ConstTensorView*>{
           &q, &k, &v, &o, &lse, &dout, &dlse, &options.bias, &options.mask, &options.key_lengths,
           &options.cu_seqlens_q, &options.cu_seqlens_k, &options.block_table})
    move(*view);
  for (TensorView* view :
       {&out, &outputs.lse, &gradients.dq, &gradients.dk, &gradients.dv, &merged, &merged_lse})
    move(*view);
  for (ConstTensorView& view : part_o) move(view);
  for (ConstTensorView& view : part_lse) move(view);
}

ConstTensorView Arguments::input(const Shape& shape, DType type) {
  memory_.emplace_back(shape, type);
  return memory_.back();
}

ConstTensorView Arguments::integers(std::initializer_list<std::int64_t> values, DType type) {
  Tensor& tensor = memory_.emplace_back(Shape{static_cast<std::int64_t>(values.size())}, type);
  std::int64_t n = 0;
  for (const std::int64_t value : values) {
    if (type == DType::i32) tensor.at<std::int32_t>({n++}) = static_cast<std::int32_t>(value);
    else tensor.at<std::int64_t>({n++}) = value;
  }
  return tensor;
}

ConstTensorView Arguments::numbers(const Shape& shape, double value, DType type) {
  Tensor& tensor = memory_.emplace_back(shape, type);
  for (std::int64_t n = 0; n < tensor.count(); ++n)
    if (type == DType::f64) tensor.data<double>()[n] = value;
    else tensor.data<float>()[n] = static_cast<float>(value);
  return tensor;
}

TensorView Arguments::output(const Shape& shape, DType type) {
  Tensor& tensor = written_.emplace_back(shape, type);
  std::memset(tensor.view().data(), static_cast<int>(kSentinel),
              static_cast<std::size_t>(tensor.count() * size_of(type)));
  return tensor;
}

bool Arguments::untouched() const {
  return visited == kUntouched &&
         std::all_of(written_.begin(), written_.end(), [](const Tensor& tensor) {
           const auto* bytes = static_cast<const std::byte*>(tensor.view().data());
           return std::all_of(bytes, bytes + tensor.count() * size_of(tensor.dtype()),
                              [](std::byte byte) { return byte == kSentinel; });
         });
}

void run_forward(const Arguments& a, Context& context) {
  leaves_outputs_untouched(a,
                           [&] { attention(a.q, a.k, a.v, a.out, a.options, a.outputs, context); });
}

void run_backward(const Arguments& a, Context& context) {
  leaves_outputs_untouched(
      a, [&] { attention_backward(a.backward_inputs(), a.options, a.gradients, context); });
}

void run_merge(const Arguments& a, Context& context) {
  leaves_outputs_untouched(
      a, [&] { attend::merge(a.part_o, a.part_lse, a.merged, a.merged_lse, context); });
}

ErrorCase forward_error(std::string mistake, Break break_it, std::string message) {
  const auto make = [break_it = std::move(break_it)] {
    Arguments a;
    break_it(a);
    const auto plan = [&] { Plan::attention(a.q, a.k, a.v, a.out, a.options, a.outputs); };
    EXPECT_EQ(thrown_by(plan), thrown_by([&] { run_forward(a); }));
    run_forward(a);
  };
  return {"attention_" + std::move(mistake), make, "attention: " + std::move(message)};
}

ErrorCase backward_error(std::string mistake, Break break_it, std::string message) {
  const auto make = [break_it = std::move(break_it)] {
    Arguments a;
    break_it(a);
    const auto plan = [&] {
      Plan::attention_backward(a.backward_inputs(), a.options, a.gradients);
    };
    EXPECT_EQ(thrown_by(plan), thrown_by([&] { run_backward(a); }));
    run_backward(a);
  };
  return {"backward_" + std::move(mistake), make, "attention_backward: " + std::move(message)};
}

ErrorCase merge_error(std::string mistake, Break break_it, std::string message) {
  const auto make = [break_it = std::move(break_it)] {
    Arguments a;
    break_it(a);
    run_merge(a);
  };
  return {"merge_" + std::move(mistake), make, "merge: " + std::move(message)};
}

std::vector<ErrorCase> errors_of_both(const std::vector<InputError>& errors) {
  std::vector<ErrorCase> cases;
  for (const auto& [mistake, break_it, message] : errors) {
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
  return cases;
}

}  // namespace attend::test
