// Rules for any tensor: there, addressable, of this shape and type, apart from the others in
// memory.
#include "api/checker.h"

#include "api/overlap.h"

#include <algorithm>
#include <limits>

namespace attend {

// Of the sizes other than 0: what is empty may not be huge in another direction either.
std::int64_t product_of(const Shape& shape) noexcept {
  std::int64_t product = 1;
  for (const std::int64_t size : shape)
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(size, 1), &product))
      return std::numeric_limits<std::int64_t>::max();
  return product;
}

// A given tensor that is addressable: device, address, alignment, reach. Up to four dimensions
// become b, h, i and the last one, right-aligned.
Strided TensorChecker::sound(std::string_view name, const ConstTensorView& view) {
  if (!view) fail(name, " is missing");
  if (view.device() != device_)
    fail(name, " is on ", view.device(), ", ", read_.front().name, " on ", device_,
         "; all tensors must be on one device");
  if (product_of(view.shape()) > kMaxElements)
    fail(name, " ", view.shape(), " has sizes that multiply to more than 2^60");
  if (spans_too_far(view))
    fail(name, " ", view.shape(), " with strides ", view.strides(),
         " reaches further than 2^60 bytes");
  if (std::find(view.shape().begin(), view.shape().end(), 0) == view.shape().end()) {
    if (view.data() == nullptr) fail(name, " ", view.shape(), " has a null address");
    if (reinterpret_cast<std::uintptr_t>(view.data()) %
            static_cast<std::uintptr_t>(size_of(view.dtype())) !=
        0)
      fail(name, " is ", view.dtype(), ", but its address is not a multiple of ",
           size_of(view.dtype()));
  }
  Strided t{.data = static_cast<std::byte*>(const_cast<void*>(view.data())),
            .type = view.dtype(),
            .given = true};
  for (int dim = 0; dim < view.rank() && dim < 4; ++dim)
    t.stride[static_cast<std::size_t>(dim + 4 - std::min(view.rank(), 4))] = view.strides()[dim];
  return t;
}

void TensorChecker::rank_is_4(std::string_view name, const ConstTensorView& view,
                              std::string_view form) const {
  if (view && view.rank() != 4)
    fail(name, " has ", view.rank(), " dimensions ", view.shape(), "; it must be ", form);
}

void TensorChecker::shape_is(std::string_view name, const ConstTensorView& view,
                             const Shape& shape) const {
  if (view && view.shape() != shape) fail(name, " is ", view.shape(), "; it must be ", shape);
}

void TensorChecker::type_is(std::string_view name, DType found,
                            std::initializer_list<DType> allowed) const {
  if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return;
  std::string list;
  for (const DType* type = allowed.begin(); type != allowed.end(); ++type) {
    if (type != allowed.begin()) list += type + 1 == allowed.end() ? " or " : ", ";
    list += name_of(*type);
  }
  fail(name, " is ", found, "; it must be ", list);
}

void Checker::type_is_tensors_or_wider(std::string_view name, DType found) const {
  if (p_.type == DType::f64) type_is(name, found, {DType::f64});
  else if (p_.type == DType::f32) type_is(name, found, {DType::f32, DType::f64});
  else type_is(name, found, {p_.type, DType::f32, DType::f64});
}

void Checker::type_is_statistic(std::string_view name, DType found) const {
  if (p_.type == DType::f64) type_is(name, found, {DType::f64});
  else type_is(name, found, {DType::f32, DType::f64});
}

Strided Checker::per_head(std::string_view name, const ConstTensorView& view) {
  Strided t = read(name, view);
  type_is(name, view.dtype(), {statistic_type(p_.type)});
  shape_is(name, view, {p_.heads});
  t.stride = {0, view.strides()[0], 0, 0};
  return t;
}

Strided Checker::integers(std::string_view name, const ConstTensorView& view, std::int64_t count) {
  Strided t = read(name, view);
  type_is(name, view.dtype(), {DType::i32, DType::i64});
  shape_is(name, view, {count});
  t.stride = {view.strides()[0], 0, 0, 0};
  return t;
}

// A mask-like tensor: up to four dimensions, right-aligned, each of size 1 or as in `full`.
Strided Checker::broadcast(std::string_view name, const ConstTensorView& view,
                           bool keys_may_be_fewer, const Shape& full, std::string_view of) {
  Strided t = read(name, view);
  bool fits = view.rank() <= 4;
  for (int dim = 0; fits && dim < view.rank(); ++dim) {
    const int to = dim + 4 - view.rank();
    const std::int64_t size = view.size(dim);
    fits = size == 1 || size == full[to] || (keys_may_be_fewer && to == 3 && size < full[to]);
    if (size == 1) t.stride[static_cast<std::size_t>(to)] = 0;
  }
  if (!fits)
    fail(name, " is ", view.shape(), "; each dimension must be 1 or as in ", full, ", ", of,
         keys_may_be_fewer ? " (fewer keys hide the rest)" : "");
  return t;
}

void TensorChecker::no_overlap() const {
  for (auto w = written_.begin(); w != written_.end(); ++w) {
    if (overlaps_itself(w->view))
      fail(w->name, " ", w->view.shape(), " with strides ", w->view.strides(),
           " has elements that share memory; outputs must not");
    const auto apart_from = [&](const Named& other) {
      if (overlap(w->view, other.view))
        fail(w->name, " overlaps ", other.name, " in memory; outputs must not");
    };
    std::for_each(written_.begin(), w, apart_from);
    std::for_each(read_.begin(), read_.end(), apart_from);
  }
}

}  // namespace attend
