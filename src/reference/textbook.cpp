// Attention as textbooks and unfused libraries do it: the four steps one after the other on whole
// length x length matrices, each result stored in the tensors' type, sums in f32 (f64 for f64) in
// blocks of 256. Nobody should use it; it is the yardstick of the contract's first point, and is
// never chosen.
#include "core/kernel.h"
#include "core/philox.h"
#include "core/scratch.h"
#include "core/softmax_state.h"

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

// A value as it comes back from memory of that type.
template <class Sum>
Sum stored(DType type, Sum value) noexcept {
  switch (type) {
    case DType::bf16: return static_cast<float>(bf16(value));
    case DType::f16: return static_cast<float>(f16(value));
    default: return value;  // Sum itself is f32 or f64
  }
}

// term(0) + ... + term(n - 1), summed in blocks of 256.
template <class Sum, class Term>
Sum blocked_sum(std::int64_t n, Term term) noexcept {
  Sum total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    Sum block = 0;
    for (std::int64_t x = begin; x < std::min(begin + kChunk, n); ++x) block += term(x);
    total += block;
  }
  return total;
}

// The matrices of one head.
template <class Operation, class Sum>
struct Head {
  const typename Operation::Problem& p;
  const typename Operation::Call& call;
  Sequence sequence;
  std::int64_t h = 0;
  Sum* q;        // [queries, d]
  Sum* k;        // [keys, d]
  Sum* v;        // [keys, dv]
  Sum* s;        // [queries, keys]   scores after the softcap (what backward needs again)
  Sum* weights;  // [queries, keys]
  Sum* lse;      // [queries]

  Head(const typename Operation::Problem& problem, const typename Operation::Call& c,
       Scratch& scratch)
      : p(problem), call(c), q(scratch.take<Sum>(p.q_length * p.d)),
        k(scratch.take<Sum>(p.k_length * p.d)), v(scratch.take<Sum>(p.k_length * p.dv)),
        s(take_square(scratch)), weights(take_square(scratch)), lse(scratch.take<Sum>(p.q_length)) {
  }

  Sum* take_square(Scratch& scratch) const noexcept {
    const std::size_t elements =
        saturating_product(static_cast<std::size_t>(p.q_length), p.k_length);
    return scratch.take<Sum>(static_cast<std::int64_t>(std::min(elements, std::size_t{1} << 62)));
  }
  std::int64_t queries() const noexcept { return sequence.q_length; }
  std::int64_t keys() const noexcept { return sequence.k_stored; }
  std::int64_t at(std::int64_t i, std::int64_t j) const noexcept { return i * p.k_length + j; }
  Sum keep(std::int64_t i, std::int64_t j) const noexcept {
    return static_cast<Sum>(dropout_factor(p, call, sequence.b, h, i, j));
  }
};

template <class Sum>
void load_matrix(const Strided& t, std::int64_t row, std::int64_t n, Sum* to) noexcept {
  for (std::int64_t x = 0; x < n; ++x) to[x] = static_cast<Sum>(load(t, row + x * t.stride[3]));
}

template <class Operation, class Sum>
void load_head(Head<Operation, Sum>& head, std::int64_t h) noexcept {
  const Problem& p = head.p;
  const Call& call = head.call;
  head.h = h;
  for (std::int64_t i = 0; i < head.queries(); ++i)
    load_matrix(call.q, query_row(p, call.q, head.sequence, h, i), p.d, head.q + i * p.d);
  for (std::int64_t j = 0; j < head.keys(); ++j) {
    const auto row = [&](const Strided& t) {
      return key_row(p, call, t, head.sequence, h / p.group(), j);
    };
    load_matrix(call.k, row(call.k), p.d, head.k + j * p.d);
    load_matrix(call.v, row(call.v), p.dv, head.v + j * p.dv);
  }
}

void write(const Strided& t, const Sequence& s, std::int64_t h, std::int64_t i, std::int64_t j,
           double value) noexcept {
  store(t, t.offset(s.b, h, i, j), value);
}

