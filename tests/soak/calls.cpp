#include "calls.h"

#include "support/counted_allocations.h"
#include "support/property_compare.h"
#include "sweep.h"

#include <cstdlib>

namespace attend::test {
namespace {

using cases::Case;

// Removed when the program ends.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "attend-faults-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

const std::filesystem::path& folder() {
  static const Folder made;
  return made.path;
}

Work::Work(const Case& problem)
    : trial(make_trial(problem)), written(trial.empty_results(true)),
      x(gaussian({2, 7, kLayer.model_dim}, kLayer.type, 5)), path(folder() / "layer.safetensors") {
  for (Tensor* t : {&written.out, &written.lse, &written.dq, &written.dk, &written.dv,
                    &written.dbias, &written.dsinks, &written.dalibi})
    if (*t) fill(*t, 42);
  out = std::move(*trial.run({"reference.forward", false, false}, context_of(1)));
  o = {out.out, out.out};
  lse = {out.lse, out.lse};
  arguments = trial.arguments();
}

const char* name_of_call(Call call) {
  constexpr const char* kNames[] = {"forward", "backward", "inspect", "weights_of",
                                    "merge",   "layer",    "block",   "file"};
  return kNames[static_cast<int>(call)];
}

// Runs a call. Nothing but the library allocates here: any allocation may be the one that fails.
void run_call(Call call, Work& work, Context& context) {
  const Arguments& a = work.arguments;
  switch (call) {
    case Call::forward:
      attention(a.q, a.k, a.v, work.written.out, a.options, {.lse = work.written.lse}, context);
      return;
    case Call::backward:
      attention_backward({.q = a.q,
                          .k = a.k,
                          .v = a.v,
                          .out = work.out.out,
                          .lse = work.out.lse,
                          .dout = a.dout,
                          .dlse = a.dlse},
                         a.options, work.written.views().gradients, context);
      return;
    case Call::inspect: {
      Statistics s = inspect(a.q, a.k, a.options, {.top_k = 2}, context);
      work.given[0] = std::move(s.lse);
      work.given[1] = std::move(s.entropy);
      work.given[2] = std::move(s.key_mass);
      return;
    }
    case Call::window:
      work.given[0] = weights_of(a.q, a.k, work.out.lse, {}, a.options, context);
      return;
    case Call::merge:
      attend::merge(work.o, work.lse, work.written.out, work.written.lse, context);
      return;
    case Call::layer: {
      const MultiHeadAttention layer(kLayer);
      auto [y, saved] = layer.forward_train(work.x, AttentionOptions{}, context);
      MultiHeadAttention::Gradients g = layer.backward(y, saved, context);
      work.given[0] = std::move(y);
      work.given[1] = std::move(g.dx);
      work.given[2] = std::move(g.parameters.front().tensor);
      return;
    }
    case Call::block: {
      const AttentionBlock block({.attention = kLayer, .hidden_dim = 5});
      work.given[0] = block.forward(work.x, AttentionOptions{}, context);
      return;
    }
    case Call::file: {
      const MultiHeadAttention layer(kLayer);
      layer.save(work.path);
      const TensorFile file = load_safetensors(work.path);
      work.given[0] = file.tensors.front().tensor;
      return;
    }
  }
}

std::vector<Tensor> results_of(const Work& work) {
  return {work.written.out, work.written.lse, work.written.dq, work.written.dk,
          work.written.dv,  work.given[0],    work.given[1],   work.given[2]};
}

std::vector<Tensor> expected_of(Call call, const Case& problem) {
  Work work(problem);
  run_call(call, work, context_of(1));
  return results_of(work);
}

std::string difference_of_all(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t n = 0; n < a.size() && n < b.size(); ++n)
    if (const auto same = same_bits(a[n], b[n]); !same) return same.message();
  return a.size() == b.size() ? "" : "another number of tensors";
}

bool untouched(const Work& work) {
  for (const Tensor* t :
       {&work.written.out, &work.written.lse, &work.written.dq, &work.written.dk, &work.written.dv,
        &work.written.dbias, &work.written.dsinks, &work.written.dalibi})
    if (*t)
      for (const double x : widen(*t))
        if (x != 42) return false;
  return true;
}

std::string thrown(Call call, Work& work, Context& context, std::size_t failing) {
  struct Disarmed {
    ~Disarmed() { failing_allocation = 0; }
  };
  try {
    const Disarmed disarmed;
    if (failing > 0) failing_allocation = allocations + failing;
    run_call(call, work, context);
    return "";
  } catch (const OutOfMemory&) {
    return "OutOfMemory";
  } catch (const InvalidArgument&) {
    return "InvalidArgument";
  } catch (const Unsupported&) {
    return "Unsupported";
  } catch (const FileError& error) {
    return std::string("FileError: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
}

}  // namespace attend::test
