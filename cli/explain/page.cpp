#include "page.h"

#include "json.h"
#include "page_parts.h"

#include <cstdint>

namespace attend::cli {
namespace {

// A hash in hexadecimal digits as base64, which is how a policy names it.
std::string base64_of_hex(std::string_view hex) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto value = [](char c) {
    return static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  };
  std::string out;
  for (std::size_t n = 0; n < hex.size(); n += 6) {  // three bytes are four digits
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 6; ++i)
      bits = bits << 4 | (n + i < hex.size() ? value(hex[n + i]) : 0);
    for (std::size_t i = 0; i < 4; ++i)
      out += n + 3 * i / 2 < hex.size() || (i < 2) ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

// JSON that no HTML parser can take for the end of its block, nor a script for a new line.
std::string block(const Json& data) {
  const std::string text = data.text();
  std::string out;
  for (std::size_t n = 0; n < text.size(); ++n) {
    if (text[n] == '<') out += "\\u003c";
    else if (text[n] == '>') out += "\\u003e";
    else if (text[n] == '&') out += "\\u0026";
    else if (text.compare(n, 3, "\u2028") == 0) out += "\\u2028", n += 2;
    else if (text.compare(n, 3, "\u2029") == 0) out += "\\u2029", n += 2;
    else out += text[n];
  }
  return out;
}

}  // namespace

std::string explain_page(const Explanation& explanation, Language language) {
  const std::string policy = "default-src 'none'; script-src 'sha256-" +
                             base64_of_hex(kExplainProgramHash) + "'; style-src 'sha256-" +
                             base64_of_hex(kExplainStyleHash) + "'";
  return std::string("<!doctype html>\n<html lang=\"") +
         (language == Language::english ? "en" : "zh-CN") +
         "\">\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"" +
         policy +
         "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         escaped(explanation.title.in(language)) + "</title>\n<style>" + kExplainStyle +
         "</style>\n<main id=\"main\"><noscript>attend explain: this page needs JavaScript; it "
         "loads "
         "nothing.</noscript></main>\n<div id=\"panel\" role=\"status\" "
         "aria-live=\"polite\"></div>\n"
         "<script type=\"application/json\" id=\"data\">" +
         block(page_data(explanation, language)) + "</script>\n<script>" + kExplainProgram +
         "</script>\n</html>\n";
}

}  // namespace attend::cli
