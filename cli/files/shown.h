// What `attend view` and `attend inspect` look at: q, k and v of one or many layers, from files, a
// saved trace, or a layer with its input; one run, or two to compare; and the tokens.
#pragma once

#include "attention_flags.h"
#include "layer_file.h"

#include <attend/io.h>
#include <attend/view.h>

#include <deque>
#include <map>

namespace attend::cli {

struct ShownFlags {
  AttentionFlags attention;
  std::vector<std::string> files;    // safetensors or traces, two are compared; or q, k, v in npy
  std::vector<std::string> q, k, v;  // a layer each
  std::vector<std::string> weights;  // two are compared
  std::string input, query, memory;  // of the layer
  LayerFile layer;
  std::string type, compare_type;
  std::string text, tokens, key_tokens;
};

// `compare`: flags for a second run as well.
void add_shown_flags(Flags& flags, ShownFlags& shown, bool compare);

// The runs and everything that they show. Not to be copied: the runs point into it.
class Shown {
 public:
  Shown(const Flags& given, const ShownFlags& flags, std::uint64_t seed, Context& context);
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  const std::vector<ViewRun>& runs() const noexcept { return runs_; }

 private:
  struct Heads {  // of a layer; v may be none
    ConstTensorView q, k, v;
  };
  const Tensor& keep(Tensor tensor);
  Tensor typed(Tensor tensor, const std::string& name);
  const AttentionOptions& options_for(DType type);
  void add(ViewRun& run, const std::string& name, const Heads& heads,
           const AttentionOptions& options);
  void take_npy_files();
  void add_file(const std::string& path);
  void add_trace(ViewRun& run, const TensorFile& file, const std::string& prefix);
  void add_arrays();
  void add_layer(const std::string& weights);
  void add_converted();
  void add_tokens();

  const Flags& given_;
  ShownFlags flags_;
  std::uint64_t seed_;
  Context& context_;
  std::deque<Tensor> tensors_;  // whose elements do not move
  std::map<DType, LoadedOptions> options_;
  bool traced_ = false;
  std::vector<ViewRun> runs_;
};

// The options of a traced attention, as far as its tensors tell them: scale, what hides keys, what
// was added to the scores, sinks. The tensors that they show go into `tensors`.
AttentionOptions options_of_trace(const TensorFile& file, const std::string& prefix,
                                  std::deque<Tensor>& tensors);

ViewWindow window_of(const std::string& text);  // "layer,head,query,queries,key,keys"

// The tokens of --text, --tokens and --key-tokens: words; a JSON list; or one a line.
std::vector<std::string> words_of(const std::string& text);
std::vector<std::string> tokens_in(const std::string& path);

}  // namespace attend::cli
