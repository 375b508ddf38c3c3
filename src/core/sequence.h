// The queries and keys of one batch element: how many, where they stand, where they live. The only
// place that knows dense, packed and paged tensors apart.
#pragma once

#include "core/call.h"
#include "core/problem.h"

namespace attend {

struct Sequence {
  std::int64_t b = 0;
  std::int64_t q_begin = 0, q_length = 0;  // row i is q[b, h, i] or, packed, q[0, h, q_begin + i]
  std::int64_t k_begin = 0;
  std::int64_t k_stored = 0;  // keys that have an address
  std::int64_t k_length = 0;  // of these, the ones below key_lengths
  std::int64_t offset = 0;    // query i stands where key i + offset does
};

// Where the weights of head h are written: its place in that dimension of them; -1: nowhere.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t place_in_weights(
    const ForwardProblem& problem, const ForwardCall& call, std::int64_t h) noexcept {
  if (!problem.weights) return -1;
  if (problem.weight_heads == 0) return h;
  for (std::int64_t n = 0; n < problem.weight_heads; ++n)
    if (call.weight_heads[n] == h) return n;
  return -1;
}

// Always inlined, like with_type: no copy compiled for an instruction set is left for others.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline Sequence sequence_of(const Problem& problem,
                                                                      const Call& call,
                                                                      std::int64_t b) noexcept {
  Sequence s{.b = b, .q_length = problem.q_length, .k_stored = problem.k_length};
  const auto entry = [](const Strided& t, std::int64_t n) {
    return load_integer(t, t.offset(n, 0, 0));
  };
  if (problem.packed_queries && !problem.query_runs) {
    s.q_begin = entry(call.cu_seqlens_q, b);
    s.q_length = entry(call.cu_seqlens_q, b + 1) - s.q_begin;
  }
  if (problem.keys == KeyAddressing::packed) {
    s.k_begin = entry(call.cu_seqlens_k, b);
    s.k_stored = entry(call.cu_seqlens_k, b + 1) - s.k_begin;
  }
  s.k_length = problem.key_lengths ? entry(call.key_lengths, b) : s.k_stored;
  if (problem.keys == KeyAddressing::paged) s.k_stored = s.k_length;
  s.offset = s.k_length - s.q_length;
  if (problem.offset_given) s.offset = call.offset;
  if (problem.offset_each) s.offset = entry(call.query_offset, b);
  s.offset -= call.key_offset;
  return s;
}

// Query n of those at hand, as the sequence counts its queries. Of several runs the sequence is
// then the one that holds it, whose end is the sequence's.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t enter_run(const Problem& problem,
                                                                        const Call& call,
                                                                        Sequence& s,
                                                                        std::int64_t n) noexcept {
  if (!problem.query_runs) return n;
  const QueryRun *run = call.query_runs, *const last = run + call.query_run_count - 1;
  while (run < last && n >= run[1].row) ++run;
  s.q_begin = run->row - run->begin;
  s.q_length = run->end;
  return n - s.q_begin;
}

// Row i of head h in q, out, dout, lse ... (whatever has queries).
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t query_row(const Problem& problem,
                                                                        const Strided& t,
                                                                        const Sequence& s,
                                                                        std::int64_t h,
                                                                        std::int64_t i) noexcept {
  return problem.packed_queries ? t.offset(0, h, s.q_begin + i) : t.offset(s.b, h, i);
}

[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t page_of(const Problem& problem,
                                                                      const Call& call,
                                                                      const Sequence& s,
                                                                      std::int64_t j) noexcept {
  return load_integer(call.block_table, call.block_table.offset(s.b, 0, 0, j / problem.page_size));
}

// Row j of the key head in k, v, dk or dv.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t key_row(
    const Problem& problem, const Call& call, const Strided& t, const Sequence& s,
    std::int64_t kv_head, std::int64_t j) noexcept {
  switch (problem.keys) {
    case KeyAddressing::dense: return t.offset(s.b, kv_head, j);
    case KeyAddressing::packed: return t.offset(0, kv_head, s.k_begin + j);
    case KeyAddressing::paged: break;
  }
  return t.offset(page_of(problem, call, s, j), kv_head, j % problem.page_size);
}

// ---- Of inspect: what lies as the keys do, one number each -------------------------------------

// How many keys the sequence has a mass for: the stored ones, of pages all that the table holds.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t listed_keys(
    const Problem& problem, const Sequence& s) noexcept {
  return problem.keys == KeyAddressing::packed ? s.k_stored : problem.k_length;
}

// The mass of key 0 of head h.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t mass_row(
    const InspectProblem& problem, const InspectCall& call, const Sequence& s,
    std::int64_t h) noexcept {
  return problem.keys == KeyAddressing::packed ? call.key_mass.offset(0, h, s.k_begin)
                                               : call.key_mass.offset(s.b, h, 0);
}

// The token of key j.
[[gnu::always_inline]] ATTEND_HOST_DEVICE inline std::int64_t token_of(
    const InspectProblem& problem, const InspectCall& call, const Sequence& s,
    std::int64_t j) noexcept {
  const Strided& t = call.tokens;
  return load_integer(t, problem.keys == KeyAddressing::packed ? t.offset(0, 0, s.k_begin + j)
                                                               : t.offset(s.b, 0, j));
}

}  // namespace attend
