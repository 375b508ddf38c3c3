// What a device reports, through the fake one.
#include "arguments.h"

#include "api/check.h"
#include "api/context.h"
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
         queue.put([] { return Status{Status::Kind::failed, "an illegal address"}; });
         static_cast<void>(queue.wait());
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
      {"gpu_that_is_not_there", [] { cuda::make_queue(99); },
       "make_queue: this process " + cuda::why_unavailable(99), "Unsupported"},
      {"waiting_for_another_kind_of_queue",
       [] {
         FakeQueue queue;
         cuda::wait(queue);
       },
       "wait: the queue is not one that make_queue() made"},
  };
}

}  // namespace attend::test
