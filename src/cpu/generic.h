// Vectors of 16 bytes in the compilers' own notation: what every machine has, with no instruction
// set named. Where a machine has no fused multiply-add, a product is rounded before it is added.
#pragma once

#include "cpu/tiles.h"

namespace attend {
namespace {

template <class Element, class Whole>
struct Lanes {
  using T = Element;
  using RegisterTiles = GenericTiles<T>;
  // NOLINTBEGIN(modernize-use-using): g++ ignores the attribute there
  typedef T Native __attribute__((vector_size(16)));
  typedef Whole Mask __attribute__((vector_size(16)));
  // NOLINTEND(modernize-use-using)
  static constexpr int kLanes = 16 / sizeof(T);
  static constexpr bool kByLane = false;
  static constexpr bool kFused = false;
  Native v;

  static Native native(const T* p) {
    Native v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static Native native_first(const T* p, std::int64_t n) {
    Native v{};
    for (std::int64_t x = 0; x < n; ++x) v[x] = p[x];
    return v;
  }
  void store(T* p) const { __builtin_memcpy(p, &v, sizeof v); }
  void store_first(T* p, std::int64_t n) const {
    for (std::int64_t x = 0; x < n; ++x) p[x] = v[x];
  }
  // 2^(digits - 1): adding it rounds away what is behind the point. From there on numbers are whole
  // already.
  static constexpr T kBig = static_cast<T>(sizeof(T) == 8 ? 0x1p52 : 0x1p23);
  static Native round(Native a) {
    const Native size = a < 0 ? -a : a;
    const Native rounded = size < kBig ? (size + kBig) - kBig : size;
    return a < 0 ? -rounded : rounded;
  }
  static Native up(Native a) {
    const Native rounded = round(a);
    return rounded < a ? rounded + 1 : rounded;
  }
};

struct F64 : Lanes<double, std::int64_t> {
  using Double = F64;
  static constexpr int kDoubles = 1;
  static constexpr double kLowestPower = -1022;
  static F64 load(const double* p) { return {{native(p)}}; }
  static F64 load_first(const double* p, std::int64_t n) { return {{native_first(p, n)}}; }
  template <class From>
  static F64 pieces(From p) {
    return load(p(At<0>{}));
  }
  static F64 set(double x) { return {{Native{x, x}}}; }
  static F64 narrowed(const F64* doubles) { return doubles[0]; }
};
inline F64 scaled(F64 a, F64 n) {
  const F64::Mask bits = reinterpret_cast<F64::Mask>(n.v) << 52;
  return {{a.v * reinterpret_cast<F64::Native>(bits)}};
}
inline bool all_finite(F64 a) {
  const F64::Native zero = a.v - a.v;   // NOLINT(misc-redundant-expression): not if infinite
  const F64::Mask same = zero == zero;  // NOLINT(misc-redundant-expression): not if it is NaN
  return (same[0] & same[1]) != 0;
}
template <int kIndex>
inline F64 wide(F64 a) {
  return a;
}

struct F32 : Lanes<float, std::int32_t> {
  using Double = F64;
  static constexpr int kDoubles = 2;
  static constexpr float kLowestPower = -126;
  static F32 load(const float* p) { return {{native(p)}}; }
  static F32 load_first(const float* p, std::int64_t n) { return {{native_first(p, n)}}; }
  template <class From>
  static F32 pieces(From p) {
    return load(p(At<0>{}));
  }
  static F32 set(float x) { return {{Native{x, x, x, x}}}; }
  static Mask bits_of(const void* p) {                           // four numbers of 16 bits
    typedef std::uint16_t Four __attribute__((vector_size(8)));  // NOLINT(modernize-use-using)
    Four four;
    __builtin_memcpy(&four, p, sizeof four);
    return __builtin_convertvector(four, Mask);
  }
  static void load_pairs(const bf16* p, F32& even, F32& odd) {
    Mask both;
    __builtin_memcpy(&both, p, sizeof both);
    even.v = reinterpret_cast<Native>(both << 16);
    odd.v = reinterpret_cast<Native>(both & static_cast<std::int32_t>(0xFFFF0000));
  }
  static F32 widened(const bf16* p) { return {{reinterpret_cast<Native>(bits_of(p) << 16)}}; }
  // The exponent rebiased, that of infinity and NaN twice; subnormal numbers, in units of 2^-24, as
  // whole ones.
  static F32 widened(const f16* p) {
    constexpr std::int32_t kRebias = 112 << 23;
    const Mask bits = bits_of(p), exponent = bits & 0x7C00, mantissa = bits & 0x3FF;
    const Mask normal = ((bits & 0x7FFF) << 13) + kRebias;
    const Mask small = reinterpret_cast<Mask>(__builtin_convertvector(mantissa, Native) * 0x1p-24F);
    const Mask size = exponent == 0 ? small : exponent == 0x7C00 ? normal + kRebias : normal;
    return {{reinterpret_cast<Native>(size | (bits & 0x8000) << 16)}};
  }
  static F32 widened(const std::int8_t* p) {
    return {{Native{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
                    static_cast<float>(p[3])}}};
  }
  void rounded(bf16* p) const {
    typedef std::uint32_t Bits __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
    typedef std::uint16_t Four __attribute__((vector_size(8)));   // NOLINT(modernize-use-using)
    const Bits bits = reinterpret_cast<Bits>(v), up = bits + 0x7FFF + (bits >> 16 & 1);
    // NOLINTNEXTLINE(misc-redundant-expression): not if it is NaN
    const Bits all = v == v ? up : bits | 0x400000;
    const Four four = __builtin_convertvector(all >> 16, Four);
    __builtin_memcpy(&p->bits, &four, sizeof four);
  }
  void rounded(f16* p) const {
    for (int x = 0; x < kLanes; ++x) p[x] = f16(static_cast<double>(v[x]));
  }
  static F32 odd(const F64* doubles) {
    const F32 near = narrowed(doubles);
    Mask bits = reinterpret_cast<Mask>(near.v);
    for (int x = 0; x < kLanes; ++x) {
      const double was = doubles[x / 2].v[x % 2], is = static_cast<double>(near.v[x]);
      if (is == was || was != was || (bits[x] & 1) != 0) continue;
      bits[x] += (is < 0 ? -is : is) < (was < 0 ? -was : was) ? 1 : -1;
    }
    return {{reinterpret_cast<Native>(bits)}};
  }
  static F32 narrowed(const F64* doubles) {
    return {{Native{static_cast<float>(doubles[0].v[0]), static_cast<float>(doubles[0].v[1]),
                    static_cast<float>(doubles[1].v[0]), static_cast<float>(doubles[1].v[1])}}};
  }
};
inline F32 scaled(F32 a, F32 n) {
  const F32::Mask bits = reinterpret_cast<F32::Mask>(n.v) << 23;
  return {{a.v * reinterpret_cast<F32::Native>(bits)}};
}
template <class E>
class Rounder {
  using Of = Doubt<E>;
  typedef std::uint32_t Bits __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
  typedef std::uint16_t Four __attribute__((vector_size(8)));   // NOLINT(modernize-use-using)
  Bits doubtful_ = {};

