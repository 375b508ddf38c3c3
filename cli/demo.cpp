// attend demo: what the library does, in under a minute. One head by hand; a sentence through eight
// heads that were built to find things; and a small model that learns to find them by itself.
#include "command.h"
#include "demo_page.h"
#include "explain_text.h"
#include "outputs.h"
#include "sentence.h"
#include "terminal.h"
#include "train_task.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <utility>

namespace attend::cli {
namespace {

constexpr std::int64_t kPeriod = 7;  // of the sequence that the heads are shown on: four maps fit
constexpr double kIntended = 0.95;   // least weight of a key that a head was built to find

template <class... Values>
std::string format(const char* form, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, form, values...);
  return line;
}

// What was shown, as fields of an object; and whether all that must hold did.
struct Shown {
  Json fields = Json::object();
  bool passed = true;
};

class Demo {
 public:
  Demo(const Common& common, std::string page)
      : quiet_(common.json), seed_(common.seed), context_(common.context()),
        look_(Look::of_stdout(Language::english)), page_(std::move(page)) {}

  int run() {
    const auto begin = std::chrono::steady_clock::now();
    Outputs outputs;
    outputs.reserve_file(page_);
    one_head();
    sentence();
    training(outputs);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    say(format("\n%s in %.1f s\n", shown_.passed ? "all checks hold," : "A CHECK FAILED,",
               seconds.count()));
    if (quiet_) {
      Json object = json_object("attend.demo/1");
      object.update(shown_.fields);
      object["seconds"] = seconds.count();
      object["passed"] = shown_.passed;
      print(object);
    }
    return shown_.passed ? kOk : kFailedCheck;
  }

 private:
  void say(const std::string& text) const {
    if (!quiet_) std::cout << text << std::flush;
  }
  void heading(const std::string& text) const { say("\n" + look_.in("1", text) + "\n\n"); }
  void check(bool holds, const std::string& what) {
    shown_.passed = shown_.passed && holds;
    const char* mark = look_.unicode ? (holds ? "✓ " : "✗ FAILED ") : holds ? "ok " : "FAILED ";
    say("   " + look_.in(holds ? "32" : "31", mark) + what + "\n");
  }

  // ---- 1  The single-head example, in seven lines --------------------------------------------

  void one_head() {
    heading("1  One head, two tokens      (attend explain single-head: every number)");
    const Shape shape{1, 1, 2, 2};
    const Tensor q({1.0, 3.0, 2.0, 0.5}, shape), k({0.5, 2.0, 1.0, 3.0}, shape);
    const Tensor v({0.0, 4.0, 1.0, 2.0}, shape);
    const Trace trace = trace_attention(q, k, v, {}, *context_);
    const auto line = [&](const char* what, const Tensor& t, const char* why) {
      const double* x = t.data<double>();
      say(format("   %-14s %9.6f %9.6f  / %9.6f %9.6f   %s\n", what, x[0], x[1], x[2], x[3], why));
    };
    say("   Q = 1 3 / 2 0.5    K = 0.5 2 / 1 3    V = 0 4 / 1 2\n");
    line("1 scores", trace.at("scores"), "Q K^T");
    line("  scaled", trace.at("scaled_scores"), "/ sqrt(2)");
    say("   2 mask         nothing is hidden\n");
    line("3 softmax", trace.at("weights"), "by rows");
    line("4 values", trace.at("heads"), "weights V");
    const double* out = trace.at("heads").data<double>();
    double off = 0;  // against the formula, written out
    for (int i = 0; i < 2; ++i) {
      const double* a = q.data<double>() + 2 * i;
      const double e0 = std::exp((a[0] * 0.5 + a[1] * 2) / std::sqrt(2.0));
      const double e1 = std::exp((a[0] * 1 + a[1] * 3) / std::sqrt(2.0)), p = e1 / (e0 + e1);
      off = std::max({off, std::abs(out[2 * i] - p), std::abs(out[2 * i + 1] - (4 - 2 * p))});
    }
    check(off < 1e-14, format("equals the formula, to within %.0e", off));
    shown_.fields["single_head"] = {{"output", {out[0], out[1], out[2], out[3]}},
                                    {"difference", off}};
  }

