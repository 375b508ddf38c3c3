// Every message of the layers, each produced at least once, word for word. The mistakes
// stand in tables, tests/errors/layer_*.cpp, which are then held against the sources, so that a
// message nobody has seen cannot be added.
#include "errors/layer_mistakes.h"
#include "errors/sources.h"
#include "support/io_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace attend::test {
namespace {

std::vector<LayerMistake> all_mistakes() {
  std::vector<LayerMistake> all;
  for (const auto& table :
       {linear_mistakes(), norm_mistakes(), feed_forward_mistakes(), embedding_mistakes(),
        position_mistakes(), output_mistakes(), parameter_mistakes(), multi_head_mistakes(),
        multi_head_file_mistakes(), kv_cache_mistakes(), block_mistakes(), loss_mistakes(),
        gradient_mistakes(), optimizer_mistakes(), loss_scale_mistakes(), checkpoint_mistakes(),
        model_mistakes(), device_mistakes()})
    all.insert(all.end(), table.begin(), table.end());
  return all;
}

class LayerErrors : public testing::TestWithParam<LayerMistake> {};

TEST_P(LayerErrors, says_what_was_found_and_what_is_allowed) {
  EXPECT_EQ(error_of(GetParam().make), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Layers, LayerErrors, testing::ValuesIn(all_mistakes()),
                         [](const auto& param) { return param.param.name; });

TEST(LayerMessages, every_message_in_the_sources_is_covered) {
  std::vector<std::string> seen;
  for (const LayerMistake& mistake : all_mistakes())
    seen.push_back(mistake.message.substr(mistake.message.find(": ") + 2));
  std::vector<MessagePattern> patterns;
  for (const auto& entry : fs::directory_iterator(fs::path(ATTEND_SOURCE_DIR) / "src/layer"))
    for (MessagePattern& pattern :
         message_patterns(entry.path().filename().string(), bytes_of(entry.path())))
      patterns.push_back(std::move(pattern));
  EXPECT_GT(patterns.size(), 25U) << "the sources were not understood";
  EXPECT_EQ(uncovered(patterns, seen), "");
}

// Names of arguments reach messages through the functions of layer/check.h.
TEST(LayerMessages, every_name_that_is_checked_is_covered) {
  const std::vector<LayerMistake> mistakes = all_mistakes();
  int names = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(ATTEND_SOURCE_DIR) / "src/layer")) {
    std::istringstream lines(bytes_of(entry.path()));
    const std::string file = entry.path().filename().string();
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find("  check_") == line.npos || line.ends_with(".h\"")) continue;
      for (const MessagePattern& name : string_literals(file, line)) {
        ++names;
        EXPECT_TRUE(std::any_of(
            mistakes.begin(), mistakes.end(),
            [&](const LayerMistake& m) { return m.message.find(name.text) != std::string::npos; }))
            << file << ":" << number << ": no test produces \"" << name.text << "\"";
      }
    }
  }
  EXPECT_GT(names, 20) << "the sources were not understood";
}

}  // namespace
}  // namespace attend::test
