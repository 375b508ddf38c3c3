#include "truth.h"

namespace attend::test {
namespace {

std::size_t count(const ConstTensorView& view) {
  return view ? static_cast<std::size_t>(view.count()) : 0;
}

// Where row `row` of head h begins in a tensor [*, heads, *, width].
std::size_t row_index(const Shape& shape, const Row& row, std::int64_t h) {
  return static_cast<std::size_t>(((row.b * shape[1] + h) * shape[2] + row.t) * shape[3]);
}

template <class Real>
void add_rows(std::vector<Real>& to, const Shape& shape, const std::vector<Row>& rows,
              std::int64_t h, const std::vector<Real>& from) {
  const auto width = static_cast<std::size_t>(shape[3]);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t e = 0; e < width; ++e)
      to[row_index(shape, rows[r], h) + e] += from[r * width + e];
}

double magnitude(double x) { return std::abs(x); }

enum class Counting { accumulated, stored, vanished };

// The sums of one head over absolute values.
HeadResults<double> bounds_of(const Head<double>& head, const HeadResults<double>& r,
                              Counting counting) {
  const auto counted = [counting](double p, double error) {
    if (counting == Counting::vanished) return 1.0;
    return counting == Counting::accumulated ? p * (1 + error) : p;
  };
  HeadResults<double> bound = r;
  for (auto* matrix : {&bound.out, &bound.dq, &bound.dk, &bound.dv, &bound.dbias})
    std::fill(matrix->begin(), matrix->end(), 0.0);
  bound.dsink = bound.dalibi = 0;
  for (std::int64_t i = 0; i < head.queries; ++i) {
    std::vector<double> error(head.at(head.keys));
    double worst = head.has_sink ? magnitude(head.sink) : 0;
    for (std::int64_t j = 0; j < head.keys; ++j) {
      double& e = error[head.at(j)];
      for (std::int64_t n = 0; n < head.d; ++n)
        e += magnitude(head.q[head.of_q(i) + head.at(n)] * head.k[head.of_k(j) + head.at(n)]);
      e *= magnitude(head.scale);
      const std::size_t ij = head.pair(i, j);
      bound.raw[ij] = e;
      if (std::isfinite(head.bias[ij])) e += magnitude(head.bias[ij]);
      e += magnitude(head.slope * head.distance(i, j));
      bound.softcapped[ij] = bound.masked[ij] = e + head.softcap;
      if (head.visible[ij]) worst = std::max(worst, e);
    }
    bound.lse[head.row(i)] = 1 + worst;
    double delta = 0;
    std::vector<double> weight(head.at(head.keys)), dp(head.at(head.keys));
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.pair(i, j);
      if (head.visible[ij]) weight[head.at(j)] = counted(r.weights[ij], error[head.at(j)] + worst);
      bound.weights[ij] = weight[head.at(j)];
      for (std::int64_t e = 0; e < head.dv; ++e) {
        const double of_v = magnitude(head.v[head.of_v(j) + head.at(e)]);
        const double of_dout = magnitude(head.dout[head.of_out(i) + head.at(e)]);
        const double p = weight[head.at(j)] * head.keep[ij];
        bound.out[head.of_out(i) + head.at(e)] += p * of_v;
        bound.dv[head.of_v(j) + head.at(e)] += p * of_dout;
        dp[head.at(j)] += head.keep[ij] * of_v * of_dout;
      }
      delta += weight[head.at(j)] * dp[head.at(j)];
    }
    const double dlse = magnitude(head.dlse[head.row(i)]);
    if (head.has_sink)
      bound.dsink += counted(std::exp(head.sink - r.lse[head.row(i)]), 2 * worst) * (dlse + delta);
    for (std::int64_t j = 0; j < head.keys; ++j) {
      // The softcap's slope 1 - tanh^2 is not multiplied in: where it is small, it is the small
      // difference of rounded numbers.
      const double itself = counting == Counting::vanished ? 1 : 0;
      const double dz = weight[head.at(j)] * (dp[head.at(j)] + delta + dlse + itself);
      const double ds = magnitude(head.scale) * dz;
      bound.dbias[head.pair(i, j)] = dz;
      bound.dalibi += dz * head.distance(i, j);
      for (std::int64_t e = 0; e < head.d; ++e) {
        bound.dq[head.of_q(i) + head.at(e)] += ds * magnitude(head.k[head.of_k(j) + head.at(e)]);
        bound.dk[head.of_k(j) + head.at(e)] += ds * magnitude(head.q[head.of_q(i) + head.at(e)]);
      }
    }
  }
  return bound;
}

template <class Visit>
void for_each_head(const Reader& reader, Visit&& visit) {
  for (std::int64_t b = 0; b < reader.extents().batch; ++b)
    for (std::int64_t h = 0; h < reader.extents().heads; ++h) visit(b, h);
}

}  // namespace

