#include "plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace attend::cli {
namespace {

std::string format(const char* form, double value) {
  char digits[64];
  std::snprintf(digits, sizeof digits, form, value);
  return digits;
}

// Means of `count` equal parts of the curve, or of each step, if there are fewer.
std::vector<double> resampled(const std::vector<double>& values, std::size_t count) {
  count = std::min(count, values.size());
  std::vector<double> means;
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t begin = n * values.size() / count, end = (n + 1) * values.size() / count;
    double sum = 0;
    int finite = 0;
    for (std::size_t m = begin; m < end; ++m)
      if (std::isfinite(values[m])) sum += values[m], ++finite;
    means.push_back(finite > 0 ? sum / finite : std::nan(""));
  }
  return means;
}

struct Range {
  double low = 0, high = 1;
};

// From 0, or from the least value if that is negative, to the largest.
Range range_of(const std::vector<double>& values) {
  Range range{0, 0};
  for (const double value : values)
    if (std::isfinite(value)) {
      range.low = std::min(range.low, value);
      range.high = std::max(range.high, value);
    }
  if (range.high == range.low) range.high = range.low + 1;
  return range;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

}  // namespace

// Bars of eighths of a line, rising from the lowest value:
//    3.18 |#
//    1.59 |##.
//    0.00 |#####..
//         1      200 steps
std::string terminal_plot(const Curve& curve, int columns, bool colour, bool unicode) {
  constexpr int kRows = 8, kLabel = 9, kLevels = 8;
  static constexpr const char* kBlocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {" ", ".", ".", ".", ":", ":", ":", "#", "#"};
  const auto width = static_cast<std::size_t>(std::clamp(columns - kLabel - 3, 10, 100));
  const std::vector<double> values = resampled(curve.values, width);
  if (values.empty()) return {};
  const auto [low, high] = range_of(values);
  std::string out = curve.title + "\n";
  for (int row = kRows - 1; row >= 0; --row) {
    const double top = low + (high - low) * (row + 1) / kRows;
    const bool labelled = row == kRows - 1 || row == kRows / 2 - 1 || row == 0;
    out += labelled ? format("%9.4g", row == 0 ? low : top) : std::string(kLabel, ' ');
    out += " |";
    if (colour) out += "\033[36m";
    for (const double value : values) {
      const double filled = (value - low) / (high - low) * kRows - row;  // of this line
      const int level = std::isfinite(value)
                            ? static_cast<int>(std::lround(std::clamp(filled, 0.0, 1.0) * kLevels))
                            : 0;
      out += unicode ? kBlocks[level] : kAscii[level];
    }
    if (colour) out += "\033[0m";
    out += '\n';
  }
  const std::string first = "step " + std::to_string(curve.first);
  const std::string last =
      std::to_string(curve.first + static_cast<std::int64_t>(curve.values.size()) - 1);
  out += std::string(kLabel + 2, ' ') + first;
  if (values.size() > first.size() + last.size())
    out += std::string(values.size() - first.size() - last.size(), ' ') + last;
  return out + "\n";
}

std::string svg_plot(const Curve& curve) {
  constexpr double kWidth = 640, kHeight = 360, kLeft = 60, kRight = 20, kTop = 40, kBottom = 40;
  const std::vector<double> values = resampled(curve.values, 1000);
  const Range range = range_of(values);
  const double low = range.low, high = range.high, inner = kHeight - kTop - kBottom;
  const auto y = [&](double value) { return kTop + inner * (high - value) / (high - low); };
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 360\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\" fill=\"#333\">\n<rect width=\"640\" height=\"360\" fill=\"#fff\"/>\n";
  const auto add_text = [&](double at_x, double at_y, const char* anchor, const std::string& text) {
    out += "<text x=\"" + format("%.1f", at_x) + "\" y=\"" + format("%.1f", at_y) +
           "\" text-anchor=\"" + anchor + "\">" + escaped(text) + "</text>\n";
  };
  add_text(kWidth / 2, 24, "middle", curve.title);
  for (int n = 0; n <= 4; ++n) {  // lines across, with their values
    const double value = low + (high - low) * n / 4;
    out += "<path d=\"M60 " + format("%.1f", y(value)) + "H620\" stroke=\"#ddd\"/>\n";
    add_text(kLeft - 6, y(value) + 4, "end", format("%.3g", value));
  }
  std::string path;
  for (std::size_t n = 0; n < values.size(); ++n) {
    if (!std::isfinite(values[n])) continue;
    const double x = kLeft + (kWidth - kLeft - kRight) * static_cast<double>(n) /
                                 static_cast<double>(std::max<std::size_t>(values.size() - 1, 1));
    path += (path.empty() ? "M" : "L") + format("%.1f", x) + " " + format("%.1f", y(values[n]));
  }
  out += "<path d=\"" + path + "\" fill=\"none\" stroke=\"#06c\" stroke-width=\"1.5\"/>\n";
  add_text(kLeft, kHeight - 16, "start", "step " + std::to_string(curve.first));
  add_text(kWidth - kRight, kHeight - 16, "end",
           std::to_string(curve.first + static_cast<std::int64_t>(curve.values.size()) - 1));
  return out + "</svg>\n";
}

}  // namespace attend::cli
