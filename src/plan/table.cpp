// The kernel table: one line a kernel. Each row is defined in the kernel's own file.
#include "plan/plan.h"

namespace attend {

#if defined(__x86_64__)
extern const Kernel kAvx512Forward, kAvx2Forward, kAvx512Backward, kAvx2Backward;
extern const Kernel kAvx512Inspect, kAvx2Inspect;
#elif defined(__aarch64__)
extern const Kernel kNeonForward, kNeonBackward, kNeonInspect;
#endif
extern const Kernel kGenericForward, kGenericBackward, kGenericInspect;
extern const Kernel kReferenceForward, kReferenceBackward, kReferenceMerge;
extern const Kernel kReferenceInspect, kReferenceWeights;
extern const Kernel kTextbookForward, kTextbookBackward;

namespace {

constinit const Kernel* const kTable[] = {
#if defined(__x86_64__)
    &kAvx512Forward,     &kAvx2Forward,      &kAvx512Backward,   &kAvx2Backward,
    &kAvx512Inspect,     &kAvx2Inspect,
#elif defined(__aarch64__)
    &kNeonForward,       &kNeonBackward,     &kNeonInspect,
#endif
    &kGenericForward,    &kGenericBackward,  &kGenericInspect,   &kReferenceForward,
    &kReferenceBackward, &kReferenceMerge,   &kReferenceInspect, &kReferenceWeights,
    &kTextbookForward,   &kTextbookBackward,
};

}  // namespace

std::span<const Kernel* const> kernel_table() noexcept { return kTable; }

}  // namespace attend
