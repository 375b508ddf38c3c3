// Language models in files. The options are in the metadata; the tensors' shapes must agree with
// them before anything of their size is allocated.
#include <attend/model.h>

#include "core/printable.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/metadata.h"
#include "layer/option_names.h"

namespace attend {
namespace {

constexpr std::string_view kFormat = "attend.language_model";

void check_tensor(const TensorFile& file, const std::string& name, const Shape& shape) {
  const Tensor& found = file.at(name);
  if (found.shape() != shape)
    throw FileError(text("language_model: ", printable(file.path.string()), ": tensor ",
                         in_quotes(name), " is ", found.shape(), "; by the metadata it must be ",
                         shape));
}

template <class Enum>
std::string name_in(std::span<const std::string_view> names, Enum value) {
  return std::string(names[static_cast<std::size_t>(value)]);
}

}  // namespace

Metadata LanguageModel::metadata() const {
  return reporting("language_model", [&] {
    return Metadata{{"format", std::string(kFormat)},
                    {"vocabulary", std::to_string(options_.vocabulary)},
                    {"length", std::to_string(options_.length)},
                    {"layers", std::to_string(options_.layers)},
                    {"model_dim", std::to_string(options_.model_dim)},
                    {"heads", std::to_string(options_.heads)},
                    {"hidden_dim", std::to_string(options_.hidden_dim)},
                    {"activation", name_in(kActivations, options_.activation)},
                    {"placement", name_in(kPlacements, options_.placement)},
                    {"norm", name_in(kNorms, options_.norm)},
                    {"type", name_in(kTypes, options_.type)}};
  });
}

LanguageModelOptions LanguageModel::options_of(const TensorFile& file) {
  return reporting("language_model", [&] {
    const MetadataReader metadata(file);
    metadata.format_is(kFormat);
    LanguageModelOptions o;
    o.vocabulary = metadata.integer("vocabulary");
    o.length = metadata.integer("length");
    o.layers = metadata.integer("layers");
    o.model_dim = metadata.integer("model_dim");
    o.heads = metadata.integer("heads");
    o.hidden_dim = metadata.integer("hidden_dim");
    o.activation = static_cast<Activation>(metadata.choice("activation", kActivations));
    o.placement = static_cast<NormPlacement>(metadata.choice("placement", kPlacements));
    o.norm = static_cast<NormKind>(metadata.choice("norm", kNorms));
    o.type = static_cast<DType>(metadata.choice("type", kTypes));

    check_tensor(file, "tokens.weight", {o.vocabulary, o.model_dim});
    check_tensor(file, "positions.weight", {o.length, o.model_dim});
    for (std::int64_t n = 0; n < o.layers; ++n) {
      check_tensor(file, text("blocks.", n, ".attention.q.weight"), {o.model_dim, o.model_dim});
      if (o.hidden_dim != 0)
        check_tensor(file, text("blocks.", n, ".feed_forward.up.weight"),
                     {o.hidden_dim, o.model_dim});
    }
    return o;
  });
}

void LanguageModel::save(const std::filesystem::path& path, const Metadata& more) const {
  reporting("language_model", [&] {
    Metadata all = metadata();
    for (const auto& [key, value] : more)
      if (!all.emplace(key, value).second)
        throw InvalidArgument(text("language_model: the metadata key ", in_quotes(key),
                                   " is reserved for the model"));
    save_safetensors(path, parameters(), all);
  });
}

LanguageModel LanguageModel::load(const std::filesystem::path& path) {
  return load(load_safetensors(path));
}

LanguageModel LanguageModel::load(const TensorFile& file) {
  return reporting("language_model", [&] {
    const LanguageModelOptions options = options_of(file);
    try {
      LanguageModel model(options);
      const Tensor* const head = file.find("head.weight");
      if (head != nullptr && head->dtype() == DType::i8) model = model.quantize();
      load_parameters(file, model.writable_parameters());
      return model;
    } catch (const InvalidArgument& error) {  // the file's fault, not the caller's
      throw FileError(printable(text("language_model: ", place_of(file), error.what())));
    }
  });
}

}  // namespace attend
