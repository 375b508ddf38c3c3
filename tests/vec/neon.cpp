#include "cpu/neon.h"

#include "vec/define.h"

namespace attend {

extern constinit const test::InstructionSet test::kNeon = {"neon", true, Define<F32>::words(),
                                                           Define<F64>::words()};

}  // namespace attend
