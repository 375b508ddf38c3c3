// The truth that kernels are held against: attention as a textbook has it, one head at a time, with
// the whole matrix of scores in memory, for every option, forward and backward. It is written from
// the formulas and from the public headers and shares no code with the library. Real is double or
// Float128.
//
//   s_ij = scale q_i . k_j       z = softcap(s) + bias + alibi   or   z = softcap(s + bias + alibi)
//   p_ij = exp(z_ij - lse_i)     lse_i = log(sum_j exp(z_ij) + exp(sink))     out = (keep p) v
#pragma once

#include "head.h"
#include "philox.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attend::oracle {

// What a call writes for one head of one batch element.
template <class Real>
struct HeadResults {
  std::vector<Real> out, lse, weights, raw, softcapped, masked;
  std::vector<Real> sink_weights;       // [queries]
  std::vector<Real> dq, dk, dv, dbias;  // dbias [queries, keys], where the bias is added
  Real dsink = 0, dalibi = 0;
};

// Row-major, each in the shape of what the library writes.
template <class Real>
struct Results {
  std::vector<Real> out, lse, weights, raw, softcapped, masked;
  std::vector<Real> dq, dk, dv, dbias, dsinks, dalibi;
};

// p . x of one row, and the like: sums over the last index of one operand.
template <class Real>
Real dot(const Real* a, const Real* b, std::int64_t n) {
  Real sum = 0;
  for (std::int64_t e = 0; e < n; ++e) sum += a[e] * b[e];
  return sum;
}

// The scores at every stage. What has no address was never gathered; what is hidden is -inf in z.
template <class Real>
void scores(Head<Real>& head, HeadResults<Real>& results) {
  const Real minus_infinity = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < head.queries; ++i) {
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.pair(i, j);
      const Real s = head.scale * dot(&head.q[head.of_q(i)], &head.k[head.of_k(j)], head.d);
      const Real cap = head.softcap;
      const Real added = head.bias[ij] - head.slope * head.distance(i, j);
      const Real before = head.bias_before_softcap ? s + added : s;
      head.tanh[ij] = cap > 0 ? tanh_of(before / cap) : Real(0);
      const Real capped = cap > 0 ? cap * head.tanh[ij] : before;
      const Real z = head.bias_before_softcap ? capped : capped + added;
      head.weightless[ij] = head.visible[ij] && z == minus_infinity && added > minus_infinity;
      if (z == minus_infinity) head.visible[ij] = false;
      results.raw[ij] = s;
      results.softcapped[ij] = capped;
      results.masked[ij] = head.visible[ij] ? z : minus_infinity;
    }
  }
}

template <class Real>
void softmax(const Head<Real>& head, HeadResults<Real>& results) {
  for (std::int64_t i = 0; i < head.queries; ++i) {
    Real largest = -std::numeric_limits<double>::infinity();
    if (head.has_sink) largest = head.sink;
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.pair(i, j);
      if (head.visible[ij] && results.masked[ij] > largest) largest = results.masked[ij];
    }
    Real sum = head.has_sink ? exp_of(head.sink - largest) : Real(0);
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.pair(i, j);
      if (head.visible[ij]) sum += exp_of(results.masked[ij] - largest);
    }
    if (sum == 0) continue;  // sees nothing: lse stays -inf, the weights 0
    results.lse[head.row(i)] = largest + log_of(sum);
    if (head.has_sink) results.sink_weights[head.row(i)] = exp_of(head.sink - largest) / sum;
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.pair(i, j);
      if (head.visible[ij]) results.weights[ij] = exp_of(results.masked[ij] - largest) / sum;
    }
  }
}

template <class Real>
void values(const Head<Real>& head, HeadResults<Real>& results) {
  for (std::int64_t i = 0; i < head.queries; ++i)
    for (std::int64_t j = 0; j < head.keys; ++j) {
      if (!head.visible[head.pair(i, j)]) continue;  // 0 times a hidden NaN
      const Real p = results.weights[head.pair(i, j)] * head.keep[head.pair(i, j)];
      for (std::int64_t e = 0; e < head.dv; ++e)
        results.out[head.of_out(i) + head.at(e)] += p * head.v[head.of_v(j) + head.at(e)];
    }
}

