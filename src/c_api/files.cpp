// Files of tensors, and traces.
#include "c_api/handles.h"

namespace c_api = attend::c_api;
using c_api::Call;

// ---- npy ---------------------------------------------------------------------------------------

attend_status attend_load_npy(const char* path, attend_tensor** made) {
  return c_api::guarded("attend_load_npy", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, attend::load_npy(call.need_text(path, "path")));
  });
}

attend_status attend_save_npy(const char* path, const attend_view* tensor) {
  return c_api::guarded("attend_save_npy", [&](const Call& call) {
    attend::save_npy(call.need_text(path, "path"), call.view(tensor, "tensor"));
  });
}

// ---- safetensors -------------------------------------------------------------------------------

attend_status attend_load_safetensors(const char* path, attend_tensor_file** made) {
  return c_api::guarded("attend_load_safetensors", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, attend::load_safetensors(call.need_text(path, "path")));
  });
}

attend_status attend_save_safetensors(const char* path, int64_t tensors, const char* const* names,
                                      const attend_view* const* views, int64_t entries,
                                      const char* const* keys, const char* const* values) {
  return c_api::guarded("attend_save_safetensors", [&](const Call& call) {
    const std::string file = call.need_text(path, "path");
    const std::vector<std::string> tensor_names = call.texts(tensors, names, "names");
    const std::vector<attend::ConstTensorView> shown = call.views(tensors, views, "views");
    std::vector<attend::NamedView> list;
    for (std::size_t n = 0; n < shown.size(); ++n) list.push_back({tensor_names[n], shown[n]});
    const std::vector<std::string> meta_keys = call.texts(entries, keys, "keys");
    const std::vector<std::string> meta_values = call.texts(entries, values, "values");
    attend::Metadata metadata;
    for (std::size_t n = 0; n < meta_keys.size(); ++n)
      if (!metadata.emplace(meta_keys[n], meta_values[n]).second)
        call.fail("the key \"", meta_keys[n], "\" occurs twice in keys");
    attend::save_safetensors(file, list, metadata);
  });
}

attend_status attend_tensor_file_count(const attend_tensor_file* file, int64_t* count) {
  return c_api::guarded("attend_tensor_file_count", [&](const Call& call) {
    call.need(count, "count") = static_cast<int64_t>(call.need(file, "file").file.tensors.size());
  });
}

attend_status attend_tensor_file_at(const attend_tensor_file* file, int64_t index,
                                    const char** name, attend_view* view) {
  return c_api::guarded("attend_tensor_file_at", [&](const Call& call) {
    c_api::show_element(call, call.need(file, "file").file.tensors, index, name, view);
  });
}

attend_status attend_tensor_file_find(const attend_tensor_file* file, const char* name,
                                      attend_view* view) {
  return c_api::guarded("attend_tensor_file_find", [&](const Call& call) {
    call.show(view, call.find(call.need(file, "file").file.tensors, name).tensor);
  });
}

attend_status attend_tensor_file_metadata_count(const attend_tensor_file* file, int64_t* count) {
  return c_api::guarded("attend_tensor_file_metadata_count", [&](const Call& call) {
    call.need(count, "count") = static_cast<int64_t>(call.need(file, "file").file.metadata.size());
  });
}

attend_status attend_tensor_file_metadata_at(const attend_tensor_file* file, int64_t index,
                                             const char** key, const char** value) {
  return c_api::guarded("attend_tensor_file_metadata_at", [&](const Call& call) {
    const attend::Metadata& metadata = call.need(file, "file").file.metadata;
    const auto entry = std::next(metadata.begin(), call.index(index, metadata.size()));
    if (key != nullptr) *key = entry->first.c_str();
    if (value != nullptr) *value = entry->second.c_str();
  });
}

attend_status attend_tensor_file_metadata_find(const attend_tensor_file* file, const char* key,
                                               const char** value) {
  return c_api::guarded("attend_tensor_file_metadata_find", [&](const Call& call) {
    const attend::Metadata& metadata = call.need(file, "file").file.metadata;
    const std::string name = call.need_text(key, "key");
    call.need(value, "value");
    const auto entry = metadata.find(name);
    if (entry == metadata.end()) {
      std::string keys;
      for (const auto& [other, _] : metadata) keys += " " + other;
      call.fail("there is no \"", name, "\", only", keys.empty() ? " an empty list" : keys);
    }
    *value = entry->second.c_str();
  });
}

void attend_tensor_file_destroy(attend_tensor_file* file) { delete file; }

// ---- traces ------------------------------------------------------------------------------------

attend_status attend_trace_attention(const attend_view* q, const attend_view* k,
                                     const attend_view* v, const attend_attention_options* options,
                                     attend_context* context, attend_trace** made) {
  return c_api::guarded("attend_trace_attention", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made,
                attend::trace_attention(call.view(q, "q"), call.view(k, "k"), call.view(v, "v"),
                                        call.options(options), c_api::context_of(context)));
  });
}

attend_status attend_trace_count(const attend_trace* trace, int64_t* count) {
  return c_api::guarded("attend_trace_count", [&](const Call& call) {
    call.need(count, "count") = static_cast<int64_t>(call.need(trace, "trace").trace.steps.size());
  });
}

attend_status attend_trace_at(const attend_trace* trace, int64_t index, const char** name,
                              const char** formula, const char** axes, attend_view* view) {
  return c_api::guarded("attend_trace_at", [&](const Call& call) {
    const std::vector<attend::TraceStep>& steps = call.need(trace, "trace").trace.steps;
    c_api::show_element(call, steps, index, name, view);
    const attend::TraceStep& step = steps[static_cast<std::size_t>(index)];
    if (formula != nullptr) *formula = step.formula.c_str();
    if (axes != nullptr) *axes = step.axes.c_str();
  });
}

attend_status attend_trace_find(const attend_trace* trace, const char* name, attend_view* view) {
  return c_api::guarded("attend_trace_find", [&](const Call& call) {
    call.show(view, call.find(call.need(trace, "trace").trace.steps, name).value);
  });
}

attend_status attend_trace_save(const attend_trace* trace, const char* path) {
  return c_api::guarded("attend_trace_save", [&](const Call& call) {
    call.need(trace, "trace").trace.save(call.need_text(path, "path"));
  });
}

void attend_trace_destroy(attend_trace* trace) { delete trace; }
