// inspect() and weights_of(): check, make what is written, plan, run; then sums become means. On a
// device, what is written there comes to the host.
#include <attend/inspect.h>

#include "api/device_copies.h"
#include "api/statistics.h"
#include "core/mask.h"
#include "core/reporting.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace attend {
namespace {

Strided strided(const TensorView& view) {
  Strided t{.data = static_cast<std::byte*>(view.data()), .type = view.dtype(), .given = true};
  for (int dim = 0; dim < std::min(view.rank(), 3); ++dim)
    t.stride[static_cast<std::size_t>(dim)] = view.strides()[dim];
  t.stride[3] = 1;
  return t;
}

// Tokens as numbers from 0 on, in each sequence its own: kernels compare them as floats. And how
// many rows of a sequence have, by position, a key that duplicate or induction counts.
struct Tokens {
  Tensor numbers;                                      // i32 [batch, keys], packed [1, total]
  std::vector<double> duplicate_rows, induction_rows;  // [batch]

  Tokens(const InspectProblem& p, const InspectCall& given, const HostSequences& sequences,
         std::int64_t total)
      : numbers({p.keys == KeyAddressing::packed ? 1 : p.batch, total}, DType::i32),
        duplicate_rows(static_cast<std::size_t>(p.batch)), induction_rows(duplicate_rows) {
    InspectCall call = given;
    call.tokens = view();
    for (std::int64_t b = 0; b < p.batch; ++b) number(p, given, call, sequences[b]);
  }

  Strided view() {
    return {.data = reinterpret_cast<std::byte*>(numbers.data<std::int32_t>()),
            .type = DType::i32,
            .given = true,
            .stride = {numbers.size(1), 0, 1, 0}};
  }

 private:
  void number(const InspectProblem& p, const InspectCall& given, const InspectCall& call,
              const Sequence& s) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(s.k_stored));  // by token, then key
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto token = [&](std::int64_t j) { return token_of(p, given, s, j); };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return token(a) < token(b); });
    std::vector<std::size_t> first;  // where the keys of a number begin in `order`
    for (std::size_t n = 0; n < order.size(); ++n) {
      if (n == 0 || token(order[n]) != token(order[n - 1])) first.push_back(n);
      const Strided& t = call.tokens;
      const std::int64_t at = p.keys == KeyAddressing::packed ? t.offset(0, 0, s.k_begin + order[n])
                                                              : t.offset(s.b, 0, order[n]);
      numbers.data<std::int32_t>()[at] = static_cast<std::int32_t>(first.size() - 1);
    }
    first.push_back(order.size());
    // Whether the number stands at a position in [from, to).
    const auto stands = [&](std::int64_t number, std::int64_t from, std::int64_t to) {
      const auto begin = order.begin() + static_cast<std::ptrdiff_t>(first[number]);
      const auto end = order.begin() + static_cast<std::ptrdiff_t>(first[number + 1]);
      const auto found = std::lower_bound(begin, end, from);
      return found != end && *found < to;
    };
    for (std::int64_t i = 0; i < s.q_length; ++i) {
      const std::int64_t position = i + s.offset;
      if (position < 0 || position >= s.k_stored) continue;
      const KeyRange keys = positions(p, s, i);
      const std::int64_t number = token_of(p, call, s, position);
      const auto b = static_cast<std::size_t>(s.b);
      duplicate_rows[b] += stands(number, keys.begin, std::min(keys.end, position)) ? 1 : 0;
      induction_rows[b] += stands(number, std::max<std::int64_t>(keys.begin, 1) - 1,
                                  std::min(keys.end, position + 1) - 1)
                               ? 1
                               : 0;
    }
  }
};

// The share of its positions that lies within local_width of a row's own, as a mean over the rows.
double local_uniform(const InspectProblem& p, const Sequence& s) {
  double sum = 0, rows = 0;
  for (std::int64_t i = 0; i < s.q_length; ++i) {
    const KeyRange keys = positions(p, s, i);
    if (keys.begin >= keys.end) continue;
    const std::int64_t position = i + s.offset;
    // local_width may be as large as 2^63 - 1: compared by subtraction.
    const std::int64_t from =
        position - keys.begin > p.local_width ? position - p.local_width : keys.begin;
    const std::int64_t to =
        keys.end - 1 - position > p.local_width ? position + p.local_width + 1 : keys.end;
    sum +=
        to > from ? static_cast<double>(to - from) / static_cast<double>(keys.end - keys.begin) : 0;
    rows += 1;
  }
  return rows == 0 ? 0 : sum / rows;
}

// Tokens in memory of a device, as a tensor of the host.
Tensor fetched(const InspectProblem& p, const Strided& tokens, std::int64_t total,
               DeviceCopies& copies) {
  const std::int64_t rows = p.keys == KeyAddressing::packed ? 1 : p.batch;
  Tensor host({rows, total}, DType::i64);
  for (std::int64_t b = 0; b < rows; ++b) {
    Strided row = tokens;
    row.data += tokens.offset(b, 0, 0) * size_of(tokens.type);
    const std::vector<std::int64_t> numbers = copies.integers(row, tokens.stride[2], total);
    std::copy(numbers.begin(), numbers.end(), host.data<std::int64_t>() + b * total);
  }
  return host;
}

