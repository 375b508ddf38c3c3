// The page: shell, style and script from web/, and the data of the runs between them.
#include "core/reporting.h"
#include "core/text.h"
#include "view/assets.h"
#include "view/plan.h"

#include <attend/io.h>

#include <map>

namespace attend {
namespace view {
namespace {

// For the text of an element and for the value of an attribute.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

// 'sha256-...' as a Content-Security-Policy has it: in base64.
std::string hash_of(const Asset& asset) {
  std::string bytes;
  for (std::size_t n = 0; n < asset.sha256.size(); n += 2)
    bytes += static_cast<char>(std::stoi(std::string(asset.sha256.substr(n, 2)), nullptr, 16));
  return "'sha256-" + base64(bytes) + "'";
}

// The shell with each {{name}} replaced. What is put in is not searched again: a title may hold
// "{{data}}".
std::string filled(std::string_view shell, const std::map<std::string_view, std::string>& parts) {
  std::string page;
  while (true) {
    const std::size_t open = shell.find("{{"), close = shell.find("}}", open);
    page += shell.substr(0, open);
    if (close == shell.npos) return page;
    page += parts.at(shell.substr(open + 2, close - open - 2));
    shell.remove_prefix(close + 2);
  }
}

// "[CLS]", "<s>", "<|endoftext|>": a token that is no text.
bool is_special(const std::string& token) {
  return token.size() > 2 && ((token.front() == '<' && token.back() == '>') ||
                              (token.front() == '[' && token.back() == ']'));
}

Json run_json(const ViewRun& run, const PlannedRun& plan, Blobs& blobs, Notes& notes,
              const HeadsDone& done, const Where& where) {
  Json special = Json::array(), layers = Json::array();
  for (std::size_t n = 0; n < plan.key_tokens.size(); ++n)
    if (is_special(plan.key_tokens[n])) special.push(n);
  for (const PlannedLayer& layer : plan.layers) {
    layers.push(
        layer_json({*layer.single, layer.name, layer.contribution, layer.w_o, plan.token_ids},
                   layer.content, blobs, notes, done, where));
    blobs.pack(where);
  }
  const auto texts = [](const std::vector<std::string>& list) {
    return list.empty() ? Json() : Json::array(list);
  };
  return Json::object()
      .set("name", run.name)
      .set("tokens", texts(plan.tokens))
      .set("key_tokens", plan.key_tokens == plan.tokens ? Json() : texts(plan.key_tokens))
      .set("special", special)
      .set("layers", layers);
}

std::int64_t heads_of(const std::vector<PlannedRun>& plan) {
  std::int64_t heads = 0;
  for (const PlannedRun& run : plan)
    for (const PlannedLayer& layer : run.layers) heads += layer.single->heads();
  return heads;
}

// What would fail after minutes of computing fails now.
void check_folder(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    throw FileError(
        text("save_view: '", path.string(), "': there is no folder '", folder.string(), "'"));
}

}  // namespace
}  // namespace view

std::string view_page(std::span<const ViewRun> runs, const ViewOptions& options,
                      const Where& where) {
  return reporting("view", [&] {
    using namespace view;
    Notes notes(options.language);
    const std::vector<PlannedRun> plan = planned(runs, options, notes);
    Blobs blobs;
    Json run_list = Json::array();
    const std::int64_t all = heads_of(plan);
    std::int64_t heads = 0;
    const HeadsDone done = [&](std::int64_t more) {
      heads += more;
      if (options.progress) options.progress(heads, all);
    };
    for (std::size_t n = 0; n < runs.size(); ++n)
      run_list.push(run_json(runs[n], plan[n], blobs, notes, done, where));
    const Json data = Json::object()
                          .set("format", "attend.view/2")
                          .set("made_by", std::string("attend ") + version())
                          .set("command", options.command)
                          .set("title", options.title)
                          .set("language", options.language)
                          .set("notes", notes.list())
                          .set("open", options.open_run)
                          .set("runs", run_list);
    return filled(kShell.text,
                  {{"language", options.language},
                   {"title", escaped(options.title.empty() ? "attend" : options.title)},
                   {"csp", "default-src 'none'; script-src " + hash_of(kScript) + "; style-src " +
                               hash_of(kStyle) + "; img-src data: blob:"},
                   {"style", std::string(kStyle.text)},
                   {"script", std::string(kScript.text)},
                   {"data", "<script type=\"application/json\" id=\"data\">" + data.text() +
                                "</script>\n" + blobs.elements()}});
  });
}

void save_view(const std::filesystem::path& path, std::span<const ViewRun> runs,
               const ViewOptions& options, const Where& where) {
  view::check_folder(path);
  save_bytes(path, view_page(runs, options, where));
}

}  // namespace attend
