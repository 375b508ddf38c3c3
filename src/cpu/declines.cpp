#include "cpu/declines.h"

#include "core/product.h"
#include "core/row_operations.h"
#include "core/text.h"

#include <cmath>
#include <limits>
#include <type_traits>

namespace attend {
namespace {

constexpr std::int64_t kMostKeys = std::int64_t{1} << 24;

// Whether x is 0, or x and 1 / x are numbers of T with all their digits.
template <class T>
bool has_inverse(double x) {
  constexpr double kLeast = std::numeric_limits<T>::min(), kMost = 1 / kLeast;
  const double size = std::abs(x);
  return size == 0 || (size >= kLeast && size <= kMost);
}

// Scale and softcap are multiplied with in the type of the sums.
template <class Attention>
requires(std::is_base_of_v<Problem, Attention>) std::string
    declines_factors(const Attention& problem) {
  const bool wide = problem.type == DType::f64;
  const auto holds = [&](double x) {
    return wide ? has_inverse<double>(x) : has_inverse<float>(x);
  };
  const auto reason = [&](const char* what, double x) {
    return text("computes in ", wide ? "f64" : "f32", ", where a ", what, " of ", x,
                " or its inverse is no normal number");
  };
  if (!holds(problem.scale)) return reason("scale", problem.scale);
  if (!holds(problem.softcap)) return reason("softcap", problem.softcap);
  return {};
}

std::string declines_factors(const auto&) { return {}; }  // of other operations

// Matrix instructions take operands of one type, as which whole numbers of 8 bits are exact.
template <class Problem>
std::string declines_types(const Problem& problem) {
  if constexpr (std::is_base_of_v<attend::Problem, Problem>) {
    if (problem.own_k_type && problem.k_type != DType::i8)
      return text("multiplies in ", problem.type, ", and k is ", problem.k_type);
    if (problem.own_v_type && problem.v_type != DType::i8)
      return text("multiplies in ", problem.type, ", and v is ", problem.v_type);
  }
  if constexpr (std::is_same_v<Problem, BackwardProblem>)
    if (problem.dout_type != problem.type)
      return text("multiplies in ", problem.type, ", and dout is ", problem.dout_type);
  return {};
}

template <class Problem>
std::string needs(const Problem& problem, bool there, const char* what) {
  if (!there) return std::string("needs ") + what;
  if constexpr (std::is_same_v<Problem, InspectProblem>)
    if ((problem.tokens || problem.top_k > 0) && problem.type != DType::f64 &&
        problem.k_length > kMostKeys)
      return "counts keys and tokens in f32, exact for up to 2^24 keys";
  return declines_factors(problem);
}

}  // namespace

template <class Problem>
std::string declines_avx512(const Problem& problem, const Machine& machine) {
  return needs(problem, machine.avx512, "AVX-512 (F, DQ, BW, VL)");
}
template <class Problem>
std::string declines_avx512_bf16(const Problem& problem, const Machine& machine) {
  if (std::string reason = declines_types(problem); !reason.empty()) return reason;
  return needs(problem, machine.avx512_bf16, "AVX512-BF16");
}
std::string slower_avx512_bf16(const Machine& machine) {
  if (machine.avx512_bf16_pays) return {};
  return "multiplies at half the speed of f32 on this processor, and has to be forced";
}
template <class Problem>
std::string declines_amx(const Problem& problem, const Machine& machine) {
  if (machine.amx_bf16 && !machine.amx_permitted)
    return "needs the operating system's permission to use the tiles of AMX, which was refused";
  if (std::string reason = declines_types(problem); !reason.empty()) return reason;
  return needs(problem, machine.amx_bf16, "AMX-BF16, AVX512-BF16 and AVX512-VBMI");
}
template <class Problem>
std::string declines_amx_fp16(const Problem& problem, const Machine& machine) {
  if (machine.amx_bf16 && !machine.amx_fp16) return "needs AMX-FP16";
  if constexpr (std::is_same_v<Problem, ForwardProblem>)
    if (problem.drop_below == 65535)
      return "multiplies weights in f16, and what this dropout multiplies them with is beyond "
             "65504";
  if constexpr (std::is_same_v<Problem, ForwardProblem>)
    if (problem.v_scales)
      return "multiplies weights in f16, and times scales of values they may be too small for it";
  return declines_amx(problem, machine);
}
template <class Problem>
std::string declines_avx2(const Problem& problem, const Machine& machine) {
  return needs(problem, machine.avx2, "AVX2 and FMA");
}
template <class Problem>
std::string declines_neon(const Problem& problem, const Machine& machine) {
  return needs(problem, machine.neon, "NEON");
}
template <class Problem>
std::string declines_neon_bf16(const Problem& problem, const Machine& machine) {
  if (std::string reason = declines_types(problem); !reason.empty()) return reason;
  return needs(problem, machine.neon_bf16, "NEON with BFMMLA");
}
template <class Problem>
std::string declines_generic(const Problem& problem, const Machine&) {
  return needs(problem, true, "");
}

#define ATTEND_DECLINES(Problem)                                             \
  template std::string declines_avx512(const Problem&, const Machine&);      \
  template std::string declines_avx512_bf16(const Problem&, const Machine&); \
  template std::string declines_amx(const Problem&, const Machine&);         \
  template std::string declines_amx_fp16(const Problem&, const Machine&);    \
  template std::string declines_avx2(const Problem&, const Machine&);        \
  template std::string declines_neon(const Problem&, const Machine&);        \
  template std::string declines_neon_bf16(const Problem&, const Machine&);   \
  template std::string declines_generic(const Problem&, const Machine&);
ATTEND_DECLINES(ForwardProblem)
ATTEND_DECLINES(BackwardProblem)
ATTEND_DECLINES(InspectProblem)
ATTEND_DECLINES(ProductProblem)
ATTEND_DECLINES(NormProblem)
ATTEND_DECLINES(ActivationProblem)
ATTEND_DECLINES(RotaryProblem)
ATTEND_DECLINES(ConvertProblem)

}  // namespace attend
