#include "cuda/sm90.h"

#include "core/text.h"
#include "cuda/clamp.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace attend::cuda {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 28;  // a position is an int
constexpr std::int64_t kAlignment = 8;                    // in elements, of 16 or 8 bits
constexpr std::uint64_t kLargestStride = std::uint64_t{1} << 40;

bool has_window(const Problem& p) {
  return p.window_left != kUnlimited || p.window_right != kUnlimited;
}

bool can_be_mapped(const AlignedTensor& t) {
  const auto stride_fits = [](std::int64_t stride, std::int64_t size) {
    return size <= 1 || (stride > 0 && stride % kAlignment == 0 &&
                         static_cast<std::uint64_t>(stride) * 2 < kLargestStride);
  };
  const auto bytes = static_cast<std::uintptr_t>(kAlignment * size_of(t.given.type));
  return reinterpret_cast<std::uintptr_t>(t.given.data) % bytes == 0 && t.given.stride[3] == 1 &&
         stride_fits(t.given.stride[2], t.length) && stride_fits(t.given.stride[1], t.heads) &&
         stride_fits(t.given.stride[0], t.batch);
}

int limited(std::int64_t x) {
  return static_cast<int>(std::clamp<std::int64_t>(x, -kNoLimit, kNoLimit));
}

}  // namespace

std::string declines_sm90(const Problem& p, int capability) {
  if (capability != 90) return text("needs a GPU of sm_90, ", p.device, " is sm_", capability);
  const auto fits = [](std::int64_t size) { return size > 0 && size <= 256 && size % 8 == 0; };
  if (!fits(p.d) || !fits(p.dv))
    return text("takes d and dv that are multiples of 8 up to 256, not ", p.d, " and ", p.dv);
  const auto scale = static_cast<float>(p.scale);
  if (!(scale >= std::numeric_limits<float>::min() && scale <= 0x1p64F))
    return text("takes scales from 2^-126 to 2^64, not ", p.scale);
  if (std::max(p.q_length, p.k_length) >= kLongest)
    return text("takes lengths below 2^28, not ", p.q_length, " and ", p.k_length);
  if (p.offset_each && has_window(p)) return "takes no window with a query offset of each";
  const bool bytes = has_byte_keys(p);
  if (!bytes && (p.own_k_type || p.own_v_type || p.k_scales || p.v_scales))
    return "takes keys and values of q's type without scales, or both of i8";
  if (bytes && p.type != DType::bf16)
    return text("takes keys of i8 with queries of bf16: scales times weights may be too small for ",
                p.type);
  if (!bytes && p.keys == KeyAddressing::paged && p.page_size % kLeastPiece != 0)
    return text("takes pages of multiples of ", kLeastPiece, " keys, not ", p.page_size);
  if (p.pages >= kLongest) return text("takes fewer than 2^28 pages, not ", p.pages);
  return {};
}

const char* sm90_module(Sm90Kernel kernel, DType type, int size) noexcept {
  static constexpr const char* kNames[3][3][3] = {
      {{"forward_bf16_64", "forward_bf16_128", "forward_bf16_256"},
       {"forward_f16_64", "forward_f16_128", "forward_f16_256"},
       {"forward_i8_64", "forward_i8_128", "forward_i8_256"}},
      {{"backward_bf16_64", "backward_bf16_128", "backward_bf16_256"},
       {"backward_f16_64", "backward_f16_128", "backward_f16_256"}},
      {{"one_query_bf16_64", "one_query_bf16_128", "one_query_bf16_256"},
       {"one_query_f16_64", "one_query_f16_128", "one_query_f16_256"},
       {"one_query_i8_64", "one_query_i8_128", "one_query_i8_256"}}};
  const int of_type = type == DType::i8 ? 2 : type == DType::f16 ? 1 : 0;
  return kNames[static_cast<int>(kernel)][of_type][size == 64 ? 0 : size == 128 ? 1 : 2];
}

Status AlignedTensor::map(const Box& box, TensorMap& to) const noexcept {
  constexpr int kU8 = 0, kF16 = 6, kBf16 = 9;  // CUtensorMapDataType
  constexpr int kNoInterleave = 0, kFillZeros = 0, kPromote128 = 2, kPromote256 = 3;
  constexpr int kNoSwizzle = 0, kSwizzle64 = 2, kSwizzle128 = 3;
  const std::int64_t size = size_of(tensor.type);
  const std::uint64_t sizes[] = {static_cast<std::uint64_t>(d), static_cast<std::uint64_t>(length),
                                 static_cast<std::uint64_t>(heads),
                                 static_cast<std::uint64_t>(batch)};
  const auto bytes = [size](std::int64_t stride, std::int64_t count) {
    return count > 1 ? static_cast<std::uint64_t>(stride * size) : 16;
  };
  const std::uint64_t strides[] = {bytes(tensor.stride[2], length), bytes(tensor.stride[1], heads),
                                   bytes(tensor.stride[0], batch)};
  const std::uint32_t boxes[] = {static_cast<std::uint32_t>(box.features),
                                 static_cast<std::uint32_t>(box.rows),
                                 static_cast<std::uint32_t>(box.heads), 1};
  const std::uint32_t steps[] = {1, 1, 1, 1};
  const int type = tensor.type == DType::i8 ? kU8 : tensor.type == DType::f16 ? kF16 : kBf16;
  const int swizzle = !box.permuted                ? kNoSwizzle
                      : box.features * size == 128 ? kSwizzle128
                                                   : kSwizzle64;
  return status_of(driver().encode(&to, type, 4, tensor.data, sizes, strides, boxes, steps,
                                   kNoInterleave, swizzle,
                                   box.at_once == 128 ? kPromote128 : kPromote256, kFillZeros));
}

