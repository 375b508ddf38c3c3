// Rotary positions on vectors of doubles, whatever the type: angles, sines and cosines of a row
// once for all its heads, each element of the result rounded once.
#pragma once

#include "core/row_operations.h"
#include "cpu/elements.h"
#include "cpu/exp2.h"

#include <cmath>

namespace attend {
namespace {

// On [-pi/4, pi/4]: sin r = r + r^3 S(r^2), cos r = 1 - r^2 / 2 + r^4 C(r^2), with relative errors
// of S of 1.2e-16 and of C of 3.1e-17.
struct SineTerms {
  static constexpr double kG[] = {1.591793389125366551e-10, -2.505112887331802939e-8,
                                  2.755731608673640482e-6,  -0.0001984126983672421821,
                                  0.008333333333330922364,  -0.1666666666666666459};
};
struct CosineTerms {
  static constexpr double kG[] = {-1.138254703660691007e-11, 2.087614497811145472e-9,
                                  -2.755731726490816249e-7,  0.00002480158729875097232,
                                  -0.001388888888888738613,  0.04166666666666666538};
};
// pi / 2 in three parts: whole multiples of the first two are exact, up to 2^20 of them.
inline constexpr double kQuarter[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};
inline constexpr double kMostAngle = 0x1p20;

// Of |angle| <= kMostAngle, with errors of about 1e-16.
template <class D>
ATTEND_INLINE void turn(D angle, D& sine, D& cosine) {
  const auto set = [](double x) __attribute__((always_inline)) { return D::set(x); };
  const D turns = ceiling(angle * set(2 / std::numbers::pi) - set(0.5));  // in quarters
  const D r =
      ((angle - turns * set(kQuarter[0])) - turns * set(kQuarter[1])) - turns * set(kQuarter[2]);
  const D square = r * r;
  const D s = fma(r * square, polynomial<SineTerms>(square), r);
  const D c = fma(square * square, polynomial<CosineTerms>(square), set(1) - square * set(0.5));
  // Quarters 0, 1, 2, 3: (s, c), (c, -s), (-s, -c), (-c, s).
  const D half = turns * set(0.5), circles = ceiling((turns - set(3)) * set(0.25));
  const D quarter = turns - circles * set(4), from_middle = quarter - set(1.5);
  const auto odd = less(half, ceiling(half));
  const D s_or_c = select(odd, c, s), c_or_s = select(odd, s, c);
  sine = select(less(set(1.5), quarter), set(0) - s_or_c, s_or_c);
  cosine = select(less(from_middle * from_middle, set(1)), set(0) - c_or_s, c_or_s);
}

// Of up to kTable pairs.
inline constexpr std::int64_t kTable = 64;
struct Turns {
  double cosine[kTable], sine[kTable];

  template <class D>
  void fill(double position, const double* frequency, std::int64_t count, bool back) noexcept {
    std::int64_t c = 0;
    // None turns faster than the first, or, where the base is below 1, than the last.
    const double last = frequency[count - 1], fastest = last > frequency[0] ? last : frequency[0];
    if (std::abs(position * fastest) <= kMostAngle)
      for (; c + D::kLanes <= count; c += D::kLanes) {
        D s, t;
        turn(D::set(position) * D::load(frequency + c), s, t);
        (back ? D::set(0) - s : s).store(sine + c);
        t.store(cosine + c);
      }
    for (; c < count; ++c) {
      const double angle = position * frequency[c];
      cosine[c] = std::cos(angle);
      sine[c] = back ? -std::sin(angle) : std::sin(angle);
    }
  }
};

// Pairs (a, b), each `stride` from the next.
template <class V, class E>
void turn_pairs(const Turns& turns, std::int64_t count, E* a, E* b, std::int64_t stride) noexcept {
  using D = typename V::Double;
  std::int64_t x = 0;
  if (stride == 1)
    for (; x + V::kLanes <= count; x += V::kLanes) {
      const V va = load_elements<V>(a + x), vb = load_elements<V>(b + x);
      D first[V::kDoubles], second[V::kDoubles];
      unrolled<V::kDoubles>(ATTEND_EACH(k) {
        const D u = wide<k>(va), w = wide<k>(vb);
        const D cosine = D::load(turns.cosine + x + k * D::kLanes);
        const D sine = D::load(turns.sine + x + k * D::kLanes);
        first[k] = u * cosine - w * sine;
        second[k] = u * sine + w * cosine;
      });
      store_doubles<V>(first, a + x);
      store_doubles<V>(second, b + x);
    }
  for (; x < count; ++x) {
    const double u = widened(a[x * stride]), w = widened(b[x * stride]);
    a[x * stride] = static_cast<E>(u * turns.cosine[x] - w * turns.sine[x]);
    b[x * stride] = static_cast<E>(u * turns.sine[x] + w * turns.cosine[x]);
  }
}

// Pairs side by side: by way of doubles, which hold every type.
template <class V, class E>
void turn_neighbours(const Turns& turns, std::int64_t count, E* pairs) noexcept {
  using D = typename V::Double;
  double x[2 * kTable];
  std::int64_t n = 0;
  for (; n + V::kLanes <= 2 * count; n += V::kLanes) {
    const V some = load_elements<V>(pairs + n);
    unrolled<V::kDoubles>(ATTEND_EACH(k) { wide<k>(some).store(x + n + k * D::kLanes); });
  }
  for (; n < 2 * count; ++n) x[n] = widened(pairs[n]);
  for (std::int64_t c = 0; c < count; ++c) {
    const double u = x[2 * c], w = x[2 * c + 1];
    x[2 * c] = u * turns.cosine[c] - w * turns.sine[c];
    x[2 * c + 1] = u * turns.sine[c] + w * turns.cosine[c];
  }
  n = store_rounded<V>(pairs, 2 * count,
                       [&](std::int64_t at, auto k) { return D::load(x + at + k * D::kLanes); });
  for (; n < 2 * count; ++n) pairs[n] = static_cast<E>(x[n]);
}

template <class Float, class Double>
void rotary_rows(const RotaryProblem& p, const RotaryCall& call, RowRange rows) noexcept {
  const bool halves = p.pairing == Rotary::Pairing::halves;
  const std::int64_t feature = call.x.stride[3];
  with_elements<Float, Double>(p.type, [&]<class V, class E>(V, E) {
    for (std::int64_t n = rows.begin; n < rows.end; ++n) {
      E* const row =
          reinterpret_cast<E*>(call.x.data) + call.x.offset(n / call.length, 0, n % call.length);
      for (std::int64_t c = 0; c < call.pairs; c += kTable) {
        const std::int64_t count = call.pairs - c < kTable ? call.pairs - c : kTable;
        Turns turns;
        turns.fill<typename V::Double>(static_cast<double>(call.position[n]), call.frequency + c,
                                       count, call.back);
        for (std::int64_t h = 0; h < call.heads; ++h) {
          E* const head = row + h * call.x.stride[1];
          if (halves)
            turn_pairs<V>(turns, count, head + c * feature, head + (c + call.pairs) * feature,
                          feature);
          else if (feature == 1) turn_neighbours<V>(turns, count, head + 2 * c);
          else
            turn_pairs<V>(turns, count, head + 2 * c * feature, head + (2 * c + 1) * feature,
                          2 * feature);
        }
      }
    }
  });
}

}  // namespace
}  // namespace attend
