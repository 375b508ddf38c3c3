#include "examination.h"

#include "../device.h"
#include "../random.h"
#include "statistics.h"

#include <cmath>
#include <cstdio>

namespace attend::oracle {
namespace {

Arguments arguments_of(const cases::Instance& instance) {
  return {instance.q, instance.k, instance.v, instance.dout, instance.dlse, instance.options};
}

double largest_finite(DType type) {
  switch (type) {
    case DType::f16: return 65504;
    case DType::bf16: return 0x1.fep127;
    case DType::f32: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}

double smallest(DType type) {
  switch (type) {
    case DType::f16: return 0x1p-24;
    case DType::bf16: return 0x1p-133;
    case DType::f32: return 0x1p-149;
    default: return std::numeric_limits<double>::denorm_min();
  }
}

std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

// A refusal ends with the kernel's own reason: "...: it does not ...".
std::string reason_of(const Unsupported& error) {
  const std::string message = error.what();
  return message.substr(message.rfind(": ") + 2);
}

bool is_for_gpus(const std::string& kernel) { return kernel.starts_with("cuda."); }

// Why a row for GPUs cannot be examined on this machine.
std::string not_here(const std::string& kernel) {
  return is_for_gpus(kernel) ? cuda::why_unavailable() : std::string();
}

// The index of element n of a row-major tensor.
Shape index_of(const Shape& shape, std::int64_t n) {
  Shape index = shape;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    index[dim] = n % shape[dim];
    n /= shape[dim];
  }
  return index;
}

}  // namespace

Examination::Examination(const cases::Case& problem, Judgement judgement)
    : problem_(problem), judgement_(std::move(judgement)), instance_(cases::make(problem)),
      reader_(arguments_of(instance_)), bounds_(bounds(reader_)) {
  truth_ =
      problem.type == DType::f64 ? judgement_.truth_of_f64(reader_) : split_truth<double>(reader_);
  const Extents& e = reader_.extents();
  terms_ = static_cast<double>(std::max({e.queries, e.keys, e.d, e.dv}));
}

void Examination::compare(const char* what, const ConstTensorView& found,
                          std::vector<double> Results<double>::*member) {
  if (!found) return;
  const std::vector<double> values = widen(found);
  const Bounds& bounds = bounds_at_hand();
  const double u_acc = this->u_acc();
  const double u_type = unit_roundoff(problem_.type), u_out = unit_roundoff(found.dtype());
  // What is written is rounded; the textbook row stores it in the tensors' type before.
  // Weights below the accumulator's smallest normal number are 0.
  const double least = problem_.type == DType::f64 ? 0x1p-1022 : 0x1p-126;
  const double tiny = std::max(smallest(problem_.type), least),
               tiny_out = stores_in_16_bits() ? tiny : smallest(found.dtype());
  const double largest = largest_finite(found.dtype());
  const bool may_overflow = stores_in_16_bits() && bounds.largest > largest_finite(problem_.type);
  if (values.size() != (truth_.first.*member).size()) {
    wrong_ += std::string(what) + " has an unexpected size\n";
    return;
  }
  int shown = 0;
  for (std::size_t n = 0; n < values.size(); ++n) {
    const double truth = (truth_.first.*member)[n], rest = (truth_.second.*member)[n];
    bool good = values[n] == truth;
    double allowed = 0;
    if (!good && std::isfinite(truth)) {
      allowed = u_acc * (bounds.accumulated.*member)[n] + 4 * u_type * (bounds.stored.*member)[n] +
                2 * tiny * (bounds.vanished.*member)[n] + u_out * std::abs(truth) + tiny_out +
                flushed_;
      allowed *= judgement_.tolerance;
      // Where the two are near, which alone matters, the first difference is exact.
      const double error = std::abs(values[n] - truth - rest);
      const bool overflowed = std::isinf(values[n]) && std::abs(truth) + allowed > largest;
      good = error <= allowed || overflowed ||  // a NaN is neither
             (may_overflow && !std::isfinite(values[n]));
      if (error <= allowed) worst_ = std::max(worst_, error / allowed);
    }
    if (good || ++shown > 3) continue;
    wrong_ += std::string(what) + to_string(index_of(found.shape(), static_cast<std::int64_t>(n))) +
              " is " + number(values[n]) + ", truth " + number(truth) + ", allowed error " +
              number(allowed) + "\n";
  }
  if (shown > 3)
    wrong_ += std::string(what) + ": " + std::to_string(shown) + " of " +
              std::to_string(values.size()) + " elements are wrong\n";
}

double Examination::u_acc() const { return (16 + 4 * std::sqrt(terms_)) * accumulator_; }

bool Examination::stores_in_16_bits() const { return accumulator_ > 0x1p-24; }

const Bounds& Examination::bounds_at_hand() {
  if (!stores_in_16_bits()) return bounds_;
  if (!textbook_bounds_) textbook_bounds_ = bounds(reader_, u_acc());
  return *textbook_bounds_;
}

void Examination::begin(const std::string& kernel) {
  const double of_type = unit_roundoff(problem_.type);
  accumulator_ = kernel.starts_with("textbook.") ? of_type : std::min(of_type, 0x1p-24);
  const bool flushes = kernel.starts_with("cpu.amx") || kernel.starts_with("cpu.avx512_bf16") ||
                       kernel.starts_with("cpu.neon_bf16");
  flushed_ = flushes ? 2 * terms_ * 0x1p-126 : 0;
  worst_ = 0;
  wrong_.clear();
  instance_.poison_outputs();
}

template <class Run>
void Examination::on_its_device(const std::string& kernel, const Run& run) {
  if (!is_for_gpus(kernel)) return run(instance_, nullptr);
  cases::DeviceInstance there(instance_, 0);
  run(there.instance(), &there.queue());
  there.copy_back();
}

Outcome Examination::finish(const char* operation, const std::string& kernel) {
  if (!instance_.guards_intact()) wrong_ += "memory outside the outputs was written\n";
  if (!wrong_.empty())
    wrong_ = std::string(operation) + " by " + kernel + ":\n" + wrong_ +
             "reproduce: " + judgement_.program + " --case='" + cases::name(problem_) + "'";
  return {false, wrong_, worst_};
}

#define ATTEND_COMPARE(view, member) compare(#member, view, &Results<double>::member)

Outcome Examination::forward(const std::string& kernel) {
  const cases::Instance& in = instance_;
  begin(kernel);
  if (std::string reason = not_here(kernel); !reason.empty()) return {true, std::move(reason)};
  try {
    on_its_device(kernel, [&](const cases::Instance& there, Queue* queue) {
      const Plan plan = Plan::attention(there.q, there.k, there.v, there.out, there.options,
                                        there.outputs, {kernel}, *judgement_.context);
      if (plan.kernel() != kernel) wrong_ += "the plan chose " + plan.kernel() + "\n";
      plan.run(there.q, there.k, there.v, there.out, there.options, there.outputs, queue);
    });
  } catch (const Unsupported& error) {
    return {true, reason_of(error)};
  } catch (const std::exception& error) {
    wrong_ += error.what() + std::string("\n");
    return finish("forward", kernel);
  }
  ATTEND_COMPARE(in.out, out);
  ATTEND_COMPARE(in.outputs.lse, lse);
  ATTEND_COMPARE(in.outputs.weights, weights);
  switch (in.outputs.stage) {
    case ScoreStage::raw: ATTEND_COMPARE(in.outputs.scores, raw); break;
    case ScoreStage::softcapped: ATTEND_COMPARE(in.outputs.scores, softcapped); break;
    case ScoreStage::masked: ATTEND_COMPARE(in.outputs.scores, masked); break;
  }
  if (in.visited_blocks) {
    const VisitedBlocks expected = visited_blocks(reader_);
    if (*in.visited_blocks < expected.least || *in.visited_blocks > expected.most)
      wrong_ += "visited_blocks is " + std::to_string(*in.visited_blocks) + ", expected from " +
                std::to_string(expected.least) + " to " + std::to_string(expected.most) + "\n";
  }
  return finish("forward", kernel);
}

Outcome Examination::backward(const std::string& kernel) {
  const cases::Instance& in = instance_;
  const AttentionGradients& g = in.gradients;
  if (!g.dq && !g.dk && !g.dv && !g.dbias && !g.dsinks && !g.dalibi) return {};
  begin(kernel);
  if (std::string reason = not_here(kernel); !reason.empty()) return {true, std::move(reason)};
  try {
    on_its_device(kernel, [&](const cases::Instance& there, Queue* queue) {
      Context& context = *judgement_.context;
      const Plan plan = Plan::attention_backward(there.backward_inputs(), there.options,
                                                 there.gradients, {kernel}, context);
      if (plan.kernel() != kernel) wrong_ += "the plan chose " + plan.kernel() + "\n";
      attention(there.q, there.k, there.v, there.out, there.options, there.outputs_with_lse(),
                queue == nullptr ? Where(context) : Where(context, *queue));
      plan.run_backward(there.backward_inputs(), there.options, there.gradients, queue);
    });
  } catch (const Unsupported& error) {
    return {true, reason_of(error)};
  } catch (const std::exception& error) {
    wrong_ += error.what() + std::string("\n");
    return finish("backward", kernel);
  }
  ATTEND_COMPARE(g.dq, dq);
  ATTEND_COMPARE(g.dk, dk);
  ATTEND_COMPARE(g.dv, dv);
  ATTEND_COMPARE(g.dbias, dbias);
  ATTEND_COMPARE(g.dsinks, dsinks);
  ATTEND_COMPARE(g.dalibi, dalibi);
  return finish("backward", kernel);
}

#undef ATTEND_COMPARE

Outcome Examination::inspect(const std::string& kernel) {
  begin(kernel);
  if (std::string reason = not_here(kernel); !reason.empty()) return {true, std::move(reason)};
  const Inspection asked(reader_);
  try {
    StatisticsExamination statistics(reader_, truth_.first, bounds_at_hand().accumulated,
                                     u_acc() * judgement_.tolerance);
    on_its_device(kernel, [&](const cases::Instance& there, Queue* queue) {
      const Plan plan = Plan::inspect(there.q, there.k, there.options, asked.options, {kernel},
                                      *judgement_.context);
      if (plan.kernel() != kernel) wrong_ += "the plan chose " + plan.kernel() + "\n";
      statistics.examine(plan.run_inspect(there.q, there.k, there.options, asked.options, queue),
                         asked.options);
    });
    wrong_ += statistics.wrong();
    worst_ = statistics.worst();
  } catch (const Unsupported& error) {
    return {true, reason_of(error)};
  } catch (const std::exception& error) {
    wrong_ += error.what() + std::string("\n");
  }
  return finish("inspect", kernel);
}

Outcome Examination::window(std::uint64_t seed, const std::string& kernel) {
  const Extents& e = reader_.extents();
  begin(kernel);
  if (std::string reason = not_here(kernel); !reason.empty()) return {true, std::move(reason)};
  const cases::Random random(seed, 31);
  WeightsWindow window;
  const auto some = [&](std::int64_t size, std::uint64_t n) {
    return size > 0 ? random.below(size, n) : 0;
  };
  window.batch = some(e.batch, 0);
  window.head = some(e.heads, 1);
  if (e.batch == 0 || e.heads == 0) return {true, "there is no head"};
  const SequenceRows rows = rows_of(reader_.arguments(), window.batch);
  const auto queries = static_cast<std::int64_t>(rows.queries.size());
  const std::int64_t keys =
      instance_.options.block_table ? e.keys : static_cast<std::int64_t>(rows.keys.size());
  window.query = some(queries, 2);
  window.queries = some(queries - window.query + 1, 3);
  window.key = some(keys, 4);
  window.keys = some(keys - window.key + 1, 5);
  try {
    std::vector<double> found;
    on_its_device(kernel, [&](const cases::Instance& there, Queue* queue) {
      Context& context = *judgement_.context;
      const Where where = queue == nullptr ? Where(context) : Where(context, *queue);
      attention(there.q, there.k, there.v, there.out, there.options, there.outputs_with_lse(),
                where);
      found = widen(weights_of(there.q, there.k, there.lse, window, there.options, where));
    });
    // The weights are relative to an lse that was rounded to its type and, of 16 bits, may be that
    // of a row which adds up weights of 3.4e-6 (cpu/amx_tiles.h).
    const double of_lse = problem_.type == DType::bf16 || problem_.type == DType::f16 ? 0x1p-18 : 0;
    for (std::size_t n = 0; n < found.size(); ++n) {
      const std::int64_t at = static_cast<std::int64_t>(n);
      const std::int64_t i = window.query + at / window.keys, j = window.key + at % window.keys;
      const auto pair = static_cast<std::size_t>(
          ((window.batch * e.heads + window.head) * e.queries + i) * e.keys + j);
      const double truth = truth_.first.weights[pair];
      const double allowed =
          u_acc() * bounds_.accumulated.weights[pair] + of_lse * truth + 0x1p-126;
      const double error = std::abs(found[n] - truth);
      if (error <= allowed) {
        worst_ = std::max(worst_, error / allowed);
        continue;
      }
      wrong_ += "weights_of, query " + std::to_string(i) + ", key " + std::to_string(j) +
                " of batch " + std::to_string(window.batch) + ", head " +
                std::to_string(window.head) + " is " + number(found[n]) + ", truth " +
                number(truth) + ", allowed error " + number(allowed) + "\n";
      break;
    }
  } catch (const std::exception& error) {
    wrong_ += error.what() + std::string("\n");
  }
  return finish("window", kernel);
}

std::vector<std::string> kernels_for(const std::string& operation) {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : Context::kernels())
    if (kernel.operation == operation) names.push_back(kernel.name);
  return names;
}

}  // namespace attend::oracle