bool AlignedTensor::takes_boxes() const noexcept {
  constexpr std::int64_t kBytes = 16;
  const auto fits = [](std::int64_t stride, std::int64_t count) {
    return count <= 1 || stride % kBytes == 0;
  };
  return reinterpret_cast<std::uintptr_t>(tensor.data) % kBytes == 0 &&
         fits(tensor.stride[2], length) && fits(tensor.stride[1], heads) &&
         fits(tensor.stride[0], batch);
}

ByteKeys AlignedTensor::bytes(const Strided& scales) const noexcept {
  return {reinterpret_cast<const signed char*>(tensor.data),
          tensor.stride[0],
          tensor.stride[1],
          tensor.stride[2],
          reinterpret_cast<const float*>(scales.data),
          scales.stride[0],
          scales.stride[1],
          scales.stride[2],
          static_cast<int>(d),
          0};
}

AlignedTensor Sm90Tensors::of_queries(const Strided& given, std::int64_t d) const noexcept {
  const bool packed = p_.packed_queries;
  return {
      given, given, packed ? 1 : p_.batch, p_.heads, packed ? call_.packed_queries : p_.q_length,
      d};
}
AlignedTensor Sm90Tensors::of_keys(const Strided& given, std::int64_t d) const noexcept {
  switch (p_.keys) {
    case KeyAddressing::dense: break;
    case KeyAddressing::packed: return {given, given, 1, p_.kv_heads, call_.packed_keys, d};
    case KeyAddressing::paged: return {given, given, p_.pages, p_.kv_heads, p_.page_size, d};
  }
  return {given, given, p_.batch, p_.kv_heads, p_.k_length, d};
}

Status Sm90Tensors::queries(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept {
  to = of_queries(given, d);
  return prepare(to, true);
}
Status Sm90Tensors::keys(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept {
  to = of_keys(given, d);
  return prepare(to, true);
}
Status Sm90Tensors::query_result(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept {
  to = of_queries(given, d);
  return prepare(to, false);
}
Status Sm90Tensors::key_result(const Strided& given, std::int64_t d, AlignedTensor& to) noexcept {
  to = of_keys(given, d);
  return prepare(to, false);
}

Status Sm90Tensors::prepare(AlignedTensor& t, bool read) noexcept {
  if (t.given.given && can_be_mapped(t)) return {};
  const std::int64_t count = t.batch * t.heads * t.length * t.d;
  const DType type = read ? t.given.type : p_.type;
  const bool bytes = type == DType::i8;
  t.tensor = {.data = bytes ? loans_.take<std::byte>(count)
                            : reinterpret_cast<std::byte*>(loans_.take<std::uint16_t>(count)),
              .type = type,
              .given = true,
              .stride = {t.heads * t.length * t.d, t.length * t.d, t.d, 1}};
  if (loans_.failed() || !read) return loans_.status();
  const CopyArguments a{t.given, t.tensor, t.batch, t.heads, t.length, t.d};
  return queue_.start({"clamp", bytes ? "attend_copy_8" : "attend_copy_16",
                       std::min<std::int64_t>(blocks_of(count, 256), 65536), 256},
                      &a);
}

Status Sm90Tensors::finish(const AlignedTensor& t) noexcept {
  if (!t.given.given || !t.is_copy()) return {};
  const CopyArguments a{t.tensor, t.given, t.batch, t.heads, t.length, t.d};
  const std::int64_t count = t.batch * t.heads * t.length * t.d;
  return queue_.start(
      {"clamp", "attend_copy_16", std::min<std::int64_t>(blocks_of(count, 256), 65536), 256}, &a);
}

KeyPages sm90_pages(const Problem& p, const Call& call, int tile) noexcept {
  if (p.keys != KeyAddressing::paged) return {nullptr, 0, 0, tile};
  return {integers(call.block_table, true), static_cast<int>(p.k_length / p.page_size),
          static_cast<int>(p.page_size),
          static_cast<int>(std::gcd(p.page_size, std::int64_t{tile}))};
}

// With one offset for all, left and right count from query 0 on: no sum is out of range then,
// wherever the queries stand.
Sm90Positions sm90_positions(const Problem& p, const Call& call) noexcept {
  const std::int64_t right = p.causal ? 0 : p.window_right, left = p.window_left;
  if (!p.offset_given) return {limited(left), limited(right), 0, 0};
  const std::int64_t offset = call.offset - call.key_offset;
  const auto sum = [](std::int64_t limit, std::int64_t more) {
    std::int64_t both = 0;
    if (limit == kUnlimited) return limit;
    if (__builtin_add_overflow(limit, more, &both)) return more < 0 ? -kUnlimited : kUnlimited;
    return both;
  };
  return {limited(sum(left, -offset)), limited(sum(right, offset)), 0, 1};
}

}  // namespace attend::cuda
