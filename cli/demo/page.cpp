#include "page.h"

#include <attend/view.h>

#include <cmath>

namespace attend::cli {
namespace {

// The mean norm over the tokens of what each head adds to the output: contributions [1, h, T, d].
std::vector<double> norms_of(const Tensor& contributions) {
  std::vector<double> norms;
  for (std::int64_t h = 0; h < contributions.size(1); ++h) {
    double sum = 0;
    for (std::int64_t t = 0; t < contributions.size(2); ++t) {
      double square = 0;
      for (std::int64_t n = 0; n < contributions.size(3); ++n) {
        const double x = contributions.at<float>({0, h, t, n});
        square += x * x;
      }
      sum += std::sqrt(square);
    }
    norms.push_back(sum / static_cast<double>(contributions.size(2)));
  }
  return norms;
}

// The layers show tensors of the trace, which must live as long.
ViewRun run_of(const char* name, const Trace& trace, std::size_t layers, const DemoHeads& heads) {
  ViewRun run{.name = name, .tokens = heads.names};
  const auto* ids = static_cast<const std::int64_t*>(heads.tokens.data());
  run.token_ids.assign(ids, ids + heads.tokens.count());
  for (std::size_t n = 0; n < layers; ++n) {
    const std::string prefix = "blocks." + std::to_string(n) + ".attention.";
    run.layers.push_back({.name = "layer " + std::to_string(n),
                          .q = trace.at(prefix + "q_heads"),
                          .k = trace.at(prefix + "k_heads"),
                          .v = trace.at(prefix + "v_heads"),
                          .options = {.causal = true},
                          .contribution = norms_of(trace.at(prefix + "contributions"))});
  }
  return run;
}

}  // namespace

void save_demo_page(const std::filesystem::path& path, const DemoHeads& heads, Language language,
                    Context& context) {
  const Trace before = heads.before->trace(heads.tokens, context);
  const Trace after = heads.after->trace(heads.tokens, context);
  const std::size_t layers = heads.after->blocks().size();
  const bool english = language == Language::english;
  const ViewRun runs[] = {run_of(english ? "before training" : "训练前", before, layers, heads),
                          run_of(english ? "after training" : "训练后", after, layers, heads)};
  save_view(
      path, runs,
      {.title = english ? "An induction head, before and after training" : "归纳头：训练前与训练后",
       .language = english ? "en" : "zh",
       .open_run = 1},
      context);
}

}  // namespace attend::cli
