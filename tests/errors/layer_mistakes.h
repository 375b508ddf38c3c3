// Mistakes with layers, and what the library must say about them. Each file of tables declares its
// own here; layer_errors_test.cpp makes them all and checks that no message of src/layer is without
// one.
#pragma once

#include <attend/tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace attend::test {

struct LayerMistake {
  std::string name;            // snake_case: the test's
  std::function<void()> make;  // throws
  std::string message;         // all of it: "InvalidArgument: linear: x is missing"
};

std::vector<LayerMistake> linear_mistakes();
std::vector<LayerMistake> norm_mistakes();
std::vector<LayerMistake> feed_forward_mistakes();
std::vector<LayerMistake> embedding_mistakes();
std::vector<LayerMistake> position_mistakes();
std::vector<LayerMistake> output_mistakes();
std::vector<LayerMistake> parameter_mistakes();
std::vector<LayerMistake> multi_head_mistakes();
std::vector<LayerMistake> multi_head_file_mistakes();
std::vector<LayerMistake> kv_cache_mistakes();
std::vector<LayerMistake> block_mistakes();
std::vector<LayerMistake> loss_mistakes();
std::vector<LayerMistake> gradient_mistakes();
std::vector<LayerMistake> optimizer_mistakes();
std::vector<LayerMistake> loss_scale_mistakes();
std::vector<LayerMistake> checkpoint_mistakes();
std::vector<LayerMistake> model_mistakes();
std::vector<LayerMistake> device_mistakes();

}  // namespace attend::test
