// A small causal problem over three ranks of one process, one of which is told something else,
// fails or is late, and what each of them says then.
#pragma once

#include "support/ranks.h"

#include <attend/distributed.h>

#include <gtest/gtest.h>

#include <string>

namespace attend::test {

using namespace distributed;

constexpr int kRanks = 3, kBad = 1;
constexpr std::int64_t kLength = 700;

enum class Call { forward, backward };

// Gradients that are sums over rows of all ranks: for dbias q, k, v and dout of the whole travel as
// well as what rows have summed, and its columns are shared; for dsinks only the rows' sums.
enum class Sums { none, dbias, dsinks, both };

// A small causal problem.
struct Whole {
  std::int64_t queries = kLength, granule = kGranule;
  Sums sums = Sums::none;
  bool rows = true;    // dq, dk and dv
  bool other = false;  // one rank has other sinks, which all hear of: they are sent to all
  bool dbias() const { return sums == Sums::dbias || sums == Sums::both; }
  bool dsinks() const { return sums == Sums::dsinks || sums == Sums::both; }
  Layouts layouts() const {
    return {Layout::serpentine({queries}, kRanks, granule),
            Layout::serpentine({queries == 1 ? 2000 : queries}, kRanks, granule)};
  }
  AttentionOptions options(int rank) const {
    static const Tensor bias(Shape{1, 4, kLength, kLength}), sinks(Shape{4}),
        others({1.F, 2.F, 3.F, 4.F}, {4});
    AttentionOptions all{.causal = true};
    if (dbias()) all.bias = bias;
    if (dsinks() || other) all.sinks = other && rank == kBad ? others : sinks;
    return all;
  }
};

// One rank's tensors of it.
struct Mine {
  explicit Mine(const Layouts& layouts, int rank, const Whole& whole = {})
      : q(Shape{1, 4, layouts.queries.owned(rank), 8}), k(Shape{1, 2, layouts.keys.owned(rank), 8}),
        v(k), out(q.shape()), lse(Shape{1, 4, layouts.queries.owned(rank)}), dout(out), dlse(lse) {
    if (whole.rows) dq = Tensor(q.shape()), dk = Tensor(k.shape()), dv = Tensor(k.shape());
    if (whole.dbias()) dbias = Tensor(Shape{1, 4, kLength, kLength});
    if (whole.dsinks()) dsinks = Tensor(Shape{4});
  }
  void call(Call which, Group& group, const Layouts& layouts, const AttentionOptions& options,
            const DistributedOptions& distributed, Context& context) {
    if (which == Call::forward)
      return distributed::attention(group, layouts, q, k, v, out, options, {.lse = lse},
                                    distributed, context);
    AttentionGradients gradients;
    if (dq) gradients.dq = dq;
    if (dk) gradients.dk = dk;
    if (dv) gradients.dv = dv;
    if (dbias) gradients.dbias = dbias;
    if (dsinks) gradients.dsinks = dsinks;
    distributed::attention_backward(
        group, layouts,
        {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout, .dlse = dlse}, options,
        gradients, distributed, context);
  }
  Tensor q, k, v, out, lse, dout, dlse, dq, dk, dv, dbias, dsinks;
};

inline std::string what(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const PeerError& peer) {
    return std::string("PeerError: ") + peer.what();
  } catch (const InvalidArgument& invalid) {
    return std::string("InvalidArgument: ") + invalid.what();
  } catch (const OutOfMemory& memory) {
    return std::string("OutOfMemory: ") + memory.what();
  } catch (const Interrupted& interrupted) {
    return std::string("Interrupted: ") + interrupted.what();
  } catch (const std::exception& other) {
    return other.what();
  }
  return "nothing";
}

inline const Layouts& layouts() {
  static const Layouts both = Whole().layouts();
  return both;
}

// What was wrong before hangs nobody afterwards.
inline void expect_goes_on(const ThreadGroup& group, Context& context, Call call = Call::forward) {
  for (const auto& error : group.run([&](Group& mine) {
         Mine(layouts(), mine.rank()).call(call, mine, layouts(), {}, {}, context);
       }))
    EXPECT_EQ(what(error), "nothing");
}

inline void expect_refused(Group& group, Context& context) {
  Mine mine(layouts(), group.rank());
  try {
    mine.call(Call::forward, group, layouts(), {}, {}, context);
    ADD_FAILURE() << "a group that failed took a call";
  } catch (const PeerError& error) {
    EXPECT_NE(std::string(error.what()).find("takes no more calls"), std::string::npos);
  }
}

}  // namespace attend::test
