// What forward and backward share: a call of all ranks, from its record to its end, and the
// kernels' work in between.
#pragma once

#include "api/context.h"
#include "core/interruption.h"
#include "core/reporting.h"
#include "core/text.h"
#include "distributed/balance.h"
#include "distributed/record.h"
#include "distributed/rows.h"
#include "distributed/scheme.h"

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

// What all ranks must agree on, whatever the call.
void record_whole(Record& record, bool backward, const WholeProblem& whole,
                  const AttentionOptions& options, const DistributedOptions& distributed);

// That all ranks compute with the same row of the kernel table: others have other bits. `problem`
// is made of what all ranks know.
template <class Operation>
void record_kernel(Record& record, Context& context, const typename Operation::Problem& problem) {
  record.kernel(ContextState::of(context).template plan_for<Operation>(problem)->kernel->name);
}

// Runs a piece's Problem and Call.
template <class Operation>
void run_piece(const char* function, Context& context, const typename Operation::Problem& problem,
               const typename Operation::Call& call) {
  ContextState& state = ContextState::of(context);
  state.execute(function, *state.template plan_for<Operation>(problem), call);
}

// ---- Keys of one key head
// ------------------------------------------------------------------------

// k, v and their scales, as far as they are given; of all sequences or, with b, of one.
struct KeyRows {
  WholeRows k, v, k_scales, v_scales;
  KeyRows(const Context& context, const WholeProblem& whole, const Call& local, std::int64_t rows);
};
std::vector<MovedTensor> moved_keys(const WholeProblem& whole, const Call& local,
                                    std::int64_t kv_head, const KeyRows& to, std::int64_t b = -1);
// Where a kernel finds them, from row `row` on.
void read_keys(const WholeProblem& whole, const KeyRows& keys, std::int64_t row, Call& call);

// ---- Rounds
// --------------------------------------------------------------------------------------

// Rows that go to each rank, or come from it: of which tensors, which, and where they lie here.
struct RankRows {
  std::function<std::vector<MovedTensor>(int)> tensors;
  std::function<Blocks(int)> blocks;
  Place place;
};
// Where they lie, if that makes few transfers: no byte is copied but by whoever moves it. Else by
// way of messages. Both tell of the same blocks, and of buffers with rows side by side.
void start_rows(const WholeProblem& whole, Wire& wire, const RankRows& send,
                const RankRows& receive, const Needs* needs, Exchange& exchange);
void finish_rows(const WholeProblem& whole, Wire& wire, const RankRows& receive,
                 Exchange& exchange);

// Sends the rank's rows of some tensors to everybody, as far as they need them (null: all), and
// receives theirs, all into the buffers of the tensors.
void start_gather(const WholeProblem& whole, Wire& wire, const std::vector<MovedTensor>& tensors,
                  const Needs* needs, Exchange& exchange);
void finish_gather(const WholeProblem& whole, Wire& wire, const std::vector<MovedTensor>& tensors,
                   const Needs* needs, Exchange& exchange);

// The scheme `heads`: round by round every rank receives the rows of its next item, computes it,
// and sends back what belongs to the owners of its rows. One round is under way while another is
// computed.
struct HeadsRounds {
  std::function<std::vector<MovedTensor>(const Item&)> inputs, outputs;
  std::function<void(const Item&)> compute;
};
void run_heads(const WholeProblem& whole, Wire& wire, const HeadsRounds& rounds);

std::int64_t longest(const WholeProblem& whole, bool queries);

}  // namespace attend::distributed
