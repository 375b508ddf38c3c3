// Blocks in files: what is saved is loaded, and what does not fit is refused.
#include "support/attention_layers.h"

#include <attend/block.h>

namespace attend::test {
namespace {

AttentionBlock drawn_block(const AttentionBlockOptions& options) {
  AttentionBlock block(options);
  draw_parameters(block, 53);
  return block;
}

TEST(BlockFiles, what_is_saved_is_loaded) {
  const TemporaryFolder folder;
  const Rotary rotary{.pairing = Rotary::Pairing::neighbours, .base = 100.3, .dim = 2};
  const std::vector<AttentionBlockOptions> all = {
      {.attention = {.model_dim = 6, .heads = 3}},
      {.attention = {.model_dim = 6,
                     .heads = 4,
                     .key_heads = 2,
                     .d_k = 4,
                     .d_v = 5,
                     .bias = false,
                     .rotary = rotary,
                     .type = DType::bf16},
       .cross = true,
       .memory_dim = 7,
       .hidden_dim = 9,
       .activation = Activation::swiglu,
       .placement = NormPlacement::pre,
       .norm = NormKind::rms_norm,
       .epsilon = 1.5e-7},
      {.attention = {.model_dim = 6, .heads = 2, .output_projection = false},
       .hidden_dim = 3,
       .activation = Activation::relu,
       .placement = NormPlacement::none}};
  for (const AttentionBlockOptions& options : all) {
    const AttentionBlock block = drawn_block(options);
    block.save(folder / "block");
    const AttentionBlock loaded = AttentionBlock::load(folder / "block");
    EXPECT_EQ(lists_differ(loaded.parameters(), block.parameters()), "");
    const Tensor x = numbers({2, 5, 6}, options.attention.type, 1),
                 memory = options.cross ? numbers({2, 4, 7}, options.attention.type, 2) : Tensor();
    EXPECT_EQ(difference(loaded.trace(x, memory).at("output"), block.trace(x, memory).at("output")),
              "");
    const AttentionBlockOptions &a = loaded.options(), &b = block.options();
    EXPECT_EQ(a.epsilon, b.epsilon);
    EXPECT_EQ(a.placement, b.placement);
    EXPECT_EQ(a.norm, b.norm);
    EXPECT_EQ(a.hidden_dim, b.hidden_dim);
    EXPECT_EQ(a.memory_dim, b.memory_dim);
    EXPECT_EQ(a.attention.rotary.has_value(), b.attention.rotary.has_value());
  }
}

// A file whose metadata or tensors are changed by `change` must be refused.
class Malformed : public testing::Test {
 protected:
  Malformed() {
    drawn_block({.attention = {.model_dim = 6, .heads = 3},
                 .cross = true,
                 .memory_dim = 5,
                 .hidden_dim = 4})
        .save(folder_ / "good");
    good_ = load_safetensors(folder_ / "good");
  }
  template <class Change>
  std::string error(const Change& change) const {
    Metadata metadata = good_.metadata;
    std::vector<NamedView> list;
    for (const NamedTensor& t : good_.tensors) list.push_back({t.name, t.tensor});
    change(metadata, list);
    save_safetensors(folder_ / "bad", list, metadata);
    return error_of([&] { AttentionBlock::load(folder_ / "bad"); });
  }
  const TemporaryFolder folder_;
  TensorFile good_;
};

TEST_F(Malformed, metadata_is_refused) {
  const auto refused = [&](const std::string& key, const std::string& value) {
    const std::string found = error([&](Metadata& metadata, std::vector<NamedView>&) {
      if (value == "missing") metadata.erase(key);
      else metadata[key] = value;
    });
    EXPECT_TRUE(found.starts_with("FileError: ") || found.starts_with("InvalidArgument: "))
        << key << " = " << value << ": " << found;
  };
  EXPECT_EQ(error([](Metadata&, std::vector<NamedView>&) {}), "nothing");
  for (const char* key :
       {"attention.model_dim", "attention.heads", "attention.key_heads", "attention.d_k",
        "attention.d_v", "attention.key_dim", "attention.value_dim", "memory_dim", "hidden_dim"})
    for (const char* value : {"missing", "", "3x", "-1", "7", "1000000", "4611686018427387904",
                              "9223372036854775807", "99999999999999999999"})
      refused(key, value);
  for (const char* key : {"attention.bias", "attention.output_projection", "cross"})
    for (const char* value : {"missing", "", "1", "yes", "True", "false"}) refused(key, value);
  for (const char* key : {"format", "activation", "placement", "norm", "attention.type"})
    for (const char* value : {"missing", "", "x"}) refused(key, value);
  refused("activation", "swiglu");
  refused("placement", "none");
  refused("norm", "rms_norm");
  for (const char* value : {"missing", "", "x", "nan", "inf", "-1", "0", "1e999"})
    refused("epsilon", value);
}

TEST_F(Malformed, tensors_are_refused) {
  const auto path = (folder_ / "bad").string();
  EXPECT_TRUE(error([](Metadata&, std::vector<NamedView>& list) {
                list.pop_back();
              }).starts_with("FileError: "));
  const Tensor other({7, 6});
  EXPECT_TRUE(error([&](Metadata&, std::vector<NamedView>& list) {
                list.push_back({"x", other});
              }).find("'x'") != std::string::npos);
  EXPECT_EQ(error([&](Metadata&, std::vector<NamedView>& list) { list[0].tensor = other; }),
            "FileError: attention_block: " + path +
                ": attention.q.weight is [7, 6]; by the metadata it must be [6, 6]");
  // Sizes that nobody could hold are refused by the shapes, before weights are made of them.
  EXPECT_EQ(
      error([](Metadata& m, std::vector<NamedView>&) { m["hidden_dim"] = "1000000000000"; }),
      "FileError: attention_block: " + path +
          ": feed_forward.up.weight is [4, 6]; by the metadata it must be [1000000000000, 6]");
}

}  // namespace
}  // namespace attend::test