// Steps 1 to 3 of one row: fills s, weights and lse; writes the scores that are asked for.
template <class Operation, class Sum>
void weigh_row(Head<Operation, Sum>& head, std::int64_t i) noexcept {
  const auto& p = head.p;
  const Sequence& sequence = head.sequence;
  const auto kept = [&](Sum x) { return stored(p.type, x); };
  const auto sink =
      p.sinks ? static_cast<Sum>(load(head.call.sinks, head.call.sinks.offset(0, head.h, 0)))
              : static_cast<Sum>(kMinusInfinity);
  const KeyRange range = positions(p, sequence, i);
  Sum m = sink;
  for (std::int64_t j = 0; j < head.keys(); ++j) {
    const Sum dot = blocked_sum<Sum>(
        p.d, [&](std::int64_t x) { return head.q[i * p.d + x] * head.k[j * p.d + x]; });
    const Sum raw = kept(static_cast<Sum>(p.scale) * dot);  // 1 scores
    const auto bias = static_cast<Sum>(added(p, head.call, sequence, head.h, i, j));
    Sum s = p.bias_before_softcap ? kept(raw + bias) : raw;  // 2 mask
    const auto cap = static_cast<Sum>(p.softcap);
    if (cap != 0) s = kept(cap * std::tanh(s / cap));
    const Sum capped = s;
    if (!p.bias_before_softcap) s = kept(s + bias);
    const bool hidden = j < range.begin || j >= range.end ||
                        !block_visible(p, head.call, sequence.b, head.h, i, j) ||
                        masked_out(p, head.call, sequence.b, head.h, i, j);
    if (hidden) s = static_cast<Sum>(kMinusInfinity);
    head.s[head.at(i, j)] = capped;
    head.weights[head.at(i, j)] = s;
    if (s > m) m = s;
    if constexpr (std::is_same_v<Operation, Forward>)
      if (p.scores)
        write(head.call.scores, sequence, head.h, i, j,
              p.stage == ScoreStage::raw          ? raw
              : p.stage == ScoreStage::softcapped ? capped
                                                  : s);
  }
  const auto exponential = [&](Sum s) {
    return s == static_cast<Sum>(kMinusInfinity) ? 0 : std::exp(s - m);
  };
  const Sum l =
      exponential(sink) + blocked_sum<Sum>(head.keys(), [&](std::int64_t j) {  // 3 softmax
        return exponential(head.weights[head.at(i, j)]);
      });
  for (std::int64_t j = 0; j < head.keys(); ++j) {
    Sum& weight = head.weights[head.at(i, j)];
    weight = kept(l == 0 ? 0 : exponential(weight) / l);
  }
  head.lse[i] = l == 0 ? static_cast<Sum>(kMinusInfinity) : m + std::log(l);
}

// A task is one head.
template <class Sum>
void forward_head(const ForwardProblem& p, const ForwardCall& call, const Task& task) noexcept {
  Scratch scratch(task.scratch);
  Head<Forward, Sum> head(p, call, scratch);
  head.sequence = sequence_of(p, call, task.index / p.heads);
  load_head(head, task.index % p.heads);
  const Sequence& sequence = head.sequence;
  const std::int64_t shown = place_in_weights(p, call, head.h);
  for (std::int64_t i = 0; i < p.q_length; ++i) {
    if (must_stop(task.interrupt)) return;
    for (std::int64_t j = 0; j < p.k_length; ++j) {
      if (shown >= 0) write(call.weights, sequence, shown, i, j, 0);
      if (p.scores) write(call.scores, sequence, head.h, i, j, kMinusInfinity);
    }
    if (i >= head.queries()) continue;
    weigh_row(head, i);
    const Sum* weights = head.weights + head.at(i, 0);
    for (std::int64_t x = 0; x < p.dv; ++x) {
      const Sum o = blocked_sum<Sum>(head.keys(), [&](std::int64_t j) {  // 4 values
        return weights[j] == 0 ? 0 : weights[j] * head.keep(i, j) * head.v[j * p.dv + x];
      });
      store(call.out, query_row(p, call.out, sequence, head.h, i) + x * call.out.stride[3],
            stored(p.type, o));
    }
    if (p.lse) store(call.lse, query_row(p, call.lse, sequence, head.h, i), head.lse[i]);
    for (std::int64_t j = 0; shown >= 0 && j < head.keys(); ++j)
      write(call.weights, sequence, shown, i, j, weights[j]);
  }
}

