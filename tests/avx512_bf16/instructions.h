// VDPBF16PS, from code that is compiled for it.
#pragma once

#include <attend/dtype.h>

namespace attend::test {

struct PairOperands {
  float c[16];
  bf16 a[32], b[32];
};
void vdpbf16ps(PairOperands& x);  // c [16] += a [16][2] . b [16][2]

}  // namespace attend::test
