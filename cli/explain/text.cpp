#include "text.h"

#include "frame/glyphs.h"
#include "frame/terminal.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace attend::cli {
namespace {

constexpr std::size_t kIndent = 3, kNames = 9;  // columns; of the names of tokens
const std::string kSpace(kIndent, ' ');

// The number of columns of a line without its escape sequences.
std::size_t seen_width(const std::string& line) {
  std::string plain;
  for (std::size_t n = 0; n < line.size(); ++n) {
    if (line[n] == '\033')
      while (n < line.size() && line[n] != 'm') ++n;
    else plain += line[n];
  }
  return width_of(plain);
}

// ---- matrices ----------------------------------------------------------------------------------

// As few decimals as show every number exactly, at most `most`.
int decimals_of(const std::vector<std::vector<double>>& cells, int most) {
  int decimals = 0;
  for (const auto& row : cells)
    for (const double value : row)
      while (decimals < most && std::isfinite(value)) {
        const double scaled = value * std::pow(10, decimals);
        if (std::abs(scaled - std::round(scaled)) < 1e-7 * std::max(1.0, std::abs(scaled))) break;
        ++decimals;
      }
  return decimals;
}

std::string cell_text(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", std::isfinite(value) ? decimals : 0, value);
  std::string digits = text;
  const bool zero = digits.find_first_not_of("-0.") == digits.npos;
  if (zero && value != 0) {  // too small for these decimals, and not nothing
    std::snprintf(text, sizeof text, "%.1e", value);
    return text;
  }
  if (zero && digits[0] == '-') digits.erase(0, 1);
  return digits;
}

std::string token_name(const std::vector<std::string>& tokens, std::size_t n) {
  return n < tokens.size() ? printable(tokens[n]) : std::to_string(n);
}

class MatrixText {
 public:
  MatrixText(const Explanation& e, const Matrix& m, const Look& look) : e_(e), m_(m), look_(look) {
    const std::size_t columns = m.cells.empty() ? 0 : m.cells[0].size();
    const int decimals = decimals_of(m.cells, columns <= 4 ? 7 : 4);
    for (const auto& row : m.cells) {
      auto& line = texts_.emplace_back();
      for (const double value : row) line.push_back(cell_text(value, decimals));
    }
    if (m.down == Matrix::Axis::tokens)
      for (std::size_t r = 0; r < m.cells.size(); ++r)
        names_ = std::max(names_, std::min(kNames, width_of(token_name(e.tokens, r))));
    for (const auto& line : texts_)
      for (const std::string& text : line) cell_ = std::max(cell_, text.size());
    if (m.across == Matrix::Axis::tokens)
      for (std::size_t c = 0; c < columns; ++c)
        cell_ = std::max(cell_, std::min<std::size_t>(7, width_of(key_name(c))));
    const std::size_t room = look.columns - kIndent - names_ - 6;
    columns_ = std::min(columns, room / (cell_ + 2));
  }

  Lines lines() const {
    Lines block{look_.in("1", m_.name) + "  " + look_.in("2", sizes())};
    if (m_.across == Matrix::Axis::tokens) block.push_back(header());
    for (std::size_t r = 0; r < texts_.size(); ++r) block.push_back(row(r));
    if (m_.rows > static_cast<std::int64_t>(texts_.size())) block.push_back(pad() + "   ...");
    return block;
  }

 private:
  std::string key_name(std::size_t c) const {
    return token_name(e_.key_tokens.empty() ? e_.tokens : e_.key_tokens, c);
  }
  std::string pad() const { return std::string(names_, ' '); }
  std::string sizes() const {
    std::string text = "[" + std::to_string(m_.rows) + ", " + std::to_string(m_.columns) + "]";
    const auto rows = static_cast<std::int64_t>(texts_.size());
    const auto columns = static_cast<std::int64_t>(columns_);
    const bool english = look_.language == Language::english;
    if (m_.first_row > 0 || m_.first_column > 0)
      text += (english ? " rows " : " 第 ") + span(m_.first_row, rows) +
              (english ? ", columns " : " 行，第 ") + span(m_.first_column, columns) +
              (english ? "" : " 列");
    else if (rows < m_.rows || columns < m_.columns)
      text += (english ? " top left " : " 左上角 ") + std::to_string(rows) + " x " +
              std::to_string(columns);
    return text;
  }
  static std::string span(std::int64_t first, std::int64_t count) {
    return std::to_string(first) + "-" + std::to_string(first + count - 1);
  }
  std::string header() const {
    std::string line = pad() + "  ";
    for (std::size_t c = 0; c < columns_; ++c) line += "  " + fitted(key_name(c), cell_, true);
    return look_.in("2", line);
  }
  std::string row(std::size_t r) const {
    const std::string side = look_.in("2", look_.unicode ? "│" : "|");
    std::string line;
    if (names_ > 0) line += look_.in("2", fitted(token_name(e_.tokens, r), names_));
    line += " " + side;
    for (std::size_t c = 0; c < columns_; ++c) {
      const std::string text = fitted(texts_[r][c], cell_, true);
      line += "  " + (m_.weights ? look_.in(colour_of(m_.cells[r][c]), text) : text);
    }
    return line + (columns_ < static_cast<std::size_t>(m_.columns) ? " ..." : "  " + side);
  }
  static const char* colour_of(double weight) {
    return weight >= 0.5 ? "1;36" : weight >= 0.1 ? "36" : "2";
  }

