// Products of matrices: views become what a kernel reads, and tasks are handed to threads. A kernel
// takes f32 and f64, with one of a matrix's two strides being 1; everything else is copied first.
#include "layer/matmul.h"

#include "core/strided.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <vector>

namespace attend {
namespace {

// A task is a panel of columns and so many rows: of each block of 256 of k, 240 kB of f32 that stay
// in the L2 cache. A multiple of every kernel's rows at a time.
constexpr std::int64_t kTaskRows = 240;
// Multiplications that are not worth a second thread. An element of b costs as much as 16: it is
// read from far and packed.
constexpr double kAlone = 1 << 20, kReading = 16;

// A matrix with strides that the kernels take, and the copy that it may be a view of.
template <class T>
struct Operand {
  Tensor copy;
  const T* data = nullptr;
  std::int64_t row = 0, column = 0;  // strides

  explicit Operand(const ConstTensorView& x) {
    if (!x) return;
    data = static_cast<const T*>(x.data());
    row = x.strides()[0];
    column = x.rank() == 2 ? x.strides()[1] : 0;
    // The stride of a single index is nobody's.
    if (x.size(0) == 1 && column != 1) row = 1;
    if (x.rank() == 2 && x.size(1) == 1 && row != 1) column = 1;
    if (x.dtype() == dtype_of<T>() && (row == 1 || column == 1)) return;
    copy = Tensor::uninitialized(x.shape(), dtype_of<T>());
    T* to = copy.data<T>();
    const std::int64_t columns = x.rank() == 2 ? x.size(1) : 1;
    with_type(x.dtype(), [&]<class E>(E) {
      const E* from = static_cast<const E*>(x.data());
      for (std::int64_t r = 0; r < x.size(0); ++r)
        for (std::int64_t c = 0; c < columns; ++c)
          *to++ = static_cast<T>(widened(from[r * row + c * column]));
    });
    data = copy.data<T>();
    row = columns;
    column = 1;
  }
};

template <class T>
class Prepared {
 public:
  explicit Prepared(const Multiplication& x)
      : a_(x.a), b_(x.packed != nullptr ? ConstTensorView() : x.b), bias_(x.row_bias), c_(x.c),
        product_{.m = x.c.size(0), .n = x.c.size(1), .k = x.a.size(1)} {
    const bool direct = c_.dtype() == dtype_of<T>() && (c_.strides()[1] == 1 || product_.n == 1);
    if (!direct) made_ = Tensor::uninitialized(c_.shape(), dtype_of<T>());
    product_.a = a_.data;
    product_.a_row = a_.row;
    product_.a_depth = a_.column;
    product_.b = b_.data;
    product_.b_depth = b_.row;
    product_.b_column = b_.column;
    product_.packed = x.packed != nullptr ? x.packed->data<T>() : nullptr;
    product_.bias = bias_.data;
    product_.c = direct ? static_cast<T*>(c_.data()) : made_.data<T>();
    product_.c_row = direct ? c_.strides()[0] : product_.n;
  }
  const Product<T>& product() const { return product_; }

  // To where it was wanted.
  void finish() const {
    if (!made_) return;
    const T* from = made_.data<T>();
    with_type(c_.dtype(), [&]<class E>(E) {
      E* to = static_cast<E*>(c_.data());
      for (std::int64_t r = 0; r < product_.m; ++r)
        for (std::int64_t c = 0; c < product_.n; ++c)
          to[r * c_.strides()[0] + c * c_.strides()[1]] = static_cast<E>(*from++);
    });
  }

 private:
  Operand<T> a_, b_, bias_;
  const TensorView& c_;
  Product<T> product_;
  Tensor made_;
};

template <class T>
void multiply(std::span<const Multiplication> list, Context& context,
              const MatrixFunctions<T>& kernel) {
  std::vector<Prepared<T>> prepared;
  prepared.reserve(list.size());
  double work = 0;
  std::int64_t tasks = 0;
  const auto panels = [&](std::int64_t n) { return (n + kernel.columns - 1) / kernel.columns; };
  const auto tasks_of = [&](const Product<T>& p) {
    return (p.m + kTaskRows - 1) / kTaskRows * panels(p.n);
  };
  for (const Multiplication& x : list) {
    if (x.c.count() == 0) continue;
    const Product<T>& p = prepared.emplace_back(x).product();
    work += (static_cast<double>(p.m) + kReading) * static_cast<double>(p.n) *
            static_cast<double>(p.k);
    tasks += tasks_of(p);
  }
  const auto run = [&](std::int64_t task) {
    auto p = prepared.begin();
    for (; task >= tasks_of(p->product()); ++p) task -= tasks_of(p->product());
    const Product<T>& x = p->product();
    const std::int64_t row = task / panels(x.n) * kTaskRows;
    const std::int64_t column = task % panels(x.n) * kernel.columns;
    kernel.run(x, {row, std::min(row + kTaskRows, x.m), column,
                   std::min(column + kernel.columns, x.n)});
  };
  if (work > kAlone) context.parallel_for(tasks, std::ref(run));
  else
    for (std::int64_t task = 0; task < tasks; ++task) run(task);
  for (const Prepared<T>& p : prepared) p.finish();
}

// Calls use(T{}) with the type that sums of these tensors have.
template <class Use>
auto with_sum_type(DType type, Use use) {
  return type == DType::f64 ? use(double{}) : use(float{});
}

}  // namespace

Tensor packed(const ConstTensorView& b) {
  return with_sum_type(b.dtype(), [&]<class T>(T) {
    const MatrixFunctions<T>& kernel = matrix_kernel().of<T>();
    const Operand<T> from(b);
    const Product<T> product{.n = b.size(1),
                             .k = b.size(0),
                             .b = from.data,
                             .b_depth = from.row,
                             .b_column = from.column};
    Tensor made = Tensor::uninitialized({kernel.packed_size(product.n, product.k)}, dtype_of<T>());
    kernel.pack(product, made.data<T>());
    return made;
  });
}

void matmul(std::span<const Multiplication> list, Context& context, const MatrixKernel& kernel) {
  if (list.empty()) return;
  with_sum_type(list[0].c.dtype(),
                [&]<class T>(T) { multiply<T>(list, context, kernel.of<T>()); });
}

}  // namespace attend
