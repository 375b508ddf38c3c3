#include "bounds.h"

namespace attend::oracle {
namespace {

double magnitude(double x) { return std::abs(x); }

enum class Counting { accumulated, stored, vanished };

// exp(log_p) as often as it is counted, where its score may be wrong by `error` times the roundoff.
struct Counter {
  Counting counting;
  double roundoff = 0;

  double operator()(double p, double log_p, double error) const {
    if (counting == Counting::vanished) return 1.0;
    if (counting == Counting::stored) return p;
    const double linear = p * (1 + error);
    if (roundoff == 0) return linear;
    return std::max(linear, (std::exp(std::min(0.0, log_p + roundoff * error)) - p) / roundoff);
  }
};

// The sums of one head over absolute values; raises `largest` to the largest number on the way.
HeadResults<double> bounds_of(const Head<double>& head, const HeadResults<double>& r,
                              const Counter& counted, double& largest) {
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
      if (head.visible[ij])
        weight[head.at(j)] =
            counted(r.weights[ij], r.masked[ij] - r.lse[head.row(i)], error[head.at(j)] + worst);
      bound.weights[ij] = weight[head.at(j)];
      for (std::int64_t e = 0; e < head.dv; ++e) {
        const double of_v = magnitude(head.v[head.of_v(j) + head.at(e)]);
        const double of_dout = magnitude(head.dout[head.of_out(i) + head.at(e)]);
        const double p = weight[head.at(j)] * head.keep[ij];
        bound.out[head.of_out(i) + head.at(e)] += p * of_v;
        bound.dv[head.of_v(j) + head.at(e)] += magnitude(head.v_scale[head.at(j)]) * p * of_dout;
        dp[head.at(j)] += head.keep[ij] * of_v * of_dout;
      }
      delta += weight[head.at(j)] * dp[head.at(j)];
    }
    const double dlse = magnitude(head.dlse[head.row(i)]);
    if (head.has_sink) {
      const double log_p = head.sink - r.lse[head.row(i)];
      bound.dsink += counted(std::exp(log_p), log_p, 2 * worst) * (dlse + delta);
    }
    for (std::int64_t j = 0; j < head.keys; ++j) {
      // The softcap's slope 1 - tanh^2 is not multiplied in: where it is small, it is the small
      // difference of rounded numbers.
      const double itself = counted.counting == Counting::vanished ? 1 : 0;
      const double dz = weight[head.at(j)] * (dp[head.at(j)] + delta + dlse + itself);
      const double ds = magnitude(head.scale) * dz;
      largest = std::max({largest, error[head.at(j)], dp[head.at(j)], delta, dz, ds});
      bound.dbias[head.pair(i, j)] = dz;
      bound.dalibi += dz * head.distance(i, j);
      for (std::int64_t e = 0; e < head.d; ++e) {
        bound.dq[head.of_q(i) + head.at(e)] += ds * magnitude(head.k[head.of_k(j) + head.at(e)]);
        bound.dk[head.of_k(j) + head.at(e)] +=
            magnitude(head.k_scale[head.at(j)]) * ds * magnitude(head.q[head.of_q(i) + head.at(e)]);
      }
    }
  }
  return bound;
}

}  // namespace

Bounds bounds(const Reader& reader, double roundoff) {
  Collector<double> accumulated(reader), stored(reader), vanished(reader);
  double largest = 0, ignored = 0;
  for_each_head(reader, [&](std::int64_t b, std::int64_t h) {
    Head<double> head = reader.head<double>(b, h);
    const HeadResults<double> results = attend_one_head(head);
    const auto counted = [&](Counting counting, double& most) {
      return bounds_of(head, results, {counting, roundoff}, most);
    };
    accumulated.add(counted(Counting::accumulated, ignored), b, h);
    stored.add(counted(Counting::stored, largest), b, h);
    vanished.add(counted(Counting::vanished, ignored), b, h);
  });
  return {accumulated.results, stored.results, vanished.results, largest};
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

}  // namespace attend::oracle
