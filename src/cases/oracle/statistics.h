// The statistics of the weights by their definitions, from the whole matrix: what inspect() is held
// against.
#pragma once

#include "bounds.h"

#include <attend/inspect.h>

#include <string>

namespace attend::oracle {

// Everything that inspect() can be asked for, with tokens that repeat often.
struct Inspection {
  Tensor tokens;
  InspectOptions options;
  explicit Inspection(const Reader& reader);
};

// Holds `found` against the weights. A weight may be off by u_acc times its bound; what is made of
// weights, by the same sums of these errors, and by its own rounding.
class StatisticsExamination {
 public:
  StatisticsExamination(const Reader& reader, const Results<double>& truth,
                        const Results<double>& bounds, double u_acc)
      : reader_(reader), truth_(truth), bounds_(bounds), u_acc_(u_acc) {}

  void examine(const Statistics& found, const InspectOptions& options);
  const std::string& wrong() const { return wrong_; }
  double worst() const { return worst_; }  // the largest error, as a part of the allowed

 private:
  struct HeadTruth;
  HeadTruth head_truth(std::int64_t b, std::int64_t h, const InspectOptions& options) const;
  void rows(const HeadTruth& head, const Statistics& found, std::int64_t top_k);
  void keys(const HeadTruth& head, const Statistics& found);
  void map(const HeadTruth& head, const Statistics& found);
  void metrics(const HeadTruth& head, const HeadStatistics& found, const InspectOptions& options);
  void check(const std::string& what, double found, double truth, double allowed);

  const Reader& reader_;
  const Results<double>&truth_, &bounds_;
  double u_acc_;
  DType type_ = DType::f32;  // of what is found
  std::string wrong_;
  int shown_ = 0;
  double worst_ = 0;
};

}  // namespace attend::oracle
