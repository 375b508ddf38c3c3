// What the page tells its reader in sentences: what is wrong with the numbers, and what is reduced.
#pragma once

#include "view/budget.h"
#include "view/json.h"

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

// Of each layer without q and k: why, and what would store them or a part. Of others nothing.
std::vector<std::string> reasons(const PageSizes& page, const Choice& choice, const Notes& notes,
                                 const std::string& command);

// Of a page that is not whole.
void say_what_is_reduced(const PageSizes& page, const Choice& choice, Notes& notes);

}  // namespace attend::view
