#include "layer/metadata.h"

#include "core/printable.h"
#include "core/text.h"

#include <charconv>
#include <cmath>

namespace attend {
namespace {

template <class Number>
std::optional<Number> parse(const std::string& value) {
  Number number{};
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

void MetadataReader::fail(const std::string& key, std::string_view what) const {
  throw FileError(text("metadata: ", place_of(file_), key, " is ", in_quotes(value(key)),
                       "; it must be ", what));
}

const std::string& MetadataReader::value(const std::string& key) const {
  const auto found = file_.metadata.find(key);
  if (found == file_.metadata.end())
    throw FileError(text("metadata: ", place_of(file_), "there is no ", key));
  return found->second;
}

void MetadataReader::format_is(std::string_view format) const {
  if (value("format") != format) fail("format", format);
}

std::int64_t MetadataReader::integer(const std::string& key) const {
  const auto number = parse<std::int64_t>(value(key));
  if (!number) fail(key, "a whole number");
  return *number;
}

double MetadataReader::number(const std::string& key) const {
  const auto number = parse<double>(value(key));
  if (!number || !std::isfinite(*number)) fail(key, "a finite number");
  return *number;
}

bool MetadataReader::boolean(const std::string& key) const {
  constexpr std::string_view kNames[] = {"false", "true"};
  return choice(key, kNames) == 1;
}

int MetadataReader::choice(const std::string& key, std::span<const std::string_view> names) const {
  std::string list;
  for (std::size_t n = 0; n < names.size(); ++n) {
    if (names[n] == value(key)) return static_cast<int>(n);
    list += text(n == 0 ? "" : n + 1 == names.size() ? " or " : ", ", names[n]);
  }
  fail(key, list);
}

std::string place_of(const TensorFile& file) {
  return file.path.empty() ? "" : printable(file.path.native()) + ": ";
}

std::string digits(double number) { return text(number); }

}  // namespace attend
