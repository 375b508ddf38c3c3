// One case put to every kernel: what was found wrong, in words that end with the line that repeats
// it.
#pragma once

#include "../instance.h"
#include "bounds.h"

#include <attend/plan.h>

#include <optional>
#include <string>
#include <vector>

namespace attend::oracle {

// What became of one kernel on one case.
struct Outcome {
  bool declined = false;
  std::string message;  // why declined, or what is wrong; empty: all is well
  double worst = 0;     // the largest error, as a part of the allowed
};

// How a case is judged, and by whom.
struct Judgement {
  // The truth of f64 cases: of the C library's long double, which has 64 bits on x86-64 and 113 on
  // aarch64. All others have that of double.
  Truth (*truth_of_f64)(const Reader&) = split_truth<long double>;
  double tolerance = 1;                  // an error may be this part of the allowed
  std::string program = "attend check";  // takes --case
  Context* context = &default_context();
};

// Makes the case's tensors and their truth.
//
// An element passes if it is within
//   (16 + 4 sqrt(n)) u_acc accumulated + 4 u_type stored + 2 tiny_type vanished + u_out |truth| +
//   tiny_out
// of the truth. u are unit roundoffs: of the accumulator (f32, or f64 for f64; the textbook row,
// which stores its scores in the tensors' type, has that one), of the tensors' type, and of what is
// written; tiny are the smallest numbers of the types, tiny_type at least the smallest normal one
// of the accumulator. accumulated, stored and vanished are sums over absolute values (bounds.h). n,
// the longest of d, dv and the lengths, is how many terms are summed: the rounding errors of such a
// sum add up like a random walk, about sqrt(n). Matrix instructions take subnormal numbers as 0:
// for them 2 n times the smallest normal one comes on top. Where what the textbook row stores on
// the way may exceed its type, infinities and NaN are its right results.
class Examination {
 public:
  explicit Examination(const cases::Case& problem, Judgement judgement = {});

  Outcome forward(const std::string& kernel);
  Outcome backward(const std::string& kernel);
  Outcome inspect(const std::string& kernel);
  // weights_of() for some window of some head, where the kernel's tensors are: each place has one.
  Outcome window(std::uint64_t seed, const std::string& kernel = "reference.weights");

 private:
  // Compares what a view holds with one of the results.
  void compare(const char* what, const ConstTensorView& found,
               std::vector<double> Results<double>::*member);
  void begin(const std::string& kernel);
  // Calls run(instance, queue) where the kernel's tensors are: on the host, without a queue, or on
  // the first GPU.
  template <class Run>
  void on_its_device(const std::string& kernel, const Run& run);
  double u_acc() const;            // with its (16 + 4 sqrt(n))
  bool stores_in_16_bits() const;  // what it makes on the way: the textbook row
  const Bounds& bounds_at_hand();
  Outcome finish(const char* operation, const std::string& kernel);

  cases::Case problem_;
  Judgement judgement_;
  cases::Instance instance_;
  Reader reader_;
  Truth truth_;
  double terms_ = 1;  // n
  Bounds bounds_;
  std::optional<Bounds> textbook_bounds_;  // made when they are asked for
  double flushed_ = 0;
  double accumulator_ = 0;  // unit roundoff of the accumulator of the kernel at hand
  double worst_ = 0;
  std::string wrong_;
};

// The names of the kernel table's rows for an operation.
std::vector<std::string> kernels_for(const std::string& operation);

}  // namespace attend::oracle
