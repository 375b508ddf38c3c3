// attend view: writes the page that shows the heads.
#include "files/outputs.h"
#include "files/shown.h"
#include "frame/program.h"
#include "frame/terminal.h"
#include "frame/units.h"

#include <attend/inspect.h>

#include <iostream>
#include <optional>

namespace attend::cli {
namespace {

struct ViewCommand {
  ShownFlags shown;
  ViewOptions page{};
  std::string output = "attention.html";
  double page_size = 16;
  std::vector<std::string> windows;
};

// Without --title: the text, or the name of what was given first.
std::string title_of(const ShownFlags& shown) {
  if (!shown.text.empty()) return shown.text;
  for (const auto* files : {&shown.files, &shown.weights, &shown.q})
    if (!files->empty()) return std::filesystem::path(files->front()).filename().string();
  return "";
}

void print_json(const ViewCommand& command, const std::vector<ViewRun>& runs,
                std::size_t page_bytes) {
  Json object = json_object("attend.view/1");
  object["file"] = command.output;
  object["bytes"] = page_bytes;
  for (const ViewRun& run : runs) {
    Json layers = Json::array();
    for (const ViewLayer& layer : run.layers) {
      Json shape = Json::array();
      for (const std::int64_t size : layer.q.shape()) shape.push_back(size);
      layers.push_back({{"name", layer.name}, {"q", shape}});
    }
    object["runs"].push_back({{"name", run.name}, {"layers", layers}});
  }
  print(object);
}

std::int64_t heads_of(const std::vector<ViewRun>& runs) {
  std::int64_t heads = 0;
  for (const ViewRun& run : runs)
    for (const ViewLayer& layer : run.layers) heads += layer.q.size(1);
  return heads;
}

int run(const Flags& flags, ViewCommand& command, const Common& common) {
  if (!command.output.ends_with(".html") && !command.output.ends_with(".htm"))
    throw UsageError("'" + command.output + "' must end in .html");
  Outputs outputs(flags, {"--output"});
  outputs.reserve_file(command.output);
  for (const std::string& text : command.windows) command.page.windows.push_back(window_of(text));
  command.page.page_bytes = static_cast<std::int64_t>(command.page_size * (1 << 20));
  const auto context = common.context();
  const Shown shown(flags, command.shown, common.seed, *context);
  if (command.page.open_run > 0 && shown.runs().size() < 2)
    throw UsageError("--open-run 1 needs two runs to compare, there is one");
  if (command.page.title.empty()) command.page.title = title_of(command.shown);
  std::string page;
  {
    std::optional<Waiting> waiting("looking at the heads");  // for the first of them
    Progress progress("looking at the heads", heads_of(shown.runs()));
    command.page.progress = [&](std::int64_t done, std::int64_t) {
      waiting.reset();
      progress.show(done);
    };
    page = view_page(shown.runs(), command.page, *context);
  }
  outputs.put_file(command.output, [&](const auto& path) { save_bytes(path, page); });
  outputs.write();
  if (common.json) print_json(command, shown.runs(), page.size());
  else
    std::cout << "wrote " << command.output << ", " << bytes(static_cast<std::int64_t>(page.size()))
              << "; open it in a browser\n";
  return kOk;
}

}  // namespace

void add_view(Program& program) {
  auto command = std::make_shared<ViewCommand>();
  Flags& flags = program.add(
      "view", "Writes a page that shows every head: one file, opens in any browser, offline.",
      "  attend view --q q.npy --k k.npy --v v.npy --causal --text \"The cat sat on the mat\"\n"
      "  attend view layers.safetensors --tokens tokens.json --output heads.html\n"
      "  attend view --weights layer.safetensors --heads 8 --input x.npy\n"
      "  attend view before.safetensors after.safetensors --title \"before and after\"",
      [=](const Common& common, const Flags& given) { return run(given, *command, common); });
  add_shown_flags(flags, command->shown, true);
  ViewOptions& o = command->page;
  Flags page = flags.group("The page");
  page.add_file("--output", command->output, "The page").show_default();
  page.add_text("--title", o.title, "Title of the page");
  page.add_word("--language", o.language, "Language of the page", {"en", "zh"});
  page.add_whole("--batch", o.batch, {}, "Element of the batch, or sequence, to show");
  page.add_whole("--open-run", o.open_run, {.most = 1},
                 "Of two runs, the one that the page opens on: 0, or 1 for the second");
  page.add_real("--page-size", command->page_size, {0, 64},
                "MiB that the page may have: 16, or up to 64; what does not fit is reduced");
  page.add_size("--tiles", o.tiles, "Tiles of a head's map in each direction");
  page.add_texts("--window", command->windows,
                 "Weights that are exact whatever the size: LAYER,HEAD,QUERY,QUERIES,KEY,KEYS")
      .value("N,N,N,N,N,N");
}

}  // namespace attend::cli
