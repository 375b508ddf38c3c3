// Types, tensors, contexts and the kernel table.
#include "c_api/handles.h"

namespace c_api = attend::c_api;
using c_api::Call;

// ---- types and tensors -------------------------------------------------------------------------

const char* attend_dtype_name(int32_t dtype) {
  const bool known = dtype >= 0 && dtype < static_cast<int32_t>(std::size(c_api::kTypes));
  return known ? attend::name_of(c_api::kTypes[dtype]).data() : "unknown dtype";
}

attend_status attend_dtype_size(int32_t dtype, int64_t* bytes) {
  return c_api::guarded("attend_dtype_size", [&](const Call& call) {
    call.need(bytes, "bytes") = attend::size_of(call.dtype(dtype, "dtype"));
  });
}

attend_status attend_tensor_create(int32_t dtype, int32_t rank, const int64_t* shape,
                                   attend_tensor** made) {
  return c_api::guarded("attend_tensor_create", [&](const Call& call) {
    call.need(made, "made");
    const attend::Shape sizes = call.shape(shape, rank, "the tensor");
    c_api::give(made, attend::Tensor(sizes, call.dtype(dtype, "dtype")));
  });
}

attend_status attend_tensor_copy(const attend_view* view, attend_tensor** made) {
  return c_api::guarded("attend_tensor_copy", [&](const Call& call) {
    call.need(made, "made");
    c_api::give(made, attend::Tensor::copy_of(call.view(view, "view")));
  });
}

attend_status attend_tensor_view(attend_tensor* tensor, attend_view* view) {
  return c_api::guarded("attend_tensor_view", [&](const Call& call) {
    call.show(view, call.need(tensor, "tensor").tensor);
  });
}

void attend_tensor_destroy(attend_tensor* tensor) { delete tensor; }

// ---- contexts and kernels ----------------------------------------------------------------------

namespace {

attend::ContextOptions context_options(const Call& call, const attend_context_options* given) {
  const attend_context_options o = call.read(given, "options");
  call.reserved(o.reserved, "options");
  attend::ContextOptions made;
  made.threads = o.threads;
  made.kernels = Call::optional_text(o.kernels);
  if (o.allocate != nullptr)
    made.allocator.allocate = [f = o.allocate, user = o.user](std::size_t bytes,
                                                              std::size_t align) {
      return f(user, bytes, align);
    };
  if (o.deallocate != nullptr)
    made.allocator.deallocate = [f = o.deallocate, user = o.user](void* memory, std::size_t bytes) {
      f(user, memory, bytes);
    };
  if (o.parallel_for != nullptr)
    made.parallel_for = [f = o.parallel_for, user = o.user](int n,
                                                            const std::function<void(int)>& body) {
      using Body = std::function<void(int)>;
      f(
          user, n, [](void* argument, int32_t i) { (*static_cast<const Body*>(argument))(i); },
          const_cast<Body*>(&body));
    };
  if (o.interrupt != nullptr)
    made.interrupt = [f = o.interrupt, user = o.user] { return f(user) != 0; };
  return made;
}

const std::vector<attend::KernelInfo>& kernel_list() {
  static const auto* list = new std::vector(attend::Context::kernels());  // lives for ever
  return *list;
}

}  // namespace

attend_status attend_context_create(const attend_context_options* options, attend_context** made) {
  return c_api::guarded("attend_context_create", [&](const Call& call) {
    call.need(made, "made");
    // Built in place: a Context does not move.
    *made = new attend_context{attend::Context(context_options(call, options))};
  });
}

void attend_context_destroy(attend_context* context) { delete context; }

attend_status attend_context_threads(attend_context* context, int32_t* threads) {
  return c_api::guarded("attend_context_threads", [&](const Call& call) {
    call.need(threads, "threads") = c_api::context_of(context).threads();
  });
}

attend_status attend_kernel_count(int64_t* count) {
  return c_api::guarded("attend_kernel_count", [&](const Call& call) {
    call.need(count, "count") = static_cast<int64_t>(kernel_list().size());
  });
}

attend_status attend_kernel_at(int64_t index, const char** name, const char** operation,
                               int32_t* only_if_forced) {
  return c_api::guarded("attend_kernel_at", [&](const Call& call) {
    const auto at = static_cast<std::size_t>(call.index(index, kernel_list().size()));
    const attend::KernelInfo& kernel = kernel_list()[at];
    if (name != nullptr) *name = kernel.name.c_str();
    if (operation != nullptr) *operation = kernel.operation.c_str();
    if (only_if_forced != nullptr) *only_if_forced = kernel.only_if_forced;
  });
}
