// Walking the kernel table, and saying in words what was decided.
#include "plan/plan.h"

#include "core/printable.h"
#include "core/text.h"

#include <algorithm>
#include <limits>

namespace attend {
namespace {

// Below about this many multiply-adds, 3 to 7 us of short sequences, a second thread costs more
// than it brings.
constexpr double kWorkPerStrand = 50e3;

double rows_of(const auto& p) {
  return static_cast<double>(p.batch) * static_cast<double>(p.heads) *
         static_cast<double>(p.q_length);
}
double pairs_of(const Problem& p, std::int64_t more = 0) {
  return rows_of(p) * (static_cast<double>(p.k_length) + static_cast<double>(more));
}
double features_of_pair(const Problem& p) {
  return static_cast<double>(p.d) + static_cast<double>(p.dv);
}

double multiply_adds(const ForwardProblem& p) { return pairs_of(p, p.parts) * features_of_pair(p); }
double multiply_adds(const BackwardProblem& p) { return pairs_of(p) * features_of_pair(p) * 2.5; }
double multiply_adds(const InspectProblem& p) { return pairs_of(p) * features_of_pair(p); }
double multiply_adds(const MergeProblem& p) {
  return rows_of(p) * static_cast<double>(p.parts) * static_cast<double>(p.dv);
}
double multiply_adds(const WeightsProblem& p) {
  return static_cast<double>(p.window_queries) * static_cast<double>(p.window_keys) *
         static_cast<double>(p.d);
}

int strands_for(double work, int threads, const std::vector<std::int64_t>& tasks) {
  const std::int64_t most = tasks.empty() ? 0 : *std::max_element(tasks.begin(), tasks.end());
  const double worth = work / kWorkPerStrand;
  const double strands = std::min({static_cast<double>(threads), static_cast<double>(most), worth});
  return std::max(1, static_cast<int>(strands));
}

std::size_t total_bytes(const Workspace& workspace, int strands) {
  std::size_t bytes = 0;
  const bool overflow =
      __builtin_mul_overflow(workspace.per_strand, static_cast<std::size_t>(strands), &bytes) ||
      __builtin_add_overflow(bytes, workspace.shared, &bytes);
  return overflow ? std::numeric_limits<std::size_t>::max() : bytes;
}

template <class Operation>
const Kernel<Operation>& find(std::string_view name, Table<Operation> table) {
  std::string known;
  for (const Kernel<Operation>* kernel : table) {
    if (kernel->name == name) return *kernel;
    known += (known.empty() ? "" : ", ") + std::string(kernel->name);
  }
  throw InvalidArgument(text("plan: there is no ", Operation::kName, " kernel ",
                             printable(name, 60), "; there are ", known));
}

}  // namespace

template <class Operation>
std::string why_not(const Kernel<Operation>& kernel, const typename Operation::Problem& problem,
                    const Features& features, const Machine& machine) {
  if (kernel.launch != nullptr && problem.device == Device{})
    return "launches on a device, the tensors are in host memory";
  const Features others = features - kernel.takes;
  if (others.has(Feature::device_memory))
    return text("reads host memory, the tensors are on ", problem.device);
  if (!others.empty()) return "takes no " + names_of(others);
  return kernel.declines(problem, machine);
}

template <class Operation>
const Kernel<Operation>& choose(const typename Operation::Problem& problem, const Machine& machine,
                                std::string_view forced,
                                std::vector<std::pair<std::string_view, std::string>>& declined,
                                std::type_identity_t<Table<Operation>> table) {
  const Features features = features_of(problem);
  if (!forced.empty()) {
    const Kernel<Operation>& kernel = find<Operation>(forced, table);
    if (const std::string reason = why_not(kernel, problem, features, machine); !reason.empty())
      throw Unsupported(
          text("plan: ", forced, " was forced and declines ", describe(problem), ": it ", reason));
    return kernel;
  }
  // Rows for memory of another kind are not worth a word, unless there is no other.
  const auto is_here = [&](const Kernel<Operation>* kernel) {
    return (kernel->launch != nullptr) == (problem.device != Device{});
  };
  for (const Kernel<Operation>* kernel : table) {
    if (kernel->only_if_forced || !is_here(kernel)) continue;
    std::string reason = why_not(*kernel, problem, features, machine);
    if constexpr (requires { kernel->slower; })
      if (reason.empty() && kernel->slower != nullptr) reason = kernel->slower(machine);
    if (reason.empty()) return *kernel;
    declined.emplace_back(kernel->name, std::move(reason));
  }
  for (const Kernel<Operation>* kernel : table)
    if (!kernel->only_if_forced && !is_here(kernel))
      declined.emplace_back(kernel->name, why_not(*kernel, problem, features, machine));
  std::string reasons;
  for (const auto& [name, reason] : declined)
    reasons += text(reasons.empty() ? " " : "; ", name, " ", reason);
  throw Unsupported(text("plan: no kernel takes ", describe(problem), ":", reasons));
}

template <class Operation>
Decision<Operation> decide(const typename Operation::Problem& problem, const Machine& machine,
                           int threads, std::string_view forced,
                           std::type_identity_t<Table<Operation>> table) {
  Decision<Operation> decision;
  decision.problem = problem;
  decision.forced = !forced.empty();
  decision.kernel = &choose<Operation>(problem, machine, forced, decision.declined, table);
  const Kernel<Operation>& kernel = *decision.kernel;
  if (kernel.launch != nullptr) return decision;  // the rest is the device's
  decision.tiles = kernel.tiles(problem, machine);
  decision.tiles.threads = threads;
  for (int stage = 0; stage < kernel.stages; ++stage)
    decision.tasks.push_back(kernel.tasks(problem, decision.tiles, stage));
  decision.workspace = kernel.workspace(problem, decision.tiles);
  decision.strands = strands_for(multiply_adds(problem), threads, decision.tasks);
  decision.workspace_bytes = total_bytes(decision.workspace, decision.strands);
  return decision;
}

namespace {

std::string unusual(DType type, DType usual) {
  return type == usual ? std::string() : text(" ", type);
}

// Words joined by commas.
class Line {
 public:
  template <class... Words>
  explicit Line(const Words&... words) : line_(text(words...)) {}
  template <class... Words>
  void add(bool given, const Words&... words) {
    if (given) line_ += text(", ", words...);
  }
  std::string line() && { return std::move(line_); }

