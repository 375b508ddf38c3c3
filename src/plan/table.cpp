// The kernel table: one line a kernel. Each row is defined in the kernel's own file.
#include "plan/plan.h"

namespace attend {

#if defined(__x86_64__)
extern const Kernel<Forward> kAvx512Forward, kAvx2Forward;
extern const Kernel<Backward> kAvx512Backward, kAvx2Backward;
extern const Kernel<Inspect> kAvx512Inspect, kAvx2Inspect;
extern const Kernel<Product> kAvx512Product, kAvx2Product;
#elif defined(__aarch64__)
extern const Kernel<Forward> kNeonForward;
extern const Kernel<Backward> kNeonBackward;
extern const Kernel<Inspect> kNeonInspect;
extern const Kernel<Product> kNeonProduct;
#endif
extern const Kernel<Forward> kGenericForward, kReferenceForward, kTextbookForward;
extern const Kernel<Backward> kGenericBackward, kReferenceBackward, kTextbookBackward;
extern const Kernel<Inspect> kGenericInspect, kReferenceInspect;
extern const Kernel<Merge> kReferenceMerge;
extern const Kernel<Weights> kReferenceWeights;
extern const Kernel<Product> kGenericProduct, kReferenceProduct;
extern const Kernel<NormForward> kReferenceNorm;
extern const Kernel<NormBackward> kReferenceNormBackward;
extern const Kernel<ActivationForward> kReferenceActivation;
extern const Kernel<ActivationBackward> kReferenceActivationBackward;
extern const Kernel<RotaryForward> kReferenceRotary;

namespace {

constinit const Kernel<Forward>* const kForward[] = {
#if defined(__x86_64__)
    &kAvx512Forward,  &kAvx2Forward,
#elif defined(__aarch64__)
    &kNeonForward,
#endif
    &kGenericForward, &kReferenceForward, &kTextbookForward,
};

constinit const Kernel<Backward>* const kBackward[] = {
#if defined(__x86_64__)
    &kAvx512Backward,  &kAvx2Backward,
#elif defined(__aarch64__)
    &kNeonBackward,
#endif
    &kGenericBackward, &kReferenceBackward, &kTextbookBackward,
};

constinit const Kernel<Inspect>* const kInspect[] = {
#if defined(__x86_64__)
    &kAvx512Inspect,
    &kAvx2Inspect,
#elif defined(__aarch64__)
    &kNeonInspect,
#endif
    &kGenericInspect,
    &kReferenceInspect,
};

constinit const Kernel<Merge>* const kMerge[] = {&kReferenceMerge};

constinit const Kernel<Weights>* const kWeights[] = {&kReferenceWeights};

constinit const Kernel<Product>* const kProduct[] = {
#if defined(__x86_64__)
    &kAvx512Product,
    &kAvx2Product,
#elif defined(__aarch64__)
    &kNeonProduct,
#endif
    &kGenericProduct,
    &kReferenceProduct,
};

constinit const Kernel<NormForward>* const kNorm[] = {&kReferenceNorm};
constinit const Kernel<NormBackward>* const kNormBackward[] = {&kReferenceNormBackward};

constinit const Kernel<ActivationForward>* const kActivation[] = {&kReferenceActivation};
constinit const Kernel<ActivationBackward>* const kActivationBackward[] = {
    &kReferenceActivationBackward};

constinit const Kernel<RotaryForward>* const kRotary[] = {&kReferenceRotary};

Table<Forward> rows(Forward) { return kForward; }
Table<Backward> rows(Backward) { return kBackward; }
Table<Inspect> rows(Inspect) { return kInspect; }
Table<Merge> rows(Merge) { return kMerge; }
Table<Weights> rows(Weights) { return kWeights; }
Table<Product> rows(Product) { return kProduct; }
Table<NormForward> rows(NormForward) { return kNorm; }
Table<NormBackward> rows(NormBackward) { return kNormBackward; }
Table<ActivationForward> rows(ActivationForward) { return kActivation; }
Table<ActivationBackward> rows(ActivationBackward) { return kActivationBackward; }
Table<RotaryForward> rows(RotaryForward) { return kRotary; }

}  // namespace

template <class Operation>
Table<Operation> kernel_table() noexcept {
  return rows(Operation{});
}
template Table<Forward> kernel_table<Forward>() noexcept;
template Table<Backward> kernel_table<Backward>() noexcept;
template Table<Inspect> kernel_table<Inspect>() noexcept;
template Table<Merge> kernel_table<Merge>() noexcept;
template Table<Weights> kernel_table<Weights>() noexcept;
template Table<Product> kernel_table<Product>() noexcept;
template Table<NormForward> kernel_table<NormForward>() noexcept;
template Table<NormBackward> kernel_table<NormBackward>() noexcept;
template Table<ActivationForward> kernel_table<ActivationForward>() noexcept;
template Table<ActivationBackward> kernel_table<ActivationBackward>() noexcept;
template Table<RotaryForward> kernel_table<RotaryForward>() noexcept;

}  // namespace attend
