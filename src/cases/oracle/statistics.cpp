#include "statistics.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace attend::oracle {
namespace {

constexpr double kUnderflow = 0x1p-126;  // a weight below this may have become 0

// A sum, with the digits that rounding takes: thousands of equal weights round to the same side.
struct Sum {
  double high = 0, low = 0, terms = 0;
  void operator+=(double x) {
    const double sum = high + x, of_x = sum - high;
    low += (high - (sum - of_x)) + (x - of_x);
    high = sum;
    terms += 1;
  }
  // What a kernel may lose that adds the terms, none of them negative, one by one in f64.
  double loss() const { return terms * 0x1p-53 * high; }
  operator double() const { return high + low; }  // NOLINT: it is one
};

std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }

bool packed_keys(const AttentionOptions& options) {
  return options.cu_seqlens_q && !options.block_table;
}

// The keys that causal, window, lengths and short masks leave to a position.
bool by_position(const AttentionOptions& o, const SequenceRows& rows, std::int64_t position,
                 std::int64_t j) {
  const auto beyond = [&](const ConstTensorView& t) {
    return t && t.rank() > 0 && t.size(t.rank() - 1) != 1 && j >= t.size(t.rank() - 1);
  };
  return j < rows.key_length && !(o.causal && j > position) && position - j <= o.window.left &&
         j - position <= o.window.right && !beyond(o.mask) && !beyond(o.bias);
}

}  // namespace

Inspection::Inspection(const Reader& reader) {
  const Arguments& a = reader.arguments();
  const bool packed = packed_keys(a.options);
  const std::int64_t keys = packed ? a.k.size(2) : reader.extents().keys;
  tokens = packed ? Tensor({keys}, DType::i64) : Tensor({reader.extents().batch, keys}, DType::i64);
  for (std::int64_t n = 0; n < tokens.count(); ++n)
    tokens.data<std::int64_t>()[n] = n * n % 7 * (std::int64_t{1} << 40);
  options = {.top_k = 5, .local_width = 2, .tokens = tokens, .tile_rows = 4, .tile_columns = 3};
}

// The matrix of one head: weights, how far off they may be, and what is visible.
struct StatisticsExamination::HeadTruth {
  std::int64_t b = 0, h = 0, queries = 0, keys = 0, listed = 0;
  SequenceRows rows;
  std::vector<double> p, error;  // [queries, keys]
  std::vector<bool> visible;
  std::vector<std::int64_t> tokens;  // [keys]
  std::size_t ij(std::int64_t i, std::int64_t j) const { return at(i * keys + j); }
};

StatisticsExamination::HeadTruth StatisticsExamination::head_truth(
    std::int64_t b, std::int64_t h, const InspectOptions& options) const {
  const Extents& e = reader_.extents();
  const AttentionOptions& asked = reader_.arguments().options;
  HeadTruth head;
  head.b = b, head.h = h;
  head.rows = rows_of(reader_.arguments(), b);
  head.queries = static_cast<std::int64_t>(head.rows.queries.size());
  head.keys = static_cast<std::int64_t>(head.rows.keys.size());
  head.listed = packed_keys(asked) ? head.keys : e.keys;
  for (std::int64_t i = 0; i < head.queries; ++i) {
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t n = at(((b * e.heads + h) * e.queries + i) * e.keys + j);
      head.p.push_back(truth_.weights[n]);
      head.visible.push_back(truth_.masked[n] > -std::numeric_limits<double>::infinity());
      head.error.push_back(u_acc_ * bounds_.weights[n] + 2 * kUnderflow);
    }
  }
  const std::vector<std::int64_t> tokens = integers(options.tokens);
  for (std::int64_t j = 0; j < head.keys; ++j)
    head.tokens.push_back(
        tokens[at(packed_keys(asked) ? head.rows.keys[at(j)].t : b * e.keys + j)]);
  return head;
}

void StatisticsExamination::check(const std::string& what, double found, double truth,
                                  double allowed) {
  if (found == truth) return;
  allowed += unit_roundoff(type_) * std::abs(truth) + kUnderflow;
  const double error = std::abs(found - truth);
  if (error <= allowed) {
    worst_ = std::max(worst_, error / allowed);
  } else if (++shown_ <= 3) {
    char numbers[120];
    std::snprintf(numbers, sizeof numbers, " is %.17g, truth %.17g, allowed error %.3g\n", found,
                  truth, allowed);
    wrong_ += what + numbers;
  }
}