// The four steps reversed. delta_i = dout_i . out_i is sum_j p_ij dp_ij.
template <class Real>
void gradients(const Head<Real>& head, HeadResults<Real>& r) {
  for (std::int64_t i = 0; i < head.queries; ++i) {
    const Real delta = dot(&head.dout[head.of_out(i)], &r.out[head.of_out(i)], head.dv);
    const Real dlse = head.dlse[head.row(i)];
    r.dsink += r.sink_weights[head.row(i)] * (dlse - delta);
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const std::size_t ij = head.pair(i, j);
      if (!head.visible[ij]) continue;
      const Real p = r.weights[ij], keep = head.keep[ij];
      for (std::int64_t e = 0; e < head.dv; ++e)
        r.dv[head.of_v(j) + head.at(e)] +=
            head.v_scale[head.at(j)] * p * keep * head.dout[head.of_out(i) + head.at(e)];
      const Real dp = keep * dot(&head.dout[head.of_out(i)], &head.v[head.of_v(j)], head.dv);
      const Real dz = p * (dp - delta + dlse);
      const Real ds = dz * (1 - head.tanh[ij] * head.tanh[ij]);
      r.dbias[ij] = head.bias_before_softcap ? ds : dz;
      r.dalibi -= r.dbias[ij] * head.distance(i, j);
      for (std::int64_t e = 0; e < head.d; ++e) {
        r.dq[head.of_q(i) + head.at(e)] += head.scale * ds * head.k[head.of_k(j) + head.at(e)];
        r.dk[head.of_k(j) + head.at(e)] +=
            head.k_scale[head.at(j)] * head.scale * ds * head.q[head.of_q(i) + head.at(e)];
      }
    }
  }
}

// What an infinity in q or k makes weigh nothing is not hidden: NaN in its value comes out, if
// another key of its chunk counts.
template <class Real>
void show_weightless(const Head<Real>& head, HeadResults<Real>& results) {
  constexpr std::int64_t kChunk = 256;
  const auto counts = [&](std::int64_t i, std::int64_t chunk) {
    for (std::int64_t j = chunk * kChunk; j < std::min(head.keys, (chunk + 1) * kChunk); ++j)
      if (head.visible[head.pair(i, j)]) return true;
    return false;
  };
  for (std::int64_t i = 0; i < head.queries; ++i)
    for (std::int64_t j = 0; j < head.keys; ++j) {
      if (!head.weightless[head.pair(i, j)] || !counts(i, j / kChunk)) continue;
      for (std::int64_t e = 0; e < head.dv; ++e)
        results.out[head.of_out(i) + head.at(e)] += Real(0) * head.v[head.of_v(j) + head.at(e)];
    }
}

// Everything of one head; `head` is completed with what the scores reveal.
template <class Real>
HeadResults<Real> attend_one_head(Head<Real>& head) {
  const auto pairs = static_cast<std::size_t>(head.queries * head.keys);
  HeadResults<Real> results;
  results.out.resize(static_cast<std::size_t>(head.queries * head.dv));
  results.lse.assign(static_cast<std::size_t>(head.queries),
                     Real(-std::numeric_limits<double>::infinity()));
  results.sink_weights.resize(static_cast<std::size_t>(head.queries));
  for (auto* matrix :
       {&results.weights, &results.raw, &results.softcapped, &results.masked, &results.dbias})
    matrix->resize(pairs);
  results.dq.resize(head.q.size());
  results.dk.resize(head.k.size());
  results.dv.resize(head.v.size());
  scores(head, results);
  softmax(head, results);
  values(head, results);
  gradients(head, results);
  show_weightless(head, results);
  return results;
}

}  // namespace attend::oracle
