#include "json.h"

#include "usage_error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <stdexcept>

namespace attend::cli {

Json::Json() noexcept = default;
// Not as the variant copies itself: where memory ends meanwhile, that of g++ 12 destroys a value
// that was never made.
Json::Json(const Json& other) : Json() {
  std::visit([this](const auto& value) { value_ = value; }, other.value_);
}
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) { return *this = Json(other); }
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(double number) : value_(number) {}
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}
Json::Json(std::string_view text) : value_(std::string(text)) {}
Json::Json(std::initializer_list<Field> fields) : value_(Fields(fields)) {}

void Json::set(bool value) { value_ = value; }
void Json::set(std::int64_t number) { value_ = number; }
void Json::set(std::uint64_t number) { value_ = number; }

Json Json::array() { return array({}); }

Json Json::array(std::initializer_list<Json> values) {
  Json json;
  json.value_ = Values(values);
  return json;
}

Json Json::object() { return std::initializer_list<Field>{}; }

Json& Json::operator[](std::string_view name) {
  if (std::holds_alternative<std::monostate>(value_)) value_ = Fields();
  Fields& fields = std::get<Fields>(value_);
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const Field& field) { return field.name == name; });
  if (found != fields.end()) return found->value;
  return fields.emplace_back(Field{std::string(name), {}}).value;
}

Json& Json::operator[](std::size_t element) { return std::get<Values>(value_).at(element); }

Json& Json::push_back(Json value) {
  if (std::holds_alternative<std::monostate>(value_)) value_ = Values();
  return std::get<Values>(value_).emplace_back(std::move(value));
}

void Json::update(const Json& fields) {
  for (const Field& field : std::get<Fields>(fields.value_)) (*this)[field.name] = field.value;
}

const Json& Json::at(std::string_view name) const {
  for (const Field& field : std::get<Fields>(value_))
    if (field.name == name) return field.value;
  throw std::out_of_range("there is no field " + std::string(name));
}

double Json::number() const { return std::get<double>(value_); }
bool Json::boolean() const { return std::get<bool>(value_); }

// The same value in the library's own type, which writes it.
struct JsonWriter {
  using Theirs = nlohmann::ordered_json;

  Theirs operator()(std::monostate) const { return nullptr; }
  Theirs operator()(const Json::Values& values) const {
    Theirs array = Theirs::array();
    for (const Json& value : values) array.push_back(std::visit(*this, value.value_));
    return array;
  }
  Theirs operator()(const Json::Fields& fields) const {
    Theirs object = Theirs::object();
    for (const auto& [name, value] : fields) object[name] = std::visit(*this, value.value_);
    return object;
  }
  Theirs operator()(const auto& value) const { return value; }
};

std::string Json::text(int indent) const {
  return std::visit(JsonWriter(), value_)
      .dump(indent, ' ', false, JsonWriter::Theirs::error_handler_t::replace);
}

Json json_object(const std::string& schema) { return {{"schema", schema}}; }

void print(const Json& object) { std::cout << object.text(2) << '\n'; }

std::vector<std::string> json_tokens(const std::string& text, const std::string& path) {
  using Theirs = JsonWriter::Theirs;
  Theirs json;
  try {
    json = Theirs::parse(text);
  } catch (const Theirs::parse_error& error) {  // half of a surrogate pair, say
    throw UsageError(path + ": is not JSON: it is wrong at byte " + std::to_string(error.byte) +
                     "; tokens are a list as in [\"the\", \"cat\"]");
  } catch (const Theirs::out_of_range&) {
    throw UsageError(path + ": holds a number that is too large");
  }
  if (!json.is_array())
    throw UsageError(path + ": is no JSON list of tokens, as in [\"the\", \"cat\"]");
  std::vector<std::string> tokens;
  for (const Theirs& token : json) {
    if (!token.is_string() && !token.is_number())
      throw UsageError(path + ": token " + std::to_string(tokens.size()) +
                       " is neither a text nor a number");
    tokens.push_back(token.is_string() ? token.get<std::string>() : token.dump());
  }
  return tokens;
}

}  // namespace attend::cli
