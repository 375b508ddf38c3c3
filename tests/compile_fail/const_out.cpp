// `out` is written, so a view of constant memory is refused.
// expect: no known conversion .*ConstTensorView.* to .*attend::TensorView
#include <attend/attend.h>

void compute(const attend::ConstTensorView& q, const attend::TensorView& out) {
#ifdef WRONG
  const attend::ConstTensorView& target = out;
#else
  const attend::TensorView& target = out;
#endif
  attend::attention(q, q, q, target);  // here
}
