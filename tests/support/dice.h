// Random choices for whole cases, the same on every machine.
#pragma once

#include "cases/random.h"

#include <initializer_list>

namespace attend::test {

class Dice {
 public:
  explicit Dice(std::uint64_t seed, std::uint64_t stream = 77) : random_(seed, stream) {}
  bool chance(double p) { return random_.chance(p, n_++); }
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + random_.below(most - least + 1, n_++);
  }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }
  double gaussian() { return random_.gaussian(n_++); }

 private:
  cases::Random random_;
  std::uint64_t n_ = 0;
};

}  // namespace attend::test
