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

double multiply_adds(const Problem& p) {
  const auto rows =
      static_cast<double>(p.batch) * static_cast<double>(p.heads) * static_cast<double>(p.q_length);
  if (p.operation == Operation::merge)
    return rows * static_cast<double>(p.parts) * static_cast<double>(p.dv);
  const auto d = static_cast<double>(p.d);
  if (p.operation == Operation::weights)
    return static_cast<double>(p.window_queries) * static_cast<double>(p.window_keys) * d;
  const double keys = static_cast<double>(p.k_length) + static_cast<double>(p.parts);
  const double pairs = rows * keys;
  return pairs * (d + static_cast<double>(p.dv)) * (p.operation == Operation::backward ? 2.5 : 1);
}

int strands_for(const Problem& p, int threads, const std::vector<std::int64_t>& tasks) {
  const std::int64_t most = tasks.empty() ? 0 : *std::max_element(tasks.begin(), tasks.end());
  const double worth = multiply_adds(p) / kWorkPerStrand;
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

const Kernel& find(std::string_view name, Operation operation,
                   std::span<const Kernel* const> table) {
  std::string known;
  for (const Kernel* kernel : table) {
    if (kernel->operation != operation) continue;
    if (kernel->name == name) return *kernel;
    known += (known.empty() ? "" : ", ") + std::string(kernel->name);
  }
  throw InvalidArgument(text("plan: there is no ", name_of(operation), " kernel ",
                             printable(name, 60), "; there are ", known));
}

// The first row that takes the problem; who declined before it goes into the decision.
const Kernel* choose(Decision& decision, const Machine& machine,
                     std::span<const Kernel* const> table) {
  for (const Kernel* kernel : table) {
    if (kernel->operation != decision.problem.operation || kernel->only_if_forced) continue;
    std::string reason = kernel->declines(decision.problem, machine);
    if (reason.empty()) return kernel;
    decision.declined.emplace_back(kernel->name, std::move(reason));
  }
  std::string reasons;
  for (const auto& [name, reason] : decision.declined)
    reasons += text(reasons.empty() ? " " : "; ", name, " ", reason);
  throw Unsupported(text("plan: no kernel takes ", describe(decision.problem), ":", reasons));
}

}  // namespace

Decision decide(const Problem& problem, const Machine& machine, int threads,
                std::string_view forced, std::span<const Kernel* const> table) {
  Decision decision;
  decision.problem = problem;
  decision.forced = !forced.empty();
  if (decision.forced) {
    decision.kernel = &find(forced, problem.operation, table);
    if (const std::string reason = decision.kernel->declines(problem, machine); !reason.empty())
      throw Unsupported(
          text("plan: ", forced, " was forced and declines ", describe(problem), ": it ", reason));
  } else {
    decision.kernel = choose(decision, machine, table);
  }
  const Kernel& kernel = *decision.kernel;
  decision.tiles = kernel.tiles(problem, machine);
  decision.tiles.threads = threads;
  for (int stage = 0; stage < kernel.stages; ++stage)
    decision.tasks.push_back(kernel.tasks(problem, decision.tiles, stage));
  decision.workspace = kernel.workspace(problem, decision.tiles);
  decision.strands = strands_for(problem, threads, decision.tasks);
  decision.workspace_bytes = total_bytes(decision.workspace, decision.strands);
  return decision;
}

std::string_view name_of(Operation operation) noexcept {
  switch (operation) {
    case Operation::forward: return "forward";
    case Operation::backward: return "backward";
    case Operation::merge: return "merge";
    case Operation::inspect: return "inspect";
    case Operation::weights: break;
  }
  return "weights";
}

