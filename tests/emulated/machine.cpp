// AMX and AVX512-BF16 on a processor that has AVX-512 alone: with ATTEND_EMULATE set,
// this_machine() tells the library that they are there, and an instruction that the processor does
// not know is done by the signal handler here, as the models of the tests say (support/amx_model.h,
// vdpbf16_model.h). So what runs is the library's own code, and every bit of it can be tested.
//
// An instruction takes some two microseconds, one that multiplies tiles 50: enough for short
// sequences.
#include "core/machine.h"
#include "emulated/tiles.h"
#include "emulated/vectors.h"

#include <signal.h>

#include <cstdlib>

namespace attend {
namespace {

// Those that follow are done at once: the signal costs more than what it is for.
void run_instructions(int, siginfo_t*, void* context) {
  test::Frame frame(*static_cast<ucontext_t*>(context));
  for (int done = 0;; ++done) {
    const auto made = test::decode(frame);
    if (made && (test::run_tiles(*made) || test::run_vector(frame, *made))) {
      frame.skip(made->bytes);
    } else {
      if (done == 0) signal(SIGILL, SIG_DFL);  // it is met once more, and ends the program
      return;
    }
  }
}

bool emulate() {
  if (std::getenv("ATTEND_EMULATE") == nullptr) return false;
  const Machine real = detected_machine();
  if (!real.avx512 || real.amx_permitted)
    return false;  // nothing to build on, or all of it is there
  struct sigaction handler {};
  handler.sa_sigaction = run_instructions;
  handler.sa_flags = SA_SIGINFO;
  sigemptyset(&handler.sa_mask);
  return sigaction(SIGILL, &handler, nullptr) == 0;
}

}  // namespace

// In front of the library's own (src/core/machine.cpp).
Machine this_machine() noexcept {
  static const bool emulated = emulate();
  Machine machine = detected_machine();
  if (emulated)
    machine.avx512_bf16 = machine.amx_bf16 = machine.amx_fp16 = machine.amx_permitted = true;
  return machine;
}

}  // namespace attend
