// The tests' own cases: nothing of a Case is forgotten on the way to its name and to its tensors,
// and no option is without a case.
#include "cases/cases.h"
#include "cases/instance.h"
#include "cases/oracle/widen.h"
#include "core/members.h"

#include <attend/option_list.h>

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace attend {
namespace {

constexpr std::size_t kFields = [] {
  cases::Case problem;
  std::size_t count = 0;
  cases::for_each_field(problem, [&](const char*, const auto&) { ++count; });
  return count;
}();
static_assert(member_count<cases::Case>() == kFields, "for_each_field must name every field");

// ---- Everything that make() makes, in words -----------------------------------------------------

void show(std::ostream& os, const ConstTensorView& view) {
  if (!view) return void(os << "none; ");
  os << name_of(view.dtype()) << to_string(view.shape()) << to_string(view.strides());
  if (is_floating_point(view.dtype()))
    for (const double x : oracle::widen(view)) os << ' ' << x;
  else
    for (const std::int64_t x : oracle::integers(view)) os << ' ' << x;
  os << "; ";
}

void show(std::ostream& os, const TensorOrView& tensor) {
  show(os, static_cast<const ConstTensorView&>(tensor));
}
void show(std::ostream& os, double number) { os << number << "; "; }
void show(std::ostream& os, const Window& window) {
  os << window.left << ' ' << window.right << "; ";
}
void show(std::ostream& os, const Blocks& blocks) {
  show(os, blocks.visible);
  os << blocks.query_size << ' ' << blocks.key_size << "; ";
}
void show(std::ostream& os, const Dropout& dropout) {
  os << dropout.p << ' ' << dropout.seed << ' ' << dropout.origin.b << "; ";
}
void show(std::ostream& os, const QueryOffset& offset) {
  if (offset.all()) os << *offset.all();
  show(os, offset.each());
}
template <class Number>
void show(std::ostream& os, const std::optional<Number>& number) {
  if (number) os << *number;
  os << "; ";
}

std::string shown(const auto& option) {
  std::ostringstream os;
  show(os, option);
  return os.str();
}

std::string made(const cases::Case& problem) {
  const cases::Instance in = cases::make(problem);
  std::ostringstream os;
  for (const ConstTensorView& input : {in.q, in.k, in.v, in.dout, in.dlse}) show(os, input);
  for_each_option(in.options, [&](const Option&, const auto& option) { show(os, option); });
  const AttentionGradients& g = in.gradients;
  for (const TensorView& output : {in.out, in.lse, in.outputs.lse, in.outputs.weights,
                                   in.outputs.scores, g.dq, g.dk, g.dv, g.dbias, g.dsinks})
    if (output) os << name_of(output.dtype()) << to_string(output.shape()) << "; ";
    else os << "none; ";
  os << static_cast<int>(in.outputs.stage);
  return os.str();
}

// ---- Another value of a field -------------------------------------------------------------------

DType other(DType type) {
  switch (type) {
    case DType::i32: return DType::i64;
    case DType::boolean: return DType::u8;
    case DType::f32: return DType::f64;
    default: return DType::f32;
  }
}
std::optional<DType> other(const std::optional<DType>&) { return DType::f16; }
bool other(bool flag) { return !flag; }
template <class Number>
Number other(const std::optional<Number>& number) {
  return number.value_or(40) + 3;
}
template <class Value>
Value other(Value value) {
  if constexpr (std::is_enum_v<Value>) return static_cast<Value>(static_cast<int>(value) + 1);
  else return value > 1000 ? value / 2 : value + 1;  // unlimited windows
}

// Every field matters in one of these.
constexpr const char* kBases[] = {
    "batch=3 heads=4 kv_heads=2 q=7 k=7 scale=0.25 scores=1",
    "batch=3 heads=4 kv_heads=2 q=7 k=7 addressing=packed key_lengths=mixed",
    "batch=3 heads=4 kv_heads=2 q=7 k=9 addressing=paged key_lengths=mixed query_offset=one",
    "type=bf16 batch=3 heads=4 kv_heads=2 q=20 k=40 mask=full bias=full blocks=full dropout=0.5",
};

TEST(cases, make_looks_at_every_field) {
  std::set<std::string> seen;
  for (const char* line : kBases) {
    const cases::Case base = cases::parse(line);
    const std::string before = made(base);
    cases::Case changed = base;
    cases::for_each_field(changed, [&](const char* key, auto& field) {
      const auto value = field;
      field = other(value);
      if (made(changed) != before) seen.insert(key);
      field = value;
    });
  }
  const cases::Case all;
  cases::for_each_field(all, [&](const char* key, const auto&) {
    EXPECT_TRUE(seen.contains(key)) << key << " changes nothing of what make() makes";
  });
}

TEST(cases, every_option_has_a_case) {
  std::set<std::string> given;
  const AttentionOptions none;
  for (const cases::Case& problem : cases::reduced_table()) {
    const cases::Instance in = cases::make(problem);
    for_each_option(in.options, [&](const Option& option, const auto& value) {
      for_each_option(none, [&](const Option& of_none, const auto& by_default) {
        if constexpr (std::is_same_v<decltype(value), decltype(by_default)>)
          if (option.name == std::string_view(of_none.name) && shown(value) != shown(by_default))
            given.insert(option.name);
      });
    });
  }
  for_each_option(none, [&](const Option& option, const auto&) {
    EXPECT_TRUE(given.contains(option.name)) << "no case gives " << option.name;
  });
}

}  // namespace
}  // namespace attend
