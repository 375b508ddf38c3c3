#include "view/numbers.h"

#include "view/blobs.h"

#include <algorithm>
#include <cmath>

namespace attend::view {
namespace {

// Pairs of queries and keys that one call goes through: about a second of work.
constexpr std::int64_t kPairsAtOnce = std::int64_t{1} << 28;

// Heads of a call: whole groups, or the largest part of one that divides it.
std::int64_t heads_at_once(const Single& s) {
  const std::int64_t most = std::max<std::int64_t>(1, kPairsAtOnce / s.queries() / s.keys());
  if (most >= s.group()) return most / s.group() * s.group();
  std::int64_t count = most;
  while (s.group() % count != 0) --count;
  return count;
}

// The numbers [heads, all] of a tensor of statistics from `begin` on, of each head.
void append(std::vector<float>& to, const Tensor& tensor, std::int64_t heads,
            std::int64_t begin = 0) {
  const std::int64_t all = tensor.count() / heads;
  const auto copy = [&]<class T>(const T* from) {
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t n = begin; n < all; ++n)
        to.push_back(static_cast<float>(from[h * all + n]));
  };
  if (tensor.dtype() == DType::f64) copy(tensor.data<double>());
  else copy(tensor.data<float>());
}

class Gathering {
 public:
  Gathering(const Single& s, const LayerContent& content) : s_(s), content_(content) {
    out_.windows.resize(content.windows.size());
  }

  void add(const Single::Part& part, const Statistics& found, Context& context) {
    const std::int64_t rows_from = s_.queries() - content_.rows;
    if (content_.rows > 0) append(out_.lse, found.lse, part.count, rows_from);
    append(out_.entropy, found.entropy, part.count);
    append(out_.maximum, found.maximum, part.count);
    append(out_.mass, found.key_mass, part.count);
    append(out_.tile_mean, found.tile_mean, part.count);
    append(out_.tile_maximum, found.tile_maximum, part.count);
    out_.heads.insert(out_.heads.end(), found.heads.begin(), found.heads.end());
    out_.tile_rows = found.tile_mean.size(2), out_.tile_columns = found.tile_mean.size(3);
    out_.tile_queries = found.tile_queries, out_.tile_keys = found.tile_keys;
    if (content_.rows > 0) add_top(found, part.count, rows_from);
    add_windows(part, found.lse, context);
  }

  LayerNumbers take() { return std::move(out_); }

 private:
  void add_top(const Statistics& found, std::int64_t heads, std::int64_t rows_from) {
    const std::int64_t k = found.top_keys.size(3);
    std::vector<float> weights;
    append(weights, found.top_weights, heads, rows_from * k);
    for (const float p : weights) out_.top_weights.push_back(log16(p));
    const auto* keys = found.top_keys.data<std::int64_t>();
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t n = rows_from * k; n < s_.queries() * k; ++n)
        out_.top_keys.push_back(static_cast<std::int32_t>(keys[h * s_.queries() * k + n]));
  }

  void add_windows(const Single::Part& part, const Tensor& lse, Context& context) {
    for (std::size_t n = 0; n < content_.windows.size(); ++n) {
      WeightsWindow window = content_.windows[n];
      window.head -= part.from;
      if (window.head < 0 || window.head >= part.count) continue;
      append(out_.windows[n], weights_of(part.q, part.k, lse, window, part.options, context), 1);
    }
  }

  const Single& s_;
  const LayerContent& content_;
  LayerNumbers out_;
};

// Adds the pairs of query i that are visible to the columns of tiles.
void count_row(const Single& s, std::int64_t h, std::int64_t i, std::int64_t tile_keys,
               std::int64_t* seen) {
  const KeyRange keys = s.positions(i);
  if (keys.begin >= keys.end) return;
  for (std::int64_t c = keys.begin / tile_keys; c <= (keys.end - 1) / tile_keys; ++c) {
    const std::int64_t begin = std::max(keys.begin, c * tile_keys);
    const std::int64_t end = std::min(keys.end, (c + 1) * tile_keys);
    if (!s.masked()) seen[c] += end - begin;
    for (std::int64_t j = begin; s.masked() && j < end; ++j) seen[c] += s.allowed(h, i, j);
  }
}

}  // namespace

