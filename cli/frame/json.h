// A value of JSON, as commands print it. nlohmann's writes it; its header takes seconds to compile,
// so json.cpp alone includes it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace attend::cli {

class Json {
 public:
  struct Field;

  Json() noexcept;  // null
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  Json(double number);
  Json(const char* text);
  Json(std::string text);
  Json(std::string_view text);
  template <class Whole>
  requires std::is_integral_v<Whole> Json(Whole number) {
    if constexpr (std::is_same_v<Whole, bool>) set(number);
    else if constexpr (std::is_signed_v<Whole>) set(static_cast<std::int64_t>(number));
    else set(static_cast<std::uint64_t>(number));
  }
  Json(std::initializer_list<Field> fields);  // an object: {{"name", value}, ...}
  template <class Value>
  Json(const std::vector<Value>& values) : Json(array()) {
    for (const Value& value : values) push_back(value);
  }

  static Json array();
  static Json array(std::initializer_list<Json> values);
  static Json object();

  // A field of an object, null if it is new. Fields stay in the order in which they were put in.
  // What is null becomes an object, or at push_back an array.
  Json& operator[](std::string_view name);
  Json& operator[](const char* name) { return (*this)[std::string_view(name)]; }
  Json& operator[](std::size_t element);
  Json& push_back(Json value);  // returns it in its place
  void update(const Json& fields);

  // A field, and what it is; it must be there and be that.
  const Json& at(std::string_view name) const;
  double number() const;
  bool boolean() const;

  // Numbers with the digits that read back as the same; what is not finite as null; what is no
  // UTF-8 as U+FFFD. `indent` < 0: all in one line.
  std::string text(int indent = -1) const;

 private:
  using Values = std::vector<Json>;
  using Fields = std::vector<Field>;
  friend struct JsonWriter;
  void set(bool value);
  void set(std::int64_t number);
  void set(std::uint64_t number);

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Values,
               Fields>
      value_;
};

struct Json::Field {
  std::string name;
  Json value;
};

// {"schema": "attend.info/1"}: where every object on stdout begins, with the command's name. The
// number grows when a field changes its meaning or goes away; new fields may come at any time.
Json json_object(const std::string& schema);
void print(const Json& object);

// The texts of a JSON list of tokens; a number stands for its digits. Throws a UsageError, which
// names the file that the text is of.
std::vector<std::string> json_tokens(const std::string& text, const std::string& path);

}  // namespace attend::cli
