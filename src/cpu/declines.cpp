#include "cpu/declines.h"

namespace attend {
namespace {

constexpr std::int64_t kMostKeys = std::int64_t{1} << 24;

std::string needs(const Problem& problem, bool there, const char* what) {
  if (std::string reason = declines_device(problem); !reason.empty()) return reason;
  if (!there) return std::string("needs ") + what;
  if ((problem.tokens || problem.top_k > 0) && problem.type != DType::f64 &&
      problem.k_length > kMostKeys)
    return "counts keys and tokens in f32, exact for up to 2^24 keys";
  return {};
}

}  // namespace

std::string declines_avx512(const Problem& problem, const Machine& machine) {
  return needs(problem, machine.avx512, "AVX-512 (F, DQ, BW, VL)");
}
std::string declines_avx2(const Problem& problem, const Machine& machine) {
  return needs(problem, machine.avx2, "AVX2 and FMA");
}
std::string declines_neon(const Problem& problem, const Machine& machine) {
  return needs(problem, machine.neon, "NEON");
}
std::string declines_generic(const Problem& problem, const Machine&) {
  return needs(problem, true, "");
}

}  // namespace attend