  const Explanation& e_;
  const Matrix& m_;
  const Look& look_;
  std::vector<std::vector<std::string>> texts_;
  std::size_t cell_ = 1, names_ = 0, columns_ = 0;
};

// The shades of a matrix of weights. Hidden is what has a score of -inf, where scores are told.
Lines shades(const Explanation& e, const Matrix& m, const Look& look) {
  const Matrix* scores = m.origin.from.empty() ? nullptr : e.find(m.origin.from[0]);
  std::vector<std::vector<bool>> hidden;
  std::vector<std::string> names;
  for (std::size_t r = 0; r < m.cells.size(); ++r) {
    auto& line = hidden.emplace_back();
    for (std::size_t c = 0; c < m.cells[r].size(); ++c)
      line.push_back(scores != nullptr ? std::isinf(scores->cells[r][c]) : m.cells[r][c] == 0);
    names.push_back(m.only_shades && e.tokens.empty() ? "" : token_name(e.tokens, r));
  }
  return heatmap(m.name, m.cells, hidden, names, look);
}

// ---- the rest of a step ------------------------------------------------------------------------

// Whether a letter may not begin a line: the closing marks of Chinese.
bool closes(const std::string& letter) {
  for (const char* mark : {"，", "。", "；", "：", "、", "）", "”", "！", "？"})
    if (letter == mark) return true;
  return false;
}

// Words wrapped to the width, later lines `hang` columns further in; Chinese breaks anywhere.
std::string wrapped(const std::string& text, const Look& look, std::size_t indent,
                    const char* colour, std::size_t hang = 0) {
  std::string out, line, word;
  const auto flush_line = [&] {
    const std::string space(indent + (out.empty() ? 0 : hang), ' ');
    if (!line.empty()) out += space + look.in(colour, line) + "\n";
    line.clear();
  };
  const auto flush_word = [&] {
    const std::size_t room = look.columns - indent - (out.empty() ? 0 : hang);
    if (!line.empty() && width_of(line) + width_of(word) > room) {
      flush_line();
      if (word.starts_with(' ')) word.erase(0, 1);
    }
    line += word;
    word.clear();
  };
  for (std::size_t n = 0, bytes = 1; n < text.size(); n += bytes) {
    for (bytes = 1; n + bytes < text.size() && (text[n + bytes] & 0xc0) == 0x80;) ++bytes;
    const std::string letter = text.substr(n, bytes);
    if (letter == " " || (bytes > 2 && !closes(letter))) flush_word();
    word += letter;
  }
  flush_word();
  flush_line();
  return out;
}

std::string table_text(const Table& table, const Look& look) {
  const auto text = [&](const Phrase& phrase) { return printable(phrase.in(look.language)); };
  std::vector<std::size_t> widths(table.header.size(), 0);
  const auto measure = [&](const std::vector<Phrase>& row) {
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], width_of(text(row[c])));
  };
  const auto line = [&](const std::vector<Phrase>& row) {
    std::string out = kSpace;
    for (std::size_t c = 0; c < row.size(); ++c) out += fitted(text(row[c]), widths[c]) + "  ";
    out.erase(out.find_last_not_of(' ') + 1);
    return out;
  };
  measure(table.header);
  for (const auto& row : table.rows) measure(row);
  std::string out = look.in("2", line(table.header)) + "\n";
  for (const auto& row : table.rows) out += line(row) + "\n";
  return out;
}

std::string claim_text(const Claim& claim, const Look& look) {
  const bool english = look.language == Language::english;
  const auto line = [&](const char* name, const char* chinese, const Phrase& phrase,
                        const char* colour) {
    const std::string text = (english ? name : chinese) + phrase.in(look.language);
    return wrapped(text, look, kIndent, colour, english ? 11 : 7);
  };
  return line("the notes: ", "笔记： ", claim.said, "33") +
         line("true:      ", "正确： ", claim.truth, "32") +
         line("why:       ", "原因： ", claim.why, "2");
}

// One cell in numbers: the first of the first matrix that is more than copied.
std::string worked_text(const Explanation& e, const Step& step, const Look& look) {
  for (const Matrix& m : step.matrices) {
    const Rule rule = m.origin.rule;
    if (rule == Rule::given || rule == Rule::joined || rule == Rule::rows || m.only_shades)
      continue;
    if (m.cells.empty() || m.cells[0].empty()) continue;
    const std::string how = derivation_of(e, m, 0, 0).text;
    if (!how.empty()) return wrapped(m.name + "[0, 0] = " + how, look, kIndent, "2");
  }
  return "";
}