LayerNumbers numbers_of(const Single& s, const LayerContent& content, const ConstTensorView& tokens,
                        const HeadsDone& done, Context& context) {
  Gathering gathering(s, content);
  const std::int64_t each = heads_at_once(s);
  for (std::int64_t from = 0; from < s.heads(); from += each) {
    const Single::Part part = s.part(from, std::min(each, s.heads() - from));
    const Statistics found = inspect(part.q, part.k, part.options,
                                     {.top_k = content.rows > 0 ? content.k : 0,
                                      .tokens = tokens,
                                      .tile_rows = content.tiles,
                                      .tile_columns = content.tiles},
                                     context);
    gathering.add(part, found, context);
    done(part.count);
  }
  return gathering.take();
}

std::vector<std::int64_t> visible_pairs(const Single& s, const LayerNumbers& numbers,
                                        const Context& context) {
  const std::int64_t heads = s.masked_by_head() ? s.heads() : 1, rows = numbers.tile_rows;
  std::vector<std::int64_t> pairs(static_cast<std::size_t>(heads * rows * numbers.tile_columns));
  context.parallel_for(heads * rows, [&](std::int64_t n) {
    const std::int64_t begin = n % rows * numbers.tile_queries;
    const std::int64_t end = std::min(begin + numbers.tile_queries, s.queries());
    for (std::int64_t i = begin; i < end; ++i)
      count_row(s, n / rows, i, numbers.tile_keys, pairs.data() + n * numbers.tile_columns);
  });
  return pairs;
}

std::vector<float> value_norms(const Single& s) {
  const Strided v = strided(s.v);
  std::vector<double> row(static_cast<std::size_t>(s.v.size(3)));
  std::vector<float> norms;
  for (std::int64_t h = 0; h < s.key_heads(); ++h)
    for (std::int64_t j = 0; j < s.keys(); ++j) {
      load_row(v, v.offset(0, h, j), s.v.size(3), row.data());
      double sum = 0;
      for (const double x : row) sum += x * x;
      norms.push_back(static_cast<float>(std::sqrt(sum)));
    }
  return norms;
}

// |W_h v|^2 = v^T (W_h^T W_h) v: a matrix [dv, dv] for each head, then d_v^2 products for each key
// in place of model_dim d_v.
std::vector<float> output_norms(const Single& s, const ConstTensorView& w_o,
                                const Context& context) {
  const std::int64_t dv = s.v.size(3), model_dim = w_o.size(0);
  const Strided w = strided(w_o), v = strided(s.v);
  const auto square = static_cast<std::size_t>(dv * dv), width = static_cast<std::size_t>(dv);
  std::vector<double> products(static_cast<std::size_t>(s.heads()) * square);
  std::vector<double> rows(static_cast<std::size_t>(s.heads()) * width);
  std::vector<float> norms(static_cast<std::size_t>(s.heads() * s.keys()));
  context.parallel_for(s.heads(), [&](std::int64_t h) {
    double* gram = products.data() + h * dv * dv;
    double* row = rows.data() + h * dv;
    for (std::int64_t m = 0; m < model_dim; ++m) {
      load_row(w, w.offset(0, 0, m, h * dv), dv, row);
      for (std::int64_t a = 0; a < dv; ++a)
        for (std::int64_t b = 0; b < dv; ++b) gram[a * dv + b] += row[a] * row[b];
    }
    for (std::int64_t j = 0; j < s.keys(); ++j) {
      load_row(v, v.offset(0, h / s.group(), j), dv, row);
      double sum = 0;
      for (std::int64_t a = 0; a < dv; ++a) {
        double part = 0;
        for (std::int64_t b = 0; b < dv; ++b) part += gram[a * dv + b] * row[b];
        sum += row[a] * part;
      }
      norms[static_cast<std::size_t>(h * s.keys() + j)] =
          static_cast<float>(std::sqrt(std::max(sum, 0.0)));
    }
  });
  return norms;
}

}  // namespace attend::view
