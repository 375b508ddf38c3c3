// Every field of AttentionOptions, changed one at a time: what makes a problem another problem.
#pragma once

#include <attend/options.h>

#include <functional>
#include <string>
#include <vector>

namespace attend::test {

struct OptionChange {
  std::string name;
  std::function<void(AttentionOptions&)> apply;
};

// For q [2, 4, 3, 6], k [2, 2, 5, 6]. The first options that they are applied to must have dropout,
// bias and blocks already, so that their details matter: start_options().
AttentionOptions start_options();
std::vector<OptionChange> option_changes();

// What does not make another problem: a Plan may be run with it.
std::vector<OptionChange> value_changes();

}  // namespace attend::test
