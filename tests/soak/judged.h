// Lists of what a kernel wrote, held against the oracle's results element by element.
#pragma once

#include "written.h"

#include "cases/oracle/bounds.h"

#include <functional>
#include <map>

namespace attend::test {

// The member of the oracle's results that a tensor of a WrittenList is, or null: what inspect()
// gives has none.
using Member = std::vector<double> Results<double>::*;
Member member_of(const std::string& name);

// One element of a tensor that was written: where it is in the oracle's results, too.
struct Element {
  const NamedTensor& of;
  Member member;
  std::size_t n;
  double value;
};

// What `wrong` says of the first element of each tensor that it says something about.
std::vector<std::string> first_wrong(const WrittenList& list,
                                     const std::function<std::string(const Element&)>& wrong);

std::string text_of(double number);

double largest_finite(DType type);

}  // namespace attend::test
