// A curve of losses: for the terminal, and as an SVG picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attend::cli {

// values[n] belongs to step first + n. Values that are not finite are left out.
struct Curve {
  std::string title;
  std::int64_t first = 0;
  std::vector<double> values;
};

// Lines of at most `columns` characters; each dot of the curve is the mean of its steps. In colour
// if asked, in plain ASCII unless `unicode`.
std::string terminal_plot(const Curve& curve, int columns, bool colour, bool unicode);

std::string svg_plot(const Curve& curve);

}  // namespace attend::cli
