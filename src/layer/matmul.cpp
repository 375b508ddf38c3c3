// Products of matrices: views become what a kernel reads, and tasks are handed to threads. A kernel
// takes f32 and f64, some bf16 and f16, with one of a matrix's two strides being 1; b also of fewer
// bits, and c where a's rows lie side by side. Everything else is copied. On a device each product
// is launched as it is.
#include "layer/matmul.h"

#include "api/context.h"
#include "api/launch.h"
#include "api/lease.h"
#include "core/interruption.h"
#include "layer/elementwise.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace attend {
namespace {

// A task makes at most so many rows and columns of c: what it reads of a and b, with k = 512 in f32
// half a megabyte each, stays in the L2 cache. It has a multiple of every kernel's rows at a time,
// and at least a few of them: each task reads b again.
constexpr std::int64_t kTaskColumns = 264, kRowsAtLeast = 48;
// `alone`: multiplications that are not worth a second thread. An element of b costs as much as
// `reading`: it is read from far and packed.
struct Costs {
  std::int64_t task_rows, rows_together;
  double alone, reading;
};
template <class T>
inline constexpr Costs kCosts{240, 24, 1 << 20, 16};
template <>
inline constexpr Costs kCosts<bf16>{256, 32, 1 << 24, 128};
template <>  // between the two: in parts (cpu/pairs_gemm.h) f16 takes four times as long as bf16
inline constexpr Costs kCosts<f16>{256, 32, 1 << 22, 32};
// Tasks for each thread, so that none waits long for another.
constexpr std::int64_t kTasksPerThread = 6;
// b is packed for all tasks if that takes at most so many bytes, by tasks of so many panels; or if
// a kernel by itself would do it again for every few rows.
constexpr std::int64_t kMostPacked = 32 << 20, kPackedPanels = 4;
template <class T>
bool may_be_packed(const Matrices<T>& p, const MatrixFunctions<T>& kernel) {
  return kernel.rows < kRowsAtLeast ||
         kernel.packed_size(p.n, p.k) <= kMostPacked / static_cast<std::int64_t>(sizeof(T));
}

// Elements that copies take, each of them beginning at a multiple of 64 bytes.
template <class T>
std::int64_t room_for(std::int64_t elements) {
  constexpr std::int64_t kAligned = 64 / static_cast<std::int64_t>(sizeof(T));
  return (elements + kAligned - 1) / kAligned * kAligned;
}

// A matrix with strides that the kernels take, or that it has when copy() has been called; of type
// T then, or, if they may be read as they are, of fewer bits. A copy lies as the matrix does where
// its rows, or its columns, are side by side: such runs are converted by vectors.
template <class T>
struct Operand {
  enum class Narrow { copied, as_it_is };
  explicit Operand(const ConstTensorView& x, Narrow narrow = Narrow::copied) : of(x) {
    if (!x) return;
    data = x.data();
    type = x.dtype();
    row = x.strides()[0];
    column = x.rank() == 2 ? x.strides()[1] : 0;
    const std::int64_t rows = x.size(0), columns = x.rank() == 2 ? x.size(1) : 1;
    // A dimension of size 1 may have any stride.
    if (rows == 1 && column != 1) row = 1;
    if (x.rank() == 2 && columns == 1 && row != 1) column = 1;
    if ((type == dtype_of<T>() || narrow == Narrow::as_it_is) && (row == 1 || column == 1)) return;
    type = dtype_of<T>();
    room = room_for<T>(x.count());
    const bool down = columns == 1 || (rows > 1 && row == 1 && column != 1);
    run = down ? rows : columns;
    runs = down ? columns : rows;
    next = down ? std::exchange(row, 1) : std::exchange(column, 1);
    next_run = down ? std::exchange(column, column == 1 ? 1 : run) : std::exchange(row, run);
  }

  // Takes `room` elements from the memory that begins there.
  void copy(T*& memory, const Where& where) {
    if (room == 0) return;
    const Numbers<T> numbers(of.dtype(), where);
    for (std::int64_t n = 0; n < runs; ++n)
      numbers.load(of.data(), n * next_run, next, run, memory + n * run);
    data = std::exchange(memory, memory + room);
  }

