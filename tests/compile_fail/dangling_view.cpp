// A view of a tensor that is gone at the end of its line. Options may be given such a tensor.
// expect: object backing the pointer will be destroyed
#include <attend/attend.h>

attend::Tensor made();

void compute(const attend::TensorView& out) {
#ifdef WRONG
  const attend::ConstTensorView q = made();  // here
#else
  const attend::Tensor q = made();
#endif
  const attend::AttentionOptions options{.mask = made()};
  attend::attention(q, made(), made(), out, options);
}
