// The kernel table: one line a kernel. Each row is defined in the kernel's own file.
#include "plan/plan.h"

namespace attend {

#if defined(__x86_64__)
extern const Kernel<Forward> kAmxForward, kAmxFp16Forward, kAvx512Bf16Forward, kAvx512Forward,
    kAvx2Forward;
extern const Kernel<Backward> kAmxBackward, kAmxFp16Backward, kAvx512Bf16Backward, kAvx512Backward,
    kAvx2Backward;
extern const Kernel<Inspect> kAvx512Inspect, kAvx2Inspect;
extern const Kernel<Product> kAmxFp16Product, kAmxProduct, kAvx512Bf16Product, kAvx512Product,
    kAvx2Product;
extern const Kernel<NormForward> kAvx512Norm, kAvx2Norm;
extern const Kernel<NormBackward> kAvx512NormBackward, kAvx2NormBackward;
extern const Kernel<ActivationForward> kAvx512Activation, kAvx2Activation;
extern const Kernel<ActivationBackward> kAvx512ActivationBackward, kAvx2ActivationBackward;
extern const Kernel<RotaryForward> kAvx512Rotary, kAvx2Rotary;
extern const Kernel<Convert> kAvx512Convert, kAvx2Convert;
#elif defined(__aarch64__)
extern const Kernel<Forward> kNeonBf16Forward, kNeonForward;
extern const Kernel<Backward> kNeonBf16Backward, kNeonBackward;
extern const Kernel<Inspect> kNeonInspect;
extern const Kernel<Product> kNeonBf16Product, kNeonProduct;
extern const Kernel<NormForward> kNeonNorm;
extern const Kernel<NormBackward> kNeonNormBackward;
extern const Kernel<ActivationForward> kNeonActivation;
extern const Kernel<ActivationBackward> kNeonActivationBackward;
extern const Kernel<RotaryForward> kNeonRotary;
extern const Kernel<Convert> kNeonConvert;
#endif
extern const Kernel<Forward> kCudaSm90Forward, kCudaPortableForward;
extern const Kernel<Backward> kCudaSm90Backward, kCudaPortableBackward;
extern const Kernel<Merge> kCudaPortableMerge;
extern const Kernel<Inspect> kCudaPortableInspect;
extern const Kernel<Weights> kCudaPortableWeights;
extern const Kernel<Product> kCudaCublasltProduct, kCudaPortableProduct;
extern const Kernel<NormForward> kCudaPortableNorm;
extern const Kernel<NormBackward> kCudaPortableNormBackward;
extern const Kernel<ActivationForward> kCudaPortableActivation;
extern const Kernel<ActivationBackward> kCudaPortableActivationBackward;
extern const Kernel<RotaryForward> kCudaPortableRotary;
extern const Kernel<Convert> kCudaPortableConvert;
extern const Kernel<Add> kCudaPortableAdd;
extern const Kernel<Forward> kGenericForward, kReferenceForward, kTextbookForward;
extern const Kernel<Backward> kGenericBackward, kReferenceBackward, kTextbookBackward;
extern const Kernel<Inspect> kGenericInspect, kReferenceInspect;
extern const Kernel<Merge> kReferenceMerge;
extern const Kernel<Weights> kReferenceWeights;
extern const Kernel<Product> kGenericProduct, kReferenceProduct;
extern const Kernel<NormForward> kGenericNorm, kReferenceNorm;
extern const Kernel<NormBackward> kGenericNormBackward, kReferenceNormBackward;
extern const Kernel<ActivationForward> kGenericActivation, kReferenceActivation;
extern const Kernel<ActivationBackward> kGenericActivationBackward, kReferenceActivationBackward;
extern const Kernel<RotaryForward> kGenericRotary, kReferenceRotary;
extern const Kernel<Convert> kGenericConvert, kReferenceConvert;
extern const Kernel<Add> kReferenceAdd;

namespace {

constinit const Kernel<Forward>* const kForward[] = {
    &kCudaSm90Forward, &kCudaPortableForward,
#if defined(__x86_64__)
    &kAmxForward,      &kAmxFp16Forward,      &kAvx512Bf16Forward, &kAvx512Forward, &kAvx2Forward,
#elif defined(__aarch64__)
    &kNeonBf16Forward, &kNeonForward,
#endif
    &kGenericForward,  &kReferenceForward,    &kTextbookForward,
};

constinit const Kernel<Backward>* const kBackward[] = {
    &kCudaSm90Backward, &kCudaPortableBackward,
#if defined(__x86_64__)
    &kAmxBackward,      &kAmxFp16Backward,      &kAvx512Bf16Backward,
    &kAvx512Backward,   &kAvx2Backward,
#elif defined(__aarch64__)
    &kNeonBf16Backward, &kNeonBackward,
#endif
    &kGenericBackward,  &kReferenceBackward,    &kTextbookBackward,
};

constinit const Kernel<Inspect>* const kInspect[] = {
    &kCudaPortableInspect,
#if defined(__x86_64__)
    &kAvx512Inspect,       &kAvx2Inspect,
#elif defined(__aarch64__)
    &kNeonInspect,
#endif
    &kGenericInspect,      &kReferenceInspect,
};

constinit const Kernel<Merge>* const kMerge[] = {&kCudaPortableMerge, &kReferenceMerge};

constinit const Kernel<Weights>* const kWeights[] = {&kCudaPortableWeights, &kReferenceWeights};

constinit const Kernel<Product>* const kProduct[] = {
    &kCudaCublasltProduct, &kCudaPortableProduct,
#if defined(__x86_64__)
    &kAmxFp16Product,      &kAmxProduct,          &kAvx512Bf16Product,
    &kAvx512Product,       &kAvx2Product,
#elif defined(__aarch64__)
    &kNeonBf16Product,     &kNeonProduct,
#endif
    &kGenericProduct,      &kReferenceProduct,
};

constinit const Kernel<NormForward>* const kNorm[] = {
    &kCudaPortableNorm,
#if defined(__x86_64__)
    &kAvx512Norm,       &kAvx2Norm,
#elif defined(__aarch64__)
    &kNeonNorm,
#endif
    &kGenericNorm,      &kReferenceNorm,
};

constinit const Kernel<NormBackward>* const kNormBackward[] = {
    &kCudaPortableNormBackward,
#if defined(__x86_64__)
    &kAvx512NormBackward,       &kAvx2NormBackward,
#elif defined(__aarch64__)
    &kNeonNormBackward,
#endif
    &kGenericNormBackward,      &kReferenceNormBackward,
};

constinit const Kernel<ActivationForward>* const kActivation[] = {
    &kCudaPortableActivation,
#if defined(__x86_64__)
    &kAvx512Activation,       &kAvx2Activation,
#elif defined(__aarch64__)
    &kNeonActivation,
#endif
    &kGenericActivation,      &kReferenceActivation,
};

constinit const Kernel<ActivationBackward>* const kActivationBackward[] = {
    &kCudaPortableActivationBackward,
#if defined(__x86_64__)
    &kAvx512ActivationBackward,       &kAvx2ActivationBackward,
#elif defined(__aarch64__)
    &kNeonActivationBackward,
#endif
    &kGenericActivationBackward,      &kReferenceActivationBackward,
};

constinit const Kernel<RotaryForward>* const kRotary[] = {
    &kCudaPortableRotary,
#if defined(__x86_64__)
    &kAvx512Rotary,       &kAvx2Rotary,
#elif defined(__aarch64__)
    &kNeonRotary,
#endif
    &kGenericRotary,      &kReferenceRotary,
};

constinit const Kernel<Convert>* const kConvert[] = {
    &kCudaPortableConvert,
#if defined(__x86_64__)
    &kAvx512Convert,       &kAvx2Convert,
#elif defined(__aarch64__)
    &kNeonConvert,
#endif
    &kGenericConvert,      &kReferenceConvert,
};

constinit const Kernel<Add>* const kAdd[] = {&kCudaPortableAdd, &kReferenceAdd};

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
Table<Convert> rows(Convert) { return kConvert; }
Table<Add> rows(Add) { return kAdd; }

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
template Table<Convert> kernel_table<Convert>() noexcept;
template Table<Add> kernel_table<Add>() noexcept;

}  // namespace attend
