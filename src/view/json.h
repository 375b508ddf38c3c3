// JSON as the page needs it: text that is put together and may stand inside <script>. All of it is
// ASCII, and "<", ">" and "&" are written as escapes, so nothing in it can end the element.
//
// Texts are escaped by nlohmann's JSON. Arrays and objects are not its own, because nothing may
// abort where memory ends: those allocate when they are destroyed.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace attend::view {

class Json {
 public:
  Json(std::nullptr_t = nullptr) : text_("null") {}  // NOLINT: values read as what they are
  Json(std::same_as<bool> auto value) : text_(value ? "true" : "false") {}       // NOLINT
  Json(std::integral auto value) requires(!std::same_as<decltype(value), bool>)  // NOLINT
      : text_(std::to_string(value)) {}
  Json(double value);           // NOLINT: null, if it is not finite
  Json(std::string_view text);  // NOLINT: what is not UTF-8 becomes U+FFFD
  Json(const std::string& text) : Json(std::string_view(text)) {}  // NOLINT
  Json(const char* text) : Json(std::string_view(text)) {}         // NOLINT

  static Json array() { return Json("[", ']'); }
  static Json object() { return Json("{", '}'); }
  template <class List>
  static Json array(const List& list) {
    Json json = array();
    for (const auto& element : list) json.push(element);
    return json;
  }

  void push(const Json& element);                         // to an array
  Json& set(std::string_view name, const Json& element);  // to an object

  std::string text() const { return close_ == 0 ? text_ : text_ + close_; }

 private:
  Json(const char* open, char close) : text_(open), close_(close) {}
  std::string text_;
  char close_ = 0;  // what is still missing
};

}  // namespace attend::view