  // ---- 2  The sentence -----------------------------------------------------------------------

  void sentence() {
    heading("2  \"The cat sat on the mat\" through a CONSTRUCTED layer: 8 heads, width 512");
    say("   Its weights were written down, not learned: a head finds what its name says.\n"
        "   A row is a query, a full block much weight; without a match it rests on\n"
        "   token 0.\n\n");
    const Sentence s = make_sentence();
    const Tensor weights = s.layer.trace(s.x, {}, *context_).at("weights");
    std::vector<Lines> maps;
    double least_of_all = 1;
    for (std::size_t h = 0; h < s.heads.size(); ++h) {
      const SentenceHead& head = s.heads[h];
      std::vector<std::vector<double>> rows(6);
      double least = 1;
      for (std::int64_t i = 0; i < 6; ++i)
        for (std::int64_t j = 0; j < 6; ++j) {
          const double weight = weights.at<float>({0, static_cast<std::int64_t>(h), i, j});
          rows[static_cast<std::size_t>(i)].push_back(weight);
          if (head.keys[static_cast<std::size_t>(i)] == j) least = std::min(least, weight);
        }
      const bool built = head.keys[0] >= 0;
      if (built) least_of_all = std::min(least_of_all, least);
      const std::vector<std::vector<bool>> seen(6, std::vector<bool>(6, false));
      maps.push_back(heatmap(std::to_string(h) + " " + head.name, rows, seen, s.words, look_));
      shown_.fields["sentence"]["heads"].push_back(
          {{"name", head.name}, {"least", built ? Json(least) : Json()}, {"weights", rows}});
    }
    say(beside(maps, look_) + "\n");
    shown_.fields["sentence"]["constructed"] = true;
    check(least_of_all >= kIntended,
          format("every intended key gets at least %.2f of its row (least: %.4f)", kIntended,
                 least_of_all));
  }

  // ---- 3  Training ---------------------------------------------------------------------------

  // One sequence of seven tokens, twice: what the heads are shown on.
  struct Example {
    InductionBatch batch;
    std::vector<std::string> tokens;
  };
  Example example() const {
    Example look{induction_batch({.shortest = kPeriod, .longest = kPeriod}, seed_, 9, 0, 1), {}};
    for (std::int64_t i = 0; i < 2 * kPeriod; ++i)
      look.tokens.emplace_back(1,
                               static_cast<char>('a' + look.batch.tokens.at<std::int64_t>({0, i})));
    return look;
  }

  void training(Outputs& outputs) {
    heading("3  A model of two layers learns to continue repeated sequences, live");
    TrainSettings settings{.steps = 1000, .batch = 32, .learning_rate = 4e-3, .seed = seed_};
    const auto task = induction_task();
    LanguageModelOptions form = induction_model();
    form.seed = seed_;
    LanguageModel model(form);
    const LanguageModel before = model;
    const std::vector<double> losses = train(*task, settings, model);
    const Example look = example();
    const InductionScores old = induction_scores(before, look.batch, *context_);
    const InductionScores now = induction_scores(model, look.batch, *context_);
    const Json verdict = task->judge(settings, model, *context_).fields;
    show_heads(look, before, model, now.head());
    const double accuracy = verdict.at("accuracy"), score = verdict.at("induction_score");
    check(verdict.at("reached"),
          format("held-out accuracy %.4f, induction score %.3f", accuracy, score));
    outputs.put_file(page_, [&](const auto& path) {
      save_demo_page(path, {&before, &model, look.batch.tokens, look.tokens}, *context_);
    });
    outputs.write();
    say("   every head, before and after: open " + page_ + " in a browser\n");
    shown_.fields["page"] = page_;
    shown_.fields["training"] = {{"steps", losses.size()}, {"losses", losses},
                                 {"accuracy", accuracy},   {"induction_score", score},
                                 {"before", old.scores},   {"after", now.scores}};
  }

