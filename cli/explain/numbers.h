// Numbers of tensors as an Explanation shows them: the corner of a matrix, and what two vectors
// make of a score.
#pragma once

#include "explanation.h"
#include "files/tensors.h"

namespace attend::cli {

// The numbers of a tensor of any floating-point type, the last two dimensions as a matrix.
class Numbers {
 public:
  explicit Numbers(const Tensor& tensor) : tensor_(converted(tensor, DType::f64)) {}
  std::int64_t rows() const { return tensor_.size(tensor_.view().rank() - 2); }
  std::int64_t columns() const { return tensor_.size(tensor_.view().rank() - 1); }
  double at(const std::vector<std::int64_t>& lead, std::int64_t row, std::int64_t column) const {
    std::int64_t n = 0;
    for (std::size_t dim = 0; dim < lead.size(); ++dim)
      n = n * tensor_.size(static_cast<int>(dim)) + lead[dim];
    return tensor_.data<double>()[(n * rows() + row) * columns() + column];
  }

 private:
  Tensor tensor_;
};

// The top left corner of the last two dimensions of a floating-point tensor, `lead` being the
// indices before them.
Matrix matrix_of(const std::string& name, const Tensor& tensor,
                 const std::vector<std::int64_t>& lead, Origin origin = {},
                 std::int64_t corner = 8);

// The same of a matrix [rows, columns] of weights. Where that corner is all zeros, another part is
// taken: the one that begins with the first number that is not zero, row by row.
Matrix parameters_of(const std::string& name, const Tensor& tensor, Origin origin = {});

// A factor of a product: the last two dimensions of a tensor, behind `lead`.
struct Factor {
  const Tensor& tensor;
  std::vector<std::int64_t> lead;
};
// The largest products in the sums of m = A B (or A B^T, if `dot`), where these are long.
void add_sums(Matrix& m, const Factor& a, const Factor& b, bool dot);

// The norms and the angle of q_i and k_j, and the score that they make, of the first queries of a
// head of q and a head of k.
struct HeadPlace {
  std::int64_t sequence = 0, head = 0, key_head = 0;
};
Table geometry(const Tensor& q, const Tensor& k, const HeadPlace& place, const Explanation& names);

}  // namespace attend::cli