  const T* numbers() const { return type == dtype_of<T>() ? static_cast<const T*>(data) : nullptr; }
  const void* narrow() const { return type == dtype_of<T>() ? nullptr : data; }

  ConstTensorView of;
  const void* data = nullptr;
  DType type = dtype_of<T>();
  std::int64_t row = 0, column = 0;  // strides
  std::int64_t room = 0;             // elements of a copy; 0: none is needed

 private:
  std::int64_t run = 0, runs = 0, next = 0, next_run = 0;  // sizes and strides
};

// What is done to c when its sums are done, to some columns of a row at a time.
class End {
 public:
  End(const Multiplication& x, const Where& where) : x_(x), sums_(x.c.dtype(), where) {
    if (!x.activation) return;
    problem_ = {.device = {}, .type = x.c.dtype(), .kind = *x.activation};
    activation_ = &ContextState::of(where).row_for<ActivationForward>(problem_);
  }
  explicit operator bool() const { return activation_ != nullptr || x_.residual; }

  void apply(std::int64_t row, std::int64_t column, std::int64_t count) const {
    const auto at = [&](const ConstTensorView& t) {
      return static_cast<const std::byte*>(t.data()) +
             (row * t.strides()[0] + column) * size_of(t.dtype());
    };
    auto* const c = const_cast<std::byte*>(at(x_.c));
    if (activation_ != nullptr)
      activation_->run(problem_, {count, c, x_.gate ? at(x_.gate) : nullptr, c}, {0, 1});
    if (x_.residual) sums_(c, at(x_.residual), count, c);
  }

 private:
  const Multiplication& x_;
  Sums sums_;
  ActivationProblem problem_;
  const Kernel<ActivationForward>* activation_ = nullptr;
};

// The one that packed b or, if it is not packed, would.
const Kernel<Product>& row_of(const Multiplication& x, const Where& where) {
  return x.packed != nullptr ? *x.packed->row
                             : product_row(x.c.dtype(), static_cast<bool>(x.row_bias), where,
                                           static_cast<bool>(x.scales));
}

template <class T>
class Prepared {
 public:
  Prepared(const Multiplication& x, const Kernel<Product>& row, const Where& where)
      : row_(row.of<T>()), end_(x, where), a_(x.a),
        b_(x.packed != nullptr ? ConstTensorView() : x.b, Operand<T>::Narrow::as_it_is),
        bias_(x.row_bias), scales_(x.scales), c_(x.c),
        numbers_(x.c.dtype(), where), product_{
                                          .m = x.c.size(0), .n = x.c.size(1), .k = x.a.size(1)} {
    product_.a_row = a_.row;
    product_.a_depth = a_.column;
    product_.b_depth = b_.row;
    product_.b_column = b_.column;
    product_.b_type = b_.type;
    if (x.packed != nullptr) {
      const ConstTensorView packed = x.packed->data;
      product_.b_type = packed.dtype();
      if (product_.is_narrow()) product_.packed_narrow = packed.data();
      else product_.packed = static_cast<const T*>(packed.data());
    }
    direct_ = (c_.dtype() == dtype_of<T>() || product_.is_across()) &&
              (c_.strides()[1] == 1 || c_.size(1) == 1);
    if (direct_) product_.c_type = c_.dtype();
    product_.c_row = direct_ ? c_.strides()[0] : product_.n;
  }
  const Matrices<T>& product() const { return product_; }

  // Elements of what is copied first, of c where a kernel cannot write it, and of long sums.
  std::int64_t room() const {
    return a_.room + b_.room + bias_.room + scales_.room + (direct_ ? 0 : room_for<T>(c_.count())) +
           sums_room();
  }
  void copy_operands(T*& memory, const Where& where) {
    a_.copy(memory, where);
    b_.copy(memory, where);
    bias_.copy(memory, where);
    scales_.copy(memory, where);
    product_.a = a_.numbers();
    product_.b = b_.numbers();
    product_.narrow = b_.narrow();
    product_.bias = bias_.numbers();
    product_.scales = scales_.numbers();
    if (!direct_) product_.c = std::exchange(memory, memory + room_for<T>(c_.count()));
    else if (product_.c_type == dtype_of<T>()) product_.c = static_cast<T*>(c_.data());
    else product_.narrow_c = c_.data();
    if (sums_room() > 0)
      product_.sums = reinterpret_cast<float*>(std::exchange(memory, memory + sums_room()));
  }