  std::vector<double> train(const Task& task, const TrainSettings& settings, LanguageModel& model) {
    AdamW optimizer;
    const LearningRate rate = task.learning_rate(settings);
    std::vector<double> losses;
    Progress progress("training", settings.steps);
    while (optimizer.steps() < settings.steps) {
      const std::int64_t step = optimizer.steps();
      if (step > 0 && step % 25 == 0) {
        say(format("   step %4lld   loss %.4f\n", static_cast<long long>(step), losses.back()));
        if (task.reached(settings, model, *context_)) break;
      }
      losses.push_back(
          train_step(model, optimizer, task.batch(settings, step), rate.at(step), *context_));
      progress.show(step);
    }
    return losses;
  }

  // The head of layer 0 that looks back one token most, and the induction head of layer 1.
  void show_heads(const Example& look, const LanguageModel& before, const LanguageModel& after,
                  std::size_t induction) const {
    const auto weights = [&](const LanguageModel& model, int layer) {
      return model.trace(look.batch.tokens, *context_)
          .at("blocks." + std::to_string(layer) + ".attention.weights");
    };
    const Tensor trained = weights(after, 0);
    std::int64_t previous = 0;
    const auto back = [&](std::int64_t h) {
      double sum = 0;
      for (std::int64_t i = 1; i < 2 * kPeriod; ++i) sum += trained.at<float>({0, h, i, i - 1});
      return sum;
    };
    for (std::int64_t h = 1; h < trained.size(1); ++h)
      if (back(h) > back(previous)) previous = h;
    bool first = true;
    const auto map = [&](const char* when, const Tensor& tensor, int layer, std::int64_t h) {
      std::vector<std::vector<double>> rows(2 * kPeriod);
      std::vector<std::vector<bool>> hidden(2 * kPeriod);
      for (std::int64_t i = 0; i < 2 * kPeriod; ++i)
        for (std::int64_t j = 0; j < 2 * kPeriod; ++j) {
          rows[static_cast<std::size_t>(i)].push_back(tensor.at<float>({0, h, i, j}));
          hidden[static_cast<std::size_t>(i)].push_back(j > i);
        }
      const std::vector<std::string> none(2 * kPeriod);  // the names stand before the first map
      return heatmap(format("L%d H%lld %s", layer, static_cast<long long>(h), when), rows, hidden,
                     std::exchange(first, false) ? look.tokens : none, look_);
    };
    const auto second = static_cast<std::int64_t>(induction);
    const std::vector<Lines> maps{
        map("before", weights(before, 0), 0, previous), map("after", trained, 0, previous),
        map("before", weights(before, 1), 1, second), map("after", weights(after, 1), 1, second)};
    say("\n   Left, layer 0: a head came to look at the previous token. Right, layer 1: one\n"
        "   came to look behind the previous occurrence of the present token.\n\n" +
        beside(maps, look_) + "\n");
  }

  const bool quiet_;
  const std::uint64_t seed_;
  const std::unique_ptr<Context> context_;
  const Look look_;
  const std::string page_;
  Shown shown_;
};

}  // namespace

void add_demo(Program& program) {
  auto page = std::make_shared<std::string>("attend-demo.html");
  CLI::App& app = program.add(
      "demo", "Shows the library at work in under a minute: by hand, built, and trained.",
      "  attend demo", [page](const Common& common) { return Demo(common, *page).run(); });
  app.add_option("--page", *page, "The page of the heads before and after training")
      ->type_name("FILE")
      ->capture_default_str();
}

}  // namespace attend::cli
