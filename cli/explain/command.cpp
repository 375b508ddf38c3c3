// attend explain: attention step by step, with every number.
#include "files.h"
#include "files/outputs.h"
#include "frame/mistakes.h"
#include "frame/program.h"
#include "json.h"
#include "page.h"
#include "sentence.h"
#include "subjects.h"
#include "text.h"

#include <algorithm>
#include <iostream>

namespace attend::cli {
namespace {

struct ExplainOptions {
  ExplainFiles files{};
  LayerShape shape{};
  std::string language = "en", html, save_layer, save_input;
};

const char* const kLayer = "A layer's file";
const std::vector<std::string> kSubjects = {"single-head", "two-heads", "sentence", "shapes"};

// A flag that belongs to other subjects.
void refuse(const Flags& flags, std::initializer_list<const char*> names, const std::string& what) {
  for (const char* flag : names)
    if (flags.given(flag)) throw UsageError(std::string(flag) + " is not for " + what);
}

void check_flags(const Flags& flags, const std::string& what) {
  const bool files = std::find(kSubjects.begin(), kSubjects.end(), what) == kSubjects.end();
  if (files) {
    refuse(flags, {"--batch", "--length", "--model-dim", "--save-layer", "--save-input"}, "files");
    return;
  }
  for (const char* group : {kLayer, kAttentionGroup})
    if (const auto flag = flags.given_of(group)) throw UsageError(*flag + " is not for " + what);
  refuse(flags, {"--text", "--tokens", "--sequence"}, what);
  if (what != "sentence") refuse(flags, {"--head", "--save-layer", "--save-input"}, what);
  if (what != "shapes") refuse(flags, {"--batch", "--length", "--model-dim", "--heads"}, what);
}

Explanation explanation_of(const ExplainOptions& o, Context& context) {
  const std::string& what = o.files.paths[0];
  if (o.files.paths.size() > 1 ||
      std::find(kSubjects.begin(), kSubjects.end(), what) == kSubjects.end()) {
    // One word without a dot is a subject that does not exist.
    if (o.files.paths.size() == 1 && what.find('.') == what.npos)
      throw UsageError("there is nothing called " + what +
                       suggestion(what, kSubjects,
                                  "there are single-head, two-heads, sentence, "
                                  "shapes, or files"));
    return explain_files(o.files, context);
  }
  if (what == "single-head") return explain_single_head(context);
  if (what == "two-heads") return explain_two_heads(context);
  if (what == "sentence") return explain_sentence(o.files.head, context);
  LayerShape shape = o.shape;
  if (o.files.layer.heads != 0) shape.heads = o.files.layer.heads;
  return explain_shapes(shape);
}

// Before anything is said about "the notes".
void introduce_notes(Explanation& e) {
  if (std::all_of(e.steps.begin(), e.steps.end(), [](const Step& s) { return s.claims.empty(); }))
    return;
  e.opening.insert(
      e.opening.begin(),
      Phrase{
          "This follows the five introductory notes on attention that the project began with; "
          "docs/notes tells them again. Where \"the notes\" are wrong, what they say, what is true "
          "and why stand together (all of it: docs/corrections.md).",
          "内容依据本项目最初参考的五篇注意力入门笔记，docs/notes "
          "用我们的话重讲了一遍。“笔记”有误之处，"
          "其说法、正确结果和原因列在一起（全部更正见 docs/corrections.md）。"});
}

int explain(const Flags& flags, const ExplainOptions& o, const Common& common) {
  const Language language = o.language == "zh" ? Language::chinese : Language::english;
  Outputs outputs(flags, {"--html", "--save-layer", "--save-input"});
  for (const std::string& path : {o.html, o.save_layer, o.save_input}) outputs.reserve_file(path);
  const auto context = common.context();
  Explanation e = explanation_of(o, *context);
  introduce_notes(e);
  outputs.put_file(o.html, [&](const auto& path) { save_bytes(path, explain_page(e, language)); });
  outputs.put_file(o.save_layer, [](const auto& path) { make_sentence().layer.save(path); });
  outputs.put_file(o.save_input, [](const auto& path) { save_npy(path, make_sentence().x); });
  outputs.write();
  if (common.json) {
    Json object = json_of(e, language);
    object["files"] = outputs.paths();
    print(object);
    return kOk;
  }
  std::cout << terminal_text(e, Look::of_stdout(language));
  for (const std::string& path : outputs.paths())
    std::cout << (path == outputs.paths().front() ? "\n" : "") << "wrote " << path << '\n';
  return kOk;
}

}  // namespace

void add_explain(Program& program) {
  auto options = std::make_shared<ExplainOptions>();
  Flags& flags = program.add(
      "explain", "Attention step by step, with every number: an example, or your files.",
      "  attend explain single-head\n"
      "  attend explain two-heads --language zh --html two-heads.html\n"
      "  attend explain sentence --head 3\n"
      "  attend explain shapes --batch 32 --length 20 --model-dim 512 --heads 8\n"
      "  attend explain q.npy k.npy v.npy --causal\n"
      "  attend explain layer.safetensors x.npy --heads 8\n"
      "  attend explain trace.safetensors --prefix blocks.1.attention.",
      [=](const Common& common, const Flags& given) {
        const std::vector<std::string>& paths = options->files.paths;
        check_flags(given, paths.size() == 1 ? paths[0] : "files");
        return explain(given, *options, common);
      });
  ExplainFiles& files = options->files;
  flags
      .add_texts("subject", files.paths,
                 "single-head, two-heads, sentence, shapes; or files: q k v, a layer and its "
                 "input, a trace")
      .required()
      .text("WORD|FILES")
      .suggest(kSubjects);
  flags.add_word("--language", options->language, "Language of the words", {"en", "zh"});
  flags.add_file("--html", options->html,
                 "Writes a page in which each number can be traced to its sources");
  flags.add_text("--text", files.text, "Text whose words are the tokens");
  flags.add_file("--tokens", files.tokens, "Tokens: a JSON list, or a text file with one per line");
  flags.add_whole("--head", files.head, {}, "Head to show in full; heads count from 0");
  flags.add_whole("--sequence", files.sequence, {}, "Sequence of the batch, counted from 0");
  flags.add_size("--batch", options->shape.batch, "shapes: sequences [32]");
  flags.add_size("--length", options->shape.length, "shapes: tokens of a sequence [20]");
  flags.add_size("--model-dim", options->shape.model_dim, "shapes: width of the layer [512]");
  flags.add_size("--heads", files.layer.heads,
                 "shapes: heads [8]; files: heads of a layer whose file does not say");
  flags.add_file("--save-layer", options->save_layer,
                 "sentence: writes the constructed layer (safetensors)");
  flags.add_file("--save-input", options->save_input, "sentence: writes its input (.npy)");
  add_layer_file_flags(flags.group(kLayer), files.layer);
  add_attention_flags(flags, files.attention);
}

}  // namespace attend::cli
