#include "neon_bf16/instructions.h"

#include "cpu/neon_bf16.h"

namespace attend::test {

void bfmmla(Bf16Operands& x) {
  F32 c = F32::load(x.c);
  multiply(c, load_bf16(x.a), load_bf16(x.b));
  c.store(x.c);
}

void bfdot(Bf16Operands& x, int pair) {
  F32 c = F32::load(x.c);
  const Bf16x8 a = load_bf16(x.a), b = load_bf16(x.b);
  switch (pair) {
    case 0: dot<0>(c, a, b); break;
    case 1: dot<1>(c, a, b); break;
    case 2: dot<2>(c, a, b); break;
    default: dot<3>(c, a, b);
  }
  c.store(x.c);
}

}  // namespace attend::test
