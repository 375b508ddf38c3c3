#include "units.h"

#include <cstdio>

namespace attend::cli {
namespace {

std::string with_unit(double value, const char* const* units, double step) {
  while (value >= step && units[1] != nullptr) {
    value /= step;
    ++units;
  }
  char text[32];
  std::snprintf(text, sizeof text,
                value < 10    ? "%.2f %s"
                : value < 100 ? "%.1f %s"
                              : "%.0f %s",
                value, *units);
  return text;
}

}  // namespace

std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string bytes(std::int64_t n) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", nullptr};
  return with_unit(static_cast<double>(n), kUnits, 1024);
}

std::string operations(std::int64_t n) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P", nullptr};
  return with_unit(static_cast<double>(n), kUnits, 1000);
}

std::string duration(double seconds) {
  constexpr const char* kUnits[] = {"us", "ms", "s", nullptr};
  return with_unit(seconds * 1e6, kUnits, 1000);
}

}  // namespace attend::cli
