// Contexts that cannot be made, kernels that decline, plans run with something else, and no memory.
#include "arguments.h"

#include "api/check.h"
#include "cpu/declines.h"
#include "cuda/rows.h"
#include "cuda/sm90.h"
#include "plan/plan.h"
#include "support/environment.h"
#include "support/fake_device.h"

#include <gtest/gtest.h>

#include <limits>

namespace attend::test {
namespace {

constexpr Device kCuda{Device::Kind::cuda, 0};
constexpr const char* kReference =
    "forward:reference.forward,backward:reference.backward,merge:reference.merge";

// Every row of the kernel table, as messages list them.
std::string rows(std::string_view operation = {}) {
  std::string list;
  for (const KernelInfo& kernel : Context::kernels()) {
    if (!operation.empty() && kernel.operation != operation) continue;
    list += (list.empty() ? "" : ", ") + (operation.empty() ? kernel.operation + ":" : "") +
            kernel.name;
  }
  return list;
}

Context forced(const std::string& kernels) { return Context({.threads = 1, .kernels = kernels}); }

std::vector<ErrorCase> contexts() {
  return {
      {"negative_threads", [] { Context({.threads = -1}); },
       "context: threads is -1; it must be from 0 to 4096"},
      {"too_many_threads", [] { Context({.threads = 5000}); },
       "context: threads is 5000; it must be from 0 to 4096"},
      {"allocator_that_cannot_deallocate",
       [] { Context({.allocator = {.allocate = [](auto...) -> void* { return nullptr; }}}); },
       "context: an allocator needs both allocate and deallocate"},
      {"allocator_that_cannot_allocate",
       [] { Context({.allocator = {.deallocate = [](auto...) {}}}); },
       "context: an allocator needs both allocate and deallocate"},
      {"kernel_without_an_operation", [] { forced("reference.forward"); },
       "context: kernels has \"reference.forward\", which is not one of " + rows()},
      {"kernel_of_another_operation",
       [] { forced("forward:reference.forward,backward:reference.forward"); },
       "context: kernels has \"backward:reference.forward\", which is not one of " + rows()},
      {"kernel_of_no_operation", [] { forced(",forward:reference.forward"); },
       "context: kernels has \"\", which is not one of " + rows()},
      {"kernel_of_a_long_name", [] { forced(std::string(1 << 20, 'x')); },
       "context: kernels has \"" + std::string(60, 'x') + "...\", which is not one of " + rows()},
      {"unknown_kernel_in_the_environment",
       [] {
         const Environment variable("ATTEND_KERNEL", "merge:fast");
         Context();
       },
       "context: the environment variable ATTEND_KERNEL has \"merge:fast\", which is not one of " +
           rows()},
      {"threads_in_the_environment_that_are_no_number",
       [] {
         const Environment variable("ATTEND_THREADS", "two");
         Context();
       },
       "context: the environment variable ATTEND_THREADS is \"two\"; it must be a whole number "
       "from 1 to 4096"},
      {"an_interrupt_that_says_yes",
       [] {
         Context context({.interrupt = [] { return true; }});
         context.parallel_for(1, [](std::int64_t) {});
       },
       "parallel_for: interrupted; what it was to write is not complete", "Interrupted"},
  };
}

std::vector<ErrorCase> kernels_that_decline() {
  const std::string size = "f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, scale 0.4082482904638631";
  return {
      {"nothing_that_takes_it",
       [] {
         Arguments a;
         a.move_to(kCuda);
         const Kernel<Forward>* const table[] = {&reference_row<Forward>()};
         const ForwardArguments arguments{a.q, a.k, a.v, a.out, a.options, a.outputs};
         decide<Forward>(check(arguments).problem, this_machine(), 1, "", table);
       },
       "plan: no kernel takes forward " + size +
           ", on cuda:0, lse: reference.forward reads host memory, the tensors are on cuda:0",
       "Unsupported"},
      {"reference_on_a_gpu",
       [] {
         Arguments a;
         a.move_to(kCuda);
         Context context({.kernels = kReference});
         run_backward(a, context);
       },
       "plan: reference.backward was forced and declines backward " + size +
           ", on cuda:0, dlse, dq, dk, dv: it reads host memory, the tensors are on cuda:0",
       "Unsupported"},
      {"merge_on_a_gpu",
       [] {
         Arguments a;
         a.move_to(kCuda);
         Context context({.kernels = kReference});
         run_merge(a, context);
       },
       "plan: reference.merge was forced and declines merge f32, 2 parts of [2, 4, 3, 7]: it reads "
       "host memory, the tensors are on cuda:0",
       "Unsupported"},
      {"textbook_on_a_gpu",
       [] {
         Arguments a;
         a.move_to(kCuda);
         Context context({.kernels = "forward:textbook.forward"});
         run_forward(a, context);
       },
       "plan: textbook.forward was forced and declines forward " + size +
           ", on cuda:0, lse: it reads host memory, the tensors are on cuda:0",
       "Unsupported"},
      {"textbook_that_counts_blocks",
       [] {
         Arguments a;
         a.options.blocks = {a.input({1, 1, 2, 2}, DType::boolean), 2, 3};
         a.outputs.visited_blocks = &a.visited;
         Context context({.kernels = "forward:textbook.forward"});
         run_forward(a, context);
       },
       "plan: textbook.forward was forced and declines forward " + size +
           ", blocks of 2 x 3, lse, visited blocks: it takes no visited blocks",
       "Unsupported"},
      {"textbook_that_keeps_a_state",
       [] {
         Arguments a;
         Tensor state({2, 4, 3, 11}, DType::f64);
         Context context({.kernels = "forward:textbook.forward"});
         attention_partial(a.q, a.k, a.v, state, a.options, context);
       },
       "plan: textbook.forward was forced and declines forward " + size +
           ", 1 partial state, a partial state written: it takes no partial states",
       "Unsupported"},
      {"textbook_that_gives_dsinks",
       [] {
         Arguments a;
         a.options.sinks = a.input({4});
         a.gradients = {.dsinks = a.output({4})};
         Context context({.kernels = "backward:textbook.backward"});
         run_backward(a, context);
       },
       "plan: textbook.backward was forced and declines backward " + size +
           ", sinks, dlse, dsinks: it takes no dsinks",
       "Unsupported"},
      {"textbook_that_sums_over_pages",
       [] {
         Arguments a;
         a.page();
         Plan::attention_backward(
             {.q = a.q, .k = a.k, .v = a.v, .out = a.o, .lse = a.lse, .dout = a.dout}, a.options,
             a.gradients, {.kernel = "textbook.backward"});
       },
       "plan: textbook.backward was forced and declines backward f32, q [2, 4, 3, 6], k [2, 2, 8, "
       "6], dv 7, scale 0.4082482904638631, 3 pages of 4 keys, key lengths, dq, dk, dv: it takes "
       "no paged keys",
       "Unsupported"},
  };
}

std::vector<ErrorCase> plans() {
  return {
      {"plan_of_an_unknown_kernel",
       [] {
         Arguments a;
         Plan::attention(a.q, a.k, a.v, a.out, {}, {}, {.kernel = "reference.backward"});
       },
       "plan: there is no forward kernel reference.backward; there are " + rows("forward")},
      {"plan_run_with_another_length",
       [] {
         Arguments a;
         const Plan plan = Plan::attention(a.q, a.k, a.v, a.out);
         a.sequences_have(2, 4, {2, 2, 5});
         try {
           plan.run(a.q, a.k, a.v, a.out);
         } catch (...) {
           EXPECT_TRUE(a.untouched());
           throw;
         }
       },
       "plan: made for forward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, scale "
       "0.4082482904638631; "
       "called with forward f32, q [2, 4, 4, 6], k [2, 2, 5, 6], dv 7, scale 0.4082482904638631"},
      {"plan_run_with_another_longest_sequence",
       [] {
         Arguments a;
         a.pack();
         const Plan plan = Plan::attention(a.q, a.k, a.v, a.out, a.options);
         const std::int32_t starts[] = {0, 3, 6};  // of 3 and 3 queries, not 2 and 4
         a.options.cu_seqlens_q = {starts, {3}};
         try {
           plan.run(a.q, a.k, a.v, a.out, a.options);
         } catch (...) {
           EXPECT_TRUE(a.untouched());
           throw;
         }
       },
       "plan: made for forward f32, q [2, 4, 4, 6], k [2, 2, 5, 6], dv 7, scale "
       "0.4082482904638631, "
       "packed queries, packed keys; called with forward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv "
       "7, scale "
       "0.4082482904638631, packed queries, packed keys (with max_q and max_k the lengths of "
       "packed sequences may "
       "differ)"},
      {"backward_run_of_a_forward_plan",
       [] {
         Arguments a;
         const Plan plan = Plan::attention(a.q, a.k, a.v, a.out, {.scale = 0.5});
         try {
           plan.run_backward(
               {.q = a.q, .k = a.k, .v = a.v, .out = a.o, .lse = a.lse, .dout = a.dout},
               {.scale = 0.5}, {.dq = a.gradients.dq});
         } catch (...) {
           EXPECT_TRUE(a.untouched());
           throw;
         }
       },
       "plan: made for forward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, scale 0.5; called with "
       "backward f32, q [2, 4, 3, 6], k [2, 2, 5, 6], dv 7, scale 0.5, dq"},
  };
}

Allocator exhausted() {
  return {[](std::size_t, std::size_t) -> void* { return nullptr; }, [](void*, std::size_t) {}};
}

std::vector<ErrorCase> memory() {
  const auto out_of_memory = [](std::string mistake, void (*run)(const Arguments&, Context&),
                                std::size_t bytes) {
    return ErrorCase{
        std::move(mistake),
        [run] {
          Context context({.threads = 1, .allocator = exhausted(), .kernels = kReference});
          run(Arguments(), context);
        },
        "context: no memory for a workspace of " + std::to_string(bytes) + " bytes", "OutOfMemory"};
  };
  const Arguments a;
  const Plan forward =
      Plan::attention(a.q, a.k, a.v, a.out, a.options, a.outputs, {.kernel = "reference.forward"});
  const Plan backward = Plan::attention_backward(a.backward_inputs(), a.options, a.gradients,
                                                 {.kernel = "reference.backward"});
  return {
      out_of_memory("no_memory_for_forward", run_forward, forward.workspace_bytes()),
      out_of_memory("no_memory_for_backward", run_backward, backward.workspace_bytes()),
      out_of_memory("no_memory_for_merge", run_merge, 64),  // a row of 7 numbers, rounded up
      {"workspace_that_overflows",
       [] {
         // 2^31 x 2^31 scores. Nothing is read or written, so `out` needs no memory behind it.
         constexpr std::int64_t kLength = std::int64_t{1} << 31;
         const Tensor row({1, 1, 1, 1});
         const ConstTensorView all = row.view().broadcast_to({1, 1, kLength, 1});
         const TensorView out(reinterpret_cast<float*>(4096), {1, 1, kLength, 1});
         const Plan plan =
             Plan::attention(all, all, all, out, {}, {}, {.kernel = "textbook.forward"});
         EXPECT_EQ(plan.workspace_bytes(), std::numeric_limits<std::size_t>::max());
         plan.run(all, all, all, out);
       },
       "context: no memory for a workspace of 18446744073709551615 bytes", "OutOfMemory"},
  };
}

// Every instruction set's rows, on a machine that has none of them.
std::vector<ErrorCase> machines() {
  const auto refusal_of = [](const char* name, auto declines, const auto& problem,
                             const std::string& reason, const Machine& machine) {
    return ErrorCase{name, [=] { throw Unsupported(declines(problem, machine)); }, reason,
                     "Unsupported"};
  };
  const auto refusal = [&](const char* name, auto declines, const std::string& reason,
                           const Machine& machine = {}) {
    return refusal_of(name, declines, ForwardProblem{}, reason, machine);
  };
  Machine amx, permitted;
  amx.amx_bf16 = true;
  permitted.amx_bf16 = permitted.amx_fp16 = permitted.amx_permitted = true;
  BackwardProblem dout, f16_dout;
  dout.type = DType::bf16;
  f16_dout.type = DType::f16;
  dout.dout_type = f16_dout.dout_type = DType::f32;
  ForwardProblem keys, values, scales, dropout;
  keys.type = values.type = DType::bf16;
  keys.own_k_type = values.own_v_type = scales.v_scales = true;
  keys.k_type = DType::f16;
  values.v_type = DType::f32;
  dropout.drop_below = 65535;
  return {refusal("no_avx512", declines_avx512<ForwardProblem>, "needs AVX-512 (F, DQ, BW, VL)"),
          refusal("no_avx512_bf16", declines_avx512_bf16<ForwardProblem>, "needs AVX512-BF16"),
          refusal("no_amx", declines_amx<ForwardProblem>,
                  "needs AMX-BF16, AVX512-BF16 and AVX512-VBMI"),
          refusal("no_amx_permission", declines_amx<ForwardProblem>,
                  "needs the operating system's permission to use the tiles of AMX, which was "
                  "refused",
                  amx),
          refusal_of("amx_dout_of_another_type", declines_amx<BackwardProblem>, dout,
                     "multiplies in bf16, and dout is f32", permitted),
          refusal_of("amx_fp16_dout_of_another_type", declines_amx_fp16<BackwardProblem>, f16_dout,
                     "multiplies in f16, and dout is f32", permitted),
          refusal_of("avx512_bf16_dout_of_another_type", declines_avx512_bf16<BackwardProblem>,
                     dout, "multiplies in bf16, and dout is f32", permitted),
          refusal_of("neon_bf16_dout_of_another_type", declines_neon_bf16<BackwardProblem>, dout,
                     "multiplies in bf16, and dout is f32", permitted),
          refusal_of("amx_keys_of_another_type", declines_amx<ForwardProblem>, keys,
                     "multiplies in bf16, and k is f16", permitted),
          refusal_of("amx_values_of_another_type", declines_amx<ForwardProblem>, values,
                     "multiplies in bf16, and v is f32", permitted),
          refusal_of("amx_fp16_scales_of_values", declines_amx_fp16<ForwardProblem>, scales,
                     "multiplies weights in f16, and times scales of values they may be too small "
                     "for it",
                     permitted),
          refusal_of("amx_dropout_beyond_f16", declines_amx_fp16<ForwardProblem>, dropout,
                     "multiplies weights in f16, and what this dropout multiplies them with is "
                     "beyond 65504",
                     permitted),
          refusal("no_amx_fp16", declines_amx_fp16<ForwardProblem>, "needs AMX-FP16", amx),
          refusal("no_avx2", declines_avx2<ForwardProblem>, "needs AVX2 and FMA"),
          refusal("no_neon", declines_neon<ForwardProblem>, "needs NEON"),
          refusal("no_bfmmla", declines_neon_bf16<ForwardProblem>, "needs NEON with BFMMLA")};
}

// Rows for GPUs, on others or with sizes that they do not take.
std::vector<ErrorCase> gpus() {
  const auto refusal = [](const char* name, int capability, const std::string& reason,
                          void (*change)(Problem&)) {
    Problem p;
    p.device = kCuda;
    p.d = p.dv = 64;
    change(p);
    return ErrorCase{name, [=] { throw Unsupported(cuda::declines_sm90(p, capability)); }, reason,
                     "Unsupported"};
  };
  // Of the row for forward alone, in bf16.
  const auto forward = [](const char* name, const std::string& reason,
                          void (*change)(ForwardProblem&)) {
    ForwardProblem p;
    p.type = p.out_type = DType::bf16;
    change(p);
    return ErrorCase{name,
                     [=] {
                       for (const Kernel<Forward>* row : kernel_table<Forward>())
                         if (row->name == "cuda.sm90.forward")
                           throw Unsupported(row->declines(p, {}));
                     },
                     reason, "Unsupported"};
  };
  return {
      {"gpu_that_is_too_old", [] { throw Unsupported(cuda::declines_portable(kCuda, 75)); },
       "needs a GPU of sm_80 or later, cuda:0 is sm_75", "Unsupported"},
      forward("gpu_and_another_type_of_out", "writes bf16, and out is f32",
              [](ForwardProblem& p) { p.out_type = DType::f32; }),
      forward("gpu_and_options_over_keys_of_8_bits",
              "takes keys of i8 without mask, blocks, bias, ALiBi, sinks, softcap and dropout",
              [](ForwardProblem& p) {
                p.own_k_type = p.own_v_type = p.k_scales = p.v_scales = p.sinks = true;
                p.k_type = p.v_type = DType::i8;
              }),
      forward("gpu_and_a_bias_of_f64", "takes a bias of f32, bf16 or f16, not f64",
              [](ForwardProblem& p) {
                p.bias = true;
                p.bias_type = DType::f64;
              }),
      forward("gpu_and_a_mask_of_long_numbers", "takes a mask and blocks of bytes, not of i64",
              [](ForwardProblem& p) {
                p.mask = true;
                p.mask_type = DType::i64;
              }),
      forward("gpu_and_a_tiny_softcap", "takes a softcap from 2^-40 to 2^40, not 1e-30",
              [](ForwardProblem& p) { p.softcap = 1e-30; }),
      refusal("gpu_without_the_copy_engine", 80, "needs a GPU of sm_90, cuda:0 is sm_80",
              [](Problem&) {}),
      refusal("gpu_and_another_d", 90,
              "takes d and dv that are multiples of 8 up to 256, not 60 and 64",
              [](Problem& p) { p.d = 60; }),
      refusal("gpu_and_a_negative_scale", 90, "takes scales from 2^-126 to 2^64, not -1",
              [](Problem& p) { p.scale = -1; }),
      refusal("gpu_and_long_sequences", 90, "takes lengths below 2^28, not 0 and 268435456",
              [](Problem& p) { p.k_length = std::int64_t{1} << 28; }),
      refusal("gpu_and_a_window_with_offsets", 90, "takes no window with a query offset of each",
              [](Problem& p) {
                p.offset_each = true;
                p.window_left = 3;
              }),
      refusal("gpu_and_keys_alone_of_another_type", 90,
              "takes keys and values of q's type without scales, or both of i8",
              [](Problem& p) {
                p.own_k_type = true;
                p.k_type = DType::i8;
              }),
      refusal("gpu_and_keys_of_8_bits_for_f16", 90,
              "takes keys of i8 with queries of bf16: scales times weights may be too small for "
              "f16",
              [](Problem& p) {
                p.type = DType::f16;
                p.own_k_type = p.own_v_type = true;
                p.k_type = p.v_type = DType::i8;
              }),
      refusal("gpu_and_small_pages", 90, "takes pages of multiples of 16 keys, not 5",
              [](Problem& p) {
                p.keys = KeyAddressing::paged;
                p.page_size = 5;
              }),
      refusal("gpu_and_many_pages", 90, "takes fewer than 2^28 pages, not 268435456",
              [](Problem& p) { p.pages = std::int64_t{1} << 28; }),
  };
}

}  // namespace

std::vector<ErrorCase> planning_errors() {
  std::vector<ErrorCase> cases = contexts();
  for (const auto& more : {kernels_that_decline(), machines(), gpus(), plans(), memory()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace attend::test
