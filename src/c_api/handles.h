// What is behind the handles of the C API. A handle never moves, so the strings, shapes and data of
// what it holds stay where the caller was shown them.
#pragma once

#include "c_api/call.h"

#include <attend/block.h>
#include <attend/plan.h>

#include <atomic>
#include <memory>
#include <variant>

struct attend_tensor {
  attend::Tensor tensor;
};

struct attend_context {
  attend::Context context;
};

struct attend_plan {
  attend::Plan plan;
  std::string description;
};

struct attend_tensor_file {
  attend::TensorFile file;
};

struct attend_trace {
  attend::Trace trace;
};

struct attend_kv_cache {
  attend::KvCache cache;
  attend::ConstTensorView keys{}, values{}, k_scales{}, v_scales{};  // as last shown
  attend::ConstTensorView lengths{}, table{};
};

struct attend_saved {
  std::variant<attend::MultiHeadAttention::Saved, attend::AttentionBlock::Saved> saved;
};

struct attend_gradients {
  std::vector<attend::NamedTensor> list;
};

namespace attend::c_api {

// The parameters of a layer or a block, for its handle. A view in C has no end: from the first one
// that is shown on, somebody may write them, until the caller says otherwise. Threads may ask at
// the same time.
template <class Layer>
class Parameters {
 public:
  explicit Parameters(Layer& layer) : layer_(layer) {
    for (const auto& [name, view] : layer.parameters())
      list_.push_back(
          {name, TensorView(const_cast<void*>(view.data()), view.dtype(), view.shape())});
  }
  ~Parameters() { end_writing(); }
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const std::vector<Parameter>& list() const noexcept { return list_; }
  // Shows the view of one of them. A call that fails does not count as writing.
  void show(const Call& call, const Parameter& parameter, attend_view* view) {
    call.checked_size(call.need(view, "view"), "view");
    begin_writing();
    call.show(view, parameter.value);
  }
  void end_writing() noexcept { delete writing_.exchange(nullptr); }

 private:
  void begin_writing() {
    if (writing_.load() != nullptr) return;
    auto mine = std::make_unique<const std::vector<Parameter>>(layer_.writable_parameters());
    const std::vector<Parameter>* none = nullptr;
    if (writing_.compare_exchange_strong(none, mine.get())) static_cast<void>(mine.release());
  }

  Layer& layer_;
  std::vector<Parameter> list_;  // names and shapes stay where they were shown
  std::atomic<const std::vector<Parameter>*> writing_{nullptr};
};

}  // namespace attend::c_api

struct attend_layer {
  explicit attend_layer(attend::MultiHeadAttention made);
  attend::MultiHeadAttention layer;
  attend::c_api::Parameters<attend::MultiHeadAttention> parameters;
  attend_rotary rotary{};
  attend_layer_options options{};  // as C has them
};

struct attend_block {
  explicit attend_block(attend::AttentionBlock made);
  attend::AttentionBlock block;
  attend::c_api::Parameters<attend::AttentionBlock> parameters;
  attend_rotary rotary{};
  attend_layer_options attention_options{};
};

namespace attend::c_api {

inline Context& context_of(attend_context* context) {
  return context ? context->context : default_context();
}

// A handle for a result, into *made.
template <class Handle, class... Content>
void give(Handle** made, Content&&... content) {
  *made = new Handle{std::forward<Content>(content)...};
}

// The result of forward_train: both handles, or none.
template <class Saved>
void give_both(attend_tensor** made, attend_saved** saved, std::pair<Tensor, Saved> result) {
  auto y = std::make_unique<attend_tensor>(attend_tensor{std::move(result.first)});
  give(saved, std::move(result.second));
  *made = y.release();
}

// The gradients that exist of those at the inputs, then those of the parameters.
std::vector<NamedTensor> gradient_list(std::span<NamedTensor> inputs,
                                       std::vector<NamedTensor> parameters);

// Options as C has them; `rotary` is where they point to.
attend_layer_options shown_options(const MultiHeadAttentionOptions& options, attend_rotary& rotary);

inline const Tensor& value_of(const NamedTensor& element) { return element.tensor; }
inline const Tensor& value_of(const TraceStep& element) { return element.value; }

// Element `index` of a list: its name and its view, each if wanted.
template <class List>
void show_element(const Call& call, const List& list, std::int64_t index, const char** name,
                  attend_view* view) {
  const auto& element = list[static_cast<std::size_t>(call.index(index, list.size()))];
  if (view != nullptr) call.show(view, value_of(element));
  if (name != nullptr) *name = element.name.c_str();
}

}  // namespace attend::c_api
