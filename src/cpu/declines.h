// Which machines the kernels of each instruction set need. Apart from them, since these functions
// are called on every machine: they must not be compiled for one.
#pragma once

#include "core/kernel.h"

namespace attend {

std::string declines_avx512(const Problem& problem, const Machine& machine);
std::string declines_avx2(const Problem& problem, const Machine& machine);
std::string declines_neon(const Problem& problem, const Machine& machine);
std::string declines_generic(const Problem& problem, const Machine& machine);

}  // namespace attend
