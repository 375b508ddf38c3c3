// Tensors: a Shape, views of memory that somebody else owns (ConstTensorView, TensorView), and an
// owner (Tensor). Strides count elements and may be anything: zero, negative, out of order.
#pragma once

#include <attend/dtype.h>
#include <attend/error.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace attend {

inline constexpr int kMaxRank = 8;

// Up to eight sizes, strides or indices: integers of any type, such as Shape{1, rows.size()}.
class ATTEND_API Shape {
 public:
  struct Value {
    // NOLINTBEGIN(google-explicit-constructor): reads as a number
    template <class T>
    requires(std::convertible_to<T, std::int64_t> && !std::is_floating_point_v<T>) Value(T any)
        : value(static_cast<std::int64_t>(any)) {
      if constexpr (std::unsigned_integral<T>)
        if (value < 0) too_large(any);
    }
    // NOLINTEND(google-explicit-constructor)
    std::int64_t value;

   private:
    [[noreturn]] ATTEND_API static void too_large(std::uint64_t any);
  };

  Shape() = default;
  Shape(std::initializer_list<Value> values);
  explicit Shape(std::span<const std::int64_t> values);

  int rank() const noexcept { return rank_; }
  std::int64_t operator[](int dim) const noexcept { return values_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) noexcept { return values_[static_cast<std::size_t>(dim)]; }
  const std::int64_t* begin() const noexcept { return values_.data(); }
  const std::int64_t* end() const noexcept { return values_.data() + rank_; }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> values_{};  // past the rank: zero, so that == may compare all
  int rank_ = 0;
};

ATTEND_API std::string to_string(const Shape& shape);       // "[1, 8, 10, 64]"
ATTEND_API std::int64_t element_count(const Shape& shape);  // the product; throws if it overflows
ATTEND_API Shape contiguous_strides(const Shape& shape);    // row-major; throws if they overflow

// Where a tensor's memory is.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;
  friend bool operator==(Device a, Device b) noexcept {
    return a.kind == b.kind && (a.kind == Kind::cpu || a.index == b.index);  // one host memory
  }
};

ATTEND_API std::string to_string(Device device);  // "cpu", "cuda:0"

class Tensor;
class Where;  // context.h

// Read-only view of a tensor: pointer, type, shape, strides. A default-constructed one is "none".
class ATTEND_POINTER ATTEND_API ConstTensorView {
 public:
  ConstTensorView() = default;
  template <Element T>
  ConstTensorView(const T* data, const Shape& shape)
      : ConstTensorView(data, dtype_of<T>(), shape) {}
  template <Element T>
  ConstTensorView(const T* data, const Shape& shape, const Shape& strides)
      : ConstTensorView(data, dtype_of<T>(), shape, strides) {}
  ConstTensorView(const void* data, DType type, const Shape& shape, Device device = {});
  ConstTensorView(const void* data, DType type, const Shape& shape, const Shape& strides,
                  Device device = {});

  ConstTensorView(const Tensor& tensor ATTEND_LIFETIMEBOUND) noexcept;  // NOLINT: as T* to const T*

  explicit operator bool() const noexcept { return defined_; }
  const void* data() const noexcept { return data_; }
  DType dtype() const noexcept { return type_; }
  Device device() const noexcept { return device_; }
  const Shape& shape() const noexcept { return shape_; }
  const Shape& strides() const noexcept { return strides_; }
  int rank() const noexcept { return shape_.rank(); }
  std::int64_t size(int dim) const noexcept { return shape_[dim]; }
  std::int64_t count() const { return element_count(shape_); }

  // The element at an index; throws if T is not the view's type or the index is outside.
  template <Element T>
  const T& at(const Shape& index) const {
    return *static_cast<const T*>(address(dtype_of<T>(), index));
  }

  // The same memory with other strides. permute({0, 2, 1, 3}) turns [B, T, H, d] into [B, H, T, d].
  ConstTensorView permute(const Shape& order) const;
  // Elements begin, begin + step, ... before end (after end, for a negative step) of one dimension.
  ConstTensorView slice(int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const;
  // Dimensions of size 1, and new ones in front, are repeated with stride 0.
  ConstTensorView broadcast_to(const Shape& shape) const;

 protected:
  const void* address(DType type, const Shape& index) const;

  const void* data_ = nullptr;
  Shape shape_;
  Shape strides_;
  Device device_;
  DType type_ = DType::f32;
  bool defined_ = false;
};

// View of a tensor that may be written.
class ATTEND_POINTER ATTEND_API TensorView : public ConstTensorView {
 public:
  TensorView() = default;
  template <Element T>
  TensorView(T* data, const Shape& shape) : ConstTensorView(data, shape) {}
  template <Element T>
  TensorView(T* data, const Shape& shape, const Shape& strides)
      : ConstTensorView(data, shape, strides) {}
  TensorView(void* data, DType type, const Shape& shape, Device device = {})
      : ConstTensorView(data, type, shape, device) {}
  TensorView(void* data, DType type, const Shape& shape, const Shape& strides, Device device = {})
      : ConstTensorView(data, type, shape, strides, device) {}

  TensorView(Tensor& tensor ATTEND_LIFETIMEBOUND) noexcept;  // NOLINT: as an array converts to T*

