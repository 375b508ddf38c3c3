// Reading and writing `.npy`. The header is a Python dictionary as text, of which exactly the part
// that the format needs is understood; nothing is evaluated.
#include "io/npy.h"

#include "io/elements.h"

#include <attend/io.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace attend {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxHeader = 65536;
constexpr std::string_view kNpyTypes = "<f8 <f4 <f2 <i8 <i4 |i1 |u1 |b1";

struct TypeCode {
  DType type;
  char order;             // of the bytes; '|' where there is one byte only
  std::string_view kind;  // letter and size
};
constexpr TypeCode kTypeCodes[] = {
    {DType::f64, '<', "f8"}, {DType::f32, '<', "f4"},     {DType::f16, '<', "f2"},
    {DType::i64, '<', "i8"}, {DType::i32, '<', "i4"},     {DType::i8, '|', "i1"},
    {DType::u8, '|', "u1"},  {DType::boolean, '|', "b1"},
};

DType type_of(const Source& source, std::string_view descr) {
  const char order = descr.empty() ? '\0' : descr.front();
  const std::string_view kind = descr.substr(std::min<std::size_t>(1, descr.size()));
  if (descr.find('O') != descr.npos)
    source.fail("descr is ", in_quotes(descr), ": Python objects; reading them would run code");
  if (kind == "V2")
    source.fail("descr is ", in_quotes(descr),
                ": 2 bytes without a meaning, as NumPy writes bf16; use safetensors for bf16");
  for (const TypeCode& code : kTypeCodes) {
    if (code.kind != kind) continue;
    // Some writers put '<' where NumPy puts '|': for one byte it means the same.
    if (order == code.order || (order == '<' && code.order == '|')) return code.type;
    if (order == '>')
      source.fail("descr is ", in_quotes(descr), ": big-endian; it must be little-endian, ",
                  in_quotes(text(code.order, kind)));
  }
  source.fail("descr is ", in_quotes(descr), "; it must be one of ", kNpyTypes);
}

// ---- The header --------------------------------------------------------------------------------

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::uint64_t> sizes;
};

// header = "{" item {"," item} [","] "}" {" "} "\n"
// item   = string ":" (string | "True" | "False" | "(" [size "," {size ","} [size]] ")")
// with spaces between any two of these.
class HeaderParser {
 public:
  HeaderParser(const Source& source, std::string_view text) : source_(source), text_(text) {}

  Header parse() {
    check_characters();
    bool seen[3] = {};
    expect('{');
    while (!accept('}')) {
      parse_item(seen);
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_spaces();
    if (at_ != text_.size()) fail_expecting("spaces to the end");
    for (int key = 0; key < 3; ++key)
      if (!seen[key]) source_.fail("the header has no ", in_quotes(kKeys[key]));
    return header_;
  }

 private:
  static constexpr std::string_view kKeys[] = {"descr", "fortran_order", "shape"};

  // Takes off the newline. What follows may then be quoted in messages as it stands.
  void check_characters() {
    if (!text_.ends_with('\n')) source_.fail("the header does not end with a newline");
    text_.remove_suffix(1);
    for (const char& c : text_)
      if (c < 0x20 || c > 0x7E)
        source_.fail("byte ", &c - text_.data(), " of the header is ",
                     int{static_cast<unsigned char>(c)}, ", not a printable ASCII character");
  }

  void parse_item(bool (&seen)[3]) {
    const std::string_view key = parse_string();
    const auto known = std::find(std::begin(kKeys), std::end(kKeys), key);
    if (known == std::end(kKeys))
      source_.fail("the header has the key ", in_quotes(key),
                   "; it must be 'descr', 'fortran_order' or 'shape'");
    bool& was_seen = seen[known - std::begin(kKeys)];
    if (was_seen) source_.fail("the header has the key ", in_quotes(key), " twice");
    was_seen = true;
    expect(':');
    if (key == "descr") parse_descr();
    if (key == "fortran_order") parse_order();
    if (key == "shape") parse_shape();
  }

  void parse_descr() {
    skip_spaces();
    if (at_ < text_.size() && text_[at_] == '[')
      source_.fail("descr is a list: a structured type; it must be one of ", kNpyTypes);
    header_.descr = parse_string();
  }

  void parse_order() {
    skip_spaces();
    const std::string_view rest = text_.substr(at_);
    header_.fortran_order = rest.starts_with("True");
    if (!header_.fortran_order && !rest.starts_with("False")) fail_expecting("True or False");
    at_ += header_.fortran_order ? 4 : 5;
  }

  void parse_shape() {
    expect('(');
    bool comma = true;
    while (!accept(')')) {
      if (!comma) fail_expecting("',' or ')'");
      header_.sizes.push_back(parse_size());
      comma = accept(',');
    }
    if (header_.sizes.size() == 1 && !comma)  // Python reads (3) as a number
      source_.fail("shape is (", header_.sizes[0], "); one size is written (", header_.sizes[0],
                   ",)");
    if (header_.sizes.size() > kMaxRank)
      source_.fail("shape has ", header_.sizes.size(), " dimensions; at most ", kMaxRank,
                   " are allowed");
  }

  std::uint64_t parse_size() {
    skip_spaces();
    const std::size_t begin = at_;
    std::uint64_t size = 0;
    bool fits = true;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      fits = fits && !__builtin_mul_overflow(size, 10U, &size) &&
             !__builtin_add_overflow(size, static_cast<unsigned>(text_[at_] - '0'), &size);
    }
    const std::string_view digits = text_.substr(begin, at_ - begin);
    if (digits.empty()) fail_expecting("a size, which is digits only");
    if (digits.size() > 1 && digits.front() == '0')
      source_.fail("shape has the size ", in_quotes(digits), ", which begins with 0");
    if (!fits || size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      source_.fail("shape has the size ", printable(digits, 60), "; a size is less than 2^63");
    return size;
  }

  std::string_view parse_string() {
    skip_spaces();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail_expecting("a string");
    const std::size_t end = text_.find(quote, at_ + 1);
    const std::string_view string = text_.substr(at_ + 1, end - at_ - 1);
    if (end == text_.npos || string.find('\\') != string.npos)
      fail_expecting("a string that ends and holds no \\");
    at_ = end + 1;
    return string;
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool accept(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail_expecting(std::string{'\'', c, '\''});
  }

  [[noreturn]] void fail_expecting(std::string_view expected) const {
    const std::string_view rest = text_.substr(at_, 20);
    source_.fail("the header must have ", expected, " at byte ", at_, ", where there is ",
                 rest.empty() ? "its end" : in_quotes(rest));
  }

  const Source& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  Header header_;
};

// Finds the header's text and where the data begins.
std::string read_header(const Source& source, std::uint64_t& data) {
  if (source.size() == 0) source.fail("is empty");
  const auto start = static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), 12));
  const std::string head = source.read_text(0, start);
  if (!head.starts_with(kMagic))
    source.fail("is not an npy file: it does not begin with \\x93NUMPY");
  if (start < 10) source.fail("ends inside its first 10 bytes");
  const auto byte = [&](std::size_t n) {
    return std::uint64_t{static_cast<unsigned char>(head[n])};
  };
  const std::uint64_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0)
    source.fail("is of version ", major, ".", minor, "; 1.0, 2.0 and 3.0 are known");
  if (major > 1 && start < 12) source.fail("ends inside the length of its header");
  std::uint64_t length = byte(8) | byte(9) << 8;
  if (major > 1) length |= byte(10) << 16 | byte(11) << 24;
  const std::uint64_t begin = major > 1 ? 12 : 10;
  if (length > kMaxHeader)
    source.fail("has a header of ", length, " bytes; at most ", kMaxHeader, " are allowed");
  if (length > source.size() - begin)
    source.fail("has a header of ", length, " bytes, but only ", source.size() - begin, " follow");
  data = begin + length;
  return source.read_text(begin, static_cast<std::size_t>(length));
}

}  // namespace

