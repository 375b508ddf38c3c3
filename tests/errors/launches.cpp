// What a device reports, through the fake one.
#include "arguments.h"

#include "api/check.h"
#include "api/context.h"
#include "api/lease.h"
#include "support/fake_device.h"

#include <attend/cuda.h>

namespace attend::test {
namespace {

void launch(FakeQueue* queue) {
  Arguments a;
  a.outputs = {};
  a.move_to(kFakeDevice);
  const auto request = check(ForwardArguments{a.q, a.k, a.v, a.out, a.options, a.outputs});
  ContextState::of(default_context())
      .execute("attention", fake_plan(request.problem), request.call, queue);
}

// What it was given to do fails.
void fail(FakeQueue& queue) {
  queue.put([] { return Status{Status::Kind::failed, "an illegal address"}; });
  static_cast<void>(queue.wait());
}

}  // namespace

std::vector<ErrorCase> launch_errors() {
  return {
      {"no_queue", [] { launch(nullptr); },
       "attention: the tensors are on cuda:0; a queue of it must be given"},
      {"queue_of_another_device",
       [] {
         FakeQueue queue;
         queue.own_device = {Device::Kind::cuda, 1};
         launch(&queue);
       },
       "attention: the tensors are on cuda:0, the queue is of cuda:1; both must be one device"},
      {"launch_that_is_refused",
       [] {
         FakeQueue queue;
         queue.refuses = true;
         launch(&queue);
       },
       "attention: cuda:0 failed: too much shared memory", "DeviceError"},
      {"failure_of_an_earlier_call",
       [] {
         FakeQueue queue;
         fail(queue);
         launch(&queue);
       },
       "attention: cuda:0 failed: an illegal address (perhaps in an earlier call)", "DeviceError"},
      {"no_memory_on_the_device",
       [] {
         FakeQueue queue;
         queue.exhausted = true;
         launch(&queue);
       },
       "attention: cuda:0 has no memory for it: none is left", "OutOfMemory"},
      {"no_memory_for_a_tensor",
       [] {
         FakeQueue queue;
         queue.exhausted = true;
         Tensor::uninitialized({2, 3}, DType::f32, kFakeDevice, queue);
       },
       "tensor: cuda:0 has no memory for the 24 bytes of [2, 3] f32", "OutOfMemory"},
      {"tensor_after_a_failure",
       [] {
         FakeQueue queue;
         fail(queue);
         Tensor::uninitialized({2, 3}, DType::f32, kFakeDevice, queue);
       },
       "tensor: cuda:0 failed: an illegal address (perhaps in an earlier call)", "DeviceError"},
      {"workspace_after_a_failure",
       [] {
         FakeQueue queue;
         fail(queue);
         const Lease lease(Where(queue), 64, kFakeDevice);
       },
       "workspace: cuda:0 failed: an illegal address (perhaps in an earlier call)", "DeviceError"},
      {"tensor_of_a_device_without_a_queue",
       [] {
         Tensor::uninitialized({2, 3}, DType::f32, kFakeDevice, default_context());
       },
       "tensor: memory of cuda:0 comes from a queue of it, which must be given"},
      {"no_memory_for_a_workspace",
       [] {
         FakeQueue queue;
         queue.exhausted = true;
         const Lease lease(Where(queue), 64, kFakeDevice);
       },
       "workspace: cuda:0 has no memory for 64 bytes", "OutOfMemory"},
      {"copy_of_a_tensor_without_an_address",
       [] {
         FakeQueue queue;
         Tensor::copy_of(ConstTensorView(nullptr, DType::f32, {2, 3}), kFakeDevice, queue);
       },
       "copy_of: the tensor [2, 3] has no address"},
      {"copy_of_bytes_on_a_device",
       [] {
         FakeQueue queue;
         const Tensor bytes = Tensor::copy_of(Tensor({2, 3}, DType::u8), kFakeDevice, queue);
         Tensor::copy_of(bytes.view().permute({1, 0}), kFakeDevice, queue);
       },
       "copy: [3, 2] of u8 on cuda:0 is not copied there", "Unsupported"},
      {"copy_from_one_device_to_another",
       [] {
         FakeQueue queue;
         const Tensor there = Tensor::copy_of(Tensor({2, 3}), kFakeDevice, queue);
         Tensor::copy_of(there, {Device::Kind::cuda, 1}, queue);
       },
       "copy_of: from cuda:0 to cuda:1 a tensor goes by the host, in two copies with a queue of "
       "each",
       "Unsupported"},
      {"gpu_that_is_not_there", [] { cuda::make_queue(99); },
       "make_queue: this process " + cuda::why_unavailable(99), "Unsupported"},
      {"waiting_for_another_kind_of_queue",
       [] {
         FakeQueue queue;
         cuda::wait(queue);
       },
       "wait: the queue is not one that make_queue() made"},
      {"memory_of_a_queue_without_functions", [] { cuda::make_queue(0, nullptr, {}); },
       "make_queue: the functions take and give of its memory must be given"},
  };
}

}  // namespace attend::test
