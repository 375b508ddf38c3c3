// The kernel table: one line a kernel. Each row is defined in the kernel's own file.
#include "plan/plan.h"

namespace attend {

extern const Kernel kReferenceForward, kReferenceBackward, kReferenceMerge;
extern const Kernel kTextbookForward, kTextbookBackward;

namespace {

constinit const Kernel* const kTable[] = {
    &kReferenceForward, &kReferenceBackward, &kReferenceMerge,
    &kTextbookForward,  &kTextbookBackward,
};

}  // namespace

std::span<const Kernel* const> kernel_table() noexcept { return kTable; }

}  // namespace attend
