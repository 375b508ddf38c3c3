#include "cpu/generic.h"

#include "vec/define.h"

namespace attend {

extern constinit const test::InstructionSet test::kGeneric = {"generic",
                                                              false,
                                                              Define<F32>::words(),
                                                              Define<F64>::words(),
                                                              Define<F32>::half_words<bf16>(),
                                                              Define<F32>::half_words<f16>()};

}  // namespace attend
