// Rotary positions, pair by pair, in f64.
#include "core/row_operations.h"

#include <cmath>

namespace attend {
namespace {

void run(const RotaryProblem& p, const RotaryCall& call, RowRange rows) noexcept {
  const bool halves = p.pairing == Rotary::Pairing::halves;
  with_type(p.type, [&]<class T>(T) {
    for (std::int64_t n = rows.begin; n < rows.end; ++n) {
      T* const row =
          reinterpret_cast<T*>(call.x.data) + call.x.offset(n / call.length, 0, n % call.length);
      for (std::int64_t c = 0; c < call.pairs; ++c) {
        const double angle = static_cast<double>(call.position[n]) * call.frequency[c];
        const double cosine = std::cos(angle),
                     sine = call.back ? -std::sin(angle) : std::sin(angle);
        const std::int64_t first = halves ? c : 2 * c, second = halves ? c + call.pairs : 2 * c + 1;
        for (std::int64_t h = 0; h < call.heads; ++h) {
          T& a = row[call.x.offset(0, h, 0, first)];
          T& b = row[call.x.offset(0, h, 0, second)];
          const double u = widened(a), w = widened(b);
          a = static_cast<T>(u * cosine - w * sine);
          b = static_cast<T>(u * sine + w * cosine);
        }
      }
    }
  });
}

}  // namespace

extern constinit const Kernel<RotaryForward> kReferenceRotary{
    .name = "reference.rotary",
    .only_if_forced = false,
    .takes = kTakenByRotary,
    .declines = [](const RotaryProblem&, const Machine&) -> std::string { return {}; },
    .run = run,
};

}  // namespace attend
