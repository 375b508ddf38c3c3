// P26: NaN or an infinity in any single place of any input. What it may not reach does not change a
// bit, what it must reach is NaN, and both are the same on every kernel and for any number of
// threads. An infinity may also vanish (a score of -inf hides its key, a softcap makes it finite):
// there the reference says what is finite.
#include "support/head_numbers.h"
#include "support/property_shown.h"

#include "cases/random.h"

#include <cmath>

namespace attend::test {
namespace {

// ---- Places ------------------------------------------------------------------------------------

using Input = Tensor Trial::*;
constexpr std::pair<const char*, Input> kInputs[] = {
    {"q", &Trial::q},       {"k", &Trial::k},         {"v", &Trial::v},
    {"bias", &Trial::bias}, {"alibi", &Trial::alibi}, {"sinks", &Trial::sinks},
    {"dout", &Trial::dout}, {"dlse", &Trial::dlse}};
constexpr double kPoisons[] = {NAN, INFINITY, -INFINITY};

struct Place {
  Input input;
  std::int64_t element;
};

TensorView flat(Tensor& t) { return {t.view().data(), t.dtype(), {t.count()}}; }

// The element as [first index, head, third index, feature] of a tensor of rows.
struct RowElement {
  std::int64_t b, h, t, x;
};
RowElement row_element(const Tensor& tensor, std::int64_t n) {
  const std::int64_t width = tensor.shape().rank() == 4 ? tensor.size(3) : 1;
  return {n / width / tensor.size(2) / tensor.size(1), n / width / tensor.size(2) % tensor.size(1),
          n / width % tensor.size(2), n % width};
}

// ---- What a place reaches ----------------------------------------------------------------------

using Marks = std::vector<bool>;

// Elements of everything that is written.
struct Reach {
  Marks out, lse, dq, dk, dv, dbias, dsinks, dalibi;
  Marks weights;  // [batch, heads, queries, keys]
  Marks rows;     // of seen_rows(): those whose scores or sums it is in
};

// What it does to one row.
struct Touch {
  bool softmax = false;              // a score or the sink: everything is NaN
  bool value = false, dout = false;  // one feature of a value or of dout
  bool dlse = false;
  std::int64_t feature = 0;
};

class Tracer {
 public:
  explicit Tracer(const Trial& trial)
      : trial_(trial), reader_(trial.arguments()), rows_(seen_rows(trial)) {}

  Reach reach(const Place& place) const {
    Reach r;
    const auto room = [](Marks& marks, const Tensor& like) {
      marks.assign(static_cast<std::size_t>(like ? like.count() : 0), false);
    };
    const Written shapes = trial_.empty_results(true);
    room(r.out, shapes.out), room(r.lse, shapes.lse), room(r.dq, trial_.q);
    room(r.dk, trial_.k), room(r.dv, trial_.v), room(r.dbias, trial_.bias);
    room(r.dsinks, trial_.sinks), room(r.dalibi, trial_.alibi);
    const Extents& e = reader_.extents();
    r.weights.assign(static_cast<std::size_t>(e.batch * e.heads * e.queries * e.keys), false);
    for (const SeenRow& row : rows_) {
      const Touch touch = touch_of(row, place);
      mark(row, touch, place, r);
      r.rows.push_back(touch.softmax);
    }
    return r;
  }

 private:
  bool sees(const SeenRow& row, const RowElement& at) const {
    if (row.kv_head != at.h) return false;
    return std::any_of(row.keys.begin(), row.keys.end(),
                       [&](const RowAddress& key) { return key.b == at.b && key.t == at.t; });
  }

  Touch touch_of(const SeenRow& row, const Place& place) const {
    Touch touch;
    const Tensor& tensor = trial_.*place.input;
    const std::int64_t n = place.element;
    const bool any = !row.keys.empty();
    if (place.input == &Trial::sinks) {
      touch.softmax = row.h == n;
    } else if (place.input == &Trial::alibi) {
      touch.softmax = row.h == n && any;
    } else if (place.input == &Trial::bias) {
      for (const std::int64_t j : row.numbers)
        touch.softmax |= reader_.bias_index(row.b, row.h, row.i, j) == n;
    } else {
      const RowElement at = row_element(tensor, n);
      const bool mine = row.h == at.h && row.query.b == at.b && row.query.t == at.t;
      touch.feature = at.x;
      if (place.input == &Trial::q) touch.softmax = mine && any;
      if (place.input == &Trial::k) touch.softmax = sees(row, at);
      if (place.input == &Trial::v) touch.value = sees(row, at);
      if (place.input == &Trial::dout) touch.dout = mine && any;
      if (place.input == &Trial::dlse) touch.dlse = mine;
    }
    return touch;
  }

