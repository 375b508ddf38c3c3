// What the rows of each instruction set need of a machine, and which numbers they cannot hold.
// Apart from them, since these functions are called on every machine: they must not be compiled for
// one. For the problems of all operations that have such rows.
#pragma once

#include "core/kernel.h"

namespace attend {

template <class Problem>
std::string declines_avx512(const Problem& problem, const Machine& machine);
template <class Problem>
std::string declines_avx512_bf16(const Problem& problem, const Machine& machine);
std::string slower_avx512_bf16(const Machine& machine);
template <class Problem>
std::string declines_amx(const Problem& problem, const Machine& machine);
template <class Problem>
std::string declines_amx_fp16(const Problem& problem, const Machine& machine);
template <class Problem>
std::string declines_avx2(const Problem& problem, const Machine& machine);
template <class Problem>
std::string declines_neon(const Problem& problem, const Machine& machine);
template <class Problem>
std::string declines_neon_bf16(const Problem& problem, const Machine& machine);
template <class Problem>
std::string declines_generic(const Problem& problem, const Machine& machine);

}  // namespace attend