  const MatrixFunctions<T>& row() const { return row_; }

  // Where a task, or a kernel by itself, would pack b more than once, it is packed before, by all
  // threads; the products before this one may have the same b. Without memory for it, it is not.
  void make_room(std::int64_t task_rows, std::span<const Prepared> before, const Where& where) {
    const Matrices<T>& p = product_;
    const std::int64_t size = row_.packed_size(p.n, p.k);
    if (p.packed != nullptr || p.packed_narrow != nullptr ||
        p.m <= std::min(task_rows, row_.rows) || !may_be_packed(p, row_))
      return;
    for (const Prepared& other : before)
      if (const Matrices<T>& q = other.product_;
          other.packed_ && &other.row_ == &row_ && q.b == p.b && q.narrow == p.narrow &&
          q.b_type == p.b_type && q.b_depth == p.b_depth && q.b_column == p.b_column &&
          q.n == p.n && q.k == p.k) {
        room_ = other.room_;
        return;
      }
    try {
      packed_.emplace(where, static_cast<std::size_t>(size) * sizeof(T));
    } catch (const OutOfMemory&) {
      return;
    }
    room_ = reinterpret_cast<T*>(packed_->data());
    columns_ = kPackedPanels * row_.columns;
    across_ = (p.n + columns_ - 1) / columns_;
  }
  std::int64_t packings() const {
    return packed_ ? (product_.k + kSumBlock - 1) / kSumBlock * across_ : 0;
  }
  void pack(std::int64_t task) const {
    const std::int64_t k = task / across_ * kSumBlock, column = task % across_ * columns_;
    row_.pack(
        product_,
        {k, std::min(k + kSumBlock, product_.k), column, std::min(column + columns_, product_.n)},
        room_);
  }
  void use_packed() {
    if (room_ != nullptr) product_.packed = room_, product_.b_type = dtype_of<T>();
  }

  // A part of c whose sums are done: to where it is wanted, and what comes at the end.
  void finish(const MatrixRange& part) const {
    if (direct_ && !end_) return;
    const std::int64_t begin = part.column_begin, end = part.column_end;
    for (std::int64_t r = part.row_begin; r < part.row_end; ++r) {
      if (!direct_) {
        const std::int64_t row = c_.strides()[0], column = c_.strides()[1];
        numbers_.store(product_.c + r * product_.n + begin, end - begin, c_.data(),
                       r * row + begin * column, column);
      }
      end_.apply(r, begin, end - begin);
    }
  }

 private:
  std::int64_t sums_room() const {
    constexpr std::int64_t kElements = (sizeof(float) + sizeof(T) - 1) / sizeof(T);  // of a float
    return product_.k > row_.longest_sum ? room_for<T>(kElements * c_.count()) : 0;
  }

  const MatrixFunctions<T>& row_;
  const End end_;
  Operand<T> a_, b_, bias_, scales_;
  const TensorView& c_;
  Numbers<T> numbers_;
  bool direct_ = false;  // the kernel writes c itself
  Matrices<T> product_;
  std::optional<Lease> packed_;
  T* room_ = nullptr;                      // for b, packed: here, or of a product before
  std::int64_t columns_ = 0, across_ = 0;  // of a task that packs, and tasks
};

// How a product is cut into tasks. No bit depends on it.
struct Division {
  std::int64_t rows, columns;  // of a task
  std::int64_t down, across;   // tasks

