#include "cpu/neon.h"

#include "vec/define.h"

namespace attend {

extern constinit const test::InstructionSet test::kNeon = {"neon",
                                                           true,
                                                           Define<F32>::words(),
                                                           Define<F64>::words(),
                                                           Define<F32>::half_words<bf16>(),
                                                           Define<F32>::half_words<f16>()};

}  // namespace attend
