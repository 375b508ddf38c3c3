// attend demo: what the library does, in under a minute. One head by hand; a sentence through eight
// heads that were built to find things; and a small model that learns to find them by itself. In
// English or Chinese; what --json prints is the same in both.
#include "explain/sentence.h"
#include "explain/text.h"
#include "files/outputs.h"
#include "frame/glyphs.h"
#include "frame/program.h"
#include "frame/terminal.h"
#include "page.h"
#include "train/task.h"

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
std::string format(const std::string& form, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, form.c_str(), values...);
  return line;
}

// What was shown, as fields of an object; and whether all that must hold did.
struct Shown {
  Json fields = Json::object();
  bool passed = true;
};

class Demo {
 public:
  Demo(const Common& common, Language language, std::string page)
      : quiet_(common.json), seed_(common.seed), context_(common.context()),
        look_(Look::of_stdout(language)), page_(std::move(page)) {}

  int run() {
    const auto begin = std::chrono::steady_clock::now();
    Outputs outputs;
    outputs.reserve_file(page_);
    one_head();
    sentence();
    training(outputs);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    say(format(shown_.passed
                   ? in({"\nall checks hold, in %.1f s\n", "\n所有检查都通过，用时 %.1f 秒\n"})
                   : in({"\nA CHECK FAILED, in %.1f s\n", "\n有检查未通过，用时 %.1f 秒\n"}),
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
  std::string in(const Phrase& phrase) const { return phrase.in(look_.language); }
  void heading(const Phrase& text) const { say("\n" + look_.in("1", in(text)) + "\n\n"); }
  void check(bool holds, const std::string& what) {
    shown_.passed = shown_.passed && holds;
    const std::string mark = holds ? (look_.unicode ? "✓ " : "ok ")
                                   : (look_.unicode ? "✗ " : "") + in({"FAILED ", "未通过 "});
    say("   " + look_.in(holds ? "32" : "31", mark) + what + "\n");
  }

  // ---- 1  The single-head example, in seven lines --------------------------------------------

  void one_head() {
    heading({"1  One head, two tokens      (attend explain single-head: every number)",
             "1  一个头，两个词元      （每个数字：attend explain single-head --language zh）"});
    const Shape shape{1, 1, 2, 2};
    const Tensor q({1.0, 3.0, 2.0, 0.5}, shape), k({0.5, 2.0, 1.0, 3.0}, shape);
    const Tensor v({0.0, 4.0, 1.0, 2.0}, shape);
    const Trace trace = trace_attention(q, k, v, {}, *context_);
    const auto line = [&](const Phrase& what, const Tensor& t, const Phrase& why) {
      const double* x = t.data<double>();
      say("   " + fitted(in(what), 14) +
          format(" %9.6f %9.6f  / %9.6f %9.6f   ", x[0], x[1], x[2], x[3]) + in(why) + "\n");
    };
    say("   Q = 1 3 / 2 0.5    K = 0.5 2 / 1 3    V = 0 4 / 1 2\n");
    line({"1 scores", "1 分数"}, trace.at("scores"), "Q K^T");
    line({"  scaled", "  缩放"}, trace.at("scaled_scores"), "/ sqrt(2)");
    say("   " + fitted(in({"2 mask", "2 掩码"}), 14) +
        in({" nothing is hidden", " 没有隐藏任何键"}) + "\n");
    line("3 softmax", trace.at("weights"), {"by rows", "逐行"});
    line({"4 values", "4 值"}, trace.at("heads"), {"weights V", "权重乘 V"});
    const double* out = trace.at("heads").data<double>();
    double off = 0;  // against the formula, written out
    for (int i = 0; i < 2; ++i) {
      const double* a = q.data<double>() + 2 * i;
      const double e0 = std::exp((a[0] * 0.5 + a[1] * 2) / std::sqrt(2.0));
      const double e1 = std::exp((a[0] * 1 + a[1] * 3) / std::sqrt(2.0)), p = e1 / (e0 + e1);
      off = std::max({off, std::abs(out[2 * i] - p), std::abs(out[2 * i + 1] - (4 - 2 * p))});
    }
    check(off < 1e-14,
          format(in({"equals the formula, to within %.0e", "与公式一致，相差不超过 %.0e"}), off));
    shown_.fields["single_head"] = {{"output", Json::array({out[0], out[1], out[2], out[3]})},
                                    {"difference", off}};
  }

  // ---- 2  The sentence -----------------------------------------------------------------------

  void sentence() {
    heading({"2  \"The cat sat on the mat\" through a CONSTRUCTED layer: 8 heads, width 512",
             "2  “The cat sat on the mat” 通过一个人工构造的层：8 个头，宽 512"});
    say(
        in({"   Its weights were written by hand, not learned: each head finds what its name\n"
            "   says. A row is a query; the fuller a cell, the larger the weight of its key.\n"
            "   A row without a match puts its weight on token 0.\n\n",
            "   这一层的权重是手写的，不是学来的：每个头找到的正是它的名字所说的东西。\n"
            "   一行是一个查询；格子越满，那个键的权重越大。\n"
            "   没有匹配的行，权重落在词元 0 上。\n\n"}));
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
      maps.push_back(heatmap(std::to_string(h) + " " + in({head.name, head.name_zh}), rows, seen,
                             s.words, look_));
      shown_.fields["sentence"]["heads"].push_back(
          {{"name", head.name}, {"least", built ? Json(least) : Json()}, {"weights", rows}});
    }
    say(beside(maps, look_) + "\n");
    shown_.fields["sentence"]["constructed"] = true;
    check(least_of_all >= kIntended,
          format(in({"every intended key gets at least %.2f of its row (least: %.4f)",
                     "每个该找到的键都得到该行至少 %.2f 的权重（最小：%.4f）"}),
                 kIntended, least_of_all));
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
    heading({"3  A model of two layers learns to continue repeated sequences, live",
             "3  一个两层的模型现场学习：把重复的序列接着写下去"});
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
    const double accuracy = verdict.at("accuracy").number(),
                 score = verdict.at("induction_score").number();
    check(verdict.at("reached").boolean(),
          format(in({"held-out accuracy %.4f, induction score %.3f",
                     "留出数据上的准确率 %.4f，归纳头得分 %.3f"}),
                 accuracy, score));
    outputs.put_file(page_, [&](const auto& path) {
      save_demo_page(path, {&before, &model, look.batch.tokens, look.tokens}, look_.language,
                     *context_);
    });
    outputs.write();
    say(in({"   every head, before and after: open " + page_ + " in a browser\n",
            "   所有的头，训练前后的对比：请用浏览器打开 " + page_ + "\n"}));
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
        say(format(in({"   step %4lld   loss %.4f\n", "   第 %4lld 步   损失 %.4f\n"}),
                   static_cast<long long>(step), losses.back()));
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
    const Phrase start{"before", "训练前"}, end{"after", "训练后"};
    const auto map = [&](const Phrase& when, const Tensor& tensor, int layer, std::int64_t h) {
      std::vector<std::vector<double>> rows(2 * kPeriod);
      std::vector<std::vector<bool>> hidden(2 * kPeriod);
      for (std::int64_t i = 0; i < 2 * kPeriod; ++i)
        for (std::int64_t j = 0; j < 2 * kPeriod; ++j) {
          rows[static_cast<std::size_t>(i)].push_back(tensor.at<float>({0, h, i, j}));
          hidden[static_cast<std::size_t>(i)].push_back(j > i);
        }
      const std::vector<std::string> none(2 * kPeriod);  // the names stand before the first map
      return heatmap(format("L%d H%lld ", layer, static_cast<long long>(h)) + in(when), rows,
                     hidden, std::exchange(first, false) ? look.tokens : none, look_);
    };
    const auto second = static_cast<std::int64_t>(induction);
    const std::vector<Lines> maps{
        map(start, weights(before, 0), 0, previous), map(end, trained, 0, previous),
        map(start, weights(before, 1), 1, second), map(end, weights(after, 1), 1, second)};
    say(in({"\n   Left, layer 0: a head learned to look at the previous token. Right, layer 1:\n"
            "   one learned to look at the token right after the last occurrence of the\n"
            "   current one: an induction head.\n\n",
            "\n   左边，第 0 层：一个头学会了看前一个词元。\n"
            "   右边，第 1 层：一个头学会了看当前词元上一次出现之后的那个词元，即归纳头。\n\n"}) +
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
  auto language = std::make_shared<std::string>("en");
  Flags& flags = program.add(
      "demo", "Shows attention at work in under a minute: by hand, constructed, and learned.",
      "  attend demo\n"
      "  attend demo --language zh",
      [page, language](const Common& common, const Flags&) {
        const bool english = *language == "en";
        return Demo(common, english ? Language::english : Language::chinese, *page).run();
      });
  flags.add_word("--language", *language, "Language of the texts and of the page", {"en", "zh"});
  flags.add_file("--html", *page, "The page of the heads before and after training").show_default();
}

}  // namespace attend::cli
