// Mistakes in files of attention layers.
#include "errors/layer_mistakes.h"
#include "layer/metadata.h"
#include "support/io_files.h"

#include <attend/block.h>

namespace attend::test {
namespace {

Tensor of(const Shape& shape) { return Tensor(shape); }

// Four matrices for 2 heads of 4 features, and what else a mistake adds.
TensorFile four(const std::vector<NamedTensor>& more = {}) {
  TensorFile file{{{"wq.weight", of({8, 6})},
                   {"wk.weight", of({8, 6})},
                   {"wv.weight", of({8, 6})},
                   {"wo.weight", of({6, 8})}},
                  {},
                  "F"};
  for (const NamedTensor& t : more) {
    bool known = false;
    for (NamedTensor& old : file.tensors)
      if (old.name == t.name) {
        old.tensor = t.tensor;
        known = true;
      }
    if (!known) file.tensors.push_back(t);
  }
  return file;
}

using Orientation = WeightsFormat::Orientation;

std::function<void()> load(const TensorFile& file, std::int64_t heads = 2) {
  return [=] { MultiHeadAttention::load(file, {.heads = heads}); };
}

// Our own file of a layer by heads, with a key of the metadata changed or without it.
std::function<void()> changed(const std::string& key, const char* value) {
  return [=] {
    const TemporaryFolder folder;
    MultiHeadAttention({.model_dim = 6, .heads = 2}).save(folder / "f", true);
    TensorFile file = load_safetensors(folder / "f");
    file.path = "F";
    if (value == nullptr) file.metadata.erase(key);
    else file.metadata[key] = value;
    MultiHeadAttention::load(file);
  };
}

}  // namespace

std::vector<LayerMistake> multi_head_file_mistakes() {
  const std::string start = "FileError: multi_head_attention: F: ";
  const std::string shapes = "; W^Q, W^K, W^V are [8, 6], [8, 6], [8, 6], read as [out, in], with ";
  const TensorFile fused{{{"in_proj_weight", of({24, 8})}}, {}, "F"};
  return {
      {"file_of_8_bits_all_in_one",
       load({{{"in_proj_weight", Tensor({24, 8}, DType::i8)}, {"out_proj.weight", of({8, 8})}},
             {},
             "F"}),
       start + "in_proj_weight is i8; weights of 8 bits must be as save() writes them, W^Q, W^K, "
               "W^V and W^O apart, [out, in], with scales"},
      {"file_with_bias_k", load(four({{"bias_k", of({1})}})),
       start + "bias_k is there; add_bias_kv is not part of this layer"},
      {"file_without_attention", load({{{"w", of({1})}}, {}, "F"}),
       start + "no weights of an attention layer; W^Q is looked for as q.weight q_proj.weight "
               "wq.weight W_Q.weight query_linear.weight self.query.weight in_proj_weight "
               "q_proj_weight c_attn.weight; there are: w"},
      {"file_of_a_model",
       load({{{"embedding.weight", of({8, 6})},
              {"layers.0.self_attn.in_proj_weight", of({18, 6})},
              {"layers.0.self_attn.out_proj.weight", of({6, 6})},
              {"layers.1.self_attn.in_proj_weight", of({18, 6})},
              {"decoder.q_proj.weight", of({6, 6})}},
             {},
             "F"}),
       start + "no attention layer with the prefix ''; there are layers with prefix "
               "'layers.0.self_attn.', 'layers.1.self_attn.', 'decoder.'"},
      {"file_of_a_model_of_many_layers",
       [] {
         TensorFile file{{}, {}, "F"};
         for (int n = 0; n < 12; ++n)
           file.tensors.push_back({"h." + std::to_string(n) + ".attn.c_attn.weight", of({6, 18})});
         MultiHeadAttention::load(file, {.prefix = "h.12.attn."});
       },
       start + "no attention layer with the prefix 'h.12.attn.'; there are layers with prefix "
               "'h.0.attn.', 'h.1.attn.', 'h.2.attn.', 'h.3.attn.' and 8 others"},
      {"file_without_w_o",
       load({{{"wq.weight", of({8, 6})}, {"wk.weight", of({8, 6})}, {"wv.weight", of({8, 6})}},
             {},
             "F"}),
       start + "there is no wo.weight; a layer without W^O needs output_projection = false; there "
               "are: wq.weight wk.weight wv.weight"},
      {"file_with_a_vector", load(four({{"wk.weight", of({8})}})),
       start + "wk.weight is [8]; a weight is a matrix, neither size of it 0"},
      {"file_of_no_orientation",
       [] { MultiHeadAttention::load(four(), {.heads = 2, .orientation = Orientation(77)}); },
       "InvalidArgument: multi_head_attention: orientation is 77; its choices go from 0 to 2"},
      {"file_without_heads", load(four(), 0),
       start + "the metadata has no heads; the number of heads must be given"},
      {"file_of_other_heads", load(four(), 3),
       start + "wq.weight has 8 outputs for 3 heads" + shapes + "3 heads: is either wrong?"},
      {"file_of_other_keys", load(four({{"wk.weight", of({7, 6})}})),
       start +
           "wk.weight has 7 outputs; W^Q has 8, so d_k is 4 and key heads would be 1; W^Q, W^K, "
           "W^V are [8, 6], [7, 6], [8, 6], read as [out, in], with 2 heads: is either wrong?"},
      {"file_of_other_values", load(four({{"wv.weight", of({7, 6})}})),
       start + "wv.weight has 7 outputs for 2 key heads; W^Q, W^K, W^V are [8, 6], [8, 6], [7, 6], "
               "read as [out, in], with 2 heads: is either wrong?"},
      {"file_of_another_output", load(four({{"wo.weight", of({8, 6})}})),
       start +
           "wo.weight is [8, 6]; it must map the 8 features of the heads to the 6 that W^Q takes" +
           shapes + "2 heads: is either wrong?"},
      {"file_of_another_bias", load(four({{"wq.bias", of({6})}})),
       start + "wq.bias is [6]; its weight is [8, 6], read as [out, in]"},
      {"fused_file_of_other_heads", load(fused, 5),
       start +
           "in_proj_weight is [24, 8], read as [out, in]; its 24 outputs must be divisible among "
           "5 heads and twice 5 key heads"},
      {"fused_file_of_another_bias",
       load({{{"in_proj_weight", of({24, 8})}, {"in_proj_bias", of({8})}}, {}, "F"}),
       start + "in_proj_bias is [8]; it must be [24], for W^Q, W^K and W^V"},
      {"file_with_a_head_too_few", changed("heads", "3"),
       start + "there is no head.2.q.weight; there should be 3 heads"},
      {"metadata_without_a_key", changed("d_k", nullptr),
       "FileError: metadata: F: there is no d_k"},
      {"metadata_not_whole", changed("d_k", "3.5"),
       "FileError: metadata: F: d_k is '3.5'; it must be a whole number"},
      {"metadata_of_another_choice", changed("bias", "maybe"),
       "FileError: metadata: F: bias is 'maybe'; it must be false or true"},
      {"metadata_not_finite",
       [] {
         const TensorFile file{{}, {{"epsilon", "inf"}}, "F"};
         MetadataReader(file).number("epsilon");
       },
       "FileError: metadata: F: epsilon is 'inf'; it must be a finite number"},
      {"metadata_of_another_format",
       [] {
         const TensorFile file{{}, {{"format", "other"}}, ""};
         MetadataReader(file).format_is("attend.attention_block");
       },
       "FileError: metadata: format is 'other'; it must be attend.attention_block"},
      {"save_of_none", [] { MultiHeadAttention().save("nowhere"); },
       "InvalidArgument: multi_head_attention: the layer is none; make it from options first"},
      {"block_file_of_another_shape",
       [] {
         const TemporaryFolder folder;
         AttentionBlock({.attention = {.model_dim = 6}}).save(folder / "f");
         const TensorFile file = load_safetensors(folder / "f");
         std::vector<NamedView> list;
         for (const NamedTensor& t : file.tensors) list.push_back({t.name, t.tensor});
         Metadata metadata = file.metadata;
         metadata["attention.model_dim"] = "7";
         save_safetensors(folder / "f", list, metadata);
         try {
           AttentionBlock::load(folder / "f");
         } catch (const FileError& error) {  // the folder has another name every time
           const std::string path = (folder / "f").string();
           std::string message = error.what();
           throw FileError(message.replace(message.find(path), path.size(), "F"));
         }
       },
       "FileError: attention_block: F: attention.q.weight is [6, 6]; by the metadata it must be "
       "[6, 7]"},
  };
}

}  // namespace attend::test