std::string describe(const Problem& p) {
  const auto unusual = [](DType type, DType usual) {
    return type == usual ? std::string() : text(" ", type);
  };
  std::string s = text(name_of(p.operation), " ", p.type);
  if (p.out_type != p.type) s += text(" to ", p.out_type);
  if (p.operation == Operation::merge)
    return s + text(", ", p.parts, " parts of ", Shape{p.batch, p.heads, p.q_length, p.dv});
  s += text(", q ", Shape{p.batch, p.heads, p.q_length, p.d}, ", k ",
            Shape{p.batch, p.kv_heads, p.k_length, p.d});
  if (p.dv != 0) s += text(", dv ", p.dv);
  s += text(", scale ", p.scale);
  const auto add = [&s](bool given, const auto&... words) {
    if (given) s += text(", ", words...);
  };
  add(p.device != Device{}, "on ", p.device);
  add(p.packed_queries, "packed queries");
  add(p.keys == KeyAddressing::packed, "packed keys");
  add(p.keys == KeyAddressing::paged, p.pages, " pages of ", p.page_size, " keys");
  add(p.softcap != 0, "softcap ", p.softcap);
  add(p.bias_before_softcap, "bias before softcap");
  add(p.causal, "causal");
  add(p.window_left != kUnlimited, "window left ", p.window_left);
  add(p.window_right != kUnlimited, "window right ", p.window_right);
  add(p.offset_given, "query offset");
  add(p.offset_each, "query offset of each");
  add(p.key_offset, "key offset");
  add(p.key_lengths, "key lengths");
  add(p.mask, "mask", unusual(p.mask_type, DType::boolean),
      p.mask_keys < p.k_length ? text(" of ", p.mask_keys, " keys") : "");
  add(p.bias, "bias ", p.bias_type, " ",
      Shape{p.dbias_batch, p.dbias_heads, p.dbias_queries, p.dbias_keys});
  add(p.alibi, "alibi");
  add(p.sinks, "sinks");
  add(p.blocks, "blocks", unusual(p.blocks_type, DType::boolean), " of ", p.block_queries, " x ",
      p.block_keys);
  add(p.drop_below != 0, "dropout ", p.drop_below / 65536.0);
  constexpr const char* kStages[] = {"raw", "softcapped", "masked"};
  const DType statistic = p.type == DType::f64 ? DType::f64 : DType::f32;
  const bool backward = p.operation == Operation::backward;
  add(p.lse || (backward && p.lse_type != statistic), "lse", unusual(p.lse_type, statistic));
  add(p.weights, "weights", unusual(p.weights_type, p.type));
  add(p.scores, kStages[static_cast<int>(p.stage)], " scores", unusual(p.scores_type, p.type));
  add(p.visited_blocks, "visited blocks");
  add(p.parts != 0, p.parts, p.parts == 1 ? " partial state" : " partial states");
  add(p.state, "a partial state written");
  add(backward && p.dout_type != p.type, "dout ", p.dout_type);
  add(p.dlse, "dlse", unusual(p.dlse_type, statistic));
  add(p.dq, "dq");
  add(p.dk, "dk");
  add(p.dv_gradient, "dv");
  add(p.dbias, "dbias");
  add(p.dsinks, "dsinks");
  add(p.dalibi, "dalibi");
  add(p.top_k != 0, "top ", p.top_k);
  add(p.key_mass, "key mass");
  add(p.metrics, "metrics, local ", p.local_width);
  add(p.tokens, "tokens");
  add(p.tile_keys != 0, "tiles of ", p.tile_queries, " x ", p.tile_keys);
  add(p.operation == Operation::weights, "window of ", p.window_queries, " x ", p.window_keys);
  return s;
}

std::string describe(const Decision& d) {
  std::string s = text("problem    ", describe(d.problem), "\nkernel     ", d.kernel->name,
                       d.forced ? " (forced)" : "", "\n");
  for (const auto& [name, reason] : d.declined) s += text("declined   ", name, ": ", reason, "\n");
  s += text("tiles      ", d.tiles.queries, " queries x ", d.tiles.keys, " keys\ntasks      ");
  for (std::size_t stage = 0; stage < d.tasks.size(); ++stage)
    s += text(stage > 0 ? " then " : "", d.tasks[stage]);
  return s + text(" on up to ", d.strands, d.strands == 1 ? " thread" : " threads", "\nworkspace  ",
                  d.workspace_bytes, " bytes\n");
}

}  // namespace attend
