#include "view/json.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>

namespace attend::view {

// The fewest digits that read back as the same number.
Json::Json(double value) : text_("null") {
  char digits[32];
  if (std::isfinite(value))
    text_.assign(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

Json::Json(std::string_view text) {
  using Library = nlohmann::json;
  const std::string ascii = Library(text).dump(-1, ' ', true, Library::error_handler_t::replace);
  for (const char c : ascii) {
    if (c == '<') text_ += "\\u003c";
    else if (c == '>') text_ += "\\u003e";
    else if (c == '&') text_ += "\\u0026";
    else text_ += c;
  }
}

void Json::push(const Json& element) {
  if (text_.size() > 1) text_ += ',';
  text_ += element.text_;
  if (element.close_ != 0) text_ += element.close_;
}

Json& Json::set(std::string_view name, const Json& element) {
  if (text_.size() > 1) text_ += ',';
  text_ += Json(name).text_ + ':' + element.text();
  return *this;
}

}  // namespace attend::view