std::string step_text(const Explanation& e, const Step& step, std::size_t number,
                      const Look& look) {
  const std::string title = std::to_string(number) + "  " + step.title.in(look.language);
  std::string out = "\n" + look.in("1", title);
  if (!step.formula.empty()) {
    const bool fits = width_of(title) + 3 + width_of(step.formula) <= look.columns;
    out += (fits ? kSpace : "\n" + kSpace) + look.in("36", step.formula);
  }
  out += "\n";
  if (!step.shapes.empty()) out += kSpace + look.in("2", step.shapes) + "\n";
  for (const Phrase& line : step.drawing) out += kSpace + line.in(look.language) + "\n";
  std::vector<Lines> blocks, maps;
  for (const Matrix& matrix : step.matrices) {
    if (!matrix.only_shades) blocks.push_back(MatrixText(e, matrix, look).lines());
    if (matrix.weights) maps.push_back(shades(e, matrix, look));
  }
  if (!blocks.empty()) out += beside(blocks, look);
  out += worked_text(e, step, look);
  if (!maps.empty()) out += beside(maps, look);
  if (!step.table.header.empty()) out += table_text(step.table, look);
  for (const Phrase& remark : step.remarks)
    out += wrapped(remark.in(look.language), look, kIndent, "0");
  for (const Claim& claim : step.claims) out += claim_text(claim, look);
  return out;
}

}  // namespace

Look Look::of_stdout(Language language) {
  const int columns = columns_of_stdout();
  return {language, static_cast<std::size_t>(columns == 0 ? 80 : std::clamp(columns, 60, 100)),
          colour_on_stdout(), unicode_terminal()};
}

std::string Look::in(const char* code, const std::string& text) const {
  if (!colour || text.empty() || code[0] == '0') return text;
  return "\033[" + std::string(code) + "m" + text + "\033[0m";
}

Lines heatmap(const std::string& title, const std::vector<std::vector<double>>& weights,
              const std::vector<std::vector<bool>>& hidden, const std::vector<std::string>& names,
              const Look& look) {
  std::size_t widest = 0;
  for (const std::string& name : names) widest = std::max(widest, width_of(name));
  const std::size_t margin = std::min(widest, kNames);
  Lines block{look.in("1", title)};
  for (std::size_t r = 0; r < weights.size(); ++r) {
    std::string cells;
    for (std::size_t c = 0; c < weights[r].size(); ++c)
      for (int twice = 0; twice < (weights[r].size() <= 12 ? 2 : 1); ++twice)  // nearly square
        cells += hidden[r][c] ? (look.unicode ? "·" : "'") : shade(weights[r][c], look.unicode);
    const std::string side = look.in("2", look.unicode ? "│" : "|");
    std::string row = margin > 0 ? look.in("2", fitted(names[r], margin)) + " " : "";
    row += side;
    row += look.in("36", cells);
    row += side;
    block.push_back(std::move(row));
  }
  return block;
}

std::string beside(const std::vector<Lines>& blocks, const Look& look) {
  std::string out;
  for (std::size_t first = 0; first < blocks.size();) {
    std::size_t last = first, used = kIndent, tallest = 0;
    std::vector<std::size_t> widths;
    for (; last < blocks.size(); ++last) {
      std::size_t width = 0;
      for (const std::string& line : blocks[last]) width = std::max(width, seen_width(line));
      if (last > first && used + width > look.columns) break;
      widths.push_back(width);
      used += width + 3;
      tallest = std::max(tallest, blocks[last].size());
    }
    for (std::size_t n = 0; n < tallest; ++n) {
      std::string line = kSpace;
      for (std::size_t b = first; b < last; ++b) {
        const std::string part = n < blocks[b].size() ? blocks[b][n] : "";
        const std::size_t fill = widths[b - first] - seen_width(part) + 3;
        line += part + (b + 1 < last ? std::string(fill, ' ') : "");
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    first = last;
    if (first < blocks.size()) out += "\n";
  }
  return out;
}

std::string terminal_text(const Explanation& explanation, const Look& look) {
  const std::string& title = explanation.title.in(look.language);
  std::string out = look.in("1", title) + "\n";
  for (std::size_t n = 0; n < width_of(title); ++n) out += look.unicode ? "─" : "-";
  out += "\n";
  for (const Phrase& phrase : explanation.opening)
    out += wrapped(phrase.in(look.language), look, 0, "0");
  for (std::size_t n = 0; n < explanation.steps.size(); ++n)
    out += step_text(explanation, explanation.steps[n], n + 1, look);
  return out;
}

}  // namespace attend::cli
