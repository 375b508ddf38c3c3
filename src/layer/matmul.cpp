// The matrix product, by panels:
//
//                 b: 256 x 128, in strips of 8 columns        A task makes one panel of c. For each
//                 +-----+-----+                               block of 256 of k it packs a panel of
//                 |     |     |                               a and one of b into contiguous
//                 +-----+-----+                               scratch, widened, and multiplies them
//   a: 64 x 256   +-----+-----+                               a tile of 4 x 8 at a time, whose sums
//   in strips of  |     |     |  c: 64 x 128                  stay in registers.
//   4 rows        +-----+-----+
//
// A tile that hangs over the edge multiplies zeros there and drops the result. Plain C++ with fixed
// trip counts, which compilers turn into vector instructions without changing the order of a sum.
#include "layer/matmul.h"

#include "core/strided.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <type_traits>

namespace attend {
namespace {

constexpr std::int64_t kDepth = 256;  // of a block of k: part of the result's definition
constexpr std::int64_t kPanelRows = 64, kPanelColumns = 128;
constexpr std::int64_t kTileRows = 4;
template <class Sum>
constexpr std::int64_t kTileColumns = 32 / sizeof(Sum);  // 4 x 32 bytes: 8 vectors of 16 registers
constexpr std::int64_t kAlone = 1 << 17;  // multiplications that are not worth a second thread

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

// A matrix seen as strips: element (s, k), s counting rows of a or columns of b.
template <class T>
struct Matrix {
  const T* data;
  std::int64_t along, depth;  // strides of s and of k
};

// Strips of `width` from s = 0 to `count`, each as [depth][width], zeros after the last s.
template <std::int64_t width, class T, class Sum>
void pack(Matrix<T> from, std::int64_t count, std::int64_t depth, Sum* to) noexcept {
  for (std::int64_t s = 0; s < count; s += width, to += width * depth) {
    const T* strip = from.data + s * from.along;
    const std::int64_t filled = std::min(width, count - s);
    if (filled < width) std::fill_n(to, width * depth, Sum{0});
    if (from.along == 1 && filled == width) {
      for (std::int64_t k = 0; k < depth; ++k)
        for (std::int64_t i = 0; i < width; ++i)
          to[k * width + i] = static_cast<Sum>(strip[k * from.depth + i]);
    } else {
      for (std::int64_t i = 0; i < filled; ++i)
        for (std::int64_t k = 0; k < depth; ++k)
          to[k * width + i] = static_cast<Sum>(strip[i * from.along + k * from.depth]);
    }
  }
}

// One tile of c: the block's sum is stored (the first block) or added.
template <class Sum>
void multiply_tile(const Sum* __restrict a, const Sum* __restrict b, std::int64_t depth, bool first,
                   Sum* __restrict c, std::int64_t c_stride) noexcept {
  constexpr std::int64_t kColumns = kTileColumns<Sum>;
  Sum sums[kTileRows][kColumns] = {};
  for (std::int64_t k = 0; k < depth; ++k, a += kTileRows, b += kColumns)
    for (std::int64_t i = 0; i < kTileRows; ++i)
      for (std::int64_t j = 0; j < kColumns; ++j) sums[i][j] += a[i] * b[j];
  for (std::int64_t i = 0; i < kTileRows; ++i, c += c_stride)
    for (std::int64_t j = 0; j < kColumns; ++j) c[j] = first ? sums[i][j] : c[j] + sums[i][j];
}

template <class T>
class Product {
 public:
  using Sum = SumOf<T>;
  static constexpr std::int64_t kColumns = kTileColumns<Sum>;