  // `wanted` tasks or more, all but the last ones alike: by rows, as long as that does not mean to
  // pack b more than once, for a part of a serves the more columns the wider the task; then by
  // columns.
  template <class T>
  Division(const Matrices<T>& p, const MatrixFunctions<T>& kernel, std::int64_t wanted) {
    const auto parts = [](std::int64_t of, std::int64_t size) { return (of + size - 1) / size; };
    const std::int64_t most = p.is_across() ? kAcrossRows<T> : kCosts<T>.task_rows;
    const bool packed_narrow = p.packed_narrow != nullptr;
    const std::int64_t panel = packed_narrow ? kNarrowColumns : kernel.columns;
    const std::int64_t panels = parts(p.n, panel);
    down = parts(p.m, most);
    across = parts(panels, std::max<std::int64_t>(kTaskColumns / panel, 1));
    if (p.packed != nullptr || packed_narrow ||
        (p.m > std::min(most, kernel.rows) && may_be_packed(p, kernel)))
      down = std::max(down, std::min(parts(wanted, across), p.m / kRowsAtLeast));
    rows =
        std::min(p.m, parts(parts(p.m, down), kCosts<T>.rows_together) * kCosts<T>.rows_together);
    down = parts(p.m, rows);
    const std::int64_t few = p.is_across() ? 4 : 1;  // panels: each task brings its rows of a
    across = std::max(across, std::min(parts(wanted, down), parts(panels, few)));
    columns = parts(panels, across) * panel;
    across = parts(p.n, columns);
  }
  std::int64_t tasks() const { return down * across; }
};

// Those of the list whose rows multiply numbers of T.
template <class T>
void multiply(std::span<const Multiplication> list, const Where& where) {
  std::vector<Prepared<T>> products;
  std::vector<Division> divisions;
  products.reserve(list.size());
  divisions.reserve(list.size());
  const auto count = static_cast<std::int64_t>(list.size());
  const std::int64_t wanted =
      where.context().threads() > 1
          ? (kTasksPerThread * where.context().threads() + count - 1) / count
          : 1;
  double work = 0;
  std::int64_t tasks = 0, packings = 0;
  std::int64_t room = 0;
  for (const Multiplication& x : list)
    if (const Kernel<Product>& row = row_of(x, where);
        x.c.count() > 0 && row.multiplies(x.c.dtype()) == dtype_of<T>())
      room += products.emplace_back(x, row, where).room();
  constexpr auto kMost = std::numeric_limits<std::size_t>::max();  // more than there is
  const auto elements = static_cast<std::size_t>(room);
  const Lease copies(where, elements <= kMost / sizeof(T) ? elements * sizeof(T) : kMost);
  T* memory = reinterpret_cast<T*>(copies.data());
  for (std::size_t n = 0; n < products.size(); ++n) {
    products[n].copy_operands(memory, where);
    const Matrices<T>& p = products[n].product();
    divisions.emplace_back(p, products[n].row(), wanted);
    products[n].make_room(divisions.back().rows, std::span(products).first(n), where);
    work += (static_cast<double>(p.m) + kCosts<T>.reading) * static_cast<double>(p.n) *
            static_cast<double>(p.k);
    tasks += divisions.back().tasks();
    packings += products[n].packings();
  }
  const bool alone = work <= kCosts<T>.alone;
  const auto in_parallel = [&](std::int64_t many, auto one) {
    if (!alone && many > 0) where.context().parallel_for(many, std::ref(one));
    else
      for (std::int64_t n = 0; n < many; ++n) one(n);
  };
  in_parallel(packings, [&](std::int64_t task) {
    auto of = products.begin();
    for (; task >= of->packings(); ++of) task -= of->packings();
    of->pack(task);
  });
  for (Prepared<T>& of : products) of.use_packed();
  in_parallel(tasks, [&](std::int64_t task) {
    std::size_t n = 0;
    for (; task >= divisions[n].tasks(); ++n) task -= divisions[n].tasks();
    const Matrices<T>& p = products[n].product();
    const Division& d = divisions[n];
    const std::int64_t row = task / d.across * d.rows, column = task % d.across * d.columns;
    // Alone, the tasks that this thread runs are somebody else's, who would stop them unnoticed.
    const MatrixRange part{row, std::min(row + d.rows, p.m), column,
                           std::min(column + d.columns, p.n),
                           alone ? nullptr : RunningTasks::interrupt()};
    products[n].row().run(p, part);
    products[n].finish(part);
  });
}

// Calls use(T{}) with a type that rows multiply.
template <class Use>
auto with_numbers(DType type, Use use) {
  if (type == DType::f64) return use(double{});
  if (type == DType::bf16) return use(bf16{});
  return type == DType::f16 ? use(f16{}) : use(float{});
}

}  // namespace