template <class Real>
Collector<Real>::Collector(const Reader& reader) : reader_(reader) {
  const Arguments& a = reader.arguments();
  const Extents& e = reader.extents();
  const Real minus_infinity = -std::numeric_limits<double>::infinity();
  const auto pairs = static_cast<std::size_t>(e.batch * e.heads * e.queries * e.keys);
  const auto rows = static_cast<std::size_t>(a.q.size(0) * e.heads * a.q.size(2));
  results.out.resize(rows * static_cast<std::size_t>(e.dv));
  results.lse.assign(rows, minus_infinity);
  results.weights.resize(pairs);
  results.raw.assign(pairs, minus_infinity);
  results.softcapped.assign(pairs, minus_infinity);
  results.masked.assign(pairs, minus_infinity);
  results.dq.resize(count(a.q));
  results.dk.resize(count(a.k));
  results.dv.resize(count(a.v));
  results.dbias.resize(count(a.options.bias));
  results.dsinks.resize(count(a.options.sinks));
  results.dalibi.resize(count(a.options.alibi));
}

template <class Real>
void Collector<Real>::add(const HeadResults<Real>& head, std::int64_t b, std::int64_t h) {
  const Arguments& a = reader_.arguments();
  const Extents& e = reader_.extents();
  const SequenceRows rows = rows_of(a, b);
  const std::int64_t kv_head = h / (e.heads / e.kv_heads);
  const Shape of_out = {a.q.size(0), e.heads, a.q.size(2), e.dv};
  add_rows(results.out, of_out, rows.queries, h, head.out);
  add_rows(results.dq, a.q.shape(), rows.queries, h, head.dq);
  add_rows(results.dk, a.k.shape(), rows.keys, kv_head, head.dk);
  add_rows(results.dv, a.v.shape(), rows.keys, kv_head, head.dv);
  if (a.options.sinks) results.dsinks[static_cast<std::size_t>(h)] += head.dsink;
  if (a.options.alibi) results.dalibi[static_cast<std::size_t>(h)] += head.dalibi;
  const Shape of_lse = {a.q.size(0), e.heads, a.q.size(2), 1};
  for (std::size_t i = 0; i < rows.queries.size(); ++i) {
    const std::size_t row = static_cast<std::size_t>((b * e.heads + h) * e.queries) + i;
    results.lse[row_index(of_lse, rows.queries[i], h)] = head.lse[i];
    for (std::size_t j = 0; j < rows.keys.size(); ++j) {
      const std::size_t from = i * rows.keys.size() + j;
      const std::size_t to = row * static_cast<std::size_t>(e.keys) + j;
      results.weights[to] = head.weights[from];
      results.raw[to] = head.raw[from];
      results.softcapped[to] = head.softcapped[from];
      results.masked[to] = head.masked[from];
      if (!a.options.bias) continue;
      const std::int64_t n =
          reader_.bias_index(b, h, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
      if (n >= 0) results.dbias[static_cast<std::size_t>(n)] += head.dbias[from];
    }
  }
}

template <class Real>
Results<Real> truth(const Reader& reader) {
  Collector<Real> collector(reader);
  for_each_head(reader, [&](std::int64_t b, std::int64_t h) {
    Head<Real> head = reader.head<Real>(b, h);
    collector.add(attend_one_head(head), b, h);
  });
  return collector.results;
}

template Results<double> truth(const Reader& reader);
template Results<Float128> truth(const Reader& reader);

Bounds bounds(const Reader& reader) {
  Collector<double> accumulated(reader), stored(reader), vanished(reader);
  for_each_head(reader, [&](std::int64_t b, std::int64_t h) {
    Head<double> head = reader.head<double>(b, h);
    const HeadResults<double> results = attend_one_head(head);
    accumulated.add(bounds_of(head, results, Counting::accumulated), b, h);
    stored.add(bounds_of(head, results, Counting::stored), b, h);
    vanished.add(bounds_of(head, results, Counting::vanished), b, h);
  });
  return {accumulated.results, stored.results, vanished.results};
}

VisitedBlocks visited_blocks(const Reader& reader) {
  VisitedBlocks visited;
  const std::int64_t size = reader.arguments().options.blocks.key_size;
  for_each_head(reader, [&](std::int64_t b, std::int64_t h) {
    const SequenceRows rows = rows_of(reader.arguments(), b);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(rows.queries.size()); ++i)
      for (std::int64_t begin = 0; begin < rows.key_length; begin += size) {
        bool seen = false;
        for (std::int64_t j = begin; j < std::min(begin + size, rows.key_length); ++j)
          seen = seen || reader.pair_visible(rows, b, h, i, j);
        visited.least += seen;
        visited.most += reader.block_visible(b, h, i, begin);
      }
  });
  return visited;
}

}  // namespace attend::test
