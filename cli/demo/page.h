// The heads of a model before and after training, as the page that shows heads, in compare mode.
#pragma once

#include "explain/explanation.h"

#include <attend/model.h>

#include <filesystem>
#include <string>
#include <vector>

namespace attend::cli {

// tokens [1, T], a name for each.
struct DemoHeads {
  const LanguageModel* before = nullptr;
  const LanguageModel* after = nullptr;
  ConstTensorView tokens{};
  std::vector<std::string> names{};
};

void save_demo_page(const std::filesystem::path& path, const DemoHeads& heads, Language language,
                    Context& context);

}  // namespace attend::cli