  Product(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& bias,
          const TensorView& c, Context& context)
      : a_(a), b_(b), bias_(bias), c_(c), m_(a.size(0)), k_(a.size(1)), n_(b.size(1)),
        panel_rows_(round_up(std::min(m_, kPanelRows), kTileRows)),
        panel_columns_(round_up(std::min(n_, kPanelColumns), kColumns)),
        depth_(std::min(k_, kDepth)), tasks_(ceil_div(m_, kPanelRows) * panels_across()),
        strands_(m_ * n_ <= kAlone / std::max<std::int64_t>(k_, 1)
                     ? 1
                     : std::min<std::int64_t>(tasks_, context.threads())),
        scratch_(Tensor::uninitialized({strands_, scratch_size()}, dtype_of<Sum>())) {}

  std::int64_t strands() const { return strands_; }

  // Takes panels of c until none is left.
  void operator()(std::int64_t strand) noexcept {
    Sum* scratch = static_cast<Sum*>(scratch_.view().data()) + strand * scratch_size();
    for (std::int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;)
      make_panel(task / panels_across() * kPanelRows, task % panels_across() * kPanelColumns,
                 scratch);
  }

 private:
  std::int64_t panels_across() const { return ceil_div(n_, kPanelColumns); }
  std::int64_t scratch_size() const {
    return panel_rows_ * depth_ + depth_ * panel_columns_ + panel_rows_ * panel_columns_;
  }

  void make_panel(std::int64_t row, std::int64_t column, Sum* scratch) noexcept {
    const std::int64_t rows = std::min(kPanelRows, m_ - row);
    const std::int64_t columns = std::min(kPanelColumns, n_ - column);
    Sum* a = scratch;
    Sum* b = a + panel_rows_ * depth_;
    Sum* c = b + depth_ * panel_columns_;
    if (k_ == 0) std::fill_n(c, panel_rows_ * panel_columns_, Sum{0});
    for (std::int64_t k = 0; k < k_; k += kDepth) {
      const std::int64_t depth = std::min(kDepth, k_ - k);
      const auto [ar, ak] = std::pair(a_.strides()[0], a_.strides()[1]);
      const auto [bk, bc] = std::pair(b_.strides()[0], b_.strides()[1]);
      const T* a_from = static_cast<const T*>(a_.data()) + row * ar + k * ak;
      const T* b_from = static_cast<const T*>(b_.data()) + k * bk + column * bc;
      pack<kTileRows>(Matrix<T>{a_from, ar, ak}, rows, depth, a);
      pack<kColumns>(Matrix<T>{b_from, bc, bk}, columns, depth, b);
      for (std::int64_t j = 0; j < columns; j += kColumns)
        for (std::int64_t i = 0; i < rows; i += kTileRows)
          multiply_tile(a + i * depth, b + j * depth, depth, k == 0, c + i * panel_columns_ + j,
                        panel_columns_);
    }
    store(row, column, rows, columns, c);
  }

  void store(std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns,
             const Sum* from) const noexcept {
    const auto [cr, cc] = std::pair(c_.strides()[0], c_.strides()[1]);
    const T* bias = static_cast<const T*>(bias_.data());
    for (std::int64_t i = 0; i < rows; ++i, from += panel_columns_) {
      T* to = static_cast<T*>(c_.data()) + (row + i) * cr + column * cc;
      for (std::int64_t j = 0; j < columns; ++j) {
        Sum sum = from[j];
        if (bias_) sum += static_cast<Sum>(bias[(column + j) * bias_.strides()[0]]);
        to[j * cc] = static_cast<T>(sum);
      }
    }
  }

  const ConstTensorView &a_, &b_, &bias_;
  const TensorView& c_;
  const std::int64_t m_, k_, n_;
  const std::int64_t panel_rows_, panel_columns_, depth_;  // no larger than the problem
  const std::int64_t tasks_, strands_;
  Tensor scratch_;
  std::atomic<std::int64_t> next_{0};
};

}  // namespace

void matmul(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& row_bias,
            const TensorView& c, Context& context) {
  if (c.count() == 0) return;
  with_type(c.dtype(), [&]<class T>(T) {
    Product<T> product(a, b, row_bias, c, context);
    context.parallel_for(product.strands(), std::ref(product));
  });
}

}  // namespace attend
