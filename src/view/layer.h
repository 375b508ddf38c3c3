// One layer as the page reads it: {"name", "heads", ..., "q": blob, ...}. docs/view.md has the
// list.
#pragma once

#include "view/blobs.h"
#include "view/numbers.h"

namespace attend::view {

// Sentences for the reader of the page, in the page's language.
class Notes {
 public:
  explicit Notes(const std::string& language) : chinese_(language == "zh") {}
  void add(const std::string& english, const std::string& chinese) {
    list_.push(said(english, chinese));
  }
  const std::string& said(const std::string& english, const std::string& chinese) const noexcept {
    return chinese_ ? chinese : english;
  }
  const Json& list() const noexcept { return list_; }

 private:
  bool chinese_;
  Json list_ = Json::array();
};

struct LayerInput {
  const Single& single;
  const std::string& name;
  const std::vector<double>& contribution;  // [heads], or empty
  const ConstTensorView& w_o;               // or none
  ConstTensorView tokens{};                 // [keys], or none
};

// `notes` receives what is wrong with the numbers, `done` how many more heads are done.
Json layer_json(const LayerInput& layer, const LayerContent& content, Blobs& blobs, Notes& notes,
                const HeadsDone& done, Context& context);

}  // namespace attend::view
