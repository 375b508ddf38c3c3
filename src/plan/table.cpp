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

}  // namespace

template <>
Table<Forward> kernel_table<Forward>() noexcept {
  return kForward;
}
template <>
Table<Backward> kernel_table<Backward>() noexcept {
  return kBackward;
}
template <>
Table<Inspect> kernel_table<Inspect>() noexcept {
  return kInspect;
}
template <>
Table<Merge> kernel_table<Merge>() noexcept {
  return kMerge;
}
template <>
Table<Weights> kernel_table<Weights>() noexcept {
  return kWeights;
}
template <>
Table<Product> kernel_table<Product>() noexcept {
  return kProduct;
}

}  // namespace attend
