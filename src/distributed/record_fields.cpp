// What goes into a record.
#include "core/strided.h"
#include "distributed/record.h"

#include <attend/option_list.h>

#include <bit>

namespace attend::distributed {
namespace {

// Each step is one to one, and moves what differs into all bits.
std::uint64_t hash_of(const std::vector<std::uint64_t>& values) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::uint64_t value : values) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

RecordList form_of(const ConstTensorView& view) {
  RecordList form{RecordList::Of::form, std::vector<std::uint64_t>(2 + kMaxRank)};
  if (!view) return form;
  form.values[0] = static_cast<std::uint64_t>(view.dtype()) + 1;
  form.values[1] = static_cast<std::uint64_t>(view.rank());
  for (int dim = 0; dim < view.rank(); ++dim)
    form.values[static_cast<std::size_t>(dim) + 2] = static_cast<std::uint64_t>(view.size(dim));
  return form;
}

RecordList elements_of(const ConstTensorView& view) {
  const bool numbers = is_floating_point(view.dtype());
  RecordList list{numbers ? RecordList::Of::numbers : RecordList::Of::integers, {}};
  const Tensor copy = Tensor::copy_of(view);
  const Strided t{.data = static_cast<std::byte*>(const_cast<void*>(copy.view().data())),
                  .type = view.dtype(),
                  .given = true};
  for (std::int64_t n = 0; n < view.count(); ++n)
    list.values.push_back(numbers ? std::bit_cast<std::uint64_t>(load(t, n))
                                  : static_cast<std::uint64_t>(load_integer(t, n)));
  return list;
}

}  // namespace

void Record::integer(const std::string& name, std::optional<std::int64_t> value) {
  fields_.push_back({name, RecordField::Kind::integer,
                     static_cast<std::uint64_t>(value.value_or(RecordField::kNoInteger))});
}
void Record::number(const std::string& name, std::optional<double> value) {
  fields_.push_back({name, RecordField::Kind::number,
                     std::bit_cast<std::uint64_t>(value.value_or(RecordField::kNoNumber))});
}
void Record::type(const std::string& name, DType value) {
  fields_.push_back({name, RecordField::Kind::type, static_cast<std::uint64_t>(value) + 1});
}
void Record::list(const std::string& name, RecordList list) {
  fields_.push_back({name, RecordField::Kind::hash, hash_of(list.values)});
  lists_.emplace(fields_.size() - 1, std::move(list));
}

void Record::tensor(const std::string& name, const ConstTensorView& view, bool elements) {
  list(name, form_of(view));
  if (elements) list(name, view ? elements_of(view) : RecordList{});
}

// Lengths, offsets and numbers of a head are compared by their elements, masks and biases, which
// may be as large as memory, by shape and type.
void Record::options(const AttentionOptions& options) {
  for_each_option(options, [&](const Option& option, const auto& member) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, double> || std::is_same_v<Member, std::optional<double>>)
      number(option.name, member);
    else if constexpr (std::is_same_v<Member, bool>) integer(option.name, member ? 1 : 0);
    else if constexpr (std::is_same_v<Member, std::optional<std::int64_t>>)
      integer(option.name, member);
    else if constexpr (std::is_same_v<Member, TensorOrView>) {
      const bool of_rows = option.kind == OptionKind::key_tensor;
      if (of_rows) integer(option.name, member ? 1 : 0);
      else
        tensor(option.name, member,
               option.kind == OptionKind::integer_tensor || option.kind == OptionKind::head_tensor);
    }
  });
  integer("window.left", options.window.left);
  integer("window.right", options.window.right);
  integer("query_offset", options.query_offset.all());
  tensor("query_offset", options.query_offset.each(), true);
  tensor("blocks.visible", options.blocks.visible, false);
  integer("blocks.query_size", options.blocks.query_size);
  integer("blocks.key_size", options.blocks.key_size);
  const Dropout& dropout = options.dropout;
  number("dropout.p", dropout.p);
  integer("dropout.seed", static_cast<std::int64_t>(dropout.seed));
  integer("dropout.offset", dropout.offset);
  const auto& [b, h, i, j, heads] = dropout.origin;
  for (const auto& [name, value] : {std::pair{"dropout.origin.b", b},
                                    {"dropout.origin.h", h},
                                    {"dropout.origin.i", i},
                                    {"dropout.origin.j", j},
                                    {"dropout.origin.heads", heads}})
    integer(name, value);
}

// The owners of one granule after the other, of all sequences.
void Record::layout(const std::string& name, const Layout& layout) {
  RecordList lengths, owners;
  for (std::int64_t s = 0; s < layout.sequences(); ++s) {
    lengths.values.push_back(static_cast<std::uint64_t>(layout.length(s)));
    for (std::int64_t at = 0; at < layout.length(s); at += layout.granule())
      owners.values.push_back(static_cast<std::uint64_t>(layout.owner(s, at)));
  }
  integer(name + ".granule", layout.granule());
  integer(name + ".sequences", layout.sequences());
  list(name + ".lengths", std::move(lengths));
  list(name + ".owners", std::move(owners));
}

void Record::kernel(std::string_view name) {
  if (kernels_.find(name) != std::string::npos) return;
  kernels_ += (kernels_.empty() ? "" : " and ") + std::string(name);
}

}  // namespace attend::distributed
