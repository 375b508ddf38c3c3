// A Trial is one attention problem that owns its tensors, so that a property can change a part of
// them, run again, and compare. Trials come from random cases, and every failure names its case.
#pragma once

#include "call_memory.h"
#include "examination.h"

#include "cases/cases.h"

#include <attend/attend.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace attend::test {

// ---- Kernels -----------------------------------------------------------------------------------

// A row of the kernel table, to be forced. A backward kernel is run after the forward kernel that
// the planner chooses; the GPU's portable one after its own kind, since the choice goes by options.
struct KernelUnderTest {
  std::string name;
  bool backward = false;
  bool yardstick = false;  // only_if_forced: textbook

  bool on_gpu() const { return name.empty() ? test::on_gpu() : name.starts_with("cuda."); }
  // The rows for Hopper take few options and sizes, and keep no partial states; what they decline
  // the portable ones take.
  bool takes_few_options() const { return name.starts_with("cuda.sm90."); }
};
// Those under test that take tensors of a type; forward, or forward and backward.
std::vector<KernelUnderTest> forward_kernels(DType type = DType::f32);
std::vector<KernelUnderTest> all_kernels(DType type = DType::f32);
bool takes_type(const std::string& kernel, DType type);
// Of any type.
std::vector<KernelUnderTest> every_forward_kernel();
std::vector<KernelUnderTest> every_kernel();

// ---- Calls -------------------------------------------------------------------------------------

// What a call writes.
struct Outputs {
  TensorView out, lse;
  AttentionGradients gradients;
};

// attention() and attention_backward() with the kernel forced, on the host's memory or, for a
// kernel of the GPU, on copies of it there. A backward kernel's forward: as above.
void run_forward(const KernelUnderTest& kernel, const ConstTensorView& q, const ConstTensorView& k,
                 const ConstTensorView& v, const TensorView& out,
                 const AttentionOptions& options = {}, const AttentionOutputs& outputs = {},
                 Context& context = default_context());
void run_backward(const KernelUnderTest& kernel, const BackwardInputs& inputs,
                  const AttentionOptions& options, const AttentionGradients& gradients,
                  Context& context = default_context());

// Runs forward, and backward if the kernel is a backward one. False if the kernel declines the
// problem.
bool run(const Arguments& arguments, const Outputs& outputs, const KernelUnderTest& kernel,
         Context& context = default_context());

// The same arguments, with each given tensor exchanged for change(tensor).
template <class Change>
Arguments exchange_tensors(const Arguments& arguments, Change&& change) {
  Arguments changed = arguments;
  AttentionOptions& options = changed.options;
  for (ConstTensorView* view : std::initializer_list<ConstTensorView*>{
           &changed.q, &changed.k, &changed.v, &changed.dout, &changed.dlse, &options.mask,
           &options.bias, &options.alibi, &options.sinks, &options.blocks.visible,
           &options.key_lengths, &options.cu_seqlens_q, &options.cu_seqlens_k, &options.block_table,
           &options.k_scales, &options.v_scales})
    if (*view) *view = change(*view);
  if (options.query_offset.each()) options.query_offset = change(options.query_offset.each());
  return changed;
}

template <class Change>
Outputs exchange_tensors(const Outputs& outputs, Change&& change) {
  Outputs changed = outputs;
  AttentionGradients& gradients = changed.gradients;
  for (TensorView* view : {&changed.out, &changed.lse, &gradients.dq, &gradients.dk, &gradients.dv,
                           &gradients.dbias, &gradients.dsinks, &gradients.dalibi})
    if (*view) *view = change(*view);
  return changed;
}

// ---- Trials ------------------------------------------------------------------------------------

struct Written {
  Tensor out, lse;
  Tensor dq, dk, dv, dbias, dsinks, dalibi;  // none after a forward kernel, or of whole numbers
  Outputs views();
};

struct Trial {
  std::string line;  // the case it was made from, and what was changed
  Tensor q, k, v, dout, dlse;
  Tensor mask, bias, blocks;  // of four dimensions
  Tensor alibi, sinks, query_offset, key_lengths, cu_seqlens_q, cu_seqlens_k, block_table;
  Tensor k_scales, v_scales;
  AttentionOptions plain;  // the options that are not tensors
  DType out_type = DType::f32, lse_type = DType::f32;

  AttentionOptions options() const;
  Arguments arguments() const;
  Written empty_results(bool backward) const;  // of the right shapes, filled with NaN
  std::optional<Written> run(const KernelUnderTest& kernel,
                             Context& context = default_context()) const;
};

Trial make_trial(const cases::Case& problem);

// A random problem with every option likely. Equal seeds give equal problems on every machine.
cases::Case random_case(std::uint64_t seed);

// Calls body(trial, kernel, results) for `count` random cases, each first adapted to the property,
// with every kernel that takes it; results are what the kernel gives for the trial. The first
// failure ends it and prints the case; the environment variable ATTEND_CASE then holds a line to
// run instead.
using Adapt = std::function<void(cases::Case&)>;
using TrialBody = std::function<void(const Trial&, const KernelUnderTest&, Written&)>;
void for_trials(const std::vector<KernelUnderTest>& kernels, int first_seed, int count,
                const Adapt& adapt, const TrialBody& body);

// ---- Parts of a trial --------------------------------------------------------------------------

// Elements order[0], order[1], ... of one dimension. of_repeated: a dimension of size 1 stays.
Tensor take(const Tensor& tensor, int dim, const std::vector<std::int64_t>& order);
Tensor take_of_repeated(const Tensor& tensor, int dim, const std::vector<std::int64_t>& order);
std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end);
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed);

// [1, heads, rows, ...] of a tensor [b, heads, t, ...].
Tensor gather_rows(const Tensor& tensor, const std::vector<RowAddress>& rows);

// Batch element b (a sequence, if packed) as a dense problem of its own. keys_kept: how many of the
// stored keys stay; by default all.
Trial element_of(const Trial& trial, std::int64_t b, std::int64_t keys_kept = kUnlimited);

// Queries [begin, end) of a dense trial, standing where they stood; all batch elements must have
// the same offset.
Trial queries_of(const Trial& trial, std::int64_t begin, std::int64_t end);

// Keys [begin, end) of a dense trial, standing where they stood.
Trial keys_of(const Trial& trial, std::int64_t begin, std::int64_t end);

// A dense trial without its keys from `end` on.
Trial keys_up_to(const Trial& trial, std::int64_t end);

// One head of a dense trial.
Trial head_of(const Trial& trial, std::int64_t h);

// A mask or bias with every key, those past the end of a short one hidden.
Tensor with_all_keys(const Tensor& mask_or_bias, std::int64_t keys);

// One query of one head, and the keys it sees.
struct SeenRow {
  std::int64_t b = 0, h = 0, i = 0, kv_head = 0;
  RowAddress query;
  std::vector<RowAddress> keys;
  std::vector<std::int64_t> numbers;  // j of each
};
std::vector<SeenRow> seen_rows(const Trial& trial);

}  // namespace attend::test
