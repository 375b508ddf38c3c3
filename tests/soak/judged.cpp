#include "judged.h"

#include <cfloat>
#include <cstdio>

namespace attend::test {

Member member_of(const std::string& name) {
  using R = Results<double>;
  static const std::map<std::string, Member> members = {
      {"out", &R::out},         {"out again", &R::out}, {"lse", &R::lse},
      {"weights", &R::weights}, {"raw", &R::raw},       {"softcapped", &R::softcapped},
      {"masked", &R::masked},   {"dq", &R::dq},         {"dk", &R::dk},
      {"dv", &R::dv},           {"dbias", &R::dbias},   {"dsinks", &R::dsinks},
      {"dalibi", &R::dalibi}};
  const auto found = members.find(name);
  return found == members.end() ? nullptr : found->second;
}

std::vector<std::string> first_wrong(const WrittenList& list,
                                     const std::function<std::string(const Element&)>& wrong) {
  std::vector<std::string> all;
  for (const NamedTensor& named : list) {
    const Member member = member_of(named.name);
    if (member == nullptr) continue;
    const std::vector<double> values = widen(named.tensor);
    for (std::size_t n = 0; n < values.size(); ++n) {
      const std::string found = wrong({named, member, n, values[n]});
      if (found.empty()) continue;
      Shape index = named.tensor.shape();
      auto rest = static_cast<std::int64_t>(n);
      for (int dim = index.rank() - 1; dim >= 0; --dim) {
        const std::int64_t size = index[dim];
        index[dim] = rest % size;
        rest /= size;
      }
      all.push_back(named.name + to_string(index) + " is " + text_of(values[n]) + ", " + found);
      break;
    }
  }
  return all;
}

std::string text_of(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

double largest_finite(DType type) {
  switch (type) {
    case DType::f16: return 65504;
    case DType::bf16: return 0x1.fep127;
    case DType::f32: return FLT_MAX;
    default: return DBL_MAX;
  }
}

}  // namespace attend::test