// dP, then dS, of one head into ds [queries, keys]: steps 4 and 3, 2 reversed.
template <class Sum>
void score_gradients(Head<Backward, Sum>& head, Interrupt* interrupt, const Sum* dout,
                     Sum* ds) noexcept {
  const BackwardProblem& p = head.p;
  const auto kept = [&](Sum x) { return stored(p.type, x); };
  for (std::int64_t i = 0; i < head.queries(); ++i) {
    if (must_stop(interrupt)) return;
    weigh_row(head, i);
    const Sum* weights = head.weights + head.at(i, 0);
    Sum* row = ds + head.at(i, 0);
    for (std::int64_t j = 0; j < head.keys(); ++j)  // 4 reversed
      row[j] =
          weights[j] == 0 ? 0 : kept(head.keep(i, j) * blocked_sum<Sum>(p.dv, [&](std::int64_t x) {
                                       return dout[i * p.dv + x] * head.v[j * p.dv + x];
                                     }));
    const Sum delta =
        blocked_sum<Sum>(head.keys(), [&](std::int64_t j) { return weights[j] * row[j]; });
    Sum dlse = 0;
    if (p.dlse)
      dlse = static_cast<Sum>(
          load(head.call.dlse, query_row(p, head.call.dlse, head.sequence, head.h, i)));
    for (std::int64_t j = 0; j < head.keys(); ++j) {
      row[j] = weights[j] == 0 ? 0 : kept(weights[j] * (row[j] - delta + dlse));  // 3 reversed
      if (p.softcap == 0 || weights[j] == 0) continue;
      const Sum t = head.s[head.at(i, j)] / static_cast<Sum>(p.softcap);  // 2 reversed
      row[j] = kept(row[j] * (1 - t * t));
    }
  }
}

// A task is one key head with its group of query heads; dk and dv are summed over the group.
template <class Sum>
void backward_heads(const BackwardProblem& p, const BackwardCall& call, const Task& task) noexcept {
  Scratch scratch(task.scratch);
  Head<Backward, Sum> head(p, call, scratch);
  Sum* ds = head.take_square(scratch);
  Sum* dout = scratch.take<Sum>(p.q_length * p.dv);
  Sum* dk = scratch.take<Sum>(p.k_length * p.d);
  Sum* dv = scratch.take<Sum>(p.k_length * p.dv);
  std::fill_n(dk, p.k_length * p.d, Sum{0});
  std::fill_n(dv, p.k_length * p.dv, Sum{0});

  head.sequence = sequence_of(p, call, task.index / p.kv_heads);
  const std::int64_t kv_head = task.index % p.kv_heads;
  const auto scale = static_cast<Sum>(p.scale);
  for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
    load_head(head, h);
    for (std::int64_t i = 0; i < head.queries(); ++i)
      load_matrix(call.dout, query_row(p, call.dout, head.sequence, h, i), p.dv, dout + i * p.dv);
    score_gradients(head, task.interrupt, dout, ds);
    for (std::int64_t i = 0; p.dq && i < head.queries(); ++i) {  // 1 reversed
      if (must_stop(task.interrupt)) return;
      const std::int64_t row = query_row(p, call.dq, head.sequence, h, i);
      for (std::int64_t x = 0; x < p.d; ++x)
        store(call.dq, row + x * call.dq.stride[3],
              scale * blocked_sum<Sum>(head.keys(), [&](std::int64_t j) {
                const Sum g = ds[head.at(i, j)];
                return g == 0 ? 0 : g * head.k[j * p.d + x];
              }));
    }
    for (std::int64_t j = 0; j < head.keys(); ++j) {
      if (must_stop(task.interrupt)) return;
      for (std::int64_t x = 0; x < p.d; ++x)
        dk[j * p.d + x] += scale * blocked_sum<Sum>(head.queries(), [&](std::int64_t i) {
                             const Sum g = ds[head.at(i, j)];
                             return g == 0 ? 0 : g * head.q[i * p.d + x];
                           });
      for (std::int64_t x = 0; x < p.dv; ++x)
        dv[j * p.dv + x] += blocked_sum<Sum>(head.queries(), [&](std::int64_t i) {
          const Sum weight = head.weights[head.at(i, j)];
          return weight == 0 ? 0 : weight * head.keep(i, j) * dout[i * p.dv + x];
        });
    }
  }
  for (std::int64_t j = 0; j < head.keys(); ++j) {
    const auto row = [&](const Strided& t) {
      return key_row(p, call, t, head.sequence, kv_head, j);
    };
    for (std::int64_t x = 0; p.dk && x < p.d; ++x)
      store(call.dk, row(call.dk) + x * call.dk.stride[3], dk[j * p.d + x]);
    for (std::int64_t x = 0; p.dv_gradient && x < p.dv; ++x)
      store(call.dv, row(call.dv) + x * call.dv.stride[3], dv[j * p.dv + x]);
  }
}

