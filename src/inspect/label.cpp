// What a head does most, by its means. The thresholds are those of docs/inspect.md.
#include <attend/inspect.h>

#include "core/reporting.h"

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

constexpr double kOneKey = 0.5;  // half of the weight on a single, named key is a habit
constexpr double kTurns = 0.1;  // maximum - first above it: the largest weight is often not key 0's
constexpr double kLocal = 0.8;  // a whole neighbourhood gathers weight by chance sooner,
constexpr double kSmall = 0.5;  // and it must not be most of what there is
constexpr double kUniform = 0.95;  // of the largest entropy that is possible

struct Habit {
  const char* name;
  double HeadStatistics::*score;
  const char* definition;
};

constexpr Habit kHabits[] = {
    {"previous token", &HeadStatistics::previous, "mean weight on the key before the query"},
    {"first token", &HeadStatistics::first,
     "mean weight on key 0, the largest of nearly every row"},
    {"current token", &HeadStatistics::diagonal, "mean weight on the query's own key"},
    {"induction", &HeadStatistics::induction,
     "mean weight on keys right after an earlier copy of the query's token, where there is one"},
    {"duplicate token", &HeadStatistics::duplicate,
     "mean weight on earlier copies of the query's token, where there is one"},
};

}  // namespace

HeadLabel label_of(const HeadStatistics& head) {
  return reporting("label_of", [&]() -> HeadLabel {
    if (head.rows == 0) return {"none", 0, "no row of the head sees a key"};
    if (!std::isfinite(head.maximum) || !std::isfinite(head.entropy))
      return {"not finite", 0, "a row of the head sees NaN or infinity"};
    if (head.evenness >= kUniform)
      return {"uniform", head.evenness, "mean of entropy / log(visible keys)"};
    // A head that finds nothing rests on key 0, so much weight there is not yet what it does. The
    // mean of the largest weight less that of key 0 is 0 if key 0 is the largest of every row, and
    // grows with each row that is sure of another key.
    const bool turns = head.maximum - head.first > kTurns;
    const Habit* most = nullptr;  // NaN is never more
    for (const Habit& habit : kHabits)
      if (head.*habit.score >= kOneKey &&
          (most == nullptr || head.*habit.score > head.*most->score) &&
          !(turns && habit.score == &HeadStatistics::first))
        most = &habit;
    if (most != nullptr) return {most->name, head.*most->score, most->definition};
    if (head.first >= kOneKey)
      return {"selective", head.first,
              "mean weight on key 0, where the head rests; in some rows it turns to another key"};
    if (head.local >= kLocal && head.local_uniform <= kSmall)
      return {"local", head.local, "mean weight on keys near the query"};
    return {"mixed", head.maximum, "mean of the largest weight; no habit is above its threshold"};
  });
}

}  // namespace attend
