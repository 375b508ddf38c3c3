#include "cpu/declines.h"

namespace attend {
namespace {

std::string needs(const Problem& problem, bool there, const char* what) {
  if (std::string reason = declines_device(problem); !reason.empty()) return reason;
  return there ? std::string() : std::string("needs ") + what;
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
  return declines_device(problem);
}

}  // namespace attend
