// Few rows of queries (decode) go their own ways through the kernels: keys in lanes, groups of keys
// that are brought when they are multiplied, scores of several keys in a vector. Their bits are
// those that the same rows have among many others (contract 2).
#include "core/text.h"
#include "support/io_files.h"
#include "support/layer_numbers.h"

#include <attend/attend.h>

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace attend::test {
namespace {

struct Problem {
  std::int64_t heads, keys, d, dv, page;  // heads of one key head; 0: no pages
  bool bytes;                             // keys and values of 8 bits, with scales
  std::int64_t gap = 0;                   // elements between rows
};

// Keys and values with two keys more than are seen, which are NaN or have scales that are.
struct Keys {
  Tensor k, v, k_scales, v_scales, lengths, table;

  Keys(const Problem& p, DType type)
      : k(rows(p, p.d, type, 1)), v(rows(p, p.dv, type, 2)), k_scales(scales(p, 3)),
        v_scales(scales(p, 4)), lengths(Tensor({p.keys}, {1})) {
    if (p.page == 0) return;
    table = Tensor({1, k.shape()[0]}, DType::i64);  // pages in falling order
    for (std::int64_t n = 0; n < table.count(); ++n)
      table.data<std::int64_t>()[n] = table.count() - 1 - n;
  }

  AttentionOptions options(const Problem& p) const {
    AttentionOptions made{.key_lengths = lengths};
    if (p.page != 0) made.block_table = table;
    if (p.bytes) made.k_scales = k_scales, made.v_scales = v_scales;
    return made;
  }

 private:
  static Shape shape(const Problem& p) {
    const std::int64_t size = p.page == 0 ? p.keys + 2 : p.page;
    return {(p.keys + 1) / size + 1, 1, size};
  }
  static bool hidden(const Problem& p, std::int64_t n) {
    if (p.page == 0) return n >= p.keys;
    const std::int64_t pages = shape(p)[0];
    return (pages - 1 - n / p.page) * p.page + n % p.page >= p.keys;
  }
  static Tensor rows(const Problem& p, std::int64_t width, DType type, unsigned seed) {
    const Shape s = shape(p);
    width += p.gap;
    Tensor made = numbers({s[0], 1, s[2], width}, p.bytes ? DType::f32 : type, seed);
    if (p.bytes) {
      Tensor numbers_of_8_bits({s[0], 1, s[2], width}, DType::i8);
      for (std::int64_t n = 0; n < made.count(); ++n)
        numbers_of_8_bits.data<std::int8_t>()[n] =
            static_cast<std::int8_t>(n % 97 == 0 ? -128.0F : made.data<float>()[n] * 128);
      return numbers_of_8_bits;
    }
    with_type(type, [&]<class T>(T) {
      for (std::int64_t n = 0; n < made.count(); ++n)
        if (hidden(p, n / width))
          made.data<T>()[n] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    });
    return made;
  }
  static Tensor scales(const Problem& p, unsigned seed) {
    Tensor made = numbers(shape(p), DType::f32, seed);
    for (std::int64_t n = 0; n < made.count(); ++n)
      if (hidden(p, n)) made.data<float>()[n] = std::numeric_limits<float>::quiet_NaN();
      else made.data<float>()[n] /= 64;
    return made;
  }
};

// Row 5 of 24 by itself, with its lse; false if the kernel does not take it.
bool compare(Context& context, const Problem& p, DType type, const std::string& name) {
  const Tensor q = numbers({1, p.heads, 24, p.d}, type, 5);
  const Keys keys(p, type);
  const auto k = keys.k.view().slice(3, 0, p.d), v = keys.v.view().slice(3, 0, p.dv);
  Tensor whole({1, p.heads, 24, p.dv}, type), row({1, p.heads, 1, p.dv}, type);
  Tensor whole_lse({1, p.heads, 24}), row_lse({1, p.heads, 1});
  try {
    attention(q, k, v, whole, keys.options(p), {.lse = whole_lse}, context);
  } catch (const Unsupported&) {
    return false;
  }
  attention(q.view().slice(2, 5, 6), k, v, row, keys.options(p), {.lse = row_lse}, context);
  EXPECT_EQ(difference(row, whole.view().slice(2, 5, 6)), "") << name;
  EXPECT_EQ(difference(row_lse, whole_lse.view().slice(2, 5, 6)), "") << name;
  return true;
}

TEST(FewRows, a_row_alone_has_the_bits_of_a_row_among_many) {
  int taken = 0;
  for (const KernelInfo& kernel : Context::kernels()) {
    if (kernel.operation != "forward" || kernel.only_if_forced) continue;
    Context context({.threads = 1, .kernels = "forward:" + kernel.name});
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const bool bytes : {false, true})
        for (const std::int64_t heads : {1, 2, 3, 8, 9})
          for (const std::int64_t page : {0, 7, 16, 64})
            for (const auto& [keys, d, dv] :
                 {std::array<std::int64_t, 3>{600, 128, 128}, {257, 64, 96}, {33, 160, 32}}) {
              const Problem p{heads, keys, d, dv, page, bytes, heads == 2 ? 3 : 0};
              taken += compare(context, p, type,
                               text(kernel.name, " ", name_of(type), bytes ? " 8 bits, " : ", ",
                                    heads, " heads, ", keys, " keys, page ", page))
                           ? 1
                           : 0;
            }
  }
  EXPECT_GE(taken, 2 * 3 * 2 * 5 * 3 * 3) << "the reference and at least one fast row";
}

}  // namespace
}  // namespace attend::test
