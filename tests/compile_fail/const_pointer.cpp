// A view that may be written cannot be made of a pointer to constant memory.
// expect: const float.*Element|Element.*const float
#include <attend/attend.h>

#ifdef WRONG
using Pointer = const float*;
#else
using Pointer = float*;
#endif

attend::TensorView view(Pointer data) {
  return attend::TensorView(data, {2, 3});  // here
}
