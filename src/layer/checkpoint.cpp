// Checkpoints: the parameters and all that an optimizer remembers, in one file.
#include <attend/train.h>

#include "core/printable.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/metadata.h"
#include "layer/named.h"

#include <cstring>
#include <optional>

namespace attend {
namespace {

constexpr std::string_view kPrefix = "optimizer.";
constexpr const char* kVersion = "checkpoint.version";  // in the metadata: 1
constexpr const char* kKind = "checkpoint.optimizer";
constexpr const char* kSteps = "checkpoint.steps";
constexpr const char* kScale = "checkpoint.loss_scale";  // these two if there is one
constexpr const char* kGoodSteps = "checkpoint.loss_scale_good_steps";

void check_kind(const std::string& where, const TensorFile& file, const Optimizer& optimizer) {
  const MetadataReader metadata(file);
  if (!metadata.has(kVersion)) throw FileError(text(where, "is not a checkpoint"));
  if (const std::int64_t version = metadata.integer(kVersion); version != 1)
    throw FileError(
        text(where, "is a checkpoint of version ", version, "; this library reads version 1"));
  if (!metadata.has(kKind) || file.metadata.at(kKind) != optimizer.kind())
    throw FileError(text(where, "the optimizer is ",
                         metadata.has(kKind) ? in_quotes(file.metadata.at(kKind)) : "not named",
                         " in the file and '", optimizer.kind(), "' here"));
}

// A copy of the loss scale as the file has it.
std::optional<LossScale> read_scale(const std::string& where, const TensorFile& file,
                                    const LossScale* scale) {
  const MetadataReader metadata(file);
  if (metadata.has(kGoodSteps) && !metadata.has(kScale))
    throw FileError(text(where, "it holds ", kGoodSteps, " without ", kScale));
  if (metadata.has(kScale) != (scale != nullptr))
    throw FileError(text(where, scale != nullptr
                                    ? "it holds no loss scale, but one is given"
                                    : "it holds a loss scale; give the LossScale to restore"));
  if (scale == nullptr) return {};
  std::optional<LossScale> read(*scale);
  read->restore(metadata.number(kScale), metadata.integer(kGoodSteps));
  return read;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const std::vector<NamedView>& parameters,
                     const Optimizer& optimizer, const Metadata& more,
                     const LossScale* loss_scale) {
  reporting("save_checkpoint", [&] {
    Metadata metadata = {
        {kVersion, "1"}, {kKind, optimizer.kind()}, {kSteps, std::to_string(optimizer.steps())}};
    if (loss_scale != nullptr) {
      metadata.emplace(kScale, digits(loss_scale->value()));
      metadata.emplace(kGoodSteps, std::to_string(loss_scale->good_steps()));
    }
    for (const auto& [key, value] : more)
      if (key == kScale || key == kGoodSteps || !metadata.emplace(key, value).second)
        throw InvalidArgument(text("save_checkpoint: the metadata key ", in_quotes(key),
                                   " is reserved for checkpoints"));
    std::vector<NamedView> tensors = parameters;
    for (const NamedView& parameter : parameters)
      if (parameter.name.starts_with(kPrefix))
        throw InvalidArgument(text("save_checkpoint: a parameter is named ",
                                   in_quotes(parameter.name), "; names that begin with '", kPrefix,
                                   "' are reserved for the optimizer"));
    for (NamedView& view : with_prefix(kPrefix, optimizer.state()))
      tensors.push_back(std::move(view));
    save_safetensors(path, tensors, metadata);
  });
}

Metadata load_checkpoint(const std::filesystem::path& path,
                         const std::vector<Parameter>& parameters, Optimizer& optimizer,
                         LossScale* loss_scale) {
  return reporting("load_checkpoint", [&] {
    const std::vector<Form> forms = checked_forms("load_checkpoint: ", parameters);
    const std::string where = text("load_checkpoint: ", printable(path.string()), ": ");
    TensorFile file = load_safetensors(path);
    check_kind(where, file, optimizer);
    const std::int64_t steps = MetadataReader(file).integer(kSteps);
    std::vector<NamedTensor> values, state;
    for (auto& [name, tensor] : file.tensors) {
      if (name.starts_with(kPrefix))
        state.push_back({name.substr(kPrefix.size()), std::move(tensor)});
      else values.push_back({name, std::move(tensor)});
    }
    std::optional<LossScale> scale;
    try {
      scale = read_scale(where, file, loss_scale);
      values = in_order("", forms, std::move(values));
      optimizer.restore(steps, std::move(state), parameters);
    } catch (const InvalidArgument& error) {
      throw FileError(where + error.what());
    }
    // Nothing fails from here on.
    if (scale) *loss_scale = *scale;
    for (const char* own : {kVersion, kKind, kSteps, kScale, kGoodSteps}) file.metadata.erase(own);
    for (std::size_t n = 0; n < parameters.size(); ++n)
      if (const std::int64_t count = values[n].tensor.count(); count > 0)
        std::memcpy(parameters[n].value.data(), values[n].tensor.view().data(),
                    static_cast<std::size_t>(count * size_of(forms[n].type)));
    return std::move(file.metadata);
  });
}

}  // namespace attend
