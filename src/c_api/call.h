// What all functions of the C API are made of: a guard that lets no exception out, and a Call that
// turns C arguments into C++ ones. Its errors name the function and the argument:
// "attend_attention: options.mask.dtype is 42; it must be from 0 to 8".
#pragma once

#include "core/text.h"

#include <attend/attention.h>
#include <attend/c_api.h>
#include <attend/multi_head_attention.h>

#include <algorithm>
#include <cstring>

namespace attend::c_api {

// Keeps the exception that is being handled as this thread's last error.
attend_status report(const char* function) noexcept;

// Where an argument stands: Name("options") / "mask" is options.mask. Text only in a message.
struct Name {
  const char* parts[4];
  Name(const char* argument) : parts{argument} {}  // NOLINT: reads as a name
  friend Name operator/(Name name, const char* field);
  friend std::ostream& operator<<(std::ostream& os, Name name);
};

class Call {
 public:
  explicit Call(const char* function) : function_(function) {}

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InvalidArgument(text(function_, ": ", parts...));
  }

  template <class T>
  T& need(T* pointer, Name name) const {
    if (pointer == nullptr) fail(name, " is NULL");
    return *pointer;
  }
  std::string need_text(const char* string, Name name) const { return &need(string, name); }
  static std::string optional_text(const char* string) { return string ? string : ""; }

  // The caller's struct in the library's size; what it does not have is zero. NULL: all of it.
  template <class Struct>
  Struct read(const Struct* given, Name name) const {
    Struct made{};
    if (given != nullptr) std::memcpy(&made, given, checked_size(*given, name));
    return made;
  }

  // The other way: as much as the caller's struct has room for.
  template <class Struct>
  void write(Struct* to, Struct value, Name name) const {
    const std::size_t size = checked_size(need(to, name), name);
    value.struct_size = size;
    std::memcpy(to, &value, size);
  }
  template <class Struct>
  std::size_t checked_size(const Struct& given, Name name) const {
    check_size(given.struct_size, sizeof(Struct), name);
    return given.struct_size;
  }

  // One of the values of an enum, in the order in which the C header numbers them.
  template <class Enum, std::size_t count>
  Enum choice(std::int32_t value, const Enum (&values)[count], Name name) const {
    check_range(value, count, name);
    return values[value];
  }
  template <class Enum, std::size_t count>
  static std::int32_t number_of(Enum value, const Enum (&values)[count]) noexcept {
    const Enum* const found = std::find(values, values + count, value);
    return static_cast<std::int32_t>(found - values);
  }
  void reserved(std::int32_t value, Name name) const {
    if (value != 0) fail(name, ".reserved is ", value, "; it must be 0");
  }

  DType dtype(std::int32_t value, Name name) const;
  Shape shape(const std::int64_t* values, std::int32_t rank, Name name) const;
  TensorView view(const attend_view* view, Name name) const;
  TensorView optional_view(const attend_view* view, Name name) const;  // NULL: none
  std::vector<ConstTensorView> views(std::int64_t count, const attend_view* const* list,
                                     Name name) const;
  std::vector<std::string> texts(std::int64_t count, const char* const* list, Name name) const;
  // `shown` must live in a handle: the view points to its shape and strides.
  void show(attend_view* view, const ConstTensorView& shown, Name name = "view") const;
  void show(attend_view* view, const Tensor& shown, Name name = "view") const;

  AttentionOptions options(const attend_attention_options* given, Name name = "options") const;
  AttentionOutputs outputs(const attend_attention_outputs* given) const;
  BackwardInputs backward_inputs(const attend_backward_inputs* given) const;
  AttentionGradients gradients(const attend_attention_gradients* given) const;
  MultiHeadAttentionOptions layer_options(const attend_layer_options* given, Name name) const;
  Rotary rotary(const attend_rotary& given, Name name) const;

  std::int64_t index(std::int64_t index, std::size_t count) const;

  // The element of a list with this name.
  template <class List>
  auto& find(List& list, const char* name) const {
    need(name, "name");
    for (auto& element : list)
      if (element.name == name) return element;
    std::string names;
    for (const auto& element : list) names += (names.empty() ? "" : " ") + element.name;
    fail("there is no \"", name, "\", only ", names.empty() ? "an empty list" : names);
  }

 private:
  void check_size(std::size_t given, std::size_t known, Name name) const;
  void check_range(std::int32_t value, std::size_t count, Name name) const;

  const char* function_;
};

// Runs body(call) and says how it ended.
template <class Body>
attend_status guarded(const char* function, Body body) noexcept {
  try {
    body(Call(function));
    return ATTEND_OK;
  } catch (...) {
    return report(function);
  }
}

inline constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16,    DType::i64,
                                   DType::i32, DType::i8,  DType::u8,   DType::boolean};
inline constexpr Rotary::Pairing kPairings[] = {Rotary::Pairing::halves,
                                                Rotary::Pairing::neighbours};

}  // namespace attend::c_api
