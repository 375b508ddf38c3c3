#include "layer/elementwise.h"

#include "layer/rows.h"

namespace attend {

void add_to(Tensor& to, const Tensor& what, const Where& where) {
  constexpr std::int64_t kRow = 256;
  const std::int64_t count = to.count();
  with_type(to.dtype(), [&]<class T>(T) {
    auto* total = static_cast<T*>(to.view().data());
    const auto* more = static_cast<const T*>(what.view().data());
    for_row_blocks((count + kRow - 1) / kRow, kRow, where,
                   [&](std::int64_t, std::int64_t begin, std::int64_t end) {
                     for (std::int64_t n = begin * kRow; n < std::min(end * kRow, count); ++n)
                       total[n] = sum(total[n], more[n]);
                   });
  });
}

}  // namespace attend
