// The rules that the arguments of all layers have in common. A message begins with the layer's
// name: "linear: x is [2, 6]; it must be [..., 8]".
#pragma once

#include "core/reporting.h"

#include <attend/context.h>

#include <type_traits>

namespace attend {

// A size in a layer's options: at least 1.
void check_size(const char* layer, const char* name, std::int64_t size);

// A standard deviation of first weights: not negative, finite.
void check_deviation(const char* layer, double deviation);

// A choice from an enum of so many: none of the languages that call us checks it.
void check_choice(const char* layer, const char* name, std::size_t choice, std::size_t count);
template <class Enum>
requires std::is_enum_v<Enum>
void check_choice(const char* layer, const char* name, Enum choice, std::size_t count) {
  check_choice(layer, name, static_cast<std::size_t>(choice), count);
}

// The type of a layer: a floating-point one.
void check_type(const char* layer, DType type);

// A layer that was made by its default constructor can do nothing.
void check_made(const char* layer, bool made);

// Weights of 8 bits have no gradients.
void check_has_gradients(const char* layer, bool quantized);

// A tensor that is there, in memory of this device, the layer's, at an address that fits its type.
void check_readable(const char* layer, const char* name, const ConstTensorView& x,
                    Device device = {});

// x [..., features] of the layer's type.
void check_input(const char* layer, const char* name, const ConstTensorView& x, DType type,
                 std::int64_t features, Device device = {});

// A tensor of exactly this shape and of the layer's type, such as dy.
void check_shape(const char* layer, const char* name, const ConstTensorView& x, DType type,
                 const Shape& shape, Device device = {});

// A tensor of this shape that the layer writes, such as y: no two of its elements share memory.
void check_output(const char* layer, const char* name, const ConstTensorView& y, DType type,
                  const Shape& shape, Device device = {});

// A layer on a device needs a queue of it.
void check_queue(const char* layer, Device device, const Where& where);

// What only the host does: `function` of a layer or tensor that is there.
void check_on_host(const char* layer, const char* function, Device device);

// What is written shares no memory with another argument, if that is given.
void check_apart(const char* layer, const char* name, const ConstTensorView& y, const char* other,
                 const ConstTensorView& x);

}  // namespace attend
