#include "property_trial.h"

#include "cases/instance.h"
#include "plan/plan.h"

#include <algorithm>
#include <cstring>

namespace attend::test {
namespace {

bool takes_type(Features takes, DType type) {
  return takes.has(type == DType::f64    ? Feature::f64
                   : type == DType::bf16 ? Feature::bf16
                   : type == DType::f16  ? Feature::f16
                                         : Feature::f32);
}

// Whether this machine has what the row needs for tensors of the type.
template <class Operation>
bool runs_here(const Kernel<Operation>& row, DType type) {
  if (!is_under_test(row.name) || !takes_type(row.takes, type)) return false;
  typename Operation::Problem problem;
  problem.type = type;
  if (row.launch != nullptr) {
    problem.device = {Device::Kind::cuda, 0};
    problem.d = problem.dv = 64;
    if constexpr (std::is_same_v<Operation, Forward>) problem.out_type = type;
  }
  if constexpr (std::is_same_v<Operation, Backward>) problem.dout_type = type;
  return row.declines(problem, this_machine()).empty();
}

// Rows of an operation that take a type; any row, if none is given.
template <class Operation>
void add_rows(std::vector<KernelUnderTest>& kernels, std::optional<DType> type) {
  for (const Kernel<Operation>* row : kernel_table<Operation>()) {
    const bool wanted = type ? runs_here(*row, *type)
                             : std::any_of(std::begin(cases::kTypes), std::end(cases::kTypes),
                                           [&](DType each) { return runs_here(*row, each); });
    if (wanted)
      kernels.push_back(
          {std::string(row->name), std::is_same_v<Operation, Backward>, row->only_if_forced});
  }
}

std::vector<KernelUnderTest> rows(std::optional<DType> type, bool backward) {
  std::vector<KernelUnderTest> kernels;
  add_rows<Forward>(kernels, type);
  if (backward) add_rows<Backward>(kernels, type);
  return kernels;
}

Tensor nan_filled(const Shape& shape, DType type) {
  Tensor tensor = Tensor::uninitialized(shape, type);
  std::memset(tensor.view().data(), 0xff, static_cast<std::size_t>(tensor.count() * size_of(type)));
  return tensor;
}

// With ones in front up to four dimensions.
Tensor of_four_dimensions(const ConstTensorView& view) {
  if (!view) return {};
  Shape shape{1, 1, 1, 1};
  for (int dim = 0; dim < view.rank(); ++dim) shape[dim + 4 - view.rank()] = view.size(dim);
  const Tensor copy = Tensor::copy_of(view);
  return Tensor::copy_of(ConstTensorView(copy.view().data(), view.dtype(), shape));
}

}  // namespace

std::vector<KernelUnderTest> forward_kernels(DType type) { return rows(type, false); }
std::vector<KernelUnderTest> all_kernels(DType type) { return rows(type, true); }
bool takes_type(const std::string& kernel, DType type) {
  for (const KernelUnderTest& row : all_kernels(type))
    if (row.name == kernel) return true;
  return false;
}
std::vector<KernelUnderTest> every_forward_kernel() { return rows({}, false); }
std::vector<KernelUnderTest> every_kernel() { return rows({}, true); }

void run_forward(const KernelUnderTest& kernel, const ConstTensorView& q, const ConstTensorView& k,
                 const ConstTensorView& v, const TensorView& out, const AttentionOptions& options,
                 const AttentionOutputs& outputs, Context& context) {
  CallMemory memory(kernel.on_gpu());
  const ConstTensorView q_there = memory.in(q), k_there = memory.in(k), v_there = memory.in(v);
  const TensorView out_there = memory.out(out);
  const AttentionOptions given = memory.in(q, k, v, options);
  const AttentionOutputs wanted = memory.out(outputs);
  const Where where = memory.begin(context);
  const std::string forced = !kernel.backward                          ? kernel.name
                             : kernel.name == "cuda.portable.backward" ? "cuda.portable.forward"
                                                                       : "";
  Plan::attention(q_there, k_there, v_there, out_there, given, wanted, {forced}, context)
      .run(q_there, k_there, v_there, out_there, given, wanted, where.queue());
  memory.end();
}

void run_backward(const KernelUnderTest& kernel, const BackwardInputs& inputs,
                  const AttentionOptions& options, const AttentionGradients& gradients,
                  Context& context) {
  CallMemory memory(kernel.on_gpu());
  BackwardInputs there = inputs;
  for (TensorOrView* view :
       {&there.q, &there.k, &there.v, &there.out, &there.lse, &there.dout, &there.dlse})
    *view = memory.in(*view);
  const AttentionOptions given = memory.in(inputs.q, inputs.k, inputs.v, options);
  const AttentionGradients wanted = memory.out(gradients);
  const Where where = memory.begin(context);
  Plan::attention_backward(there, given, wanted, {kernel.name}, context)
      .run_backward(there, given, wanted, where.queue());
  memory.end();
}

bool run(const Arguments& a, const Outputs& o, const KernelUnderTest& kernel, Context& context) {
  AttentionOutputs outputs;
  outputs.lse = o.lse;
  try {
    run_forward(kernel, a.q, a.k, a.v, o.out, a.options, outputs, context);
    if (kernel.backward)
      run_backward(kernel,
                   {.q = a.q,
                    .k = a.k,
                    .v = a.v,
                    .out = o.out,
                    .lse = o.lse,
                    .dout = a.dout,
                    .dlse = a.dlse},
                   a.options, o.gradients, context);
    return true;
  } catch (const Unsupported&) {
    return false;
  }
}

Outputs Written::views() { return {out, lse, {dq, dk, dv, dbias, dsinks, dalibi}}; }

AttentionOptions Trial::options() const {
  AttentionOptions options = plain;
  options.mask = mask;
  options.bias = bias;
  options.blocks.visible = blocks;
  if (!blocks) options.blocks = {};
  options.alibi = alibi;
  options.sinks = sinks;
  if (query_offset) options.query_offset = query_offset;
  options.key_lengths = key_lengths;
  options.cu_seqlens_q = cu_seqlens_q;
  options.cu_seqlens_k = cu_seqlens_k;
  options.block_table = block_table;
  options.k_scales = k_scales;
  options.v_scales = v_scales;
  return options;
}

Arguments Trial::arguments() const { return {q, k, v, dout, dlse, options()}; }

Written Trial::empty_results(bool backward) const {
  const Shape& of_q = q.shape();
  Written results;
  results.out = nan_filled({of_q[0], of_q[1], of_q[2], v.size(3)}, out_type);
  results.lse = nan_filled({of_q[0], of_q[1], of_q[2]}, lse_type);
  if (!backward) return results;
  const auto like = [](const Tensor& t) {
    return t && t.dtype() != DType::i8 ? nan_filled(t.shape(), t.dtype()) : Tensor();
  };
  results.dq = like(q);
  results.dk = like(k);
  results.dv = like(v);
  results.dbias = like(bias);
  results.dsinks = like(sinks);
  results.dalibi = like(alibi);
  return results;
}

std::optional<Written> Trial::run(const KernelUnderTest& kernel, Context& context) const {
  Written results = empty_results(kernel.backward);
  Outputs wanted = results.views();
  // The yardstick gives dq, dk and dv only.
  if (kernel.yardstick)
    wanted.gradients.dbias = wanted.gradients.dsinks = wanted.gradients.dalibi = {};
  if (!test::run(arguments(), wanted, kernel, context)) return std::nullopt;
  return results;
}

Trial make_trial(const cases::Case& problem) {
  const cases::Instance instance = cases::make(problem);
  const AttentionOptions& options = instance.options;
  Trial trial;
  trial.line = cases::name(problem);
  trial.plain = options;
  for (ConstTensorView* view :
       {&trial.plain.mask, &trial.plain.bias, &trial.plain.alibi, &trial.plain.sinks,
        &trial.plain.blocks.visible, &trial.plain.key_lengths, &trial.plain.cu_seqlens_q,
        &trial.plain.cu_seqlens_k, &trial.plain.block_table, &trial.plain.k_scales,
        &trial.plain.v_scales})
    *view = {};
  if (options.query_offset.each()) trial.plain.query_offset = {};
  const auto copy = [](const ConstTensorView& view) { return Tensor::copy_of(view); };
  trial.q = copy(instance.q);
  trial.k = copy(instance.k);
  trial.v = copy(instance.v);
  trial.dout = copy(instance.dout);
  trial.dlse = copy(instance.dlse);
  trial.mask = of_four_dimensions(options.mask);
  trial.bias = of_four_dimensions(options.bias);
  trial.blocks = of_four_dimensions(options.blocks.visible);
  trial.alibi = copy(options.alibi);
  trial.sinks = copy(options.sinks);
  trial.query_offset = copy(options.query_offset.each());
  trial.key_lengths = copy(options.key_lengths);
  trial.cu_seqlens_q = copy(options.cu_seqlens_q);
  trial.cu_seqlens_k = copy(options.cu_seqlens_k);
  trial.block_table = copy(options.block_table);
  trial.k_scales = copy(options.k_scales);
  trial.v_scales = copy(options.v_scales);
  trial.out_type = instance.out.dtype();
  trial.lse_type = instance.lse.dtype();
  return trial;
}

}  // namespace attend::test
