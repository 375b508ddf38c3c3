// Reading and writing `safetensors`.
#include "io/safetensors.h"

#include "io/elements.h"
#include "io/safetensors_header.h"

#include <algorithm>
#include <set>
#include <utility>

namespace attend {
namespace {

struct TypeName {
  DType type;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {
    {DType::f64, "F64"}, {DType::f32, "F32"}, {DType::bf16, "BF16"},
    {DType::f16, "F16"}, {DType::i64, "I64"}, {DType::i32, "I32"},
    {DType::i8, "I8"},   {DType::u8, "U8"},   {DType::boolean, "BOOL"},
};
constexpr std::string_view kSafetensorsTypes = "F64 F32 BF16 F16 I64 I32 I8 U8 BOOL";

std::string_view name_in_file(DType type) {
  return std::find_if(std::begin(kTypeNames), std::end(kTypeNames),
                      [&](const TypeName& t) { return t.type == type; })
      ->name;
}

// One tensor as the header describes it, each number checked against the others.
struct Described {
  const TensorEntry* entry;
  DType type;
  std::uint64_t begin, end;
};

Described describe(const Source& source, const TensorEntry& entry, std::uint64_t data_bytes) {
  const std::string name = in_quotes(entry.name);
  const auto known = std::find_if(std::begin(kTypeNames), std::end(kTypeNames),
                                  [&](const TypeName& t) { return t.name == entry.dtype; });
  if (known == std::end(kTypeNames))
    source.fail("dtype of ", name, " is ", in_quotes(entry.dtype), "; it must be one of ",
                kSafetensorsTypes);
  const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end)
    source.fail("data_offsets of ", name, " are ", begin, " to ", end,
                ": the end comes before the beginning");
  if (end > data_bytes)
    source.fail("data_offsets of ", name, " are ", begin, " to ", end, "; the file has ",
                data_bytes, " bytes of data");
  const auto bytes = byte_count(entry.shape, known->type);
  const Shape shape = shape_of(entry.shape);
  if (!bytes)
    source.fail("shape ", shape, " of ", name, " in ", known->type,
                " is larger than a file can be");
  if (*bytes != end - begin)
    source.fail("data_offsets of ", name, " are ", begin, " to ", end, ", ", end - begin,
                " bytes; shape ", shape, " of ", known->type, " has ", *bytes);
  return {&entry, known->type, begin, end};
}

// The tensors follow each other without hole or overlap, from the first byte of data to the last.
void check_layout(const Source& source, std::vector<Described> tensors, std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const Described& a, const Described& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t expected = 0;
  for (const Described& t : tensors) {
    if (t.begin < expected)
      source.fail("data of ", in_quotes(t.entry->name), " begins at ", t.begin,
                  ", inside the tensor before it, which ends at ", expected);
    if (t.begin > expected)
      source.fail("data of ", in_quotes(t.entry->name), " begins at ", t.begin,
                  ", but what is before it ends at ", expected, ": there is a hole");
    expected = t.end;
  }
  if (expected != data_bytes)
    source.fail("has ", data_bytes, " bytes of data, but the last tensor ends at ", expected);
}

std::string read_header(const Source& source) {
  if (source.size() == 0) source.fail("is empty");
  if (source.size() < 8) source.fail("ends inside the length of its header");
  unsigned char bytes[8];
  source.read(0, bytes, sizeof bytes);
  if (std::string_view(reinterpret_cast<const char*>(bytes), 6) == "\x93NUMPY")
    source.fail("is a .npy file, not safetensors");
  std::uint64_t length = 0;
  for (int n = 7; n >= 0; --n) length = length << 8 | bytes[n];
  if (length > kMaxSafetensorsHeader)
    source.fail("has a header of ", length, " bytes; at most ", kMaxSafetensorsHeader,
                " are allowed");
  if (length > source.size() - 8)
    source.fail("has a header of ", length, " bytes, but only ", source.size() - 8, " follow");
  return source.read_text(8, static_cast<std::size_t>(length));
}

// The order of the data: large elements first, so that every tensor begins at a multiple of its
// element's size. PyTorch cannot load the others.
std::vector<const NamedView*> data_order(const std::vector<NamedView>& tensors) {
  std::vector<const NamedView*> order;
  order.reserve(tensors.size());
  for (const NamedView& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const NamedView* a, const NamedView* b) {
    return size_of(a->tensor.dtype()) > size_of(b->tensor.dtype());
  });
  return order;
}

void check_tensors(const std::string& where, const std::vector<NamedView>& tensors) {
  std::set<std::string_view> names;
  for (const NamedView& t : tensors) {
    if (t.name == kMetadataKey)
      throw InvalidArgument(text(where, ": no tensor can be named ", in_quotes(t.name)));
    if (!names.insert(t.name).second)
      throw InvalidArgument(text(where, ": two tensors are named ", in_quotes(t.name)));
    check_writable(where, "tensor " + in_quotes(t.name), t.tensor);
  }
}

}  // namespace