  void* data() const noexcept { return const_cast<void*>(data_); }
  template <Element T>
  T& at(const Shape& index) const {
    return *static_cast<T*>(const_cast<void*>(address(dtype_of<T>(), index)));
  }
  TensorView permute(const Shape& order) const;
  TensorView slice(int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const;

 private:
  explicit TensorView(const ConstTensorView& view) : ConstTensorView(view) {}
};

// A contiguous tensor that owns its memory, of the host or of a device. Copies are deep. Default-
// constructed: none. Of a device, its memory is that of the queue it was made on, which it keeps:
// it goes back to it in its order, and the queue's stream must live until then. A copy of such a
// tensor waits for that queue and for no other: what others do with it must be done by then, and
// before it is destroyed.
class ATTEND_OWNER ATTEND_API Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const Shape& shape, DType type = DType::f32);  // filled with zeros
  template <Element T>
  Tensor(std::initializer_list<T> values, const Shape& shape)
      : Tensor(values.begin(), values.size(), dtype_of<T>(), shape) {}
  static Tensor uninitialized(const Shape& shape, DType type = DType::f32);
  static Tensor copy_of(const ConstTensorView& view);  // any strides; host memory
  // In memory of a device, of the queue of `where`; on the host, of its Context. A copy between
  // host and device waits for that queue; from one device to another it goes by the host.
  static Tensor uninitialized(const Shape& shape, DType type, Device device, const Where& where);
  static Tensor copy_of(const ConstTensorView& view, Device device, const Where& where);

  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;

  explicit operator bool() const noexcept { return static_cast<bool>(view_); }
  TensorView view() noexcept ATTEND_LIFETIMEBOUND { return view_; }
  ConstTensorView view() const noexcept ATTEND_LIFETIMEBOUND { return view_; }

  template <Element T>
  T* data() {
    check_type(dtype_of<T>());
    return static_cast<T*>(view_.data());
  }
  template <Element T>
  const T* data() const {
    check_type(dtype_of<T>());
    return static_cast<const T*>(view_.data());
  }
  template <Element T>
  T& at(const Shape& index) {
    return view_.at<T>(index);
  }
  template <Element T>
  const T& at(const Shape& index) const {
    return view_.at<T>(index);
  }

  DType dtype() const noexcept { return view_.dtype(); }
  Device device() const noexcept { return view_.device(); }
  const Shape& shape() const noexcept { return view_.shape(); }
  std::int64_t size(int dim) const noexcept { return view_.size(dim); }
  std::int64_t count() const { return view_.count(); }

 private:
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  friend class Context;  // which makes them in its own memory
  template <class Take>
  static Tensor made(const Shape& shape, DType type, const Take& take);
  Tensor(const void* values, std::size_t count, DType type, const Shape& shape);
  void check_type(DType type) const;

  std::unique_ptr<void, Free> memory_;
  TensorView view_;
};

inline ConstTensorView::ConstTensorView(const Tensor& tensor) noexcept
    : ConstTensorView(tensor.view()) {}
inline TensorView::TensorView(Tensor& tensor) noexcept : TensorView(tensor.view()) {}

// A tensor in a struct of options: a view of the caller's memory, which must outlive the options,
// or a tensor that is given away, AttentionOptions{.mask = Tensor(...)}: they, their copies and
// parts keep it.
class ATTEND_API TensorOrView : public ConstTensorView {
 public:
  using ConstTensorView::ConstTensorView;
  constexpr TensorOrView() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  template <class T>  // whatever a ConstTensorView can be made of
  requires(!std::same_as<T, TensorOrView> && !std::same_as<T, Tensor> &&
           std::convertible_to<const T&, ConstTensorView>) TensorOrView(const T& view)
      : ConstTensorView(view) {}
  TensorOrView(const Tensor& tensor) noexcept : ConstTensorView(tensor.view()) {}
  TensorOrView(Tensor&& tensor);
  // NOLINTEND(google-explicit-constructor)

  constexpr TensorOrView(const TensorOrView& other) noexcept
      : ConstTensorView(other), kept_(other.kept_) {
    if (kept_ != nullptr) share();
  }
  constexpr TensorOrView& operator=(TensorOrView other) noexcept {
    ConstTensorView::operator=(other);
    std::swap(kept_, other.kept_);
    return *this;
  }
  constexpr ~TensorOrView() {
    if (kept_ != nullptr) leave();
  }

  TensorOrView permute(const Shape& order) const { return part(ConstTensorView::permute(order)); }
  TensorOrView slice(int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const {
    return part(ConstTensorView::slice(dim, begin, end, step));
  }
  TensorOrView broadcast_to(const Shape& shape) const {
    return part(ConstTensorView::broadcast_to(shape));
  }

 private:
  struct Kept;  // the tensor, and how many have it
  TensorOrView part(const ConstTensorView& view) const {
    TensorOrView same = *this;
    same.ConstTensorView::operator=(view);
    return same;
  }
  void share() const noexcept;
  void leave() const noexcept;
  Kept* kept_ = nullptr;
};

// A view that must be given: made of a tensor, a view or {data, shape}, as the view itself is, but
// not of {}, which in a call always stands for options or outputs.
template <class View>
class Required : public View {
 public:
  // NOLINTBEGIN(google-explicit-constructor, bugprone-forwarding-reference-overload): reads as the
  // view; a copy is a view of the same
  template <std::convertible_to<View> T>
  Required(T&& given) : View(std::forward<T>(given)) {}
  // NOLINTEND(google-explicit-constructor, bugprone-forwarding-reference-overload)
  template <class T>
  Required(T* data, const Shape& shape) : View(data, shape) {}
  template <class T>
  Required(T* data, const Shape& shape, const Shape& strides) : View(data, shape, strides) {}
  template <class T>
  Required(T* data, DType type, const Shape& shape, Device device = {})
      : View(data, type, shape, device) {}
  template <class T>
  Required(T* data, DType type, const Shape& shape, const Shape& strides, Device device = {})
      : View(data, type, shape, strides, device) {}
};

}  // namespace attend
