// One head of one batch element, gathered out of strided, packed or paged tensors into plain
// matrices, with everything that hides, adds to, or drops a pair (i, j) looked up once.
#pragma once

#include "real.h"
#include "widen.h"

#include <attend/options.h>

#include <vector>

namespace attend::test {

// The arguments of a call and of its gradient; dout and dlse may be none.
struct Arguments {
  ConstTensorView q, k, v, dout, dlse;
  AttentionOptions options;
};

// The rows of q and of k that belong to a batch element: (first index, third index) of each.
struct Row {
  std::int64_t b = 0, t = 0;
};
struct SequenceRows {
  std::vector<Row> queries, keys;  // keys: those that have an address
  std::int64_t key_length = 0;     // those below key_lengths
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
  std::vector<Real> q, k, v, dout;  // [rows, d or dv]
  std::vector<Real> dlse;           // [queries]
  std::vector<Real> bias, keep;     // [queries, keys]; keep: 0 if dropped, else 1 / (1 - p)
  std::vector<Real> tanh;           // [queries, keys], of the softcap; 0 if there is none
  std::vector<bool> visible;        // [queries, keys]
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
  std::vector<double> q_, k_, v_, dout_, dlse_, bias_, alibi_, sinks_;
  std::vector<std::int64_t> mask_, blocks_;
};

}  // namespace attend::test
