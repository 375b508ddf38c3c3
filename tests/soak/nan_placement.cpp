// One NaN or infinity in one place of any input but the out and lse of backward, which are what
// forward gave of the others. Where nobody looks it changes no bit. Where somebody does, it reaches
// what the formulas say, as NaN, and nothing else, on every kernel and with any number of threads.
// The same through the layers and their weight gradients.
#include "judged.h"
#include "layers.h"
#include "support/dice.h"
#include "support/property_compare.h"
#include "sweep.h"

#include <algorithm>
#include <cmath>

namespace attend::test {
namespace {

using cases::Case;

// ---- where it is put ---------------------------------------------------------------------------

struct Place {
  Tensor Trial::*tensor = nullptr;
  std::string name;
  Shape index;
  double value = NAN;
};

Shape random_index(Dice& dice, const Shape& shape) {
  Shape index = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) index[dim] = dice.between(0, shape[dim] - 1);
  return index;
}

Place draw_place(Dice& dice, const Trial& trial) {
  struct Candidate {
    Tensor Trial::*tensor;
    const char* name;
  };
  std::vector<Candidate> candidates;
  for (const Candidate& candidate : std::initializer_list<Candidate>{{&Trial::q, "q"},
                                                                     {&Trial::k, "k"},
                                                                     {&Trial::k, "k"},
                                                                     {&Trial::v, "v"},
                                                                     {&Trial::v, "v"},
                                                                     {&Trial::k_scales, "k_scales"},
                                                                     {&Trial::v_scales, "v_scales"},
                                                                     {&Trial::dout, "dout"},
                                                                     {&Trial::dlse, "dlse"},
                                                                     {&Trial::bias, "bias"},
                                                                     {&Trial::sinks, "sinks"},
                                                                     {&Trial::alibi, "alibi"}})
    if (trial.*candidate.tensor && (trial.*candidate.tensor).count() > 0 &&
        (trial.*candidate.tensor).dtype() != DType::i8)
      candidates.push_back(candidate);
  Place place;
  if (candidates.empty()) return place;
  const Candidate& chosen = candidates[static_cast<std::size_t>(
      dice.between(0, static_cast<std::int64_t>(candidates.size()) - 1))];
  place.tensor = chosen.tensor;
  place.name = chosen.name;
  place.index = random_index(dice, (trial.*chosen.tensor).shape());
  if (place.name != "sinks" && place.name != "alibi")
    place.value = dice.one_of<double>({NAN, NAN, NAN, INFINITY, -INFINITY});
  return place;
}

// Whether no visible pair reads the place: then nothing may change.
bool is_hidden(const Trial& trial, const Place& place) {
  const Reader reader(trial.arguments());
  for (const SeenRow& row : seen_rows(trial)) {
    const auto is_row = [&] {
      return place.index[0] == row.query.b && place.index[1] == row.h &&
             place.index[2] == row.query.t;
    };
    if (place.name == "q" || place.name == "dout") {
      if (is_row()) return row.keys.empty();
    } else if (place.name == "dlse") {
      if (is_row()) return row.keys.empty() && !trial.sinks;
    } else if (place.name.starts_with('k') || place.name.starts_with('v')) {
      if (row.kv_head == place.index[1])
        for (const RowAddress& key : row.keys)
          if (key.b == place.index[0] && key.t == place.index[2]) return false;
    } else if (place.name == "bias") {
      std::int64_t n = 0;
      for (int dim = 0; dim < 4; ++dim) n = n * trial.bias.size(dim) + place.index[dim];
      for (const std::int64_t j : row.numbers)
        if (reader.bias_index(row.b, row.h, row.i, j) == n) return false;
    } else if (row.h == place.index[0] && (place.name == "sinks" || !row.keys.empty())) {
      return false;
    }
  }
  return true;
}

// ---- judging -----------------------------------------------------------------------------------

// The sign of a zero is exempt.
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool is_of_all_pairs(const std::string& name) { return name == "raw" || name == "softcapped"; }

// "" or where a list is not what it was, of what has to stay.
std::string changed(const WrittenList& clean, const WrittenList& found) {
  for (std::size_t n = 0; n < clean.size() && n < found.size(); ++n) {
    if (is_of_all_pairs(clean[n].name)) continue;
    const std::vector<double> a = widen(clean[n].tensor), b = widen(found[n].tensor);
    for (std::size_t x = 0; x < a.size(); ++x)
      if (!same(a[x], b[x]))
        return clean[n].name + " [" + std::to_string(x) + "] was " + text_of(a[x]) + " and is " +
               text_of(b[x]);
  }
  return clean.size() == found.size() ? "" : "out is not the same with weights";
}

// What the formulas say of forward and backward: elements whose truth is not changed keep their
// bits, and where the truth is NaN, so is the element. Sums with an infinity in them are not
// finite, and may become NaN on the way. A row that sees a sink alone has no more than the sink.
std::vector<std::string> against_truth(const WrittenList& clean, const WrittenList& found,
                                       const Results<double>& before, const Results<double>& after,
                                       const Trial& trial, const Place& place) {
  const auto of_row = static_cast<std::size_t>(trial.v.size(3));
  const auto error_of = [](DType type) {
    return type == DType::f64 ? 1e-9 : type == DType::f32 ? 1e-3 : 0.1;
  };
  std::map<std::string, std::vector<double>> was;
  for (const NamedTensor& named : clean) was[named.name] = widen(named.tensor);
  return first_wrong(found, [&](const Element& x) -> std::string {
    const double then = (before.*x.member)[x.n], now = (after.*x.member)[x.n];
    if (place.name == "sinks" && x.of.name == "out" && std::isnan(after.lse[x.n / of_row]))
      return std::isnan(x.value) ? "" : "truth nan";
    // An infinity may leave scores finite, or hide a key: what stays in truth is rounded otherwise.
    const bool rounded = std::isinf(place.value) && std::isfinite(now);
    if (same(then, now) && !rounded) {
      const double value = was[x.of.name][x.n];
      return same(x.value, value) ? "" : "was " + text_of(value) + " and cannot be reached";
    }
    if (std::isnan(now) && std::isnan(place.value)) return std::isnan(x.value) ? "" : "truth nan";
    if (!std::isfinite(now)) return std::isfinite(x.value) ? "truth " + text_of(now) : "";
    if (std::abs(now) > largest_finite(x.of.tensor.dtype())) return "";
    // Gradients of k and v are of their types.
    const double error = std::max(error_of(trial.q.dtype()), error_of(x.of.tensor.dtype()));
    return std::abs(x.value - now) <= error * (1 + std::abs(now)) ? "" : "truth " + text_of(now);
  });
}

// Statistics: NaN where the reference has it, and what it does not change stays.
std::string against_reference(const WrittenList& clean, const WrittenList& found,
                              const WrittenList& reference_clean, const WrittenList& reference,
                              bool reaches_as_nan) {
  for (std::size_t n = 0; n < found.size(); ++n) {
    const std::vector<double> was = widen(clean[n].tensor), is = widen(found[n].tensor);
    const std::vector<double> then = widen(reference_clean[n].tensor),
                              now = widen(reference[n].tensor);
    for (std::size_t x = 0; x < is.size(); ++x) {
      const std::string where = found[n].name + " [" + std::to_string(x) + "] is " + text_of(is[x]);
      // What an infinity changes may round to what it was.
      if (reaches_as_nan && same(then[x], now[x]) && !same(was[x], is[x]))
        return where + ", was " + text_of(was[x]) + " and cannot be reached";
      if (std::isnan(now[x]) != std::isnan(is[x]))
        return where + ", by the reference " + text_of(now[x]);
    }
  }
  return "";
}

std::vector<std::string> judge_kernels(const SweepCase& c, Tally& tally) {
  Dice dice(c.variant, 182);
  const Trial trial = make_trial(c.problem);
  const Place place = draw_place(dice, trial);
  if (place.tensor == nullptr) return {};
  if (place.name == "bias" && value_at(trial.bias, place.index) == -INFINITY) return {};
  Trial planted = trial;
  set_value(planted.*place.tensor, place.index, place.value);
  // Where an infinity may make a key weigh nothing, its value is not hidden.
  if (place.name == "k" && std::isinf(place.value) && trial.v.size(3) > 0 &&
      trial.v.dtype() != DType::i8 && dice.chance(0.5)) {
    Shape of_value = place.index;
    of_value[3] = dice.between(0, trial.v.size(3) - 1);
    set_value(planted.v, of_value, NAN);
  }
  const bool hidden = is_hidden(trial, place) &&
                      !(place.name == "bias" && std::isinf(place.value) && place.value < 0);
  Results<double> before, after;
  if (!hidden) {
    before = oracle::truth<double>(Reader(trial.arguments()));
    after = oracle::truth<double>(Reader(planted.arguments()));
  }
  const std::string what =
      std::string(hidden ? "hidden " : "visible ") + text_of(place.value) + " in " + place.name;
  const Asked asked = asked_of(trial, c.variant), asked_now = asked_of(planted, c.variant);
  std::optional<WrittenList> reference_clean, reference;
  std::vector<std::string> all;
  const int threads = 2 + static_cast<int>(c.variant % 4);
  for (const char* operation : {"forward", "backward", "inspect"})
    for (const KernelInfo& kernel : tally.kernels(operation)) {
      if (kernel.only_if_forced) continue;  // the yardstick loses small weights
      const auto clean = written_by(kernel, asked, context_of(1));
      if (!clean) {
        tally.declined(kernel.name);
        continue;
      }
      tally.ran(kernel.name);
      const auto found = written_by(kernel, asked_now, context_of(1));
      const auto with_threads = written_by(kernel, asked_now, context_of(threads));
      const std::string by = what + ", " + operation + " by " + kernel.name + ": ";
      if (!found || !with_threads) return {by + "declined"};
      if (const std::string differs = changed(*found, *with_threads); !differs.empty())
        all.push_back(by + std::to_string(threads) + " threads: " + differs);
      std::vector<std::string> wrong;
      if (hidden) {
        wrong.push_back(changed(*clean, *found));
      } else if (kernel.operation != "inspect") {
        wrong = against_truth(*clean, *found, before, after, trial, place);
      } else {
        if (!reference) {
          const KernelInfo plain{"reference.inspect", "inspect", false};
          reference_clean = written_by(plain, asked, context_of(1));
          reference = written_by(plain, asked_now, context_of(1));
        }
        wrong.push_back(against_reference(*clean, *found, *reference_clean, *reference,
                                          std::isnan(place.value)));
      }
      for (const std::string& one : wrong)
        if (!one.empty()) all.push_back(by + "at " + to_string(place.index) + ": " + one);
    }
  return all;
}

std::vector<std::string> judge(const SweepCase& c, Tally& tally) {
  return c.variant % 5 == 0 ? judge_layers(c, tally) : judge_kernels(c, tally);
}

SweepCase draw(std::uint64_t seed) {
  Case c = random_problem(seed);
  c.values = cases::Values::gaussian;  // weights that do not vanish
  c.layout = cases::Layout::contiguous;
  return {c, seed};
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  return attend::test::sweep_main(argc, argv,
                                  {"sweep_nan_placement", attend::test::draw, attend::test::judge});
}
