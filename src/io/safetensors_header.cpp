// The JSON of safetensors. The parser reports each value as it meets it and the first one that has
// no business where it stands ends it: no tree is built, so a hostile header can be neither deep
// nor cost much more memory than its own length.
#include "io/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <limits>
#include <set>

namespace attend {
namespace {

using Json = nlohmann::json;

class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const Source& source) : source_(source) {}

  SafetensorsHeader header;

  bool key(std::string& name) override {
    if (!keys_[object_depth_].insert(name).second)
      source_.fail(object_depth_ == 0 ? "the header" : in_quotes(entry_name_), " has the key ",
                   in_quotes(name), " twice");
    key_ = name;
    if (place_ == Place::tensor && name != "dtype" && name != "shape" && name != "data_offsets")
      source_.fail("tensor ", in_quotes(entry_name_), " has the field ", in_quotes(name),
                   "; the fields are dtype, shape and data_offsets");
    return true;
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::outside: place_ = Place::root; return true;
      case Place::root: break;
      default: fail_value("an object");
    }
    entry_name_ = key_;
    object_depth_ = 1;
    keys_[1].clear();
    place_ = key_ == kMetadataKey ? Place::metadata : Place::tensor;
    if (place_ == Place::tensor) header.tensors.push_back({key_, {}, {}, {}});
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor)
      for (const char* field : {"dtype", "shape", "data_offsets"})
        if (!keys_[1].contains(field))
          source_.fail("tensor ", in_quotes(entry_name_), " has no ", field);
    place_ = place_ == Place::root ? Place::outside : Place::root;
    object_depth_ = 0;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") fail_value("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    const std::size_t count = header.tensors.back().offsets.size();
    if (place_ == Place::offsets && count != 2)
      source_.fail("data_offsets of ", in_quotes(entry_name_), " has ", count,
                   " numbers; it must have two");
    place_ = Place::tensor;
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) header.metadata[key_] = value;
    else if (place_ == Place::tensor && key_ == "dtype") header.tensors.back().dtype = value;
    else fail_value("the string " + in_quotes(value));
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        source_.fail("shape of ", in_quotes(entry_name_), " has the size ", value,
                     "; a size is less than 2^63");
      header.tensors.back().shape.push_back(value);
      if (header.tensors.back().shape.size() > kMaxRank)
        source_.fail("shape of ", in_quotes(entry_name_), " has more than ", kMaxRank,
                     " dimensions");
    } else if (place_ == Place::offsets) {
      header.tensors.back().offsets.push_back(value);
      if (header.tensors.back().offsets.size() > 2)
        source_.fail("data_offsets of ", in_quotes(entry_name_), " has more than two numbers");
    } else {
      fail_value(text("the number ", value));
    }
    return true;
  }

  bool number_integer(std::int64_t value) override {
    fail_value(value == 0 ? "the number -0" : text("the number ", value));
  }
  bool number_float(double, const std::string& digits) override {
    fail_value("the number " + printable(digits, 60));
  }
  bool boolean(bool value) override { fail_value(value ? "true" : "false"); }
  bool null() override { fail_value("null"); }
  bool binary(Json::binary_t&) override { fail_value("bytes"); }  // not in JSON text

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    source_.fail("the header is not JSON: it breaks at byte ", position);
  }

 private:
  enum class Place { outside, root, metadata, tensor, shape, offsets };

  // A value stands where another kind of value must.
  [[noreturn]] void fail_value(const std::string& found) const {
    const std::string entry = in_quotes(entry_name_);
    const bool wants_string = key_ == "dtype";
    switch (place_) {
      case Place::metadata:
        source_.fail("metadata ", in_quotes(key_), " is ", found, "; it must be a string");
      case Place::shape:
        source_.fail("shape of ", entry, " holds ", found, "; sizes are integers from 0");
      case Place::offsets:
        source_.fail("data_offsets of ", entry, " holds ", found, "; offsets are integers from 0");
      case Place::tensor:
        source_.fail(key_, " of ", entry, " is ", found, "; it must be ",
                     wants_string ? "a string" : "an array of integers");
      default: source_.fail(in_quotes(key_), " is ", found, "; it must be an object");
    }
  }

  const Source& source_;
  Place place_ = Place::outside;
  std::string key_, entry_name_;
  int object_depth_ = 0;
  // Of the header, and of the object that is open in it. Not hashed: keys can be chosen to collide.
  std::set<std::string> keys_[2];
};

}  // namespace

SafetensorsHeader parse_safetensors_header(const Source& source, std::string_view json) {
  if (!json.starts_with('{')) source.fail("the header does not begin with '{'");
  // The parser takes a zero for the end of the text and would not look at what follows.
  const std::size_t zero = json.find('\0');
  if (zero != json.npos) source.fail("the header is not JSON: byte ", zero + 1, " is zero");
  HeaderReader reader(source);
  Json::sax_parse(json.begin(), json.end(), &reader);
  return std::move(reader.header);
}

std::string json_string(const std::string& where, std::string_view what,
                        const std::string& string) {
  try {
    return Json(string).dump();
  } catch (const Json::type_error&) {
    throw InvalidArgument(text(where, ": ", what, " is not UTF-8"));
  }
}

}  // namespace attend
