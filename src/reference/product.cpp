// Products of matrices, element by element: sums in f64, rounded to the type of the others' sums
// (f32 or f64). b is kept by columns, in its type.
#include "core/product.h"
#include "core/strided.h"

namespace attend {
namespace {

double number(std::int8_t x) noexcept { return x; }
template <class E>
double number(E x) noexcept {
  return widened(x);
}
// The same number, or wider.
template <class To, class E>
To in_type(E x) noexcept {
  if constexpr (std::is_same_v<To, E>) return x;
  else return static_cast<To>(number(x));
}

template <class T, class E, class To>
void pack_columns(const Matrices<T>& p, const E* b, const RangeOfB& range, To* packed) noexcept {
  for (std::int64_t column = range.column_begin; column < range.column_end; ++column)
    for (std::int64_t x = range.k_begin; x < range.k_end; ++x)
      packed[column * p.k + x] = in_type<To>(b[x * p.b_depth + column * p.b_column]);
}
// use(E{}) with the type of a b of fewer bits.
template <class Use>
auto with_narrow(DType type, Use use) noexcept {
  if (type == DType::i8) return use(std::int8_t{});
  return type == DType::bf16 ? use(bf16{}) : use(f16{});
}
template <class T>
void pack(const Matrices<T>& p, const RangeOfB& range, T* packed) noexcept {
  if (!p.is_narrow()) return pack_columns(p, p.b, range, packed);
  with_narrow(p.b_type,
              [&]<class E>(E) { pack_columns(p, static_cast<const E*>(p.narrow), range, packed); });
}
template <class T>
void pack_narrow(const Matrices<T>& p, const RangeOfB& range, void* packed) noexcept {
  with_narrow(p.b_type, [&]<class E>(E) {
    pack_columns(p, static_cast<const E*>(p.narrow), range, static_cast<E*>(packed));
  });
}

// A row of a times a column of b, `packed` if that is not null.
template <class T, class E>
double sum_of(const Matrices<T>& p, const E* b, const E* packed, std::int64_t row,
              std::int64_t column) noexcept {
  const T* const a = p.a + row * p.a_row;
  b = packed != nullptr ? packed + column * p.k : b + column * p.b_column;
  const std::int64_t b_depth = packed != nullptr ? 1 : p.b_depth;
  double sum = 0;
  for (std::int64_t begin = 0; begin < p.k; begin += kSumBlock) {
    double block = 0;
    for (std::int64_t x = begin; x < p.k && x < begin + kSumBlock; ++x)
      block += static_cast<double>(a[x * p.a_depth]) * number(b[x * b_depth]);
    sum += block;
  }
  return sum;
}

template <class T>
double element_of(const Matrices<T>& p, std::int64_t row, std::int64_t column) noexcept {
  double sum = p.is_narrow() ? with_narrow(p.b_type,
                                           [&]<class E>(E) {
                                             return sum_of(p, static_cast<const E*>(p.narrow),
                                                           static_cast<const E*>(p.packed_narrow),
                                                           row, column);
                                           })
                             : sum_of(p, p.b, p.packed, row, column);
  if (p.scales != nullptr) sum *= static_cast<double>(p.scales[column]);
  return p.bias == nullptr ? sum : sum + static_cast<double>(p.bias[column]);
}

template <class T>
void store(const Matrices<T>& p, std::int64_t at, T x) noexcept {
  if (p.narrow_c == nullptr) p.c[at] = x;
  else if (p.c_type == DType::bf16) static_cast<bf16*>(p.narrow_c)[at] = bf16(x);
  else static_cast<f16*>(p.narrow_c)[at] = f16(x);
}

template <class T>
void run(const Matrices<T>& p, const MatrixRange& range) noexcept {
  for (std::int64_t row = range.row_begin; row < range.row_end; ++row) {
    if (must_stop(range.interrupt)) return;
    for (std::int64_t column = range.column_begin; column < range.column_end; ++column)
      store(p, row * p.c_row + column, static_cast<T>(element_of(p, row, column)));
  }
}

template <class T>
constexpr MatrixFunctions<T> kFunctions{
    .columns = 1, .rows = kEveryRow, .pack = pack, .run = run, .pack_narrow = pack_narrow};

}  // namespace

extern constinit const Kernel<Product> kReferenceProduct{
    .name = "reference.product",
    .only_if_forced = false,
    .takes = kTakenByProducts,
    .declines = [](const ProductProblem&, const Machine&) -> std::string { return {}; },
    .f32 = kFunctions<float>,
    .f64 = kFunctions<double>,
};

}  // namespace attend
