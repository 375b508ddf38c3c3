// What `attend explain` tells, before anybody decides how it looks: steps with formulas and shapes,
// and matrices whose every cell knows the cells that it was made of. The terminal, the page and the
// JSON object are three ways to show the same Explanation.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace attend::cli {

enum class Language { english, chinese };

struct Phrase {
  Phrase(std::string both) : english(both), chinese(std::move(both)) {}  // NOLINT: the same in both
  Phrase(const char* both) : english(both), chinese(both) {}             // NOLINT
  Phrase(std::string en, std::string zh) : english(std::move(en)), chinese(std::move(zh)) {}
  std::string english, chinese;
  const std::string& in(Language language) const {
    return language == Language::english ? english : chinese;
  }
};

// How cell [r, c] is made of cells of other matrices; `number` belongs to some of the rules.
enum class Rule {
  given,
  product,     // sum_n A[r, n] B[n, c] (+ b[0, c], if there is a third)
  dot,         // sum_n A[r, n] B[c, n]
  scaled,      // A[r, c] * number
  softcapped,  // number * tanh(A[r, c] / number)
  masked,      // A[r, c] + what was added; -inf where hidden
  lse,         // log sum_j exp(A[r, j])
  softmax,     // exp(A[r, c] - L[r, 0])
  rows,        // A[r + number, c]
  joined,      // A_n[r, c - n number], n = c / number
  sum,         // A_0[r, c] + A_1[r, c] + ...
};
struct Origin {
  Rule rule = Rule::given;
  std::vector<std::string> from{};  // names of matrices of the same Explanation
  double number = 0;
};

// The largest products of a sum that is too long to be written out, in their order.
struct LongSum {
  struct Term {
    std::int64_t n;
    double a, b;
  };
  std::vector<Term> terms{};
  std::int64_t more = 0;  // products besides that are not 0
};

struct Matrix {
  std::string name;                          // no two of an Explanation are the same
  std::int64_t rows = 0, columns = 0;        // the whole
  std::vector<std::vector<double>> cells{};  // the part of it that is shown
  Origin origin{};
  std::int64_t first_row = 0, first_column = 0;  // where that part begins
  std::vector<std::vector<LongSum>> sums{};      // of a product; for each cell, or none
  enum class Axis { positions, tokens } down = Axis::positions, across = Axis::positions;
  bool weights = false;      // numbers from 0 to 1: shaded
  bool only_shades = false;  // in a terminal, without the numbers
};

// A number or a remark of the notes that is wrong, the true one, and why.
struct Claim {
  Phrase said, truth, why;
};

struct Table {
  std::vector<Phrase> header{};
  std::vector<std::vector<Phrase>> rows{};
};

struct Step {
  std::string id;  // "scores"
  Phrase title;
  std::string formula{}, shapes{};
  std::vector<Matrix> matrices{};
  std::vector<Phrase> remarks{};
  std::vector<Claim> claims{};
  Table table{};
  std::vector<Phrase> drawing{};
};

struct Explanation {
  std::string name;  // "single-head"
  Phrase title;
  std::vector<Phrase> opening{};
  std::vector<std::string> tokens{}, key_tokens{};  // may be none; key_tokens none: as tokens
  std::vector<Step> steps{};

  Step& step(const std::string& id);
  const Matrix* find(const std::string& matrix) const;
};

// How a cell came about, in numbers: "1 x 0.5 + 3 x 2 = 6.5", and the cells that it names; these
// count from the first one that is shown, as `row` and `column` do.
struct Cell {
  std::string matrix;
  std::int64_t row = 0, column = 0;
};
struct Derivation {
  std::string text;
  std::vector<Cell> from;
};
Derivation derivation_of(const Explanation& explanation, const Matrix& matrix, std::int64_t row,
                         std::int64_t column);

std::string number_text(double value);                                // at most seven digits
std::string rows_text(const std::vector<std::vector<double>>& rows);  // "[[6.5, 10], [2, 3.5]]"

}  // namespace attend::cli
