// The line that says everything about a Case, and its reader. Both walk one list of fields, so that
// they cannot disagree.
#include "cases.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace attend::cases {
namespace {

// The words of each enumeration, in the order of its values.
template <class E>
std::vector<std::string_view> words();

template <>
std::vector<std::string_view> words<DType>() {
  return {"f64", "f32", "bf16", "f16", "i64", "i32", "i8", "u8", "bool"};
}
template <>
std::vector<std::string_view> words<Layout>() {
  return {"contiguous",      "bthd",   "interleaved", "reversed",  "broadcast_batch",
          "broadcast_heads", "padded", "gapped",      "transposed"};
}
template <>
std::vector<std::string_view> words<Addressing>() {
  return {"dense", "packed", "packed_self", "paged", "paged_shared", "packed_paged"};
}
template <>
std::vector<std::string_view> words<Mask>() {
  return {"none",     "full", "per_pair",   "per_key",   "query_key", "key",
          "per_head", "rows", "short_full", "short_key", "nothing"};
}
template <>
std::vector<std::string_view> words<Bias>() {
  return {"none",      "full", "per_pair", "per_key",  "head_query_key",
          "query_key", "key",  "per_head", "infinite", "short_full"};
}
template <>
std::vector<std::string_view> words<BlockMask>() {
  return {"none", "full", "shared", "rows"};
}
template <>
std::vector<std::string_view> words<Offset>() {
  return {"default", "one", "each"};
}
template <>
std::vector<std::string_view> words<Lengths>() {
  return {"none", "full", "mixed"};
}
template <>
std::vector<std::string_view> words<Width>() {
  return {"same", "f32", "f64"};
}
template <>
std::vector<std::string_view> words<Gradients>() {
  return {"all", "dq", "dkdv", "dv", "extras"};
}
template <>
std::vector<std::string_view> words<Values>() {
  return {"gaussian", "outliers", "cold", "constant"};
}
template <>
std::vector<std::string_view> words<ScoreStage>() {
  return {"raw", "softcapped", "masked"};
}

// The shortest of %.15g, %.16g, %.17g that reads back as the same number.
std::string to_text(double value) {
  char text[40];
  for (int digits = 15; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

template <class T>
std::string to_text(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return std::string(words<T>().at(static_cast<std::size_t>(value)));
  else if constexpr (requires { value.has_value(); })  // an optional number
    return value ? to_text(*value) : "default";
  else return std::to_string(value);
}

// Reads `text` into `value`; false if it does not say one.
template <class T>
bool from_text(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  if constexpr (std::is_enum_v<T>) {
    const auto all = words<T>();
    for (std::size_t n = 0; n < all.size(); ++n) {
      if (all[n] != text) continue;
      value = static_cast<T>(n);
      return true;
    }
    return false;
  } else if constexpr (requires { value.has_value(); }) {
    if (text == "default") {
      value.reset();
      return true;
    }
    value.emplace();
    return from_text(text, *value);
  } else if constexpr (std::is_same_v<T, bool>) {
    value = text == "1";
    return value || text == "0";
  } else {
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stop == end;
  }
}

}  // namespace

std::string name(const Case& problem) {
  // Sizes and type are always said; the rest only where it is not the default.
  std::vector<std::string> of_default;
  const Case plain;
  for_each_field(plain,
                 [&](const char*, const auto& value) { of_default.push_back(to_text(value)); });
  constexpr std::size_t kAlwaysSaid = 8;
  std::string line;
  std::size_t n = 0;
  for_each_field(problem, [&](const char* key, const auto& value) {
    const std::string text = to_text(value);
    if (n < kAlwaysSaid || text != of_default[n])
      line += (line.empty() ? "" : " ") + std::string(key) + "=" + text;
    ++n;
  });
  return line;
}

Case parse(std::string_view line, const Case& from) {
  Case problem = from;
  while (!line.empty()) {
    const std::size_t space = line.find(' ');
    const std::string_view word = line.substr(0, space);
    line.remove_prefix(space == std::string_view::npos ? line.size() : space + 1);
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    bool understood = false;
    for_each_field(problem, [&](const char* field, auto& value) {
      if (key == field && equals != std::string_view::npos)
        understood = from_text(word.substr(equals + 1), value);
    });
    if (!understood)
      throw std::invalid_argument("case: cannot read the word '" + std::string(word) + "'");
  }
  return problem;
}

bool is_packed(const Case& problem) noexcept {
  return problem.addressing == Addressing::packed ||
         problem.addressing == Addressing::packed_self ||
         problem.addressing == Addressing::packed_paged;
}

bool is_paged(const Case& problem) noexcept {
  return problem.addressing == Addressing::paged ||
         problem.addressing == Addressing::paged_shared ||
         problem.addressing == Addressing::packed_paged;
}

std::int64_t query_extent(const Case& problem) noexcept {
  if (problem.max_q) return *problem.max_q;
  return is_packed(problem) && problem.batch == 0 ? 0 : problem.q_length;
}

std::int64_t key_extent(const Case& problem) noexcept {
  if (problem.max_k) return *problem.max_k;
  if (problem.max_q && problem.addressing == Addressing::packed_self) return *problem.max_q;
  if (is_packed(problem) && !is_paged(problem) && problem.batch == 0) return 0;
  if (!is_paged(problem)) return problem.k_length;
  return (problem.k_length + problem.page_size - 1) / problem.page_size * problem.page_size;
}

std::int64_t cost(const Case& problem) noexcept {
  return problem.batch * problem.heads * problem.q_length * key_extent(problem) *
         (problem.d + problem.dv) / 2;
}

}  // namespace attend::cases
