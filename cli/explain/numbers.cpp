#include "numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace attend::cli {
namespace {

constexpr std::size_t kPairs = 16;  // scores whose norms and angle are told
constexpr std::int64_t kTerms = 8;  // products of a long sum that are told

std::string format(const char* form, double value) {
  char text[32];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

}  // namespace

Matrix matrix_of(const std::string& name, const Tensor& tensor,
                 const std::vector<std::int64_t>& lead, Origin origin, std::int64_t corner) {
  const Numbers numbers(tensor);
  Matrix m{.name = name,
           .rows = numbers.rows(),
           .columns = numbers.columns(),
           .origin = std::move(origin)};
  for (std::int64_t r = 0; r < std::min(corner, m.rows); ++r) {
    auto& row = m.cells.emplace_back();
    for (std::int64_t c = 0; c < std::min(corner, m.columns); ++c)
      row.push_back(numbers.at(lead, r, c));
  }
  return m;
}

Matrix parameters_of(const std::string& name, const Tensor& tensor, Origin origin) {
  Matrix m = matrix_of(name, tensor, {}, std::move(origin));
  const auto zero = [](const std::vector<double>& row) {
    return std::all_of(row.begin(), row.end(), [](double x) { return x == 0; });
  };
  const Numbers numbers(tensor);
  if (!std::all_of(m.cells.begin(), m.cells.end(), zero)) return m;
  std::int64_t first = 0;
  const auto at = [&](std::int64_t n) { return numbers.at({}, n / m.columns, n % m.columns); };
  while (first < m.rows * m.columns && at(first) == 0) ++first;
  if (first == m.rows * m.columns) return m;
  const auto shown_rows = std::ssize(m.cells), shown_columns = std::ssize(m.cells[0]);
  m.first_row = std::min(first / m.columns, m.rows - shown_rows);
  m.first_column = std::min(first % m.columns, m.columns - shown_columns);
  for (std::int64_t r = 0; r < shown_rows; ++r)
    for (std::int64_t c = 0; c < shown_columns; ++c)
      m.cells[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)] =
          numbers.at({}, m.first_row + r, m.first_column + c);
  return m;
}

void add_sums(Matrix& m, const Factor& a, const Factor& b, bool dot) {
  const Numbers left(a.tensor), right(b.tensor);
  if (left.columns() <= std::ssize(m.cells[0]) || left.columns() <= kTerms) return;
  for (std::int64_t r = 0; r < std::ssize(m.cells); ++r) {
    auto& line = m.sums.emplace_back();
    for (std::int64_t c = 0; c < std::ssize(m.cells[0]); ++c) {
      LongSum sum;
      for (std::int64_t n = 0; n < left.columns(); ++n) {
        const double x = left.at(a.lead, r, n);
        const double y = dot ? right.at(b.lead, c, n) : right.at(b.lead, n, c);
        if (x != 0 && y != 0) sum.terms.push_back({n, x, y});
      }
      using Term = LongSum::Term;
      const auto size = [](const Term& t) {  // NaN counts as the largest: it decides the sum
        const double product = std::abs(t.a * t.b);
        return std::isnan(product) ? std::numeric_limits<double>::infinity() : product;
      };
      std::stable_sort(sum.terms.begin(), sum.terms.end(),
                       [&](const Term& s, const Term& t) { return size(s) > size(t); });
      sum.more = std::max<std::int64_t>(0, std::ssize(sum.terms) - kTerms);
      sum.terms.resize(sum.terms.size() - static_cast<std::size_t>(sum.more), Term{});
      std::sort(sum.terms.begin(), sum.terms.end(),
                [](const Term& s, const Term& t) { return s.n < t.n; });
      line.push_back(std::move(sum));
    }
  }
}

Table geometry(const Tensor& queries, const Tensor& all_keys, const HeadPlace& place,
               const Explanation& names) {
  const Numbers q(queries), k(all_keys);
  const std::int64_t d = q.columns();
  const auto name = [](const std::vector<std::string>& tokens, std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    return at < tokens.size() ? tokens[at] : std::to_string(n);
  };
  Table table{{{"query", "查询"},
               {"key", "键"},
               {"|q|", "|q|"},
               {"|k|", "|k|"},
               {"cos", "cos"},
               {"angle", "夹角"},
               {"q . k", "q · k"}}};
  const std::int64_t keys = std::min<std::int64_t>(k.rows(), 8);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(q.rows(), 8); ++i) {
    for (std::int64_t j = 0; j < keys; ++j) {
      double qq = 0, kk = 0, qk = 0;
      for (std::int64_t n = 0; n < d; ++n) {
        const double a = q.at({place.sequence, place.head}, i, n),
                     b = k.at({place.sequence, place.key_head}, j, n);
        qq += a * a;
        kk += b * b;
        qk += a * b;
      }
      const double cosine = std::clamp(qk / std::sqrt(qq * kk), -1.0, 1.0);
      table.rows.push_back(
          {name(names.tokens, i),
           name(names.key_tokens.empty() ? names.tokens : names.key_tokens, j),
           format("%.4f", std::sqrt(qq)), format("%.4f", std::sqrt(kk)),
           qq * kk > 0 ? format("%.4f", cosine) : "-",
           qq * kk > 0 ? format("%.1f°", std::acos(cosine) * 180 / std::acos(-1.0)) : "-",
           number_text(qk)});
    }
    if (table.rows.size() + static_cast<std::size_t>(keys) > kPairs) break;
  }
  return table;
}

}  // namespace attend::cli