 public:
  ATTEND_INLINE void store(F32 first, F32 second, E* to) {
    rounded(first, to);
    rounded(second, to + F32::kLanes);
  }
  bool doubtful() const { return (doubtful_[0] | doubtful_[1] | doubtful_[2] | doubtful_[3]) != 0; }

 private:
  // Of f16 the exponent rebiased: the others are doubtful, or 0.
  ATTEND_INLINE void rounded(F32 x, E* to) {
    constexpr std::uint32_t kLeast = Of::kBf16 ? Of::kLeast << 16 : Of::kLeast;
    constexpr std::uint32_t kMost = Of::kBf16 ? 0xFF000000 : 0x8EF00000;
    const Bits bits = reinterpret_cast<Bits>(x.v), size = bits + bits;
    const Bits sum = bits + Of::kMiddle, near = sum << (32 - Of::kCut);
    doubtful_ |= reinterpret_cast<Bits>((near <= Of::kNear << (32 - Of::kCut)) |
                                        (size - 1 < kLeast) | (size >= kMost));
    Bits half = sum >> 16;
    if constexpr (!Of::kBf16) {
      const Bits normal = ((sum & 0x7FFFFFFF) >> 13) - (112U << 10);
      half = (size == 0 ? Bits{} : normal) | (bits >> 16 & 0x8000);
    }
    const Four four = __builtin_convertvector(half, Four);
    __builtin_memcpy(&to->bits, &four, sizeof four);
  }
};
inline bool all_finite(F32 a) {
  const F32::Native zero = a.v - a.v;   // NOLINT(misc-redundant-expression): not if infinite
  const F32::Mask same = zero == zero;  // NOLINT(misc-redundant-expression): not if it is NaN
  return (same[0] & same[1] & same[2] & same[3]) != 0;
}
template <int kIndex>
inline F64 wide(F32 a) {
  return {{F64::Native{static_cast<double>(a.v[kIndex * 2]),
                       static_cast<double>(a.v[kIndex * 2 + 1])}}};
}

template <class V>
concept Generic = std::is_same_v<V, F32> || std::is_same_v<V, F64>;

template <Generic V>
inline V operator+(V a, V b) {
  return {{a.v + b.v}};
}
template <Generic V>
inline V operator-(V a, V b) {
  return {{a.v - b.v}};
}
template <Generic V>
inline V operator*(V a, V b) {
  return {{a.v * b.v}};
}
template <Generic V>
inline V operator/(V a, V b) {
  return {{a.v / b.v}};
}
template <Generic V>
inline V fma(V a, V b, V c) {
  return {{a.v * b.v + c.v}};
}
template <Generic V>
inline V larger(V a, V b) {
  return {{a.v > b.v ? a.v : b.v}};
}
template <Generic V>
inline V ceiling(V a) {
  return {{V::up(a.v)}};
}
template <Generic V>
inline typename V::Mask less(V a, V b) {
  return a.v < b.v;
}
template <Generic V>
inline V select(typename V::Mask m, V a, V b) {
  return {{m ? a.v : b.v}};
}

}  // namespace
}  // namespace attend
