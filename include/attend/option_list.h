// Every member of AttentionOptions, once, with its kind. What checks, saves, binds or shows the
// options walks this list, and so may a binding to another language:
//
//   for_each_option(options, [](const Option& option, auto& member) { ... option.name ... });
//   for_each_tensor(options, [](const char* name, auto& view) { ... });
//
// A member that is not in the list, or stands in another place of it, does not compile.
#pragma once

#include <attend/options.h>

#define ATTEND_OPTION_LIST(OPTION)     \
  OPTION(optional_number, scale)       \
  OPTION(number, softcap)              \
  OPTION(flag, bias_before_softcap)    \
  OPTION(flag, causal)                 \
  OPTION(own_type, window)             \
  OPTION(own_type, query_offset)       \
  OPTION(optional_integer, key_offset) \
  OPTION(mask_tensor, mask)            \
  OPTION(float_tensor, bias)           \
  OPTION(head_tensor, alibi)           \
  OPTION(head_tensor, sinks)           \
  OPTION(own_type, blocks)             \
  OPTION(integer_tensor, key_lengths)  \
  OPTION(integer_tensor, cu_seqlens_q) \
  OPTION(integer_tensor, cu_seqlens_k) \
  OPTION(optional_integer, max_q)      \
  OPTION(optional_integer, max_k)      \
  OPTION(integer_tensor, block_table)  \
  OPTION(key_tensor, k_scales)         \
  OPTION(key_tensor, v_scales)         \
  OPTION(own_type, dropout)

namespace attend {

enum class OptionKind : std::uint8_t {
  number,            // double
  flag,              // bool
  optional_number,   // std::optional<double>
  optional_integer,  // std::optional<std::int64_t>
  mask_tensor,       // TensorOrView of bool, u8 or an integer
  float_tensor,
  head_tensor,     // [heads], f32 or f64
  key_tensor,      // [batch, key heads, keys] as k is, f32
  integer_tensor,  // i32 or i64
  own_type,        // Window, QueryOffset, Blocks, Dropout
};

struct Option {
  const char* name;
  OptionKind kind;
};

// NOLINTNEXTLINE(bugprone-macro-parentheses): a term of a sum
#define ATTEND_COUNT(kind, name) +1
inline constexpr int kOptionCount = 0 ATTEND_OPTION_LIST(ATTEND_COUNT);
#undef ATTEND_COUNT

// Calls use(option, member) for each, in the order of the members.
template <class Options, class Use>
requires std::same_as<std::remove_const_t<Options>, AttentionOptions>
void for_each_option(Options& options, Use&& use) {
#define ATTEND_USE(kind, name) use(Option{#name, OptionKind::kind}, options.name);
  ATTEND_OPTION_LIST(ATTEND_USE)
#undef ATTEND_USE
}

// Whether none of these types holds a tensor. One that may is taken apart in for_each_tensor().
template <class... T>
inline constexpr bool kHoldNoTensor = ((std::is_arithmetic_v<T> ||
                                        std::is_same_v<T, std::optional<double>> ||
                                        std::is_same_v<T, std::optional<std::int64_t>>)&&...);

// Calls use(name, tensor) for each tensor, given or not: "mask", ..., "blocks.visible". Of options
// that are not const, `use` may put another tensor in its place. Types of options are taken apart
// member by member: one that grows does not compile until it is named here.
template <class Options, class Use>
void for_each_tensor(Options& options, Use&& use) {
  for_each_option(options, [&]<class Member>(const Option& option, Member& member) {
    using T = std::remove_const_t<Member>;
    if constexpr (std::is_same_v<T, TensorOrView>) {
      use(option.name, member);
    } else if constexpr (std::is_same_v<T, Blocks>) {
      auto& [visible, query_size, key_size] = member;
      static_assert(kHoldNoTensor<decltype(query_size), decltype(key_size)>);
      use("blocks.visible", visible);
    } else if constexpr (std::is_same_v<T, QueryOffset>) {
      static_assert(sizeof(T) == sizeof(std::optional<std::int64_t>) + sizeof(TensorOrView));
      if constexpr (std::is_const_v<Member>) {
        use(option.name, member.each());
      } else {
        TensorOrView each = member.each();
        use(option.name, each);
        if (each) member = each;
      }
    } else if constexpr (std::is_same_v<T, Window>) {
      [[maybe_unused]] auto& [left, right] = member;
      static_assert(kHoldNoTensor<decltype(left), decltype(right)>);
    } else if constexpr (std::is_same_v<T, Dropout>) {
      [[maybe_unused]] auto& [p, seed, offset, origin] = member;
      [[maybe_unused]] auto& [b, h, i, j, heads] = origin;
      static_assert(kHoldNoTensor<decltype(p), decltype(seed), decltype(offset), decltype(b),
                                  decltype(h), decltype(i), decltype(j), decltype(heads)>);
    } else {
      static_assert(kHoldNoTensor<T>, "say here which tensors a new type of option holds");
    }
  });
}

// Whether the list names all members, each once and in their order: they can be made of it, and
// there is no room for one more.
template <class Options>
constexpr bool lists_all() {
#define ATTEND_DESIGNATED(kind, name) .name = o.name,
#define ATTEND_IN_PLACE(kind, name) o.name,
  return requires(Options o) { Options{ATTEND_OPTION_LIST(ATTEND_DESIGNATED)}; }
  &&requires(Options o) { Options{ATTEND_OPTION_LIST(ATTEND_IN_PLACE)}; }
  &&!requires(Options o) { Options{ATTEND_OPTION_LIST(ATTEND_IN_PLACE){}}; };
#undef ATTEND_DESIGNATED
#undef ATTEND_IN_PLACE
}
static_assert(lists_all<AttentionOptions>(), "ATTEND_OPTION_LIST must name every option in order");

}  // namespace attend
