// parameters() is for reading; an optimizer wants views that may be written.
// expect: (could not convert|no known conversion|cannot convert).*NamedView.*Parameter
#include <attend/layer.h>
#include <attend/train.h>

void train(attend::Linear& layer, const std::vector<attend::NamedTensor>& gradients) {
  attend::SGD optimizer;
#ifdef WRONG
  const auto parameters = layer.parameters();
#else
  const auto parameters = layer.writable_parameters();
#endif
  optimizer.step(parameters, gradients, 0.1);  // here
}