 private:
  std::string line_;
};

std::string line_of(std::string_view operation, const auto& problem, std::string_view variant) {
  Line s(operation, " ", problem.type);
  s.add(!variant.empty(), variant);
  s.add(problem.device != Device{}, "on ", problem.device);
  return std::move(s).line();
}

// Options that have words of their own below. A newer one is named as the feature that it is.
constexpr Features kInWords{Feature::softcap,      Feature::bias_before_softcap,
                            Feature::causal,       Feature::window,
                            Feature::query_offset, Feature::query_offset_each,
                            Feature::key_offset,   Feature::mask,
                            Feature::short_mask,   Feature::integer_mask,
                            Feature::bias,         Feature::alibi,
                            Feature::sinks,        Feature::blocks,
                            Feature::dropout};

Features newer_options(Features features) {
  Features newer;
  for (int n = static_cast<int>(Feature::softcap); n < static_cast<int>(Feature::lse); ++n) {
    const auto option = static_cast<Feature>(n);
    newer.add(option, features.has(option) && !kInWords.has(option));
  }
  return newer;
}

// What all problems of attention have; `out` is the type of what is written.
Line line_of(std::string_view operation, const Problem& p, Features features, DType out) {
  Line s(operation, " ", p.type, out == p.type ? std::string() : text(" to ", out), ", q ",
         Shape{p.batch, p.heads, p.q_length, p.d}, ", k ",
         Shape{p.batch, p.kv_heads, p.k_length, p.d});
  s.add(p.dv != 0, "dv ", p.dv);
  s.add(p.own_k_type, "k ", p.k_type);
  s.add(p.dv != 0 && p.own_v_type, "v ", p.v_type);
  s.add(true, "scale ", p.scale);
  s.add(p.device != Device{}, "on ", p.device);
  s.add(p.packed_queries, "packed queries");
  s.add(p.query_runs, "in runs");
  s.add(p.keys == KeyAddressing::packed, "packed keys");
  s.add(p.keys == KeyAddressing::paged, p.pages, " pages of ", p.page_size, " keys");
  s.add(p.softcap != 0, "softcap ", p.softcap);
  s.add(p.bias_before_softcap, "bias before softcap");
  s.add(p.causal, "causal");
  s.add(p.window_left != kUnlimited, "window left ", p.window_left);
  s.add(p.window_right != kUnlimited, "window right ", p.window_right);
  s.add(p.offset_given, "query offset");
  s.add(p.offset_each, "query offset of each");
  s.add(p.key_offset, "key offset");
  s.add(p.key_lengths, "key lengths");
  s.add(p.mask, "mask", unusual(p.mask_type, DType::boolean),
        p.mask_keys < p.k_length ? text(" of ", p.mask_keys, " keys") : "");
  s.add(p.bias, "bias ", p.bias_type, " ",
        Shape{p.dbias_batch, p.dbias_heads, p.dbias_queries, p.dbias_keys});
  s.add(p.alibi, "alibi");
  s.add(p.sinks, "sinks");
  s.add(p.blocks, "blocks", unusual(p.blocks_type, DType::boolean), " of ", p.block_queries, " x ",
        p.block_keys);
  s.add(p.drop_below != 0, "dropout ", p.drop_below / 65536.0);
  const Features newer = newer_options(features);
  s.add(!newer.empty(), names_of(newer));
  return s;
}

}  // namespace

std::string describe(const ForwardProblem& p) {
  constexpr const char* kStages[] = {"raw", "softcapped", "masked"};
  Line s = line_of(Forward::kName, p, features_of(p), p.out_type);
  s.add(p.lse, "lse", unusual(p.lse_type, statistic_type(p.type)));
  s.add(p.weights, "weights",
        p.weight_heads == 0
            ? ""
            : text(" of ", p.weight_heads, p.weight_heads == 1 ? " head" : " heads"),
        unusual(p.weights_type, p.type));
  s.add(p.scores, kStages[static_cast<int>(p.stage)], " scores", unusual(p.scores_type, p.type));
  s.add(p.visited_blocks, "visited blocks");
  s.add(p.parts != 0, p.parts, p.parts == 1 ? " partial state" : " partial states");
  s.add(p.state, "a partial state written");
  return std::move(s).line();
}

std::string describe(const BackwardProblem& p) {
  Line s = line_of(Backward::kName, p, features_of(p), p.out_type);
  s.add(p.lse_type != statistic_type(p.type), "lse ", p.lse_type);
  s.add(p.dout_type != p.type, "dout ", p.dout_type);
  s.add(p.dlse, "dlse", unusual(p.dlse_type, statistic_type(p.type)));
  s.add(p.dq, "dq");
  s.add(p.dk, "dk");
  s.add(p.dv_gradient, "dv");
  s.add(p.dbias, "dbias");
  s.add(p.dsinks, "dsinks");
  s.add(p.dalibi, "dalibi");
  s.add(p.sums_written, "sums of rows written");
  s.add(p.sums_read, "sums of rows read");
  return std::move(s).line();
}

std::string describe(const MergeProblem& p) {
  return text(Merge::kName, " ", p.type,
              p.out_type == p.type ? std::string() : text(" to ", p.out_type), ", ", p.parts,
              " parts of ", Shape{p.batch, p.heads, p.q_length, p.dv});
}

std::string describe(const InspectProblem& p) {
  Line s = line_of(Inspect::kName, p, features_of(p), p.type);
  s.add(p.top_k != 0, "top ", p.top_k);
  s.add(p.key_mass, "key mass");
  s.add(p.metrics, "metrics, local ", p.local_width);
  s.add(p.tokens, "tokens");
  s.add(p.tile_keys != 0, "tiles of ", p.tile_queries, " x ", p.tile_keys);
  return std::move(s).line();
}

std::string describe(const WeightsProblem& p) {
  Line s = line_of(Weights::kName, p, features_of(p), p.type);
  s.add(true, "window of ", p.window_queries, " x ", p.window_keys);
  return std::move(s).line();
}

// Problems without sizes.
namespace {
std::string_view name_of(Activation kind) {
  constexpr const char* kNames[] = {"relu", "gelu", "gelu_tanh", "swiglu"};
  return kNames[static_cast<std::size_t>(kind)];
}
}  // namespace

std::string describe(const ProductProblem& p) {
  Line s("product ", p.type);
  s.add(p.bias, "bias");
  s.add(p.eight_bit_weights, "weights of 8 bits");
  s.add(p.activation, name_of(p.kind));
  s.add(p.residual, "residual");
  s.add(p.device != Device{}, "on ", p.device);
  return std::move(s).line();
}
std::string describe(const NormProblem& p) {
  return line_of("norm", p, p.kind == NormKind::layer_norm ? "LayerNorm" : "RMSNorm");
}
std::string describe(const ActivationProblem& p) {
  return line_of("activation", p, name_of(p.kind));
}
std::string describe(const RotaryProblem& p) {
  return line_of("rotary", p, p.pairing == Rotary::Pairing::halves ? "halves" : "neighbours");
}
std::string describe(const ConvertProblem& p) { return line_of("convert", p, text("to ", p.to)); }
std::string describe(const AddProblem& p) { return line_of("add", p, ""); }

template <class Operation>
std::string describe(const Decision<Operation>& d) {
  std::string s = text("problem    ", describe(d.problem), "\nkernel     ", d.kernel->name,
                       d.forced ? " (forced)" : "", "\n");
  for (const auto& [name, reason] : d.declined) s += text("declined   ", name, ": ", reason, "\n");
  if (d.kernel->launch != nullptr) return s + "launched   into a queue of the device\n";
  s += text("tiles      ", d.tiles.queries, " queries x ", d.tiles.keys, " keys\ntasks      ");
  for (std::size_t stage = 0; stage < d.tasks.size(); ++stage)
    s += text(stage > 0 ? " then " : "", d.tasks[stage]);
  return s + text(" on up to ", d.strands, d.strands == 1 ? " thread" : " threads", "\nworkspace  ",
                  d.workspace_bytes, " bytes\n");
}

#define ATTEND_CHOOSE(Operation)                                                    \
  template std::string why_not(const Kernel<Operation>&, const Operation::Problem&, \
                               const Features&, const Machine&);                    \
  template const Kernel<Operation>& choose<Operation>(                              \
      const Operation::Problem&, const Machine&, std::string_view,                  \
      std::vector<std::pair<std::string_view, std::string>>&, Table<Operation>);
#define ATTEND_PLAN(Operation)                                                                   \
  ATTEND_CHOOSE(Operation)                                                                       \
  template Decision<Operation> decide<Operation>(const Operation::Problem&, const Machine&, int, \
                                                 std::string_view, Table<Operation>);            \
  template std::string describe(const Decision<Operation>&);
ATTEND_PLAN(Forward)
ATTEND_PLAN(Backward)
ATTEND_PLAN(Merge)
ATTEND_PLAN(Inspect)
ATTEND_PLAN(Weights)
ATTEND_CHOOSE(Product)
ATTEND_CHOOSE(NormForward)
ATTEND_CHOOSE(NormBackward)
ATTEND_CHOOSE(ActivationForward)
ATTEND_CHOOSE(ActivationBackward)
ATTEND_CHOOSE(RotaryForward)
ATTEND_CHOOSE(Convert)
ATTEND_CHOOSE(Add)

}  // namespace attend