  void mark(const SeenRow& row, const Touch& touch, const Place& place, Reach& r) const {
    const auto set = [](Marks& marks, std::int64_t from, std::int64_t count) {
      for (std::int64_t n = from; n < from + count; ++n) marks[static_cast<std::size_t>(n)] = true;
    };
    const auto row_of = [&](const Tensor& like, const RowAddress& at, std::int64_t h) {
      return (at.b * like.size(1) + h) * like.size(2) + at.t;
    };
    const Extents& e = reader_.extents();
    const std::int64_t query = row_of(trial_.q, row.query, row.h);
    if (touch.softmax) set(r.out, query * e.dv, e.dv), set(r.lse, query, 1);
    if (touch.value) set(r.out, query * e.dv + touch.feature, 1);
    const bool scores = touch.softmax || touch.value || touch.dout || touch.dlse;
    if (!scores) return;
    const bool counts = place.input == &Trial::sinks ||
                        (trial_.sinks && value_at(trial_.sinks, {row.h}) != -INFINITY);
    if (counts) set(r.dsinks, row.h, 1);
    if (row.keys.empty()) return;
    set(r.dq, query * e.d, e.d);
    if (trial_.alibi) set(r.dalibi, row.h, 1);
    for (std::size_t n = 0; n < row.keys.size(); ++n) {
      const std::int64_t key = row_of(trial_.k, row.keys[n], row.kv_head);
      set(r.dk, key * e.d, e.d);
      if (touch.softmax) set(r.dv, key * e.dv, e.dv);
      if (touch.dout) set(r.dv, key * e.dv + touch.feature, 1);
      const std::int64_t at = ((row.b * e.heads + row.h) * e.queries + row.i) * e.keys;
      if (touch.softmax) set(r.weights, at + row.numbers[n], 1);
      if (trial_.bias) set(r.dbias, reader_.bias_index(row.b, row.h, row.i, row.numbers[n]), 1);
    }
  }