TensorFile read_safetensors(const Source& source) {
  const std::string json = read_header(source);
  SafetensorsHeader header = parse_safetensors_header(source, json);
  const std::uint64_t data = 8 + json.size(), data_bytes = source.size() - data;
  std::vector<Described> described;
  for (const TensorEntry& entry : header.tensors)
    described.push_back(describe(source, entry, data_bytes));
  check_layout(source, described, data_bytes);
  TensorFile file;
  for (const Described& t : described)
    file.tensors.push_back(
        {t.entry->name, read_elements(source, data + t.begin, shape_of(t.entry->shape), t.type,
                                      in_quotes(t.entry->name))});
  file.metadata = std::move(header.metadata);
  return file;
}

std::string safetensors_head(const std::string& where, const std::vector<NamedView>& tensors,
                             const Metadata& metadata) {
  check_tensors(where, tensors);
  std::vector<std::uint64_t> begins(tensors.size());
  std::uint64_t end = 0;
  for (const NamedView* t : data_order(tensors)) {
    begins[static_cast<std::size_t>(t - tensors.data())] = end;
    const auto bytes = static_cast<std::uint64_t>(t->tensor.count() * size_of(t->tensor.dtype()));
    if (__builtin_add_overflow(end, bytes, &end))
      throw InvalidArgument(text(where, ": the tensors are larger than a file can be"));
  }
  std::string json = "{";
  for (const auto& [key, value] : metadata) {
    json += json.size() == 1 ? text('"', kMetadataKey, "\":{") : ",";
    json += json_string(where, "metadata key " + in_quotes(key), key) + ":";
    json += json_string(where, "metadata of " + in_quotes(key), value);
  }
  if (!metadata.empty()) json += "}";
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const auto& [name, tensor] = tensors[n];
    const std::int64_t bytes = tensor.count() * size_of(tensor.dtype());
    if (json.size() > 1) json += ",";
    json += json_string(where, "name " + in_quotes(name), name);
    json += text(":{\"dtype\":\"", name_in_file(tensor.dtype()), "\",\"shape\":[");
    for (int dim = 0; dim < tensor.rank(); ++dim)
      json += text(dim > 0 ? "," : "", tensor.size(dim));
    json += text("],\"data_offsets\":[", begins[n], ",",
                 begins[n] + static_cast<std::uint64_t>(bytes), "]}");
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');  // the data begins at a multiple of 8
  if (json.size() > kMaxSafetensorsHeader)
    throw InvalidArgument(text(where, ": names and metadata make a header of ", json.size(),
                               " bytes; at most ", kMaxSafetensorsHeader, " are allowed"));
  std::string head;
  for (int n = 0; n < 8; ++n) head += static_cast<char>(json.size() >> 8 * n & 0xFF);
  return head + json;
}

void write_safetensors(Sink& sink, const std::string& head, const std::vector<NamedView>& tensors) {
  sink.write(head.data(), head.size());
  for (const NamedView* t : data_order(tensors)) write_elements(sink, t->tensor);
}

TensorFile load_safetensors(const std::filesystem::path& path) {
  return with_memory_errors("load_safetensors", path, [&] {
    TensorFile file = read_safetensors(FileSource("load_safetensors", path));
    file.path = path;
    return file;
  });
}

void save_safetensors(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                      const Metadata& metadata) {
  with_memory_errors("save_safetensors", path, [&] {
    const std::string where = text("save_safetensors: ", printable(path.native()));
    const std::string head = safetensors_head(where, tensors, metadata);
    AtomicFile file("save_safetensors", path);
    write_safetensors(file, head, tensors);
    file.commit();
  });
}

const Tensor* TensorFile::find(std::string_view name) const noexcept {
  for (const NamedTensor& t : tensors)
    if (t.name == name) return &t.tensor;
  return nullptr;
}

const Tensor& TensorFile::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  std::string names;
  for (const NamedTensor& t : tensors) names += (names.empty() ? "" : ", ") + in_quotes(t.name);
  const std::string where = path.empty() ? "" : printable(path.native()) + ": ";
  throw FileError(text("TensorFile::at: ", where, "there is no tensor ", in_quotes(name),
                       "; there are ", names.empty() ? "none" : printable(names)));
}

}  // namespace attend
