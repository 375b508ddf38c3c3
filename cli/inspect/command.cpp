// attend inspect: what every head looks at, in numbers.
#include "files/outputs.h"
#include "files/shown.h"
#include "frame/glyphs.h"
#include "frame/terminal.h"

#include "cases/oracle/widen.h"
#include "frame/program.h"

#include <attend/inspect.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>

namespace attend::cli {
namespace {

struct InspectCommand {
  ShownFlags shown;
  InspectOptions options{.key_mass = true};
  std::string output;
  bool rows = false;
  std::vector<std::string> windows;
};

struct Layer {
  std::string name;
  ConstTensorView q, k;
  Statistics statistics;
  const AttentionOptions* options;
};

// Exact weights of a part of a head, [queries, keys].
struct ExactWindow {
  ViewWindow place;
  Tensor weights;
};

struct Metric {
  const char* name;
  double HeadStatistics::*value;
};
constexpr Metric kMetrics[] = {{"lse", &HeadStatistics::lse},
                               {"entropy", &HeadStatistics::entropy},
                               {"maximum", &HeadStatistics::maximum},
                               {"distance", &HeadStatistics::distance},
                               {"previous", &HeadStatistics::previous},
                               {"first", &HeadStatistics::first},
                               {"diagonal", &HeadStatistics::diagonal},
                               {"local", &HeadStatistics::local},
                               {"duplicate", &HeadStatistics::duplicate},
                               {"induction", &HeadStatistics::induction},
                               {"contribution", &HeadStatistics::contribution}};

// Metrics that no head has are not shown.
std::vector<Metric> known_metrics(const std::vector<Layer>& layers) {
  std::vector<Metric> known;
  for (const Metric& metric : kMetrics)
    for (const Layer& layer : layers)
      for (const HeadStatistics& head : layer.statistics.heads)
        if (!std::isnan(head.*metric.value) &&
            (known.empty() || known.back().value != metric.value))
          known.push_back(metric);
  return known;
}

// Numbers for the keys' tokens: equal texts are equal tokens. [keys], or none.
Tensor token_ids(const ViewRun& run, std::int64_t keys) {
  const std::vector<std::string>& texts = run.key_tokens.empty() ? run.tokens : run.key_tokens;
  if (texts.empty()) return {};
  if (std::ssize(texts) != keys)
    throw UsageError("there are " + std::to_string(texts.size()) + " tokens and " +
                     std::to_string(keys) + " keys");
  std::map<std::string, std::int64_t> known;
  Tensor ids({keys}, DType::i64);
  for (std::size_t n = 0; n < texts.size(); ++n)
    ids.data<std::int64_t>()[n] = known.emplace(texts[n], std::ssize(known)).first->second;
  return ids;
}

std::vector<Layer> inspected(const ViewRun& run, const InspectCommand& command, Context& context) {
  const Waiting waiting("looking at the heads");
  std::vector<Layer> layers;
  for (const ViewLayer& layer : run.layers) {
    InspectOptions options = command.options;
    const bool paged = static_cast<bool>(layer.options.block_table);
    const Tensor ids = layer.k.rank() == 4 && !paged ? token_ids(run, layer.k.size(2)) : Tensor();
    options.tokens = ids;
    Statistics statistics = inspect(layer.q, layer.k, layer.options, options, context);
    for (std::size_t n = 0; !layer.contribution.empty() && n < statistics.heads.size(); ++n)
      statistics.heads[n].contribution = layer.contribution[n % layer.contribution.size()];
    const std::string number = std::to_string(layers.size());
    layers.push_back({layer.name.empty() ? "layer " + number : layer.name, layer.q, layer.k,
                      std::move(statistics), &layer.options});
  }
  return layers;
}

std::int64_t heads_of(const Layer& layer) { return layer.q.size(1); }

// The text of a token, or its position.
std::string word(const std::vector<std::string>& tokens, std::int64_t n) {
  return n >= 0 && n < std::ssize(tokens) ? printable(tokens[static_cast<std::size_t>(n)])
                                          : std::to_string(n);
}

// The sequence that row i of packed queries is of, and where its keys begin; else none, and 0.
std::pair<std::int64_t, std::int64_t> packed_place(const Layer& layer, std::int64_t i) {
  const AttentionOptions& o = *layer.options;
  if (!o.cu_seqlens_q) return {-1, 0};
  const auto at = [](const ConstTensorView& x, std::int64_t n) {
    return x.dtype() == DType::i32 ? x.at<std::int32_t>({n}) : x.at<std::int64_t>({n});
  };
  std::int64_t sequence = 0;
  while (at(o.cu_seqlens_q, sequence + 1) <= i) ++sequence;
  return {sequence, at(o.cu_seqlens_k ? o.cu_seqlens_k : o.cu_seqlens_q, sequence)};
}

// What q and k hold that makes the weights NaN, a sentence each.
std::vector<std::string> notes_of(const Layer& layer) {
  std::vector<std::string> notes;
  for (const auto& [name, x] : {std::pair{"q", layer.q}, {"k", layer.k}}) {
    const std::vector<double> values = oracle::widen(x);
    const auto count = std::count_if(values.begin(), values.end(),
                                     [](double value) { return !std::isfinite(value); });
    if (count > 0)
      notes.push_back(layer.name + ": " + name + " has " + std::to_string(count) +
                      " numbers that are not finite; weights that see them are NaN.");
  }
  return notes;
}

// ---- text --------------------------------------------------------------------------------------

// A number in seven columns; nothing, where there is none.
std::string column(double x) {
  char text[32];
  if (std::isnan(x)) return "      -";
  std::snprintf(text, sizeof text, std::abs(x) < 100 ? "%7.3f" : "%7.0f", x);
  return text;
}

void print_heads(const Layer& layer, const std::vector<Metric>& metrics) {
  std::printf("%5s  %-16s %5s", "head", "looks at", "score");
  for (const Metric& metric : metrics) std::printf("  %*s", 7, metric.name);
  std::printf("\n");
  for (std::size_t n = 0; n < layer.statistics.heads.size(); ++n) {
    const HeadStatistics& head = layer.statistics.heads[n];
    const HeadLabel label = label_of(head);
    const auto h = static_cast<std::int64_t>(n) % heads_of(layer);
    if (h == 0 && layer.statistics.batch > 1)
      std::printf("sequence %lld\n",
                  static_cast<long long>(static_cast<std::int64_t>(n) / heads_of(layer)));
    std::printf("%5lld  %-16s %5.2f", static_cast<long long>(h), label.name.c_str(), label.score);
    for (const Metric& metric : metrics)
      std::printf("  %*s",
                  static_cast<int>(std::max<std::size_t>(7, std::string(metric.name).size())),
                  column(head.*metric.value).c_str());
    std::printf("\n");
  }
}

// Rows as the tensors have them: [batch, heads, queries].
template <class Use>
void each_row(const Layer& layer, Use use) {
  const Statistics& s = layer.statistics;
  const std::vector<double> lse = oracle::widen(s.lse), maximum = oracle::widen(s.maximum),
                            entropy = oracle::widen(s.entropy);
  const std::vector<double> top =
      s.top_weights ? oracle::widen(s.top_weights) : std::vector<double>();
  const std::int64_t queries = s.lse.size(2), top_k = s.top_keys ? s.top_keys.size(3) : 0;
  for (std::int64_t row = 0; row < std::ssize(lse); ++row) {
    std::vector<std::pair<std::int64_t, double>> best;
    for (std::int64_t n = row * top_k; n < (row + 1) * top_k; ++n)
      if (const std::int64_t key = s.top_keys.data<std::int64_t>()[n]; key >= 0)
        best.push_back({key, top[static_cast<std::size_t>(n)]});
    const auto at = static_cast<std::size_t>(row);
    use(row / queries, row % queries, lse[at], maximum[at], entropy[at], best);
  }
}

void print_rows(const Layer& layer, const ViewRun& run) {
  const auto& keys = run.key_tokens.empty() ? run.tokens : run.key_tokens;
  std::printf("%5s %-14s %9s %8s %8s  %s\n", "head", "query", "lse", "maximum", "entropy",
              "keys of largest weight");
  each_row(layer, [&](std::int64_t head, std::int64_t i, double lse, double maximum, double entropy,
                      const auto& best) {
    if (i == 0 && head % heads_of(layer) == 0 && layer.q.size(0) > 1)
      std::printf("sequence %lld\n", static_cast<long long>(head / heads_of(layer)));
    std::printf("%5lld %-14s %9.4f %8.4f %8.4f ", static_cast<long long>(head % heads_of(layer)),
                word(run.tokens, i).c_str(), lse, maximum, entropy);
    const std::int64_t begin = packed_place(layer, i).second;
    for (const auto& [key, weight] : best)
      std::printf(" %s %.3f", word(keys, begin + key).c_str(), weight);
    std::printf("\n");
  });
}

// A line for each key: the sums of the weights that it receives, a column a head.
void print_mass(const Layer& layer, const ViewRun& run) {
  const Tensor& mass = layer.statistics.key_mass;
  const std::vector<double> values = oracle::widen(mass);
  const std::int64_t heads = mass.size(1), keys = mass.size(2);
  const auto& tokens = run.key_tokens.empty() ? run.tokens : run.key_tokens;
  for (std::int64_t b = 0; b < mass.size(0); ++b) {
    std::printf("%5s %-14s", "key",
                mass.size(0) > 1 ? ("sequence " + std::to_string(b)).c_str() : "");
    for (std::int64_t h = 0; h < heads; ++h)
      std::printf(" %9s", ("mass " + std::to_string(h)).c_str());
    std::printf("\n");
    for (std::int64_t j = 0; j < keys; ++j) {
      std::printf("%5lld %-14s", static_cast<long long>(j), word(tokens, j).c_str());
      for (std::int64_t h = 0; h < heads; ++h)
        std::printf(" %9.4f", values[static_cast<std::size_t>((b * heads + h) * keys + j)]);
      std::printf("\n");
    }
  }
}

void print_window(const ExactWindow& window, const std::vector<Layer>& layers, const ViewRun& run) {
  const ViewWindow& w = window.place;
  const auto& tokens = run.key_tokens.empty() ? run.tokens : run.key_tokens;
  std::printf("weights of %s, head %lld\n%-14s",
              layers[static_cast<std::size_t>(w.layer)].name.c_str(),
              static_cast<long long>(w.head), "");
  for (std::int64_t j = 0; j < w.keys; ++j) std::printf(" %9s", word(tokens, w.key + j).c_str());
  std::printf("\n");
  const std::vector<double> weights = oracle::widen(window.weights);
  for (std::int64_t i = 0; i < w.queries; ++i) {
    std::printf("%-14s", word(run.tokens, w.query + i).c_str());
    for (std::int64_t j = 0; j < w.keys; ++j)
      std::printf(" %9.6f", weights[static_cast<std::size_t>(i * w.keys + j)]);
    std::printf("\n");
  }
}

void print_text(const std::vector<Layer>& layers, const std::vector<ExactWindow>& windows,
                const ViewRun& run, const InspectCommand& command) {
  const std::vector<Metric> metrics = known_metrics(layers);
  for (const Layer& layer : layers) {
    std::cout << layer.name << ": q " << to_string(layer.q.shape()) << ", k "
              << to_string(layer.k.shape()) << '\n'
              << std::flush;
    print_heads(layer, metrics);
    for (const std::string& note : notes_of(layer)) std::printf("%s\n", note.c_str());
    if (command.rows) {
      print_rows(layer, run);
      print_mass(layer, run);
    }
  }
  for (const ExactWindow& window : windows) print_window(window, layers, run);
  std::fflush(stdout);
  if (!command.output.empty()) std::cout << "wrote " << command.output << '\n';
}

// ---- JSON and files ----------------------------------------------------------------------------

Json json_of_layer(const Layer& layer, bool rows) {
  Json object{{"name", layer.name}, {"notes", notes_of(layer)}, {"heads", Json::array()}};
  for (std::size_t n = 0; n < layer.statistics.heads.size(); ++n) {
    const HeadStatistics& head = layer.statistics.heads[n];
    const HeadLabel label = label_of(head);
    const auto number = static_cast<std::int64_t>(n);
    Json one{{"batch", number / heads_of(layer)},
             {"head", number % heads_of(layer)},
             {"label", label.name},
             {"score", label.score},
             {"rows", head.rows}};
    for (const Metric& metric : kMetrics) one[metric.name] = head.*metric.value;
    object["heads"].push_back(std::move(one));
  }
  if (!rows) return object;
  each_row(layer, [&](std::int64_t head, std::int64_t i, double lse, double maximum, double entropy,
                      const auto& best) {
    Json one{{"batch", head / heads_of(layer)},
             {"head", head % heads_of(layer)},
             {"query", i},
             {"lse", lse},
             {"maximum", maximum},
             {"entropy", entropy}};
    if (const std::int64_t sequence = packed_place(layer, i).first; sequence >= 0)
      one["sequence"] = sequence;  // in which the keys below are counted
    one["top"] = Json::array();
    for (const auto& [key, weight] : best) one["top"].push_back({{"key", key}, {"weight", weight}});
    object["rows"].push_back(std::move(one));
  });
  const Tensor& mass = layer.statistics.key_mass;
  const std::vector<double> values = oracle::widen(mass);
  const std::int64_t heads = mass.size(1), keys = mass.size(2);
  for (std::int64_t n = 0; n < mass.size(0) * heads; ++n)
    object["key_mass"].push_back({{"batch", n / heads},
                                  {"head", n % heads},
                                  {"mass", std::vector<double>(values.begin() + n * keys,
                                                               values.begin() + (n + 1) * keys)}});
  return object;
}

// All tensors by name; those of layer n begin with "n." where there are more layers than one.
void save(const std::filesystem::path& path, const std::vector<Layer>& layers,
          const std::vector<ExactWindow>& windows) {
  std::vector<NamedView> tensors;
  std::deque<Tensor> kept;
  Metadata metadata{{"format", "attend.inspect"}};
  for (std::size_t n = 0; n < layers.size(); ++n) {
    const std::string prefix = layers.size() > 1 ? std::to_string(n) + "." : "";
    const Statistics& s = layers[n].statistics;
    metadata[prefix + "name"] = layers[n].name;
    for (const auto& [name, tensor] : {std::pair{"lse", &s.lse},
                                       {"maximum", &s.maximum},
                                       {"entropy", &s.entropy},
                                       {"key_mass", &s.key_mass},
                                       {"top_keys", &s.top_keys},
                                       {"top_weights", &s.top_weights},
                                       {"tile_mean", &s.tile_mean},
                                       {"tile_maximum", &s.tile_maximum}})
      if (*tensor) tensors.push_back({prefix + name, *tensor});
    if (s.tile_mean)
      metadata[prefix + "tile"] =
          std::to_string(s.tile_queries) + " x " + std::to_string(s.tile_keys);
    for (const Metric& metric : kMetrics) {
      Tensor& values = kept.emplace_back(Tensor({s.batch, heads_of(layers[n])}, DType::f64));
      for (std::size_t h = 0; h < s.heads.size(); ++h)
        values.data<double>()[h] = s.heads[h].*metric.value;
      tensors.push_back({prefix + "head." + metric.name, values});
    }
  }
  for (std::size_t n = 0; n < windows.size(); ++n)
    tensors.push_back({"window." + std::to_string(n), windows[n].weights});
  save_safetensors(path, tensors, metadata);
}

std::vector<ExactWindow> exact_windows(const InspectCommand& command,
                                       const std::vector<Layer>& layers, Context& context) {
  std::vector<ExactWindow> windows;
  for (const std::string& text : command.windows) {
    const ViewWindow w = window_of(text);
    if (w.layer < 0 || w.layer >= std::ssize(layers))
      throw UsageError("--window is of layer " + std::to_string(w.layer) + "; there are " +
                       std::to_string(layers.size()));
    const Layer& layer = layers[static_cast<std::size_t>(w.layer)];
    const WeightsWindow part{
        .head = w.head, .query = w.query, .queries = w.queries, .key = w.key, .keys = w.keys};
    windows.push_back(
        {w, weights_of(layer.q, layer.k, layer.statistics.lse, part, *layer.options, context)});
  }
  return windows;
}

int run(const Flags& flags, InspectCommand& command, const Common& common) {
  Outputs outputs(flags, {"--output"});
  if (!command.output.empty() && !command.output.ends_with(".safetensors"))
    throw UsageError("'" + command.output + "' must end in .safetensors");
  if (command.rows && !flags.given("--top-k")) command.options.top_k = 3;
  outputs.reserve_file(command.output);
  const auto context = common.context();
  const Shown shown(flags, command.shown, common.seed, *context);
  const ViewRun& first = shown.runs()[0];
  const std::vector<Layer> layers = inspected(first, command, *context);
  const std::vector<ExactWindow> windows = exact_windows(command, layers, *context);
  outputs.put_file(command.output, [&](const auto& path) { save(path, layers, windows); });
  outputs.write();
  if (!common.json) {
    print_text(layers, windows, first, command);
    return kOk;
  }
  Json object = json_object("attend.inspect/1");
  object["layers"] = Json::array();
  for (const Layer& layer : layers) object["layers"].push_back(json_of_layer(layer, command.rows));
  for (const ExactWindow& window : windows) {
    const ViewWindow& w = window.place;
    object["windows"].push_back({{"layer", w.layer},
                                 {"head", w.head},
                                 {"query", w.query},
                                 {"queries", w.queries},
                                 {"key", w.key},
                                 {"keys", w.keys},
                                 {"weights", oracle::widen(window.weights)}});
  }
  object["files"] = outputs.paths();
  print(object);
  return kOk;
}

}  // namespace

void add_inspect(Program& program) {
  auto command = std::make_shared<InspectCommand>();
  Flags& flags = program.add(
      "inspect", "What every head looks at, in numbers: O(length) memory, whatever the length.",
      "  attend inspect --q q.npy --k k.npy --causal --text \"The cat sat on the mat\"\n"
      "  attend inspect --weights layer.safetensors --heads 8 --input x.npy --rows --top-k 3\n"
      "  attend inspect layers.safetensors --output statistics.safetensors --json",
      [=](const Common& common, const Flags& given) { return run(given, *command, common); });
  add_shown_flags(flags, command->shown, false);
  InspectOptions& o = command->options;
  Flags statistics = flags.group("Statistics");
  statistics.add_whole("--top-k", o.top_k, {0, 1024},
                       "Keys of largest weight of each row; with --rows 3 if not given");
  statistics.add_size("--local-width", o.local_width,
                      "\"local\" counts keys at most this far from the query");
  statistics.add_size("--tile-rows", o.tile_rows, "Tile map: at most this many rows");
  statistics.add_size("--tile-columns", o.tile_columns, "Tile map: at most this many columns");
  statistics.add_switch("--rows", command->rows,
                        "Also the statistics of every row, and the mass of every key");
  statistics
      .add_texts("--window", command->windows,
                 "Exact weights: LAYER,HEAD,QUERY,QUERIES,KEY,KEYS; of the first sequence")
      .value("N,N,N,N,N,N");
  statistics.add_file("--output", command->output, "All tensors, as safetensors");
}

}  // namespace attend::cli
