#include "view/notes.h"

#include "core/text.h"

#include <algorithm>

namespace attend::view {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMost = kMostPageBytes / kMiB;

std::string mebibytes(std::int64_t bytes) {
  const std::int64_t tenths = (bytes * 10 + kMiB - 1) / kMiB;  // rounded up
  return text(static_cast<double>(tenths) / 10, " MiB");
}

// Of each layer, MiB of the least larger page with its q and k; 0 if there is none.
std::vector<std::int64_t> enough_for(PageSizes page) {
  std::vector<std::int64_t> enough(page.layers.size());
  for (std::int64_t size = page.page_bytes / kMiB + 1; size <= kMost; ++size) {
    page.page_bytes = size * kMiB;
    const Choice choice = page.choice();
    for (std::size_t n = 0; n < enough.size(); ++n)
      if (enough[n] == 0 && choice.exact[n]) enough[n] = size;
  }
  return enough;
}

// "every query of every head has the 8 keys of largest weight"
std::string listed(const PageSizes& page, const Choice& choice, const Notes& notes) {
  if (choice.rows == 0)
    return notes.said("no row has its keys of largest weight", "未列出各行权重最大的键");
  const bool all =
      std::all_of(page.layers.begin(), page.layers.end(),
                  [&](const LayerSizes& layer) { return choice.rows >= layer.queries(); });
  return notes.said(
      text(all ? std::string("every query of every head has ")
               : text("the last ", choice.rows, " queries of every head have "),
           choice.k == 1 ? std::string("the key of largest weight")
                         : text("the ", choice.k, " keys of largest weight")),
      text(all ? std::string("每个头的每个查询") : text("每个头的最后 ", choice.rows, " 个查询"),
           "带有权重最大的 ", choice.k, " 个键"));
}

}  // namespace

std::vector<std::string> reasons(const PageSizes& page, const Choice& choice, const Notes& notes,
                                 const std::string& command) {
  const std::vector<std::int64_t> enough = enough_for(page);
  const std::string room = mebibytes(page.page_bytes), most = mebibytes(kMostPageBytes);
  std::vector<std::string> why(enough.size());
  for (std::size_t n = 0; n < why.size(); ++n) {
    if (choice.exact[n]) continue;
    const std::string window = text(command, " ... --window ", n, ",HEAD,QUERY,QUERIES,KEY,KEYS");
    const std::string larger = text(command, " ... --page-size ", enough[n]);
    if (enough[n] > 0)
      why[n] = notes.said(
          text("they do not fit into ", room, "; ", larger, " stores them, ", window,
               " the weights of a part."),
          text(room, " 放不下；", larger, " 可存下它们，", window, " 可存下一部分的权重。"));
    else
      why[n] =
          notes.said(text("they do not fit into any page, ", most, " at most; ", window,
                          " stores the weights of a part."),
                     text("页面至多 ", most, "，放不下它们；", window, " 可存下一部分的权重。"));
  }
  return why;
}

void say_what_is_reduced(const PageSizes& page, const Choice& choice, Notes& notes) {
  const std::int64_t whole = page.whole(), size = (whole + kMiB - 1) / kMiB;
  const auto layers = page.layers.size();
  const auto exact = std::count(choice.exact.begin(), choice.exact.end(), true);
  const std::string room = mebibytes(page.page_bytes), most = mebibytes(kMostPageBytes);
  const std::string rows = listed(page, choice, notes);
  const std::string larger =
      size > kMost ? notes.said(text("--page-size (page_bytes) goes up to ", most, "."),
                                text("--page-size（page_bytes）至多 ", most, "。"))
                   : notes.said(text("--page-size ", size, " (page_bytes) has room for it."),
                                text("--page-size ", size, "（page_bytes）即可放下。"));
  notes.add(
      text("The page is reduced to ", room, ": ", rows,
           "; q and k, with which every weight is exact, are there for ", exact, " of ", layers,
           " layers. Everything takes ", mebibytes(whole), "; ", larger),
      text("页面缩减到 ", room, "：", rows, "；", layers, " 层中有 ", exact,
           " 层带有 q 和 k，其中每个权重都是精确的。全部需要 ", mebibytes(whole), "；", larger));
  if (choice.rows > 0)
    notes.add("The weights of these keys are rounded, by at most 1.7e-4 of each.",
              "这些键的权重经过舍入，误差至多为其 1.7e-4。");
  if (choice.statistics)
    notes.add("Statistics of rows and keys are rounded to 16 bits.",
              "逐行和逐键的统计舍入为 16 位。");
  else
    notes.add("The statistics of single rows and keys are left out.", "未包含逐行和逐键的统计。");
  if (exact > std::count(choice.values.begin(), choice.values.end(), true) &&
      page.layers[0].has_values())
    notes.add("The values v of some of these layers are left out.", "其中一些层未包含数值 v。");
}

}  // namespace attend::view