void StatisticsExamination::rows(const HeadTruth& head, const Statistics& found,
                                 std::int64_t top_k) {
  const std::int64_t heads = reader_.extents().heads, length = reader_.arguments().q.size(2);
  const std::vector<double> lse = widen(found.lse), maximum = widen(found.maximum),
                            entropy = widen(found.entropy), weights = widen(found.top_weights);
  for (std::int64_t i = 0; i < head.queries; ++i) {
    const RowAddress& row = head.rows.queries[at(i)];
    const std::size_t n = at((row.b * heads + head.h) * length + row.t);
    const std::string name = "[" + std::to_string(n) + "]";
    double most = 0, off = 0, h_off = 0;
    Sum h;
    std::vector<std::int64_t> order;
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.ij(i, j);
      if (!head.visible[ij]) continue;
      order.push_back(j);
      const double p = head.p[ij], log_p = p > 0 ? -std::log(p) : 0;
      most = std::max(most, p);
      off = std::max(off, head.error[ij]);
      h += p * log_p;
      h_off += head.error[ij] * (1 + log_p);
    }
    check("lse" + name, lse[n], truth_.lse[n], u_acc_ * bounds_.lse[n]);
    check("maximum" + name, maximum[n], most, off);
    check("entropy" + name, entropy[n], h, h_off + h.loss());
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t x, std::int64_t y) {
      return head.p[head.ij(i, x)] > head.p[head.ij(i, y)];
    });
    std::vector<std::int64_t> seen;
    for (std::int64_t x = 0; x < top_k; ++x) {
      const std::size_t place = at(static_cast<std::int64_t>(n) * top_k + x);
      const std::string where = "[" + std::to_string(place) + "]";
      const std::int64_t key = found.top_keys.data<std::int64_t>()[place];
      if (at(x) >= order.size()) {
        check("top_keys" + where, static_cast<double>(key), -1, 0);
        check("top_weights" + where, weights[place], 0, 0);
        continue;
      }
      // Keys whose weights are too near to be told apart may change places.
      const bool known = key >= 0 && key < head.keys && head.visible[head.ij(i, key)] &&
                         std::count(seen.begin(), seen.end(), key) == 0;
      check("top_keys" + where + " that are visible, once", known ? 1 : 0, 1, 0);
      if (!known) continue;
      seen.push_back(key);
      const double truth = head.p[head.ij(i, order[at(x)])];
      check("weight of top_keys" + where, head.p[head.ij(i, key)], truth, 2 * off);
      check("top_weights" + where, weights[place], head.p[head.ij(i, key)],
            head.error[head.ij(i, key)]);
    }
  }
}

void StatisticsExamination::keys(const HeadTruth& head, const Statistics& found) {
  const std::vector<double> mass = widen(found.key_mass);
  for (std::int64_t j = 0; j < head.listed; ++j) {
    Sum truth;
    double off = 0;
    for (std::int64_t i = 0; j < head.keys && i < head.queries; ++i) {
      if (!head.visible[head.ij(i, j)]) continue;
      truth += head.p[head.ij(i, j)];
      off += head.error[head.ij(i, j)];
    }
    const bool packed = packed_keys(reader_.arguments().options);
    const std::int64_t b = packed ? 0 : head.b, t = packed ? head.rows.keys[at(j)].t : j;
    const std::size_t n = at((b * reader_.extents().heads + head.h) * found.key_mass.size(2) + t);
    check("key_mass[" + std::to_string(n) + "]", mass[n], truth, off + truth.loss());
  }
}

void StatisticsExamination::map(const HeadTruth& head, const Statistics& found) {
  const std::vector<double> means = widen(found.tile_mean), maxima = widen(found.tile_maximum);
  const std::int64_t rows = found.tile_mean.size(2), columns = found.tile_mean.size(3);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      Sum sum;
      double most = 0, off = 0, largest_off = 0, visible = 0;
      const std::int64_t i_end = std::min(head.queries, (r + 1) * found.tile_queries);
      const std::int64_t j_end = std::min(head.keys, (c + 1) * found.tile_keys);
      for (std::int64_t i = r * found.tile_queries; i < i_end; ++i) {
        for (std::int64_t j = c * found.tile_keys; j < j_end; ++j) {
          const std::size_t ij = head.ij(i, j);
          if (!head.visible[ij]) continue;
          sum += head.p[ij];
          most = std::max(most, head.p[ij]);
          off += head.error[ij];
          largest_off = std::max(largest_off, head.error[ij]);
          visible += 1;
        }
      }
      const std::size_t n =
          at(((head.b * reader_.extents().heads + head.h) * rows + r) * columns + c);
      const std::string name = "[" + std::to_string(n) + "]";
      const bool none = visible == 0;
      check("tile_mean" + name, means[n], none ? -1 : sum / visible,
            none ? 0 : (off + sum.loss()) / visible);
      check("tile_maximum" + name, maxima[n], none ? -1 : most, none ? 0 : largest_off);
    }
  }
}