HeadStatistics means(const HeadSums& sums, bool metrics, double local_share, const Tokens* tokens,
                     std::size_t b) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto mean = [](double sum, double rows) { return rows == 0 ? 0 : sum / rows; };
  const auto metric = [&](double sum) { return metrics ? mean(sum, sums.rows) : kNone; };
  return {.rows = static_cast<std::int64_t>(sums.rows),
          .lse = mean(sums.lse, sums.rows),
          .entropy = mean(sums.entropy, sums.rows),
          .evenness = mean(sums.evenness, sums.even_rows),
          .maximum = mean(sums.maximum, sums.rows),
          .distance = metric(sums.distance),
          .previous = metric(sums.previous),
          .first = metric(sums.first),
          .diagonal = metric(sums.diagonal),
          .local = metric(sums.local),
          .local_uniform = metrics ? local_share : kNone,
          .duplicate = tokens ? mean(sums.duplicate, tokens->duplicate_rows[b]) : kNone,
          .induction = tokens ? mean(sums.induction, tokens->induction_rows[b]) : kNone};
}

}  // namespace

Statistics statistics_of(Request<Inspect> request, const Decision<Inspect>& decision,
                         const InspectArguments& given, const Where& where) {
  const auto& [q, k, options, asked] = given;
  const InspectProblem& p = request.problem;
  InspectCall& call = request.call;

  Statistics s;
  DeviceCopies copies("inspect", p.device, where.queue());
  const HostSequences sequences(p, call, copies);
  const auto make = [&](Tensor& tensor, const Shape& shape, Strided& to, DType type) {
    tensor = where.context().make_tensor(shape, type);
    to = strided(tensor);
    to.data = copies.written(to.data, tensor.count() * size_of(type));
  };
  const Shape rows{q.size(0), q.size(1), q.size(2)};
  const std::int64_t keys = p.keys == KeyAddressing::packed ? k.size(2) : p.k_length;
  make(s.lse, rows, call.lse, p.lse_type);
  make(s.maximum, rows, call.maximum, p.lse_type);
  make(s.entropy, rows, call.entropy, p.lse_type);
  if (p.top_k > 0) {
    const Shape top{rows[0], rows[1], rows[2], p.top_k};
    make(s.top_keys, top, call.top_keys, DType::i64);
    make(s.top_weights, top, call.top_weights, p.lse_type);
  }
  if (p.key_mass)
    make(s.key_mass, {p.keys == KeyAddressing::packed ? 1 : p.batch, p.heads, keys}, call.key_mass,
         p.lse_type);
  if (p.tile_keys > 0) {
    const Shape map{p.batch, p.heads, p.map_rows(), p.map_columns()};
    make(s.tile_mean, map, call.tile_mean, p.lse_type);
    make(s.tile_maximum, map, call.tile_maximum, p.lse_type);
  }
  s.tile_queries = p.tile_queries;
  s.tile_keys = p.tile_keys;
  s.batch = p.batch;
  std::optional<Tokens> tokens;
  Tensor host_tokens;
  if (p.tokens) {
    if (asked.tokens.device() != Device{}) {
      host_tokens = fetched(p, call.tokens, keys, copies);
      call.tokens = {.data = reinterpret_cast<std::byte*>(host_tokens.data<std::int64_t>()),
                     .type = DType::i64,
                     .given = true,
                     .stride = {keys, 0, 1, 0}};
    }
    tokens.emplace(p, call, sequences, keys);
    call.tokens = tokens->view();
    call.tokens.data = copies.read(call.tokens.data, tokens->numbers.count() * size_of(DType::i32));
  }
  std::vector<HeadSums> sums(static_cast<std::size_t>(p.batch * p.heads));
  call.heads = copies.written(sums.data(), p.batch * p.heads);

  ContextState::of(where).execute("inspect", decision, call, where.queue());
  copies.bring_back();
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const double share = p.metrics ? local_uniform(p, sequences[b]) : 0;
    for (std::int64_t h = 0; h < p.heads; ++h)
      s.heads.push_back(means(sums[static_cast<std::size_t>(b * p.heads + h)], p.metrics, share,
                              tokens ? &*tokens : nullptr, static_cast<std::size_t>(b)));
  }
  return s;
}

Statistics inspect(const ConstTensorView& q, const ConstTensorView& k,
                   const AttentionOptions& options, const InspectOptions& inspect_options,
                   const Where& where) {
  return reporting("inspect", [&] {
    const InspectArguments given{q, k, options, inspect_options};
    const auto request = check(given);
    return statistics_of(request, *ContextState::of(where).plan_for<Inspect>(request.problem),
                         given, where);
  });
}

Tensor weights_of(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& lse,
                  const WeightsWindow& window, const AttentionOptions& options,
                  const Where& where) {
  return reporting("weights_of", [&] {
    auto request = check(WindowArguments{q, k, lse, window, options});
    const WeightsProblem& p = request.problem;
    WeightsCall& call = request.call;
    const auto plan = ContextState::of(where).plan_for<Weights>(p);
    DeviceCopies copies("weights_of", p.device, where.queue());
    if (copies.needed()) check_window(p, HostSequences(p, call, copies)[window.batch], window);
    Tensor rows;
    if (lse.device() != p.device) {  // inspect() gave it
      rows = Tensor::copy_of(lse);
      call.lse = strided(rows);
      call.lse.data = copies.read(call.lse.data, rows.count() * size_of(rows.dtype()));
    }
    Tensor weights =
        where.context().make_tensor({window.queries, window.keys}, statistic_type(q.dtype()));
    call.weights = strided(weights);
    call.weights.data =
        copies.written(call.weights.data, weights.count() * size_of(weights.dtype()));
    ContextState::of(where).execute("weights_of", *plan, call, where.queue());
    copies.bring_back();
    return weights;
  });
}

}  // namespace attend