  const Trial& trial_;
  const Reader reader_;
  const std::vector<SeenRow> rows_;
};

// ---- Comparing ---------------------------------------------------------------------------------

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Unreached numbers are those of `clean`. Reached ones are NaN, or, if there is a reference, finite
// where it is.
testing::AssertionResult reaches(const Marks& marks, const std::vector<double>& clean,
                                 const std::vector<double>& dirty,
                                 const std::vector<double>* reference) {
  for (std::size_t n = 0; n < clean.size(); ++n) {
    const bool right = !marks[n] ? same(clean[n], dirty[n])
                       : reference == nullptr
                           ? std::isnan(dirty[n])
                           : std::isfinite((*reference)[n]) == std::isfinite(dirty[n]);
    if (right) continue;
    auto failure = testing::AssertionFailure() << "element " << n << " of " << clean.size();
    failure << (marks[n] ? " is reached" : " is not reached") << ", was " << clean[n] << ", is "
            << dirty[n];
    if (reference != nullptr) failure << ", in the reference " << (*reference)[n];
    return failure;
  }
  return testing::AssertionSuccess();
}

// lse of -inf says that no key is seen: as good as finite.
std::vector<double> read(const Tensor& t) {
  std::vector<double> values = widen(t);
  for (double& x : values)
    if (x == -INFINITY && t.shape().rank() == 3) x = -1e300;
  return values;
}

void expect_reach(const Reach& r, const Written& clean, const Written& dirty,
                  const Written* reference) {
  const std::tuple<const char*, const Marks&, Tensor Written::*> outputs[] = {
      {"out", r.out, &Written::out},
      {"lse", r.lse, &Written::lse},
      {"dq", r.dq, &Written::dq},
      {"dk", r.dk, &Written::dk},
      {"dv", r.dv, &Written::dv},
      {"dbias", r.dbias, &Written::dbias},
      {"dsinks", r.dsinks, &Written::dsinks},
      {"dalibi", r.dalibi, &Written::dalibi}};
  for (const auto& [name, marks, member] : outputs) {
    if (!(clean.*member)) continue;
    std::vector<double> of_reference;
    if (reference != nullptr) of_reference = read((*reference).*member);
    EXPECT_TRUE(reaches(marks, read(clean.*member), read(dirty.*member),
                        reference == nullptr ? nullptr : &of_reference))
        << name;
  }
}

// ---- Trials ------------------------------------------------------------------------------------

Context& threads(int count) {
  static Context one({.threads = 1}), three({.threads = 3});
  return count == 1 ? one : three;
}

struct Poisoned {
  Trial trial;
  Place place;
  double poison;
  bool is_nan() const { return std::isnan(poison); }
};

// Calls body(trial, poisoned) for every input of random cases, one place each, with every poison.
template <class Body>
void for_places(std::uint64_t first, std::uint64_t count, Body body) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    cases::Case problem = random_case(seed);
    if (seed % 3 == 0) problem.scale = 60;  // some weights vanish, others would overflow
    const Trial trial = make_trial(problem);
    const cases::Random random(seed, 26);
    std::uint64_t draw = 0;
    for (const auto& [name, input] : kInputs) {
      if (!(trial.*input) || (trial.*input).count() == 0) continue;
      const Place place{input, random.below((trial.*input).count(), draw++)};
      for (const double poison : kPoisons) {
        Poisoned poisoned{trial, place, poison};
        const TensorView at = flat(poisoned.trial.*input);
        if (value_at(at, {place.element}) == -INFINITY) continue;  // a bias that hides
        set_value(at, {place.element}, poison);
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + name + " element " +
                     std::to_string(place.element) + " is " + std::to_string(poison) + ": " +
                     trial.line);
        body(trial, poisoned);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Properties, p26_nan_or_infinity_reaches_what_it_must_and_nothing_else) {
  for_places(26000, 60, [](const Trial& trial, const Poisoned& poisoned) {
    const Reach reach = Tracer(trial).reach(poisoned.place);
    const auto forward = poisoned.trial.run({"reference.forward"});
    const auto backward = poisoned.trial.run({"reference.backward", true});
    for (const KernelUnderTest& kernel : every_kernel()) {
      if (kernel.yardstick) continue;  // skips weights that it has rounded to 0
      SCOPED_TRACE(kernel.name);
      const auto clean = trial.run(kernel, threads(1));
      if (!clean) continue;
      const auto one = poisoned.trial.run(kernel, threads(1));
      const auto three = poisoned.trial.run(kernel, threads(3));
      EXPECT_TRUE(same_bits(*one, *three)) << "1 and 3 threads";
      const Written& reference = kernel.backward ? *backward : *forward;
      expect_reach(reach, *clean, *one, poisoned.is_nan() ? nullptr : &reference);
    }
  });
}

// A maximum that forgets what stood before a NaN makes large scores overflow, and they looked like
// hidden or dropped ones then.
TEST(Properties, p26_nan_between_a_large_score_and_hidden_keys_is_not_lost) {
  for (const double score : {1.0, 50.0, 100.0, 150.0, 200.0, 1000.0, 1e30}) {
    Trial trial = make_trial({.q_length = 1, .k_length = 4, .d = 1, .dv = 1, .scale = 1});
    trial.mask = Tensor({true, true, false, false}, {1, 1, 1, 4});
    fill(trial.q, 1);
    set_value(trial.k, {0, 0, 0, 0}, score);
    set_value(trial.k, {0, 0, 1, 0}, NAN);
    for (const KernelUnderTest& kernel : all_kernels()) {
      const auto written = trial.run(kernel);
      if (!written || !kernel.backward || kernel.yardstick) continue;
      for (const auto member : {&Written::dk, &Written::dv})
        for (std::int64_t j = 0; j < 4; ++j) {
          const double found = value_at((*written).*member, {0, 0, j, 0});
          EXPECT_TRUE(j < 2 ? std::isnan(found) : found == 0) << kernel.name << " " << score;
        }
    }
  }
}

// A score of -inf that comes from an infinity in k weighs 0, but nothing hides the key: NaN in its
// value comes out, if another key of its chunk counts. Gradients take nothing from it.
TEST(Properties, p26_nan_in_a_value_that_weighs_0_comes_out) {
  for (const std::int64_t other : {0, 255, 256}) {  // the key that counts; 1 is the weightless
    Trial trial = make_trial({.q_length = 2, .k_length = 300, .d = 1, .dv = 2, .scale = 1});
    trial.mask = Tensor({1, 1, 2, 300}, DType::boolean);
    set_value(trial.mask, {0, 0, 0, 1}, 1), set_value(trial.mask, {0, 0, 1, 1}, 1);
    set_value(trial.mask, {0, 0, 0, other}, 1);  // row 1 sees no other
    fill(trial.q, 1);
    for (const std::int64_t j : {1, 2}) {  // 2 is hidden
      set_value(trial.k, {0, 0, j, 0}, -INFINITY);
      set_value(trial.v, {0, 0, j, j - 1}, NAN);
    }
    const double value = value_at(trial.v, {0, 0, other, 0});
    for (const KernelUnderTest& kernel : all_kernels()) {
      const auto written = trial.run(kernel);
      if (!written || kernel.yardstick) continue;  // it skips weights of 0
      SCOPED_TRACE(kernel.name + ", key " + std::to_string(other));
      const double out = value_at(written->out, {0, 0, 0, 0});
      // A GPU's portable sums are those of weights below 1, divided: not quite the value itself.
      const double slack = kernel.on_gpu() ? 0x1p-23 : 0;
      EXPECT_TRUE(other < 256 ? std::isnan(out) : std::abs(out - value) <= slack * std::abs(value))
          << out;
      const double own = value_at(trial.v, {0, 0, other, 1});
      EXPECT_NEAR(value_at(written->out, {0, 0, 0, 1}), own, slack * std::abs(own));
      EXPECT_EQ(value_at(written->out, {0, 0, 1, 0}), 0);
      EXPECT_EQ(value_at(written->lse, {0, 0, 1}), -INFINITY);
      if (!kernel.backward) continue;
      for (const auto member : {&Written::dq, &Written::dk, &Written::dv})
        for (const double x : widen((*written).*member)) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// As an infinity, while its weight is a number of the type that is multiplied, else as NaN.
TEST(Properties, p26_an_infinity_in_a_value_of_any_weight_comes_out) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const float weight : {-5.0F, -20.0F, -30.0F, -100.0F, -140.0F, -900.0F}) {  // log2 of it
      Trial trial = make_trial({.type = type, .q_length = 1, .k_length = 2, .d = 32, .dv = 32});
      fill(trial.q, 0);
      trial.bias = Tensor({0.0F, weight * std::log(2.0F)}, {1, 1, 1, 2});
      set_value(trial.v, {0, 0, 1, 3}, INFINITY);
      for (const KernelUnderTest& kernel : forward_kernels(type)) {
        const auto written = trial.run(kernel);
        if (!written || kernel.yardstick) continue;  // it skips weights of 0
        const double out = value_at(written->out, {0, 0, 0, 3});
        EXPECT_TRUE(weight > -24 ? out == INFINITY : !std::isfinite(out))
            << kernel.name << " " << name_of(type) << " " << weight << ": " << out;
        EXPECT_TRUE(std::isfinite(value_at(written->out, {0, 0, 0, 4}))) << kernel.name;
      }
    }
}

TEST(Properties, p26_weights_and_scores_of_hidden_keys_are_what_they_were) {
  for_places(26300, 60, [](const Trial& trial, const Poisoned& poisoned) {
    const Reach reach = Tracer(trial).reach(poisoned.place);
    const auto reference = show(poisoned.trial, {"reference.forward"}, ScoreStage::masked);
    const std::vector<double> true_weights = widen(reference->weights);
    const std::vector<double> true_scores = widen(reference->scores);
    for (const KernelUnderTest& kernel : every_forward_kernel()) {
      if (kernel.yardstick) continue;
      SCOPED_TRACE(kernel.name);
      const auto clean = show(trial, kernel, ScoreStage::masked, threads(1));
      if (!clean) continue;
      const auto one = show(poisoned.trial, kernel, ScoreStage::masked, threads(1));
      const auto three = show(poisoned.trial, kernel, ScoreStage::masked, threads(3));
      EXPECT_TRUE(same_bits(one->weights, three->weights));
      EXPECT_TRUE(same_bits(one->scores, three->scores));
      EXPECT_TRUE(reaches(reach.weights, widen(clean->weights), widen(one->weights),
                          poisoned.is_nan() ? nullptr : &true_weights))
          << "weights";
      EXPECT_TRUE(reaches(reach.weights, widen(clean->scores), widen(one->scores), &true_scores))
          << "scores";
    }
  });
}

// A score far above those before a NaN: its weight is NaN, however large.
TEST(Properties, p26_weights_of_a_row_of_nan_are_nan_at_any_score) {
  for (const double score : {1.0, 100.0, 1310.0, 1e30, -1310.0, -1e30}) {
    Trial trial = make_trial({.q_length = 1, .k_length = 3, .d = 1, .dv = 1, .scale = 1});
    trial.mask = Tensor({true, true, false}, {1, 1, 1, 3});
    trial.sinks = Tensor({1}, DType::f32);
    fill(trial.q, 1);
    set_value(trial.k, {0, 0, 0, 0}, NAN);
    set_value(trial.k, {0, 0, 1, 0}, score);
    for (const KernelUnderTest& kernel : forward_kernels()) {
      const auto shown = show(trial, kernel, ScoreStage::masked);
      if (!shown || kernel.yardstick) continue;
      for (std::int64_t j = 0; j < 3; ++j) {
        const double found = value_at(shown->weights, {0, 0, 0, j});
        EXPECT_TRUE(j < 2 ? std::isnan(found) : found == 0) << kernel.name << " " << score;
      }
    }
  }
}

// Of the statistics NaN is where the reference has it, and all else is as it was.
void expect_as_reference(const std::vector<double>& clean, const std::vector<double>& dirty,
                         const std::vector<double>& reference, bool is_nan, const char* name) {
  Marks marks;
  for (const double x : reference) marks.push_back(!is_nan || std::isnan(x));
  EXPECT_TRUE(reaches(marks, clean, dirty, is_nan ? nullptr : &reference)) << name;
}

TEST(Properties, p26_statistics_of_rows_that_do_not_see_it_are_what_they_were) {
  const std::pair<const char*, Tensor Statistics::*> tensors[] = {
      {"lse", &Statistics::lse},
      {"maximum", &Statistics::maximum},
      {"entropy", &Statistics::entropy},
      {"top_weights", &Statistics::top_weights},
      {"mass", &Statistics::key_mass},
      {"tile_mean", &Statistics::tile_mean},
      {"tile_maximum", &Statistics::tile_maximum}};
  for_places(26600, 60, [&](const Trial& trial, const Poisoned& poisoned) {
    if (poisoned.place.input == &Trial::v || poisoned.place.input == &Trial::dout ||
        poisoned.place.input == &Trial::dlse)
      return;
    const Reach reach = Tracer(trial).reach(poisoned.place);
    const auto reference = statistics_of(poisoned.trial, "reference.inspect");
    if (poisoned.is_nan()) {
      const auto clean = statistics_of(trial, "reference.inspect");
      EXPECT_TRUE(reaches(reach.lse, read(clean->lse), read(reference->lse), nullptr));
    }
    for (const std::string& kernel : inspect_kernels()) {
      SCOPED_TRACE(kernel);
      const auto clean = statistics_of(trial, kernel);
      if (!clean) continue;
      const auto one = statistics_of(poisoned.trial, kernel);
      const auto three = statistics_of(poisoned.trial, kernel, 3);
      for (const auto& [name, tensor] : tensors) {
        EXPECT_TRUE(same_bits((*one).*tensor, (*three).*tensor)) << name;
        expect_as_reference(read((*clean).*tensor), read((*one).*tensor),
                            read((*reference).*tensor), poisoned.is_nan(), name);
      }
      for (std::size_t h = 0; h < one->heads.size(); ++h)
        expect_as_reference(numbers_of(clean->heads[h]), numbers_of(one->heads[h]),
                            numbers_of(reference->heads[h]), poisoned.is_nan(), "head");
    }
  });
}

}  // namespace
}  // namespace attend::test
