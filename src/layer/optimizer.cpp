// Optimizers: the steps they share, and one formula each. Arithmetic is in f64; what is remembered
// is rounded to f32 (f64 for f64), a parameter of 16 bits is rounded from its copy in f32.
#include <attend/train.h>

#include "core/text.h"
#include "layer/check.h"
#include "layer/flat.h"
#include "layer/named.h"
#include "layer/numbers.h"

#include <cmath>

namespace attend {
namespace {

constexpr const char* kMaster = "master";                   // the copy of a parameter in f32
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;  // formulas count them in f64

// Of the state tensors.
std::vector<std::string> names(const char* kind, std::initializer_list<const char*> list) {
  return reporting(kind, [&] { return std::vector<std::string>(list.begin(), list.end()); });
}

bool has_master(DType type) noexcept { return size_of(type) == 2; }

// What is remembered of the parameters: for each its state tensors, and its copy if it has one.
std::vector<Form> state_forms(const std::vector<std::string>& state_names,
                              const std::vector<Form>& parameters) {
  std::vector<Form> forms;
  for (const auto& [name, type, shape] : parameters) {
    const DType kept = statistic_type(type);
    for (const std::string& kind : state_names)
      forms.push_back({text(kind, ".", name), kept, shape});
    if (has_master(type)) forms.push_back({text(kMaster, ".", name), kept, shape});
  }
  return forms;
}

struct Conversions {
  Conversions(DType parameter, DType of_gradient)
      : gradient(of_gradient, default_context()),
        state(statistic_type(parameter), default_context()),
        round(DType::f32, parameter, default_context()) {}
  Numbers<double> gradient, state;
  Conversion round;  // from the copy in f32
};

// Zeros, and the copies.
std::vector<NamedTensor> first_state(const std::vector<std::string>& state_names,
                                     const std::vector<Form>& forms,
                                     const std::vector<Parameter>& parameters) {
  std::vector<NamedTensor> state;
  state.reserve(forms.size());
  for (const Form& form : forms) state.push_back({form.name, Tensor(form.shape, form.type)});
  std::size_t next = 0;
  for (const Parameter& parameter : parameters) {
    next += state_names.size();
    if (!has_master(parameter.value.dtype())) continue;
    const Conversion widen(parameter.value.dtype(), DType::f32, default_context());
    widen(parameter.value.data(), parameter.value.count(), state[next++].tensor.view().data());
  }
  return state;
}

void check_same(const char* kind, const std::vector<Form>& forms,
                const std::vector<NamedTensor>& state) {
  bool same = forms.size() == state.size();
  for (std::size_t n = 0; same && n < forms.size(); ++n)
    same = forms[n].name == state[n].name && forms[n].type == state[n].tensor.dtype() &&
           forms[n].shape == state[n].tensor.shape();
  if (!same)
    throw InvalidArgument(text(kind, ": the parameters are not those of the steps before; a new ",
                               "model needs a new optimizer"));
}

}  // namespace

Optimizer::Optimizer(std::vector<std::string> state_names) : state_names_(std::move(state_names)) {}
Optimizer::~Optimizer() = default;

void Optimizer::step(const std::vector<Parameter>& parameters,
                     const std::vector<NamedTensor>& gradients, double learning_rate) {
  reporting("step", [&] {
    const std::string where = text(kind(), ": ");
    if (!(std::isfinite(learning_rate) && learning_rate >= 0))
      throw InvalidArgument(
          text(where, "learning_rate is ", learning_rate, "; it must be finite and not negative"));
    const std::vector<Form> forms = checked_forms(where, parameters);
    check_gradients(where, "parameter", forms, gradients);
    const std::vector<Form> kept = state_forms(state_names_, forms);
    if (steps_ > 0) check_same(kind(), kept, state_);
    std::vector<double> numbers(kPiece * (state_names_.size() + 2));
    Elements elements{numbers.data(), numbers.data() + kPiece,
                      std::vector<double*>(state_names_.size()), 0};
    for (std::size_t m = 0; m < state_names_.size(); ++m)
      elements.state[m] = &numbers[kPiece * (m + 2)];
    std::vector<Conversions> conversions;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      conversions.emplace_back(forms[p].type, gradients[p].tensor.dtype());
    if (steps_ == 0) state_ = first_state(state_names_, kept, parameters);

    // Nothing fails from here on.
    ++steps_;
    std::size_t first = 0;  // of what is remembered of this parameter
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const DType type = forms[p].type;
      const bool master = has_master(type);
      const Conversions& of = conversions[p];
      auto* const value = static_cast<std::byte*>(parameters[p].value.data());
      const void* const g = gradients[p].tensor.view().data();
      const auto kept_at = [&](std::size_t m) { return state_[first + m].tensor.view().data(); };
      void* const x = master ? kept_at(state_names_.size()) : value;
      for_pieces(parameters[p].value.count(), [&](std::int64_t begin, std::int64_t count) {
        elements.count = count;
        of.state.load(x, begin, 1, count, elements.x);
        of.gradient.load(g, begin, 1, count, numbers.data() + kPiece);
        for (std::size_t m = 0; m < state_names_.size(); ++m)
          of.state.load(kept_at(m), begin, 1, count, elements.state[m]);
        update(elements, learning_rate, steps_);
        of.state.store(elements.x, count, x, begin, 1);
        for (std::size_t m = 0; m < state_names_.size(); ++m)
          of.state.store(elements.state[m], count, kept_at(m), begin, 1);
        if (master)
          of.round(static_cast<const float*>(x) + begin, count, value + begin * size_of(type));
      });
      first += state_names_.size() + (master ? 1 : 0);
    }
  });
}

