// What all ranks say of one that was given something else, or made another call: the same words on
// each, before anything is computed, and the group takes the next call.
#include "support/three_ranks.h"
#include "support/thrown_by.h"

#include <attend/option_list.h>

#include <functional>

namespace attend::test {
namespace {

// A change to what one rank is given, and what all of them say.
struct Other {
  const char* says;
  std::function<void(AttentionOptions&, Layouts&, Mine&, DistributedOptions&)> change;
};

TEST(arguments, other_arguments_of_one_rank_are_named_by_all_and_the_group_goes_on) {
  static const Tensor mask(Shape{kLength}, DType::boolean);
  static const Tensor slopes({1.F, 2.F, 3.F, 4.F}, {4}), sinks({1.F, 2.F, -2.5F, 4.F}, {4});
  static const Tensor hidden({1.F, 2.F, -2.5F, std::numeric_limits<float>::quiet_NaN()}, {4});
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
      {"rank 1: attention: scheme is 7; it must be automatic, heads or gather",
       [](auto&, auto&, auto&, auto& distributed) { distributed.scheme = static_cast<Scheme>(7); }},
      {"rank 1: attention: bits is 7; it must be one_process or fast",
       [](auto&, auto&, auto&, auto& distributed) { distributed.bits = static_cast<Bits>(7); }},
      {"rank 1: attention: timeout is 0 ms; it must be above 0",
       [](auto&, auto&, auto&, auto& distributed) { distributed.timeout = {}; }},
      {"rank 1: attention: timeout is -9223372036854775808 ms; it must be above 0",
       [](auto&, auto&, auto&, auto& distributed) {
         distributed.timeout = std::chrono::milliseconds::min();
       }},
      {"attention: rank 1 was given sinks[3] nan, rank 0 4; all ranks must describe one problem",
       [](auto& options, auto&, auto&, auto&) { options.sinks = hidden; }},
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
  expect_goes_on(group, context);
}

// A tensor of one rank alone, in either call, that has another shape or type.
TEST(arguments, other_tensors_of_one_rank_are_named_by_all_and_the_group_goes_on) {
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

// A rank's rows and what is of the whole are different things: neither is written where the other
// is.
TEST(arguments, what_is_written_lies_apart_from_what_is_of_the_whole) {
  Context context({.threads = 1});
  const ThreadGroup group(kRanks);
  const auto said_of = [&](const std::function<void(Group&, Mine&)>& call) {
    const auto errors = group.run([&](Group& mine) {
      Mine tensors(layouts(), mine.rank());
      call(mine, tensors);
    });
    for (const auto& error : errors) EXPECT_EQ(what(error), what(errors[0]));
    return what(errors[0]);
  };
  const std::string end = " in memory; outputs must not";
  const auto forward = [&](Group& mine, Mine& t, AttentionOptions options) {
    t.call(Call::forward, mine, layouts(), options, {}, context);
  };
  EXPECT_EQ(said_of([&](Group& mine, Mine& t) {  // 5600 numbers and more
              const ConstTensorView bias(t.out.view().data(), DType::f32, {kLength}, {1});
              forward(mine, t, {.bias = bias});
            }),
            "InvalidArgument: rank 0: attention: out overlaps bias" + end);
  EXPECT_EQ(said_of([&](Group& mine, Mine& t) {
              const ConstTensorView sinks(t.lse.view().data(), DType::f32, {4}, {1});
              forward(mine, t, {.sinks = sinks});
            }),
            "InvalidArgument: rank 0: attention: lse overlaps sinks" + end);
  const auto backward = [&](Group& mine, Mine& t, const AttentionOptions& options,
                            const TensorView& dsinks) {
    distributed::attention_backward(
        mine, layouts(), {.q = t.q, .k = t.k, .v = t.v, .out = t.out, .lse = t.lse, .dout = t.out},
        options, {.dq = t.dq, .dk = t.dk, .dv = t.dv, .dsinks = dsinks}, {}, context);
  };
  const Tensor sinks({1.F, 2.F, 3.F, 4.F}, {4});
  EXPECT_EQ(said_of([&](Group& mine, Mine& t) {
              backward(mine, t, {.sinks = sinks},
                       TensorView(t.dq.view().data(), DType::f32, {4}, {1}));
            }),
            "InvalidArgument: rank 0: attention_backward: dsinks overlaps dq" + end);
  EXPECT_EQ(said_of([&](Group& mine, Mine& t) {
              backward(mine, t, {.sinks = sinks},
                       TensorView(t.k.view().data(), DType::f32, {4}, {1}));
            }),
            "InvalidArgument: rank 0: attention_backward: dsinks overlaps k" + end);
  EXPECT_EQ(said_of([&](Group& mine, Mine& t) {
              const ConstTensorView mine_too(t.dv.view().data(), DType::f32, {4}, {1});
              backward(mine, t, {.sinks = mine_too}, {});
            }),
            "InvalidArgument: rank 0: attention_backward: dv overlaps sinks" + end);
  expect_goes_on(group, context);
}

TEST(arguments, a_place_that_is_not_there_has_no_owner) {
  const Layout layout = Layout::serpentine({kLength, 5}, kRanks);
  EXPECT_EQ(layout.owner(0, kLength - 1), 2);
  struct Place {
    std::int64_t sequence, position;
    const char* says;
  };
  for (const Place& place : {Place{0, kLength, "position is 700; sequence 0 has length 700"},
                             {0, -1, "position is -1; sequence 0 has length 700"},
                             {1, 5, "position is 5; sequence 1 has length 5"},
                             {2, 0, "sequence is 2; there are 2"},
                             {-1, 0, "sequence is -1; there are 2"}})
    EXPECT_EQ(thrown_by([&] { (void)layout.owner(place.sequence, place.position); }),
              std::string("InvalidArgument: Layout: ") + place.says);
}

// Bytes of another type are no numbers, and there are others as many of them.
TEST(arguments, rows_are_copied_in_one_type_and_in_host_memory) {
  const Layout layout = Layout::serpentine({kLength}, kRanks);
  const Shape of_whole{1, 2, kLength, 8}, of_rows{1, 2, layout.owned(0), 8};
  const Tensor rows(of_rows), whole(of_whole);
  const auto said_of = [&](const ConstTensorView& from, const ConstTensorView& to) {
    const TensorView there(const_cast<void*>(to.data()), to.dtype(), to.shape(), to.strides(),
                           to.device());
    return thrown_by([&] { put_rows(layout, 0, from, there); });
  };
  const std::string start = "InvalidArgument: put_rows: ";
  for (const DType type : {DType::f64, DType::bf16, DType::i8}) {
    const std::string name(name_of(type));
    EXPECT_EQ(said_of(Tensor(of_rows, type), whole),
              start + "the rows are " + name + ", the whole is f32; they must be of one type");
    EXPECT_EQ(said_of(rows, Tensor(of_whole, type)),
              start + "the rows are f32, the whole is " + name + "; they must be of one type");
  }
  EXPECT_EQ(said_of(whole.view().slice(2, 0, layout.owned(0)), whole),
            start + "the whole overlaps the rows in memory; outputs must not");
  const auto elsewhere = [](const ConstTensorView& view) {
    return ConstTensorView(view.data(), view.dtype(), view.shape(), view.strides(),
                           {Device::Kind::cuda, 0});
  };
  for (const auto& [from, to] : {std::pair{elsewhere(rows), ConstTensorView(whole)},
                                 std::pair{ConstTensorView(rows), elsewhere(whole)}})
    EXPECT_EQ(said_of(from, to), start + "a tensor is on cuda:0, not in host memory");
  EXPECT_EQ(said_of(rows, whole), "nothing");
}

// One rank counts a call that the others have not made: the numbers say so, on all ranks in the
// same words, whatever each of them called.
TEST(arguments, ranks_in_different_calls_say_so_in_the_same_words) {
  Context context({.threads = 1});
  for (const int ahead : {0, kBad, 2}) {
    const ThreadGroup group(kRanks);
    const auto call = [&](Group& mine) {
      Mine(layouts(), mine.rank())
          .call(mine.rank() == 2 ? Call::backward : Call::forward, mine, layouts(), {},
                {.timeout = std::chrono::minutes(2)}, context);
    };
    for (int n = 0; n < 2; ++n) expect_goes_on(group, context);
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

// A rank that cannot even name its arguments, instead of a call, of either function.
TEST(arguments, a_rank_that_refuses_a_call_is_heard_by_all_and_the_group_goes_on) {
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
    expect_goes_on(group, context, which);
  }
}

// A kernel that was forced and does not take the problem, on one rank or on all.
TEST(arguments, a_kernel_that_declines_is_told_before_anything_is_sent) {
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

// Whatever number or flag it is, and whatever it may be mistaken for.
TEST(arguments, no_option_of_one_rank_alone_goes_unnoticed) {
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

TEST(arguments, other_gradients_or_another_function_are_named) {
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

}  // namespace
}  // namespace attend::test
