// One head of one batch element, gathered out of strided, packed or paged tensors into plain
// matrices, with everything that hides, adds to, or drops a pair (i, j) looked up once. Templates
// are in the headers, so that each user brings the numbers it wants.
#pragma once

#include "real.h"
#include "widen.h"

#include <attend/options.h>

#include <algorithm>
#include <vector>

namespace attend::oracle {

// The arguments of a call and of its gradient; dout and dlse may be none.
struct Arguments {
  ConstTensorView q, k, v, dout, dlse;
  AttentionOptions options;
};

// The rows of q and of k that belong to a batch element: (first index, third index) of each.
struct RowAddress {
  std::int64_t b = 0, t = 0;
};
struct SequenceRows {
  std::vector<RowAddress> queries, keys;  // keys: those that have an address
  std::int64_t key_length = 0;            // those below key_lengths
  std::int64_t offset = 0;
};

// Sizes that every tensor of a call is laid out by.
struct Extents {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, d = 0, dv = 0;
};
Extents extents_of(const Arguments& arguments);
SequenceRows rows_of(const Arguments& arguments, std::int64_t b);

template <class Real>
struct Head {
  std::int64_t queries = 0, keys = 0, d = 0, dv = 0, offset = 0;
  std::vector<Real> q, k, v, dout;     // [rows, d or dv]
  std::vector<Real> dlse;              // [queries]
  std::vector<Real> k_scale, v_scale;  // [keys], which k and v hold already; 1 if there are none
  std::vector<Real> bias, keep;        // [queries, keys]; keep: 0 if dropped, else 1 / (1 - p)
  std::vector<Real> tanh;              // [queries, keys], of the softcap; 0 if there is none
  std::vector<bool> visible;           // [queries, keys]
  std::vector<bool> weightless;        // [queries, keys]  a score of -inf, by an infinity in q or k
  Real scale = 1, softcap = 0, slope = 0, sink = 0;
  bool bias_before_softcap = false, has_sink = false;

  static std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::size_t row(std::int64_t i) const { return at(i); }
  std::size_t pair(std::int64_t i, std::int64_t j) const { return at(i * keys + j); }
  std::size_t of_q(std::int64_t i) const { return at(i * d); }
  std::size_t of_k(std::int64_t j) const { return at(j * d); }
  std::size_t of_v(std::int64_t j) const { return at(j * dv); }
  std::size_t of_out(std::int64_t i) const { return at(i * dv); }
  Real distance(std::int64_t i, std::int64_t j) const {
    const std::int64_t ahead = i + offset - j;
    return static_cast<Real>(ahead < 0 ? -ahead : ahead);
  }
};

// The tensors of a call, widened once and read by every head.
class Reader {
 public:
  explicit Reader(const Arguments& arguments);

  template <class Real>
  Head<Real> head(std::int64_t b, std::int64_t h) const;

  // Where in the bias (and so in dbias) the pair lives; -1 beyond the end of a short one.
  std::int64_t bias_index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;

  // Whether key j of query i is hidden by blocks; by anything that is not a score.
  bool block_visible(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
  bool pair_visible(const SequenceRows& rows, std::int64_t b, std::int64_t h, std::int64_t i,
                    std::int64_t j) const;

  const Arguments& arguments() const { return arguments_; }
  const Extents& extents() const { return extents_; }

 private:
  double keep_factor(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;

  Arguments arguments_;
  Extents extents_;
  std::vector<double> q_, k_, v_, dout_, dlse_, bias_, alibi_, sinks_, k_scales_, v_scales_;
  std::vector<std::int64_t> mask_, blocks_;
};

// Rows of the [*, heads, *, width] tensor for one head.
template <class Real>
std::vector<Real> gather(const std::vector<double>& values, const Shape& shape,
                         const std::vector<RowAddress>& rows, std::int64_t h) {
  const std::int64_t width = shape[3];
  std::vector<Real> gathered;
  gathered.reserve(rows.size() * static_cast<std::size_t>(width));
  for (const RowAddress& row : rows) {
    const std::int64_t begin = ((row.b * shape[1] + h) * shape[2] + row.t) * width;
    for (std::int64_t e = 0; e < width; ++e)
      gathered.push_back(values[static_cast<std::size_t>(begin + e)]);
  }
  return gathered;
}

template <class Real>
Head<Real> Reader::head(std::int64_t b, std::int64_t h) const {
  const AttentionOptions& options = arguments_.options;
  const SequenceRows rows = rows_of(arguments_, b);
  const std::int64_t kv_head = h / (extents_.heads / extents_.kv_heads);
  Head<Real> head;
  head.queries = static_cast<std::int64_t>(rows.queries.size());
  head.keys = static_cast<std::int64_t>(rows.keys.size());
  head.d = extents_.d;
  head.dv = extents_.dv;
  head.offset = rows.offset;
  head.q = gather<Real>(q_, arguments_.q.shape(), rows.queries, h);
  head.k = gather<Real>(k_, arguments_.k.shape(), rows.keys, kv_head);
  head.v = gather<Real>(v_, arguments_.v.shape(), rows.keys, kv_head);
  const auto scale = [&](const std::vector<double>& scales, std::vector<Real>& keys,
                         std::vector<Real>& of_key) {
    of_key.assign(rows.keys.size(), Real(1));
    if (scales.empty()) return;
    const Shape& of_k = arguments_.k.shape();
    of_key = gather<Real>(scales, {of_k[0], of_k[1], of_k[2], 1}, rows.keys, kv_head);
    const std::size_t width = keys.size() / std::max<std::size_t>(of_key.size(), 1);
    for (std::size_t n = 0; n < keys.size(); ++n) keys[n] *= of_key[n / width];
  };
  scale(k_scales_, head.k, head.k_scale);
  scale(v_scales_, head.v, head.v_scale);
  if (arguments_.dout) head.dout = gather<Real>(dout_, arguments_.dout.shape(), rows.queries, h);
  else head.dout.resize(static_cast<std::size_t>(head.queries * head.dv));
  head.dlse.resize(static_cast<std::size_t>(head.queries));
  const Shape& of_q = arguments_.q.shape();
  for (std::size_t i = 0; arguments_.dlse && i < rows.queries.size(); ++i)
    head.dlse[i] = dlse_[static_cast<std::size_t>((rows.queries[i].b * of_q[1] + h) * of_q[2] +
                                                  rows.queries[i].t)];
  head.scale = options.scale ? Real(*options.scale) : 1 / sqrt_of(Real(head.d));
  head.softcap = options.softcap;
  head.bias_before_softcap = options.bias_before_softcap;
  if (options.alibi) head.slope = alibi_[static_cast<std::size_t>(h)];
  head.has_sink = static_cast<bool>(options.sinks);
  if (options.sinks) head.sink = sinks_[static_cast<std::size_t>(h)];

  const auto pairs = static_cast<std::size_t>(head.queries * head.keys);
  head.bias.resize(pairs);
  head.keep.assign(pairs, Real(1));
  head.tanh.resize(pairs);
  head.visible.resize(pairs);
  head.weightless.resize(pairs);
  for (std::int64_t i = 0; i < head.queries; ++i)
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.pair(i, j);
      head.visible[ij] = pair_visible(rows, b, h, i, j);
      if (options.dropout.p > 0) head.keep[ij] = keep_factor(b, h, i, j);
      const std::int64_t n = options.bias ? bias_index(b, h, i, j) : -1;
      if (n >= 0) head.bias[ij] = bias_[static_cast<std::size_t>(n)];
    }
  return head;
}

}  // namespace attend::oracle