std::vector<NamedView> Optimizer::state() const {
  return reporting("state", [&] {
    std::vector<NamedView> views;
    for (const auto& [name, tensor] : state_) views.push_back({name, tensor});
    return views;
  });
}

void Optimizer::restore(std::int64_t steps, std::vector<NamedTensor> state,
                        const std::vector<Parameter>& parameters) {
  reporting("restore", [&] {
    const std::string where = text(kind(), ": ");
    if (steps < 0) throw InvalidArgument(text(where, "steps is ", steps, ", less than 0"));
    if (steps > kMostSteps)
      throw InvalidArgument(text(where, "steps is ", steps, "; it must be at most 2^53"));
    std::vector<Form> forms;  // before the first step nothing is remembered
    if (steps > 0) forms = state_forms(state_names_, checked_forms(where, parameters));
    state_ = in_order(where, forms, std::move(state));
    steps_ = steps;
  });
}

// ---- the formulas ------------------------------------------------------------------------------

SGD::SGD(const SGDOptions& options)
    : Optimizer(options.momentum == 0 ? std::vector<std::string>() : names("sgd", {"momentum"})),
      options_(options) {
  reporting("sgd", [&] {
    const auto& [momentum, nesterov, weight_decay] = options_;
    if (!(momentum >= 0 && momentum < 1))
      throw InvalidArgument(text("sgd: momentum is ", momentum, "; it must be in [0, 1)"));
    if (nesterov && momentum == 0) throw InvalidArgument("sgd: nesterov needs a momentum above 0");
    if (!(std::isfinite(weight_decay) && weight_decay >= 0))
      throw InvalidArgument(
          text("sgd: weight_decay is ", weight_decay, "; it must be finite and not negative"));
  });
}

void SGD::update(const Elements& elements, double learning_rate, std::int64_t) const {
  const auto& [momentum, nesterov, weight_decay] = options_;
  for (std::int64_t n = 0; n < elements.count; ++n) {
    double direction = elements.g[n];
    if (momentum > 0) {
      double& m = elements.state[0][n];
      m = momentum * m + elements.g[n];
      direction = nesterov ? elements.g[n] + momentum * m : m;
    }
    elements.x[n] -= learning_rate * (direction + weight_decay * elements.x[n]);
  }
}

AdamW::AdamW(const AdamWOptions& options)
    : Optimizer(names("adamw", {"m", "v"})), options_(options) {
  reporting("adamw", [&] {
    const auto& [beta1, beta2, epsilon, weight_decay] = options_;
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1))
      throw InvalidArgument(
          text("adamw: beta1 is ", beta1, ", beta2 ", beta2, "; both must be in [0, 1)"));
    if (!(std::isfinite(epsilon) && epsilon > 0))
      throw InvalidArgument(text("adamw: epsilon is ", epsilon, "; it must be finite and above 0"));
    if (!(std::isfinite(weight_decay) && weight_decay >= 0))
      throw InvalidArgument(
          text("adamw: weight_decay is ", weight_decay, "; it must be finite and not negative"));
  });
}

void AdamW::update(const Elements& elements, double learning_rate, std::int64_t step) const {
  const auto& [beta1, beta2, epsilon, weight_decay] = options_;
  const auto t = static_cast<double>(step);
  const double unbias1 = 1 - std::pow(beta1, t), unbias2 = 1 - std::pow(beta2, t);
  for (std::int64_t n = 0; n < elements.count; ++n) {
    const double g = elements.g[n];
    double &m = elements.state[0][n], &v = elements.state[1][n];
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double direction = m / unbias1 / (std::sqrt(v / unbias2) + epsilon);
    elements.x[n] -= learning_rate * (weight_decay * elements.x[n] + direction);
  }
}

}  // namespace attend
