// Sums of two tensors, element by element.
#include "core/row_operations.h"

namespace attend {
namespace {

void add_rows(const AddProblem& p, const AddCall& call, RowRange rows) noexcept {
  with_type(p.type, [&]<class T>(T) {
    const auto at = [](const AddCall::Rows& x, std::int64_t r, std::int64_t c) {
      return static_cast<const T*>(x.data)[r * x.row + c * x.column];
    };
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      for (std::int64_t c = 0; c < call.features; ++c) {
        T& y = static_cast<T*>(call.y)[r * call.y_row + c * call.y_column];
        const T a = at(call.a, r, c);
        y = call.b.data == nullptr ? a : static_cast<T>(widened(a) + widened(at(call.b, r, c)));
      }
  });
}

}  // namespace

extern constinit const Kernel<Add> kReferenceAdd{
    .name = "reference.add",
    .only_if_forced = false,
    .takes = kHostTypes,
    .declines = [](const AddProblem&, const Machine&) -> std::string { return {}; },
    .run = add_rows,
};

}  // namespace attend
