#include "avx512_bf16/instructions.h"

#include "cpu/avx512_bf16.h"

namespace attend::test {

void vdpbf16ps(PairOperands& x) {
  F32 c = F32::load(x.c);
  add_pairs(load_pairs(x.a), load_pairs(x.b), c);
  c.store(x.c);
}

}  // namespace attend::test
