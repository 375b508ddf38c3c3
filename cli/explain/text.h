// An Explanation for a terminal.
#pragma once

#include "explanation.h"

namespace attend::cli {

struct Look {
  Language language = Language::english;
  std::size_t columns = 80;
  bool colour = false, unicode = true;

  // As stdout is: colours on a terminal without NO_COLOR only, blocks where the locale is UTF-8,
  // at most 100 columns, and 80 where stdout is no terminal.
  static Look of_stdout(Language language);

  std::string in(const char* colour_code, const std::string& text) const;
};

std::string terminal_text(const Explanation& explanation, const Look& look);

// A square of shades with its title above and a name before each row, as lines of one width.
// hidden(r, c): what the query does not see, a dot.
using Lines = std::vector<std::string>;
Lines heatmap(const std::string& title, const std::vector<std::vector<double>>& weights,
              const std::vector<std::vector<bool>>& hidden, const std::vector<std::string>& names,
              const Look& look);

// Blocks of lines beside each other, as many as fit into the look's columns; then the next ones.
std::string beside(const std::vector<Lines>& blocks, const Look& look);

}  // namespace attend::cli
