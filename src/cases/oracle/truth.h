// A whole call by the oracle, in numbers of one's choice.
#pragma once

#include "oracle.h"

namespace attend::oracle {

inline std::size_t elements_of(const ConstTensorView& view) {
  return view ? static_cast<std::size_t>(view.count()) : 0;
}

// Where row `row` of head h begins in a tensor [*, heads, *, width].
inline std::size_t row_index(const Shape& shape, const RowAddress& row, std::int64_t h) {
  return static_cast<std::size_t>(((row.b * shape[1] + h) * shape[2] + row.t) * shape[3]);
}

template <class Real>
void add_rows(std::vector<Real>& to, const Shape& shape, const std::vector<RowAddress>& rows,
              std::int64_t h, const std::vector<Real>& from) {
  const auto width = static_cast<std::size_t>(shape[3]);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t e = 0; e < width; ++e)
      to[row_index(shape, rows[r], h) + e] += from[r * width + e];
}

template <class Visit>
void for_each_head(const Reader& reader, Visit&& visit) {
  for (std::int64_t b = 0; b < reader.extents().batch; ++b)
    for (std::int64_t h = 0; h < reader.extents().heads; ++h) visit(b, h);
}

// Puts the heads' results where the library puts them. What several heads, batch elements or rows
// share (k and v of grouped heads, pages, a broadcast bias) is summed.
template <class Real>
class Collector {
 public:
  explicit Collector(const Reader& reader);
  void add(const HeadResults<Real>& head, std::int64_t b, std::int64_t h);
  Results<Real> results;

 private:
  const Reader& reader_;
};

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
  results.dq.resize(elements_of(a.q));
  results.dk.resize(elements_of(a.k));
  results.dv.resize(elements_of(a.v));
  results.dbias.resize(elements_of(a.options.bias));
  results.dsinks.resize(elements_of(a.options.sinks));
  results.dalibi.resize(elements_of(a.options.alibi));
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

// Numbers of up to 106 bits as sums of two doubles, so that who judges need not know Real.
struct Truth {
  Results<double> first, second;
};

template <class Real>
Truth split_truth(const Reader& reader) {
  const Results<Real> exact = truth<Real>(reader);
  Truth split;
  const auto take = [&](std::vector<Real> Results<Real>::*from,
                        std::vector<double> Results<double>::*to) {
    for (const Real x : exact.*from) {
      const double first = static_cast<double>(x);
      (split.first.*to).push_back(first);
      (split.second.*to).push_back(std::isfinite(first) ? static_cast<double>(x - first) : 0);
    }
  };
  using R = Results<Real>;
  using D = Results<double>;
  take(&R::out, &D::out);
  take(&R::lse, &D::lse);
  take(&R::weights, &D::weights);
  take(&R::raw, &D::raw);
  take(&R::softcapped, &D::softcapped);
  take(&R::masked, &D::masked);
  take(&R::dq, &D::dq);
  take(&R::dk, &D::dk);
  take(&R::dv, &D::dv);
  take(&R::dbias, &D::dbias);
  take(&R::dsinks, &D::dsinks);
  take(&R::dalibi, &D::dalibi);
  return split;
}

}  // namespace attend::oracle
