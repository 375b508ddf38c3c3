// Numbers with their units, for people.
#pragma once

#include <cstdint>
#include <string>

namespace attend::cli {

std::string grouped(std::int64_t n);     // "1,048,576"
std::string bytes(std::int64_t n);       // "4.01 MiB"
std::string operations(std::int64_t n);  // "1.34 G"
std::string duration(double seconds);    // "12.3 us"

}  // namespace attend::cli