void forward(const ForwardProblem& p, const Tiles&, const ForwardCall& call,
             const Task& task) noexcept {
  return p.type == DType::f64 ? forward_head<double>(p, call, task)
                              : forward_head<float>(p, call, task);
}

void backward(const BackwardProblem& p, const Tiles&, const BackwardCall& call,
              const Task& task) noexcept {
  return p.type == DType::f64 ? backward_heads<double>(p, call, task)
                              : backward_heads<float>(p, call, task);
}

// ---- The rows of the kernel table --------------------------------------------------------------

template <class Problem>
std::string declines(const Problem&, const Machine&) {
  return {};
}
template <class Problem>
Tiles tiles(const Problem& p, const Machine&) {
  return {.queries = p.q_length, .keys = p.k_length};
}

std::int64_t forward_tasks(const ForwardProblem& p, const Tiles&, int) { return p.batch * p.heads; }
std::int64_t backward_tasks(const BackwardProblem& p, const Tiles&, int) {
  return p.batch * p.kv_heads;
}

template <class Operation, class Sum>
std::size_t scratch_bytes(const typename Operation::Problem& p) {
  const typename Operation::Call none;
  Scratch scratch(nullptr);
  const Head<Operation, Sum> head(p, none, scratch);
  if constexpr (std::is_same_v<Operation, Backward>) {
    head.take_square(scratch);
    scratch.take<Sum>(p.q_length * p.dv);
    scratch.take<Sum>(p.k_length * p.d);
    scratch.take<Sum>(p.k_length * p.dv);
  }
  return scratch.used();
}

template <class Operation>
Workspace workspace(const typename Operation::Problem& p, const Tiles&) {
  return {.shared = 0,
          .per_strand = p.type == DType::f64 ? scratch_bytes<Operation, double>(p)
                                             : scratch_bytes<Operation, float>(p)};
}

}  // namespace

// Partial states it has none, since it divides as it goes; and it skips no hidden blocks, so it
// cannot count visited ones.
extern constinit const Kernel<Forward> kTextbookForward{
    .name = "textbook.forward",
    .only_if_forced = true,
    .takes = kHostTypes | kLayouts | kScoreOptions |
             Features{Feature::dropout, Feature::lse, Feature::weights, Feature::weight_heads,
                      Feature::scores},
    .stages = 1,
    .declines = declines,
    .tiles = tiles,
    .tasks = forward_tasks,
    .workspace = workspace<Forward>,
    .run = forward,
};

// It does not sum over pages that sequences share.
extern constinit const Kernel<Backward> kTextbookBackward{
    .name = "textbook.backward",
    .only_if_forced = true,
    .takes = (kHostTypes | kLayouts | kScoreOptions |
              Features{Feature::dropout, Feature::dlse, Feature::dq, Feature::dk, Feature::dv}) -
             Features{Feature::paged_keys},
    .stages = 1,
    .declines = declines,
    .tiles = tiles,
    .tasks = backward_tasks,
    .workspace = workspace<Backward>,
    .run = backward,
};

}  // namespace attend