PackedWeights packed(const ConstTensorView& b, const Kernel<Product>& row, const Where& where) {
  // Without an instruction that widens f16, products with it would take three times as long.
  const bool widens = b.dtype() != DType::f16 || row.widens_f16;
  if (widens && row.multiplies(b.dtype()) != b.dtype()) {  // in the same order for every type of a
    const Matrices<float> product{.n = b.size(1),
                                  .k = b.size(0),
                                  .b_depth = b.strides()[0],
                                  .b_column = b.strides()[1],
                                  .b_type = b.dtype(),
                                  .narrow = b.data()};
    Tensor made = Tensor::uninitialized({packed_narrow_size(product.n, product.k)}, b.dtype());
    row.f32.pack_narrow(product, {0, product.k, 0, product.n}, made.view().data());
    return PackedWeights{&row, std::move(made)};
  }
  return with_numbers(row.multiplies(b.dtype()), [&]<class T>(T) {
    const MatrixFunctions<T>& functions = row.of<T>();
    Operand<T> from(b);
    Tensor copy = Tensor::uninitialized({from.room}, dtype_of<T>());
    T* memory = copy.data<T>();
    from.copy(memory, where);
    const Matrices<T> product{.n = b.size(1),
                              .k = b.size(0),
                              .b = from.numbers(),
                              .b_depth = from.row,
                              .b_column = from.column};
    Tensor made =
        Tensor::uninitialized({functions.packed_size(product.n, product.k)}, dtype_of<T>());
    functions.pack(product, {0, product.k, 0, product.n}, made.data<T>());
    return PackedWeights{&row, std::move(made)};
  });
}

const Kernel<Product>& product_row(DType type, bool bias, const Where& where,
                                   bool eight_bit_weights) {
  return ContextState::of(where).row_for<Product>(
      {.device = {}, .type = type, .bias = bias, .eight_bit_weights = eight_bit_weights});
}

ProductProblem device_problem(const Multiplication& x) {
  return {.device = x.c.device(),
          .type = x.c.dtype(),
          .bias = static_cast<bool>(x.row_bias),
          .eight_bit_weights = static_cast<bool>(x.scales),
          .activation = x.activation.has_value(),
          .residual = static_cast<bool>(x.residual),
          .kind = x.activation.value_or(Activation::relu)};
}

void launch_product(const Kernel<Product>& row, const Multiplication& x, const Where& where) {
  const auto matrix = [](const ConstTensorView& t) {
    return t ? ConstMatrix{t.data(), t.strides()[0], t.strides()[1]} : ConstMatrix();
  };
  const ProductCall call{.m = x.c.size(0),
                         .n = x.c.size(1),
                         .k = x.a.size(1),
                         .a = matrix(x.a),
                         .b = matrix(x.b),
                         .scales = x.scales.data(),
                         .scales_stride = x.scales ? x.scales.strides()[0] : 0,
                         .bias = x.row_bias.data(),
                         .bias_stride = x.row_bias ? x.row_bias.strides()[0] : 0,
                         .gate = matrix(x.gate),
                         .residual = matrix(x.residual),
                         .c = x.c.data(),
                         .c_row = x.c.strides()[0],
                         .c_column = x.c.strides()[1]};
  launch(Product::kName, x.c.device(), where.queue(),
         [&](Queue& queue) { return row.launch(device_problem(x), call, queue); });
}

void matmul(std::span<const Multiplication> list, const Where& where) {
  if (list.empty()) return;
  if (list[0].c.device() == Device{}) {
    for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
      if (std::any_of(list.begin(), list.end(), [&](const Multiplication& x) {
            return row_of(x, where).multiplies(x.c.dtype()) == type;
          }))
        with_numbers(type, [&]<class T>(T) { multiply<T>(list, where); });
    return;
  }
  for (const Multiplication& x : list)
    if (x.c.count() > 0)
      launch_product(ContextState::of(where).row_for<Product>(device_problem(x)), x, where);
}

}  // namespace attend
