// What happens to a call of many ranks when one of them stops, throws, is slow, or was given
// something else: in every phase, that is, before each of its transfers. Nobody waits for ever, and
// all know of it. Times are limits only: a slow machine makes these tests slower, not wrong.
#include "support/ranks.h"

#include <attend/distributed.h>
#include <attend/option_list.h>

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace attend::test {
namespace {

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

std::string what(const std::exception_ptr& error) {
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

const Layouts& layouts() {
  static const Layouts both = Whole().layouts();
  return both;
}

struct Phase {
  Call call;
  Whole whole;
  DistributedOptions options;
  std::int64_t transfers = 0;  // of each rank, in one call

  void make(Group& group, Context& context) const {
    const Layouts layouts = whole.layouts();
    try {
      Mine(layouts, group.rank(), whole)
          .call(call, group, layouts, whole.options(group.rank()), options, context);
    } catch (const InvalidArgument& error) {
      if (!whole.other || std::string_view(error.what()).find("sinks[0]") == std::string::npos)
        throw;
    }
  }
};

// Every kind of call, with the number of its transfers. (Bits::fast is something else backward
// alone, and in the scheme `gather`.)
std::vector<Phase> phases(std::chrono::milliseconds timeout) {
  std::vector<Phase> all;
  for (const Call call : {Call::forward, Call::backward})
    for (const Scheme scheme : {Scheme::gather, Scheme::heads})
      for (const Bits bits : {Bits::one_process, Bits::fast}) {
        if (bits == Bits::fast && (scheme == Scheme::heads || call == Call::forward)) continue;
        all.push_back({call, {}, {scheme, bits, timeout}});
        if (call == Call::backward && bits == Bits::one_process)
          all.push_back({call, {.sums = Sums::both}, {scheme, bits, timeout}});
        // So many runs of positions that they travel in messages.
        if (scheme == Scheme::gather)
          all.push_back({call, {.granule = 1}, {scheme, bits, timeout}});
      }
  const DistributedOptions gather{Scheme::gather, Bits::one_process, timeout};
  // Queries go to the keys, and states come back.
  all.push_back({Call::forward, {.queries = 1}, gather});
  // Sums alone, after those of fast, and in messages.
  all.push_back({Call::backward, {.sums = Sums::dbias, .rows = false}, gather});
  all.push_back({Call::backward, {.sums = Sums::dsinks, .rows = false}, gather});
  all.push_back({Call::backward, {.sums = Sums::both}, {Scheme::gather, Bits::fast, timeout}});
  all.push_back({Call::backward, {.granule = 1, .sums = Sums::both, .rows = false}, gather});
  // Lists that differ.
  all.push_back({Call::forward, {.other = true}, gather});
  Context context({.threads = 1});
  for (Phase& phase : all) {
    std::atomic<std::int64_t> count{0};
    const ThreadGroup group(kRanks, [&](int rank, std::int64_t) { count += rank == kBad; });
    phase.options.timeout = std::chrono::minutes(2);
    for (const auto& error : group.run([&](Group& mine) { phase.make(mine, context); }))
      EXPECT_EQ(what(error), "nothing");
    phase.options.timeout = timeout;
    phase.transfers = count;
  }
  return all;
}

// Runs `scenario(phase, transfer)` for every transfer of every phase, all at once: most of their
// time is waiting.
template <class Scenario>
void in_every_phase(std::chrono::milliseconds timeout, Scenario scenario) {
  std::vector<std::thread> threads;
  for (const Phase& phase : phases(timeout)) {
    EXPECT_GE(phase.transfers, phase.whole.other ? 2 : 3);
    for (std::int64_t n = 0; n < phase.transfers; ++n)
      threads.emplace_back([=] { scenario(phase, n); });
  }
  for (std::thread& thread : threads) thread.join();
}

void expect_refused(Group& group, Context& context) {
  Mine mine(layouts(), group.rank());
  try {
    mine.call(Call::forward, group, layouts(), {}, {}, context);
    ADD_FAILURE() << "a group that failed took a call";
  } catch (const PeerError& error) {
    EXPECT_NE(std::string(error.what()).find("takes no more calls"), std::string::npos);
  }
}

TEST(faults, a_rank_that_throws_ends_the_call_of_all) {
  in_every_phase(std::chrono::seconds(2), [](const Phase& phase, std::int64_t at) {
    Context context({.threads = 1});
    const ThreadGroup group(kRanks, [=](int rank, std::int64_t transfer) {
      if (rank == kBad && transfer == at) throw std::runtime_error("broken");
    });
    const auto thrown = group.run([&](Group& mine) { phase.make(mine, context); });
    // Where the machine is so slow that the others lost patience before, it hears of that.
    const std::string own = what(thrown[kBad]);
    EXPECT_TRUE(own == "broken" || own.starts_with("PeerError: ")) << own << at;
    expect_refused(group.rank(kBad), context);
    // In the last transfer others may have all that they need of it.
    for (const int r : {0, 2}) {
      if (at + 1 == phase.transfers && !thrown[static_cast<std::size_t>(r)]) continue;
      EXPECT_EQ(what(thrown[static_cast<std::size_t>(r)]).find("PeerError: "), 0U) << at;
      expect_refused(group.rank(r), context);
    }
  });
}

// What the others say if rank 1 stops there until they are done.
std::vector<std::string> said_of_one_that_stops(const Phase& phase, std::int64_t at) {
  Context context({.threads = 1});
  std::mutex mutex;
  std::condition_variable changed;
  int done = 0;
  const ThreadGroup group(kRanks, [&](int rank, std::int64_t transfer) {
    if (rank != kBad || transfer != at) return;
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done == kRanks - 1; });
  });
  const auto thrown = group.run([&](Group& mine) {
    const auto finished = [&] {
      const std::lock_guard lock(mutex);
      done += mine.rank() != kBad;
      changed.notify_all();
    };
    try {
      phase.make(mine, context);
    } catch (...) {
      finished();
      throw;
    }
    finished();
  });
  return {what(thrown[0]), what(thrown[2])};
}

TEST(faults, a_rank_that_stops_is_named_within_the_time) {
  in_every_phase(std::chrono::milliseconds(500), [](Phase phase, std::int64_t at) {
    // Where the machine is busy, the other one may be so late that it is named: then once more.
    for (bool again = true; again; phase.options.timeout *= 4) {
      again = false;
      const std::string end = " 1 within " + std::to_string(phase.options.timeout.count()) + " ms";
      for (const std::string& said : said_of_one_that_stops(phase, at)) {
        if (at + 1 == phase.transfers && said == "nothing") continue;
        EXPECT_EQ(said.find("PeerError: "), 0U) << said;
        again = again || !said.ends_with("no answer from rank" + end);
        EXPECT_TRUE(!again || phase.options.timeout < std::chrono::minutes(1)) << said;
      }
      again = again && phase.options.timeout < std::chrono::minutes(1);
    }
  });
}

TEST(faults, a_slow_rank_changes_no_bit) {
  for (const Phase& phase : phases(std::chrono::minutes(2))) {
    if (phase.whole.other) continue;  // writes nothing
    const auto run = [&](const ThreadGroup::BeforeTransfer& before) {
      Context context({.threads = 1});
      const ThreadGroup group(kRanks, before);
      std::vector<std::vector<Tensor>> results(kRanks);
      const auto thrown = group.run([&](Group& mine) {
        const Layouts cut = phase.whole.layouts();
        Mine t(cut, mine.rank(), phase.whole);
        fill_gaussian(t.q, 1);
        fill_gaussian(t.k, 2);
        fill_gaussian(t.v, 3);
        if (phase.call == Call::backward) fill_gaussian(t.out, 4), fill_gaussian(t.dout, 5);
        t.call(phase.call, mine, cut, phase.whole.options(mine.rank()), phase.options, context);
        results[static_cast<std::size_t>(mine.rank())] = {t.out, t.lse,   t.dq,    t.dk,
                                                          t.dv,  t.dbias, t.dsinks};
      });
      for (const auto& error : thrown) EXPECT_EQ(what(error), "nothing");
      return results;
    };
    const auto fast = run({});
    const auto slow = run([](int rank, std::int64_t transfer) {
      if ((rank + transfer) % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    });
    for (std::size_t r = 0; r < fast.size(); ++r)
      for (std::size_t n = 0; n < fast[r].size(); ++n)
        EXPECT_TRUE(!fast[r][n] || same_bits(fast[r][n], slow[r][n])) << r << ", " << n;
  }
}

// A change to what one rank is given, and what all of them say.
struct Other {
  const char* says;
  std::function<void(AttentionOptions&, Layouts&, Mine&, DistributedOptions&)> change;
};

TEST(faults, other_arguments_of_one_rank_are_named_by_all_and_the_group_goes_on) {
  static const Tensor mask(Shape{kLength}, DType::boolean);
  static const Tensor slopes({1.F, 2.F, 3.F, 4.F}, {4}), sinks({1.F, 2.F, -2.5F, 4.F}, {4});
  static const Tensor lengths({kLength}, {1}), shorter({std::int64_t{600}}, {1});
  const Other others[] = {
      {"attention: rank 1 was given causal 0, rank 0 1; all ranks must describe one problem",
       [](auto& options, auto&, auto&, auto&) { options.causal = false; }},
      {"attention: rank 1 was given softcap 30, rank 0 0; all ranks must describe one problem",
       [](auto& options, auto&, auto&, auto&) { options.softcap = 30; }},
      {"attention: rank 1 was given scale 0, rank 0 none; all ranks must describe one problem",
       [](auto& options, auto&, auto&, auto&) { options.scale = 0; }},
      {"attention: rank 1 was given query_offset -1, rank 0 none; all ranks must describe one "
       "problem",
       [](auto& options, auto&, auto&, auto&) { options.query_offset = -1; }},
      {"attention: rank 1 was given window.left 5, rank 0 unlimited; all ranks must describe one "
       "problem",
       [](auto& options, auto&, auto&, auto&) { options.window.left = 5; }},
      {"attention: rank 1 was given mask bool [700], rank 0 none; all ranks must describe one "
       "problem",
       [](auto& options, auto&, auto&, auto&) { options.mask = mask; }},
      {"attention: rank 1 was given alibi f32 [4], rank 0 none; all ranks must describe one "
       "problem",
       [](auto& options, auto&, auto&, auto&) { options.alibi = slopes; }},
      {"attention: rank 1 was given sinks[2] 3, rank 0 -2.5; all ranks must describe one problem",
       [](auto& options, auto&, auto&, auto&) { options.sinks = slopes; }},
      {"attention: rank 1 was given key_lengths[0] 600, rank 0 700; all ranks must describe one "
       "problem",
       [](auto& options, auto&, auto&, auto&) { options.key_lengths = shorter; }},
      {"attention: rank 1 was given dropout.seed 7, rank 0 0; all ranks must describe one problem",
       [](auto& options, auto&, auto&, auto&) { options.dropout.seed = 7; }},
      {"attention: rank 1 was given scheme 1, rank 0 2; all ranks must describe one problem",
       [](auto&, auto&, auto&, auto& distributed) { distributed.scheme = Scheme::heads; }},
      {"rank 1: attention: q has 5 rows, by layouts.queries rank 1 owns 256",
       [](auto&, auto&, Mine& mine, auto&) {
         mine.q = Tensor(Shape{1, 4, 5, 8});
       }},
      {"rank 1: attention: k has d 9, q has 8; they must be equal",
       [](auto&, auto&, Mine& mine, auto&) {
         mine.k = Tensor(Shape{1, 2, 256, 9});
       }},
      {"attention: rank 1 was given the type of q f64, rank 0 f32; all ranks must describe one "
       "problem",
       [](auto& options, auto&, Mine& mine, auto&) {
         options.sinks = {};
         for (Tensor* t : {&mine.q, &mine.k, &mine.v, &mine.out, &mine.lse})
           *t = Tensor(t->shape(), DType::f64);
       }},
      {"attention: rank 1 was given batch 2, rank 0 1; all ranks must describe one problem",
       [](auto& options, auto&, Mine& mine, auto&) {
         options.key_lengths = {};
         mine.q = mine.out = Tensor(Shape{2, 4, 256, 8});
         mine.k = mine.v = Tensor(Shape{2, 2, 256, 8});
         mine.lse = Tensor(Shape{2, 4, 256});
       }},
      {"attention: rank 1 was given layouts.queries.owners[0] 2, rank 0 0; all ranks must describe "
       "one problem",
       [](auto&, Layouts& other, auto&, auto&) {
         other.queries = Layout({kLength}, {{2, 1, 0}}, kRanks);
       }},
      {"attention: rank 1 was given layouts.queries.granule 128, rank 0 256; all ranks must "
       "describe "
       "one problem",
       [](auto&, Layouts& other, auto&, auto&) {
         other.queries = Layout({kLength}, {{0, 0, 1, 1, 2, 2}}, kRanks, 128);
       }},
      {"rank 1: attention: layouts.queries is for 4 ranks, the group has 3",
       [](auto&, Layouts& other, auto&, auto&) {
         other.queries = Layout::serpentine({kLength}, 4);
       }},
      {"rank 1: attention: softcap is -1; it must be finite and at least 0 (0: none)",
       [](auto& options, auto&, auto&, auto&) { options.softcap = -1; }},
  };
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  for (const Other& other : others) {
    const auto thrown = group.run([&](Group& mine) {
      AttentionOptions options{.causal = true, .sinks = sinks, .key_lengths = lengths};
      Layouts of_rank = layouts();
      Mine tensors(layouts(), mine.rank());
      DistributedOptions distributed{.scheme = Scheme::gather, .timeout = std::chrono::minutes(2)};
      if (mine.rank() == kBad) other.change(options, of_rank, tensors, distributed);
      tensors.call(Call::forward, mine, of_rank, options, distributed, context);
    });
    for (const auto& error : thrown)
      EXPECT_EQ(what(error), std::string("InvalidArgument: ") + other.says);
  }
  // What was wrong hangs nobody afterwards.
  for (const auto& error : group.run([&](Group& mine) {
         Mine(layouts(), mine.rank()).call(Call::forward, mine, layouts(), {}, {}, context);
       }))
    EXPECT_EQ(what(error), "nothing");
}

// A tensor of one rank alone, in either call, that has another shape or type.
TEST(faults, other_tensors_of_one_rank_are_named_by_all_and_the_group_goes_on) {
  struct Wrong {
    Call call;
    Tensor Mine::*tensor;
    Shape shape;  // of rank 1: 256 rows, 4 heads on 2 key heads, d 8
    DType type;
    std::string says;
    std::string all_say() const {
      const std::string function = call == Call::forward ? "attention: " : "attention_backward: ";
      return "InvalidArgument: " + (says.starts_with("rank 1 was given")
                                        ? function + says + "; all ranks must describe one problem"
                                        : "rank 1: " + function + says);
    }
  };
  constexpr Call kForward = Call::forward, kBackward = Call::backward;
  constexpr DType kType = DType::f32;
  const Wrong all[] = {
      {kForward, &Mine::v, {1, 2, 5, 8}, kType, "v has 5 keys, k has 256; they must be equal"},
      {kForward, &Mine::v, {1, 3, 256, 8}, kType, "v has 3 heads, k has 2; they must be equal"},
      {kForward, &Mine::out, {1, 4, 5, 8}, kType, "out is [1, 4, 5, 8]; it must be [1, 4, 256, 8]"},
      {kForward, &Mine::lse, {1, 4, 5}, kType, "lse is [1, 4, 5]; it must be [1, 4, 256]"},
      {kForward,
       &Mine::k,
       {1, 2, 256, 8},
       DType::bf16,
       "rank 1 was given the type of k bf16, rank 0 f32"},
      {kForward, &Mine::out, {1, 4, 256, 8}, DType::bf16, "out is bf16; it must be f32 or f64"},
      {kBackward,
       &Mine::q,
       {1, 4, 5, 8},
       kType,
       "q has 5 rows, by layouts.queries rank 1 owns 256"},
      {kBackward,
       &Mine::q,
       {1, 4, 256},
       kType,
       "q has 3 dimensions [1, 4, 256]; it must be [batch, heads, queries, d]"},
      {kBackward,
       &Mine::q,
       {1, 3, 256, 8},
       kType,
       "k has 2 heads, q has 3; heads of q must be a multiple"},
      {kBackward, &Mine::k, {1, 2, 5, 8}, kType, "k has 5 rows, by layouts.keys rank 1 owns 256"},
      {kBackward, &Mine::k, {1, 2, 256, 9}, kType, "k has d 9, q has 8; they must be equal"},
      {kBackward, &Mine::v, {1, 2, 5, 8}, kType, "v has 5 keys, k has 256; they must be equal"},
      {kBackward, &Mine::v, {1, 3, 256, 8}, kType, "v has 3 heads, k has 2; they must be equal"},
      {kBackward,
       &Mine::out,
       {1, 4, 5, 8},
       kType,
       "out is [1, 4, 5, 8]; it must be [1, 4, 256, 8]"},
      {kBackward, &Mine::lse, {1, 4, 5}, kType, "lse is [1, 4, 5]; it must be [1, 4, 256]"},
      {kBackward,
       &Mine::dout,
       {1, 4, 256, 9},
       kType,
       "dout is [1, 4, 256, 9]; it must be [1, 4, 256, 8]"},
      {kBackward, &Mine::dlse, {1, 4, 5}, kType, "dlse is [1, 4, 5]; it must be [1, 4, 256]"},
      {kBackward, &Mine::dq, {1, 4, 5, 8}, kType, "dq is [1, 4, 5, 8]; it must be [1, 4, 256, 8]"},
      {kBackward, &Mine::dk, {1, 2, 5, 8}, kType, "dk is [1, 2, 5, 8]; it must be [1, 2, 256, 8]"},
      {kBackward,
       &Mine::dv,
       {2, 2, 256, 8},
       kType,
       "dv is [2, 2, 256, 8]; it must be [1, 2, 256, 8]"},
      {kBackward,
       &Mine::dbias,
       {1, 4, 700, 5},
       kType,
       "dbias is [1, 4, 700, 5]; it must be [1, 4, 700, 700]"},
      {kBackward, &Mine::dsinks, {5}, kType, "dsinks is [5]; it must be [4]"},
      {kBackward,
       &Mine::q,
       {1, 4, 256, 8},
       DType::bf16,
       "k is f32 and q bf16; k must be bf16, f16 or i8"},
      {kBackward, &Mine::k, {1, 2, 256, 8}, DType::bf16, "dk is f32; it must be bf16"},
      {kBackward,
       &Mine::v,
       {1, 2, 256, 8},
       DType::i8,
       "v is i8, but v_scales is missing; it says what the numbers mean"},
      {kBackward, &Mine::out, {1, 4, 256, 8}, DType::bf16, "out is bf16; it must be f32 or f64"},
      {kBackward, &Mine::lse, {1, 4, 256}, DType::bf16, "lse is bf16; it must be f32 or f64"},
      {kBackward,
       &Mine::dout,
       {1, 4, 256, 8},
       DType::f64,
       "rank 1 was given the type of dout f64, rank 0 f32"},
      {kBackward,
       &Mine::dlse,
       {1, 4, 256},
       DType::f64,
       "rank 1 was given the type of dlse f64, rank 0 f32"},
      {kBackward, &Mine::dq, {1, 4, 256, 8}, DType::f64, "dq is f64; it must be f32"},
      {kBackward, &Mine::dk, {1, 2, 256, 8}, DType::f64, "dk is f64; it must be f32"},
      {kBackward, &Mine::dv, {1, 2, 256, 8}, DType::f64, "dv is f64; it must be f32"},
      {kBackward, &Mine::dbias, {1, 4, 700, 700}, DType::f64, "dbias is f64; it must be f32"},
      {kBackward, &Mine::dsinks, {4}, DType::f64, "dsinks is f64; it must be f32"},
  };
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  const auto said_of = [&](Call call, const Whole& whole, const Wrong* wrong) {
    const auto errors = group.run([&](Group& mine) {
      Mine tensors(layouts(), mine.rank(), whole);
      if (wrong != nullptr && mine.rank() == kBad)
        tensors.*wrong->tensor = Tensor(wrong->shape, wrong->type);
      tensors.call(call, mine, layouts(), whole.options(mine.rank()), {}, context);
    });
    for (const auto& error : errors) EXPECT_EQ(what(error), what(errors[0]));
    return what(errors[0]);
  };
  const Whole plain, sums{.sums = Sums::both};
  for (const Wrong& wrong : all) {
    const bool of_sums = wrong.tensor == &Mine::dbias || wrong.tensor == &Mine::dsinks;
    EXPECT_EQ(said_of(wrong.call, of_sums ? sums : plain, &wrong), wrong.all_say());
    if (wrong.call == Call::forward || of_sums) continue;
    EXPECT_EQ(said_of(wrong.call, sums, &wrong), wrong.all_say());
  }
  for (const Call call : {Call::forward, Call::backward})
    EXPECT_EQ(said_of(call, sums, nullptr), "nothing");
}

// One rank counts a call that the others have not made: the numbers say so, on all ranks in the
// same words, whatever each of them called.
TEST(faults, ranks_in_different_calls_say_so_in_the_same_words) {
  Context context({.threads = 1});
  for (const int ahead : {0, kBad, 2}) {
    const ThreadGroup group(kRanks);
    const auto call = [&](Group& mine) {
      Mine(layouts(), mine.rank())
          .call(mine.rank() == 2 ? Call::backward : Call::forward, mine, layouts(), {},
                {.timeout = std::chrono::minutes(2)}, context);
    };
    for (int n = 0; n < 2; ++n)
      for (const auto& error : group.run([&](Group& mine) {
             Mine(layouts(), mine.rank()).call(Call::forward, mine, layouts(), {}, {}, context);
           }))
        EXPECT_EQ(what(error), "nothing");
    (void)group.rank(ahead).next_call();
    const std::string said =
        ahead == 0 ? "rank 1 is in call 2 of the group, rank 0 in 3"
                   : "rank " + std::to_string(ahead) + " is in call 3 of the group, rank 0 in 2";
    for (const auto& error : group.run(call))
      EXPECT_EQ(what(error),
                "PeerError: attention: " + said + "; all ranks must make the same calls");
    for (int r = 0; r < kRanks; ++r) expect_refused(group.rank(r), context);
  }
}

// A call that one rank makes alone: it waits for the others, and when they come, they for it.
TEST(faults, a_call_of_one_rank_alone_ends_for_all_within_the_time) {
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  for (const bool others : {false, true}) {
    const auto thrown = group.run([&](Group& mine) {
      if ((mine.rank() == kBad) == others) return;
      Mine(layouts(), mine.rank())
          .call(Call::forward, mine, layouts(), {}, {.timeout = std::chrono::milliseconds(200)},
                context);
    });
    for (int r = 0; r < kRanks; ++r) {
      const std::string said = what(thrown[static_cast<std::size_t>(r)]);
      if ((r == kBad) == others) {
        EXPECT_EQ(said, "nothing");
      } else {
        EXPECT_TRUE(said.starts_with("PeerError: attention: no answer from rank")) << said;
      }
    }
  }
  for (int r = 0; r < kRanks; ++r) expect_refused(group.rank(r), context);
}

// A rank that cannot even name its arguments, instead of a call, of either function.
TEST(faults, a_rank_that_refuses_a_call_is_heard_by_all_and_the_group_goes_on) {
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  for (const Call which : {Call::forward, Call::backward}) {
    for (const auto& error : group.run([&](Group& mine) {
           if (mine.rank() == kBad)
             refuse_call(mine, "its file is not there", {.timeout = std::chrono::minutes(2)},
                         context);
           Mine(layouts(), mine.rank()).call(which, mine, layouts(), {}, {}, context);
         }))
      EXPECT_EQ(what(error), "InvalidArgument: rank 1: its file is not there");
    std::string words, cut;  // of two bytes each: none is cut in its middle
    for (int n = 0; n < 700; ++n) words += "\u00e4", cut += n < 299 ? "\u00e4" : "";
    for (const auto& error : group.run([&](Group& mine) {
           refuse_call(mine, words, {.timeout = std::chrono::minutes(2)}, context);
         }))
      EXPECT_EQ(what(error), "InvalidArgument: rank 0: " + cut);
    for (const auto& error : group.run([&](Group& mine) {
           Mine(layouts(), mine.rank()).call(which, mine, layouts(), {}, {}, context);
         }))
      EXPECT_EQ(what(error), "nothing");
  }
}

// Others have other bits. In Bits::fast too: it promises those of out, lse and dq.
TEST(faults, other_kernels_of_one_rank_are_named_by_all) {
  Context plain({.threads = 1}),
      other({.threads = 1, .kernels = "forward:reference.forward,backward:reference.backward"});
  const ThreadGroup group(kRanks);
  for (const Phase& phase : phases(std::chrono::minutes(2))) {
    if (phase.whole.granule == 1 || phase.whole.other) continue;
    const auto thrown =
        group.run([&](Group& mine) { phase.make(mine, mine.rank() == kBad ? other : plain); });
    const std::string function = phase.call == Call::forward ? "attention" : "attention_backward",
                      kernel = phase.call == Call::forward ? "forward" : "backward";
    for (const auto& error : thrown) {
      const std::string said = what(error);
      EXPECT_TRUE(said.starts_with("InvalidArgument: " + function +
                                   ": rank 1 computes with reference." + kernel +
                                   ", rank 0 with cpu."))
          << said;
      EXPECT_TRUE(said.ends_with(
          "; all ranks must use the same kernels (their Contexts can be told which)"))
          << said;
    }
  }
  for (const auto& error : group.run([&](Group& mine) {
         Mine(layouts(), mine.rank()).call(Call::forward, mine, layouts(), {}, {}, other);
       }))
    EXPECT_EQ(what(error), "nothing");
}

// A kernel that was forced and does not take the problem, on one rank or on all.
TEST(faults, a_kernel_that_declines_is_told_before_anything_is_sent) {
  Context plain({.threads = 1}), other({.threads = 1, .kernels = "forward:textbook.forward"});
  const ThreadGroup group(kRanks);
  const Whole few{.queries = 1};
  for (const auto& error : group.run([&](Group& mine) {
         Mine(few.layouts(), mine.rank())
             .call(Call::forward, mine, few.layouts(), few.options(mine.rank()),
                   {.scheme = Scheme::gather, .timeout = std::chrono::minutes(2)},
                   mine.rank() == kBad ? other : plain);
       }))
    EXPECT_EQ(
        what(error).find("rank 1: plan: textbook.forward was forced and declines forward f32"), 0U)
        << what(error);
  // It takes the whole, but not the runs of queries that a rank has of it; the layout of the keys
  // is the same. Before the first of them is called, and the group goes on.
  Context textbook(
      {.threads = 1, .kernels = "forward:textbook.forward,backward:textbook.backward"});
  const Layouts one_run{Layout::contiguous({kLength}, kRanks), layouts().keys};
  const Layouts runs{Layout({kLength}, {{0, 1, 0}}, kRanks), layouts().keys};
  for (const Call which : {Call::forward, Call::backward}) {
    const DistributedOptions how{.scheme = Scheme::gather,
                                 .bits = which == Call::forward ? Bits::one_process : Bits::fast,
                                 .timeout = std::chrono::minutes(2)};
    const auto said_of = [&](const Layouts& cut) {
      const auto thrown = group.run(
          [&](Group& mine) { Mine(cut, mine.rank()).call(which, mine, cut, {}, how, textbook); });
      for (const auto& error : thrown) EXPECT_EQ(what(error), what(thrown[0]));
      return what(thrown[0]);
    };
    const std::string said = said_of(runs), end = ": it takes no runs of queries";
    EXPECT_EQ(said.find("rank 0: plan: textbook."), 0U) << said;
    EXPECT_TRUE(said.ends_with(end)) << said;
    EXPECT_EQ(said_of(one_run), "nothing");
  }
}

// The rank's Context has no memory: what is told to the others is not made of it.
TEST(faults, memory_that_one_rank_has_not_is_an_error_of_all) {
  std::atomic<bool> none{false};
  const Allocator allocator{
      .allocate = [&](std::size_t bytes, std::size_t alignment) -> void* {
        return none ? nullptr : ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
      },
      .deallocate = [](void* memory,
                       std::size_t) { ::operator delete (memory, std::align_val_t{64}); }};
  Context plain({.threads = 1}), poor({.threads = 1, .allocator = allocator});
  const ThreadGroup group(kRanks);
  for (const Phase& phase : phases(std::chrono::minutes(2))) {
    const auto call = [&](Group& mine) { phase.make(mine, mine.rank() == kBad ? poor : plain); };
    none = true;
    for (const auto& error : group.run(call))
      EXPECT_EQ(what(error).find("OutOfMemory: rank 1: "), 0U) << what(error);
    none = false;
    for (const auto& error : group.run(call)) EXPECT_EQ(what(error), "nothing");
  }
}

// Whatever number or flag it is, and whatever it may be mistaken for.
TEST(faults, no_option_of_one_rank_alone_goes_unnoticed) {
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  const auto notice = [&](const char* name, const std::function<void(AttentionOptions&)>& change) {
    for (const auto& error : group.run([&](Group& mine) {
           AttentionOptions options;
           if (mine.rank() == kBad) change(options);
           Mine(layouts(), mine.rank()).call(Call::forward, mine, layouts(), options, {}, context);
         }))
      EXPECT_NE(what(error).find(name), std::string::npos) << name << ": " << what(error);
  };
  int changed = 0;
  const AttentionOptions none;
  for_each_option(none, [&]<class Member>(const Option& option, const Member&) {
    using T = std::remove_const_t<Member>;
    const auto with = [&](const auto& value) {
      notice(option.name, [&](AttentionOptions& options) {
        for_each_option(options, [&]<class Other>(const Option& other, Other& member) {
          if constexpr (std::is_same_v<Other, T>)
            if (other.name == std::string_view(option.name)) member = value;
        });
      });
      ++changed;
    };
    if constexpr (std::is_same_v<T, bool>) with(true);
    else if constexpr (std::is_same_v<T, double>) with(1.0);
    else if constexpr (std::is_same_v<T, std::optional<double>>)
      for (const double value : {0.0, -1.0, 1.0}) with(value);
    else if constexpr (std::is_same_v<T, std::optional<std::int64_t>> ||
                       std::is_same_v<T, QueryOffset>)
      for (const std::int64_t value : {-1, 0, 1}) with(value);
  });
  EXPECT_GE(changed, 12);
}

TEST(faults, other_gradients_or_another_function_are_named) {
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  const auto thrown = group.run([&](Group& mine) {
    Mine tensors(layouts(), mine.rank());
    if (mine.rank() == kBad) tensors.dq = Tensor();
    AttentionGradients gradients{.dk = tensors.dk, .dv = tensors.dv};
    if (tensors.dq) gradients.dq = tensors.dq;
    distributed::attention_backward(mine, layouts(),
                                    {.q = tensors.q,
                                     .k = tensors.k,
                                     .v = tensors.v,
                                     .out = tensors.out,
                                     .lse = tensors.lse,
                                     .dout = tensors.out},
                                    {}, gradients, {}, context);
  });
  for (const auto& error : thrown)
    EXPECT_EQ(
        what(error),
        "InvalidArgument: attention_backward: rank 1 was given dq 0, rank 0 1; all ranks must "
        "describe one problem");
  const auto said_of = [&](auto change) {
    const auto errors = group.run([&](Group& mine) {
      Mine tensors(layouts(), mine.rank());
      if (mine.rank() == kBad) change(tensors);
      tensors.call(Call::backward, mine, layouts(), {}, {}, context);
    });
    for (const auto& error : errors) EXPECT_EQ(what(error), what(errors[0]));
    return what(errors[0]);
  };
  const std::string start = "InvalidArgument: attention_backward: rank 1 was given the type of ",
                    end = ", rank 0 f32; all ranks must describe one problem";
  EXPECT_EQ(said_of([](Mine& t) { t.lse = Tensor(t.lse.shape(), DType::f64); }),
            start + "lse f64" + end);
  EXPECT_EQ(said_of([](Mine& t) { t.out = Tensor(t.out.shape(), DType::f64); }),
            start + "out f64" + end);
  for (const auto& error : group.run([&](Group& mine) {
         Mine(layouts(), mine.rank())
             .call(mine.rank() == kBad ? Call::backward : Call::forward, mine, layouts(), {}, {},
                   context);
       }))
    EXPECT_EQ(what(error),
              "InvalidArgument: attention: rank 1 was given operation (0 forward, 1 backward) 1, "
              "rank 0 0; all ranks must describe one problem");
}

TEST(faults, an_interrupted_rank_ends_the_call_of_all) {
  Context plain({.threads = 1});
  Context interrupted({.threads = 1, .interrupt = [] { return true; }});
  const ThreadGroup group(kRanks, [](int rank, std::int64_t transfer) {
    // The others are late, so that the rank waits, which is when it asks.
    if (rank != kBad && transfer == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  const auto thrown = group.run([&](Group& mine) {
    Mine(layouts(), mine.rank())
        .call(Call::forward, mine, layouts(), {},
              {.scheme = Scheme::gather, .timeout = std::chrono::seconds(2)},
              mine.rank() == kBad ? interrupted : plain);
  });
  EXPECT_EQ(what(thrown[kBad]),
            "Interrupted: attention: interrupted; what it was to write is not complete");
  expect_refused(group.rank(kBad), plain);
}

}  // namespace
}  // namespace attend::test