Tensor read_npy(const Source& source) {
  std::uint64_t begin = 0;
  const std::string header_text = read_header(source, begin);
  const Header header = HeaderParser(source, header_text).parse();
  const DType type = type_of(source, header.descr);
  const auto bytes = byte_count(header.sizes, type);
  const Shape shape = shape_of(header.sizes);
  if (!bytes) source.fail("shape ", shape, " of ", type, " is larger than a file can be");
  if (*bytes != source.size() - begin)
    source.fail("has ", source.size() - begin, " bytes of data; shape ", shape, " of ", type,
                " has ", *bytes);
  if (!header.fortran_order) return read_elements(source, begin, shape, type, "the tensor");
  // Fortran order is the row-major order of the dimensions reversed.
  Shape reversed = shape, order = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    order[dim] = shape.rank() - 1 - dim;
    reversed[dim] = shape[shape.rank() - 1 - dim];
  }
  const Tensor columns = read_elements(source, begin, reversed, type, "the tensor");
  return Tensor::copy_of(columns.view().permute(order));
}

// Byte for byte what NumPy's own function writes: room for the first size to grow, then spaces up
// to a multiple of 64.
void write_npy(Sink& sink, const ConstTensorView& tensor) {
  const auto code = std::find_if(std::begin(kTypeCodes), std::end(kTypeCodes),
                                 [&](const TypeCode& c) { return c.type == tensor.dtype(); });
  std::string header =
      text("{'descr': '", code->order, code->kind, "', 'fortran_order': False, 'shape': (");
  for (int dim = 0; dim < tensor.rank(); ++dim)
    header += text(dim > 0 ? ", " : "", tensor.size(dim));
  header += tensor.rank() == 1 ? ",), }" : "), }";
  constexpr std::size_t kGrownDigits = 21, kAlignment = 64, kBeforeHeader = 10;
  if (tensor.rank() > 0) header.append(kGrownDigits - text(tensor.size(0)).size(), ' ');
  header.append(kAlignment - (kBeforeHeader + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  std::string head(kMagic);
  head += {1, 0, static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  head += header;
  sink.write(head.data(), head.size());
  write_elements(sink, tensor);
}

Tensor load_npy(const std::filesystem::path& path) {
  return with_memory_errors("load_npy", path,
                            [&] { return read_npy(FileSource("load_npy", path)); });
}

void save_npy(const std::filesystem::path& path, const ConstTensorView& tensor) {
  with_memory_errors("save_npy", path, [&] {
    const std::string where = text("save_npy: ", printable(path.native()));
    check_writable(where, "the tensor", tensor);
    if (tensor.dtype() == DType::bf16)
      throw InvalidArgument(
          text(where, ": the tensor is bf16, which NumPy does not have; use save_safetensors"));
    AtomicFile file("save_npy", path);
    write_npy(file, tensor);
    file.commit();
  });
}

}  // namespace attend
