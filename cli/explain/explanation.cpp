#include "explanation.h"

#include "frame/usage_error.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace attend::cli {
namespace {

constexpr std::int64_t kTerms = 8;  // of a long sum that are written out

// Writes one derivation: operands are taken from matrices and remembered.
class Writer {
 public:
  Writer(const Explanation& explanation, const Matrix& matrix) : e_(explanation), m_(matrix) {}

  const Matrix& source(std::size_t n) const { return *e_.find(m_.origin.from[n]); }

  // Remembers a cell of a source, if it is shown.
  const double* refer(const Matrix& matrix, std::int64_t row, std::int64_t column) {
    row -= matrix.first_row;
    column -= matrix.first_column;
    const auto r = static_cast<std::size_t>(row), c = static_cast<std::size_t>(column);
    if (row < 0 || column < 0 || r >= matrix.cells.size() || c >= matrix.cells[r].size())
      return nullptr;
    from.push_back({matrix.name, row, column});
    return &matrix.cells[r][c];
  }

  // The number in a cell of a source; "..." if it lies outside of what is shown.
  std::string cell(const Matrix& matrix, std::int64_t row, std::int64_t column) {
    const double* value = refer(matrix, row, column);
    return value == nullptr ? "..." : factor(*value);
  }
  static std::string factor(double value) {
    return value < 0 ? "(" + number_text(value) + ")" : number_text(value);
  }

  // The products of a long sum that matter. `dot`: B's rows are summed over its columns.
  std::string long_sum(const LongSum& sum, std::int64_t row, std::int64_t column, bool dot) {
    const Matrix &a = source(0), &b = source(1);
    std::string text;
    for (const LongSum::Term& term : sum.terms) {
      refer(a, row, term.n);
      if (dot) refer(b, column, term.n);
      else refer(b, term.n, column);
      text += (text.empty() ? "" : " + ") + factor(term.a) + " x " + factor(term.b);
    }
    const auto count = static_cast<std::int64_t>(sum.terms.size());
    if (sum.more > 0) return text + " + ... (" + std::to_string(sum.more) + " more)";
    if (count == a.columns) return text;
    return text + (text.empty() ? "" : " + ") + std::to_string(a.columns - count) + " x 0";
  }

  // Two cells, multiplied.
  struct Place {
    const Matrix& matrix;
    std::int64_t row, column;
  };
  std::string times(const Place& a, const Place& b) {
    const std::string first = cell(a.matrix, a.row, a.column);  // `from` is in the order of reading
    return first + " x " + cell(b.matrix, b.row, b.column);
  }

  // sum over n < count of term(n), the first ones written out.
  template <class Term>
  std::string sum(std::int64_t count, std::int64_t shown, Term&& term) {
    std::string text;
    shown = std::min({count, shown, kTerms});
    for (std::int64_t n = 0; n < shown; ++n) text += (n == 0 ? "" : " + ") + term(n);
    if (shown < count)
      text += (shown == 0 ? "... (" : " + ... (") + std::to_string(count - shown) + " more)";
    return text;
  }

  std::vector<Cell> from;

