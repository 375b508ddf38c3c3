// The kernel table: one line a kernel. Each row is defined in the kernel's own file.
#include "plan/plan.h"

namespace attend {

#if defined(__x86_64__)
extern const Kernel kAvx512Forward, kAvx2Forward;
#elif defined(__aarch64__)
extern const Kernel kNeonForward;
#endif
extern const Kernel kGenericForward;
extern const Kernel kReferenceForward, kReferenceBackward, kReferenceMerge;
extern const Kernel kTextbookForward, kTextbookBackward;

namespace {

constinit const Kernel* const kTable[] = {
#if defined(__x86_64__)
    &kAvx512Forward,  &kAvx2Forward,
#elif defined(__aarch64__)
    &kNeonForward,
#endif
    &kGenericForward, &kReferenceForward, &kReferenceBackward,
    &kReferenceMerge, &kTextbookForward,  &kTextbookBackward,
};

}  // namespace

std::span<const Kernel* const> kernel_table() noexcept { return kTable; }

}  // namespace attend