void StatisticsExamination::metrics(const HeadTruth& head, const HeadStatistics& found,
                                    const InspectOptions& options) {
  struct Mean {
    Sum sum;
    double off = 0, rows = 0;
    void add(double value, double error) { sum += value, off += error; }
  };
  Mean entropy, evenness, maximum, distance, previous, first, diagonal, local, uniform, duplicate,
      induction;
  const AttentionOptions& asked = reader_.arguments().options;
  for (std::int64_t i = 0; i < head.queries; ++i) {
    const std::int64_t position = i + head.rows.offset;
    const bool token = position >= 0 && position < head.keys;
    Sum h;
    double h_off = 0, most = 0, most_off = 0, visible = 0, near = 0, positions = 0;
    bool has_duplicate = false, has_induction = false;
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.ij(i, j);
      const double away = std::abs(static_cast<double>(position - j));
      const bool is_local = away <= static_cast<double>(options.local_width);
      const bool is_duplicate =
          token && j < position && head.tokens[at(j)] == head.tokens[at(position)];
      const bool is_induction =
          token && j > 0 && j <= position && head.tokens[at(j - 1)] == head.tokens[at(position)];
      if (by_position(asked, head.rows, position, j)) {
        positions += 1;
        near += is_local ? 1 : 0;
        has_duplicate |= is_duplicate;
        has_induction |= is_induction;
      }
      if (!head.visible[ij]) continue;
      const double p = head.p[ij], error = head.error[ij], log_p = p > 0 ? -std::log(p) : 0;
      visible += 1;
      h += p * log_p;
      h_off += error * (1 + log_p);
      most = std::max(most, p);
      most_off = std::max(most_off, error);
      distance.add(p * away, error * away);
      if (j == position - 1) previous.add(p, error);
      if (j == 0) first.add(p, error);
      if (j == position) diagonal.add(p, error);
      if (is_local) local.add(p, error);
      if (is_duplicate) duplicate.add(p, error);
      if (is_induction) induction.add(p, error);
    }
    duplicate.rows += has_duplicate;
    induction.rows += has_induction;
    uniform.rows += positions > 0;
    uniform.add(positions > 0 ? near / positions : 0, 0);
    for (Mean* mean : {&entropy, &maximum, &distance, &previous, &first, &diagonal, &local})
      mean->rows += visible > 0;
    entropy.add(h, h_off + h.loss());
    maximum.add(most, most_off);
    evenness.rows += visible > 1;
    if (visible > 1) evenness.add(h / std::log(visible), (h_off + h.loss()) / std::log(visible));
  }
  const std::string where =
      " of head " + std::to_string(head.h) + ", batch " + std::to_string(head.b);
  check("rows" + where, static_cast<double>(found.rows), entropy.rows, 0);
  const auto mean_is = [&](const char* name, double value, const Mean& mean) {
    const double rows = std::max(1.0, mean.rows);
    // The weights' errors, and those of their sum.
    check(name + where, value, mean.sum / rows, (mean.off + mean.sum.loss()) / rows);
  };
  mean_is("entropy", found.entropy, entropy);
  mean_is("evenness", found.evenness, evenness);
  mean_is("maximum", found.maximum, maximum);
  mean_is("distance", found.distance, distance);
  mean_is("previous", found.previous, previous);
  mean_is("first", found.first, first);
  mean_is("diagonal", found.diagonal, diagonal);
  mean_is("local", found.local, local);
  mean_is("local_uniform", found.local_uniform, uniform);
  mean_is("duplicate", found.duplicate, duplicate);
  mean_is("induction", found.induction, induction);
}

void StatisticsExamination::examine(const Statistics& found, const InspectOptions& options) {
  type_ = found.lse.dtype();
  for_each_head(reader_, [&](std::int64_t b, std::int64_t h) {
    const HeadTruth head = head_truth(b, h, options);
    rows(head, found, options.top_k);
    keys(head, found);
    map(head, found);
    metrics(head, found.heads[at(b * reader_.extents().heads + h)], options);
  });
  if (shown_ > 3) wrong_ += std::to_string(shown_) + " numbers are wrong\n";
}

}  // namespace attend::oracle