 private:
  const Explanation& e_;
  const Matrix& m_;
};

std::int64_t shown_columns(const Matrix& matrix) {
  return matrix.cells.empty() ? 0 : static_cast<std::int64_t>(matrix.cells[0].size());
}
std::int64_t shown_rows(const Matrix& matrix) {
  return static_cast<std::int64_t>(matrix.cells.size());
}

const LongSum& sum_of(const Matrix& m, std::int64_t r, std::int64_t c) {
  return m.sums[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
}

std::string derived(Writer& w, const Matrix& m, std::int64_t r, std::int64_t c) {
  const Origin& origin = m.origin;
  const auto number = static_cast<std::int64_t>(origin.number);
  const double value = m.cells[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
  const std::string is = " = " + number_text(value);
  switch (origin.rule) {
    case Rule::given: return "";
    case Rule::product: {
      const Matrix &a = w.source(0), &b = w.source(1);
      std::string text =
          !m.sums.empty()
              ? w.long_sum(sum_of(m, r, c), r, c, false)
              : w.sum(a.columns, std::min(shown_columns(a), shown_rows(b)), [&](std::int64_t n) {
                  return w.times({a, r, n}, {b, n, c});
                });
      if (origin.from.size() > 2) text += " + " + w.cell(w.source(2), 0, c);
      return text + is;
    }
    case Rule::dot: {
      const Matrix &a = w.source(0), &b = w.source(1);
      if (!m.sums.empty()) return w.long_sum(sum_of(m, r, c), r, c, true) + is;
      return w.sum(a.columns, std::min(shown_columns(a), shown_columns(b)), [&](std::int64_t n) {
        return w.times({a, r, n}, {b, c, n});
      }) + is;
    }
    case Rule::scaled: return w.cell(w.source(0), r, c) + " x " + number_text(origin.number) + is;
    case Rule::softcapped:
      return number_text(origin.number) + " tanh(" + w.cell(w.source(0), r, c) + " / " +
             number_text(origin.number) + ")" + is;
    case Rule::masked: {
      const Matrix& a = w.source(0);
      const double before = a.cells[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
      const std::string text = w.cell(a, r, c);
      if (value == before || std::isinf(value)) return text + (value == before ? is : " -> -inf");
      return text + " + " + number_text(value - before) + is;
    }
    case Rule::lse: {
      const Matrix& a = w.source(0);
      return "log(" +
             w.sum(a.columns, shown_columns(a),
                   [&](std::int64_t n) { return "exp " + w.cell(a, r, n); }) +
             ")" + is;
    }
    case Rule::softmax: {
      const std::string score = w.cell(w.source(0), r, c);
      return "exp(" + score + " - " + w.cell(w.source(1), r, 0) + ")" + is;
    }
    case Rule::rows: return w.cell(w.source(0), r + number, c);
    case Rule::joined: {
      const auto n = static_cast<std::size_t>(c / number);
      return n < origin.from.size() ? w.cell(w.source(n), r, c % number) : "";
    }
    case Rule::sum:
      return w.sum(static_cast<std::int64_t>(origin.from.size()),
                   static_cast<std::int64_t>(origin.from.size()),
                   [&](std::int64_t n) {
                     return w.cell(w.source(static_cast<std::size_t>(n)), r, c);
                   }) +
             is;
  }
  return "";
}

}  // namespace

Step& Explanation::step(const std::string& id) {
  for (Step& one : steps)
    if (one.id == id) return one;
  throw UsageError("there is no step " + id);
}

const Matrix* Explanation::find(const std::string& matrix) const {
  for (const Step& one : steps)
    for (const Matrix& m : one.matrices)
      if (m.name == matrix) return &m;
  return nullptr;
}

Derivation derivation_of(const Explanation& explanation, const Matrix& matrix, std::int64_t row,
                         std::int64_t column) {
  for (const std::string& name : matrix.origin.from)
    if (explanation.find(name) == nullptr) return {};  // what it was made of is not told
  Writer writer(explanation, matrix);
  std::string text = derived(writer, matrix, row, column);
  return {std::move(text), std::move(writer.from)};
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", value == 0 ? 0.0 : value);  // no minus before a zero
  return text;
}

std::string rows_text(const std::vector<std::vector<double>>& rows) {
  std::string text;
  char digits[32];
  for (const std::vector<double>& row : rows) {
    text += text.empty() ? "[" : ", [";
    for (std::size_t n = 0; n < row.size(); ++n) {
      std::snprintf(digits, sizeof digits, "%.7f", row[n]);
      std::string number = digits;
      number.erase(number.find_last_not_of('0') + 1);
      if (number.back() == '.') number.pop_back();
      text += (n == 0 ? "" : ", ") + (number == "-0" ? "0" : number);
    }
    text += "]";
  }
  return "[" + text + "]";
}

}  // namespace attend::cli
