#include "cpu/avx2.h"

#include "vec/define.h"

namespace attend {

extern constinit const test::InstructionSet test::kAvx2 = {"avx2", true, Define<F32>::words(),
                                                           Define<F64>::words()};

}  // namespace attend
