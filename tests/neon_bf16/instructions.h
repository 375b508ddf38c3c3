// The instructions of Arm for bf16, from code that is compiled for them.
#pragma once

#include <attend/dtype.h>

namespace attend::test {

struct Bf16Operands {
  float c[4];
  bf16 a[8], b[8];
};
void bfmmla(Bf16Operands& x);           // c [2][2] += a [2][4] times b [2][4], turned
void bfdot(Bf16Operands& x, int pair);  // c [4] += a [4][2] times b[pair] [2]

}  // namespace attend::test
