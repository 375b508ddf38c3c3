// What forward and backward share: a call of all ranks, from its record to its end, and the
// kernels' work in between.
#pragma once

#include "api/context.h"
#include "core/interruption.h"
#include "core/reporting.h"
#include "core/text.h"
#include "distributed/record.h"
#include "distributed/rows.h"

namespace attend::distributed {

// prepare(record) checks the arguments, makes the memory, and throws if anything is wrong; then, if
// all ranks could, work(). What is thrown there leaves other ranks without their messages: the
// group takes no more calls.
template <class Prepare, class Work>
void collective(const char* function, Group& group, Wire& wire, const Prepare& prepare,
                const Work& work) {
  if (!group.failure().empty())
    throw PeerError(
        text(function, ": the group takes no more calls since one failed: ", group.failure()));
  agree(function, wire, group.next_call(), prepare);
  try {
    const Polling polling(wire.poll());
    work();
  } catch (...) {
    fail_group(group);
    throw;
  }
}

// Runs a piece's Problem and Call.
template <class Operation>
void run_piece(const char* function, Context& context, const typename Operation::Problem& problem,
               const typename Operation::Call& call) {
  ContextState& state = ContextState::of(context);
  state.execute(function, *state.template plan_for<Operation>(problem), call);
}

// A sequence and a key head: what one rank computes at a time in the scheme `heads`.
struct Item {
  std::int64_t b = 0, kv_head = 0;
};
// Of each rank, so that their numbers of pairs are alike.
std::vector<std::vector<Item>> items_of(const WholeProblem& whole, int ranks);

// Pairs of a query and a key of sequence b that may be seen by position, of one head; of the
// queries or keys [begin, end).
double pairs_of_queries(const WholeProblem& whole, std::int64_t b, std::int64_t begin,
                        std::int64_t end);
double pairs_of_keys(const WholeProblem& whole, std::int64_t b, std::int64_t begin,
                     std::int64_t end);

// The scheme that is used.
Scheme chosen_scheme(const WholeProblem& whole, Scheme asked, int ranks);

// k and v of one key head, or of several, and their scales.
std::vector<MovedTensor> keys_of_head(const WholeProblem& whole, const Call& local,
                                      std::int64_t kv_head, const std::vector<WholeRows>& to);
std::vector<WholeRows> rows_for_keys(const WholeProblem& whole, const Call& local,
                                     const Context& context);
// Where a kernel finds the keys of sequence b in them.
void read_keys(const WholeProblem& whole, const std::vector<WholeRows>& rows, std::int64_t b,
               std::int64_t key, Call& call);

}  // namespace attend::distributed
