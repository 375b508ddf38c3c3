// Context: made from options, shared by threads, kept whole across fork().
#include "api/context.h"

#include "api/launch.h"
#include "api/lease.h"
#include "api/tensor_memory.h"
#include "core/printable.h"
#include "core/text.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include <pthread.h>

namespace attend {
namespace {

constexpr int kMostThreads = 4096;
constexpr std::size_t kMostPlans = 256;
constexpr std::size_t kMostFreeBlocks = 16;  // more callers than that at once: they allocate

// ---- fork() ----
// Every mutex of every Context is held while the process forks, so that the child finds none locked
// by a thread that it does not have.
std::mutex registry_mutex;
std::vector<ContextState*>& registry() {
  static auto* contexts = new std::vector<ContextState*>;  // outlives every Context
  return *contexts;
}

void before_fork() {
  registry_mutex.lock();
  for (ContextState* state : registry()) {
    state->mutex.lock();
    state->pool.before_fork();
    before_fork(*state->tensors);
  }
}

void after_fork(bool child) {
  for (ContextState* state : registry()) {
    after_fork(*state->tensors);
    child ? state->pool.after_fork_in_child() : state->pool.after_fork_in_parent();
    state->mutex.unlock();
  }
  registry_mutex.unlock();
}

void enter_registry(ContextState* state) {
  static const int once = pthread_atfork(
      before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  static_cast<void>(once);
  const std::lock_guard lock(registry_mutex);
  registry().push_back(state);
}

void leave_registry(ContextState* state) {
  const std::lock_guard lock(registry_mutex);
  std::erase(registry(), state);
}

// ---- Options ----
Allocator complete(Allocator allocator) {
  if (!allocator.allocate != !allocator.deallocate)
    throw InvalidArgument("context: an allocator needs both allocate and deallocate");
  if (allocator.allocate) return allocator;
  return {[](std::size_t bytes, std::size_t alignment) {
            return ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
          },
          [](void* memory, std::size_t) {
            ::operator delete (memory, std::align_val_t{kWorkspaceAlignment});
          }};
}

int thread_count(int asked) {
  if (asked < 0 || asked > kMostThreads)
    throw InvalidArgument(
        text("context: threads is ", asked, "; it must be from 0 to ", kMostThreads));
  if (asked != 0) return asked;
  const char* environment = std::getenv("ATTEND_THREADS");
  if (environment == nullptr || *environment == '\0') return available_processors();
  int number = 0;
  const char* const end = environment + std::strlen(environment);
  const auto [read, error] = std::from_chars(environment, end, number);
  if (error != std::errc() || read != end || number < 1 || number > kMostThreads)
    throw InvalidArgument(text("context: the environment variable ATTEND_THREADS is \"",
                               printable(environment), "\"; it must be a whole number from 1 to ",
                               kMostThreads));
  return number;
}

// "forward:reference.forward,backward:..." as a list; `source` is where it was written.
std::vector<std::pair<std::string, std::string>> parse_kernels(std::string_view source,
                                                               std::string_view list) {
  std::vector<std::pair<std::string, std::string>> forced;
  std::vector<std::string> rows;
  for (const KernelInfo& kernel : Context::kernels())
    rows.push_back(kernel.operation + ":" + kernel.name);
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    if (std::find(rows.begin(), rows.end(), entry) == rows.end()) {
      std::string known;
      for (const std::string& row : rows) known += (known.empty() ? "" : ", ") + row;
      throw InvalidArgument(text("context: ", source, " has \"", printable(entry, 60),
                                 "\", which is not one of ", known));
    }
    const std::size_t colon = entry.find(':');
    forced.emplace_back(entry.substr(0, colon), entry.substr(colon + 1));
  }
  return forced;
}

std::vector<std::pair<std::string, std::string>> forced_kernels(const ContextOptions& options) {
  if (!options.kernels.empty()) return parse_kernels("kernels", options.kernels);
  const char* environment = std::getenv("ATTEND_KERNEL");
  if (environment == nullptr) return {};
  return parse_kernels("the environment variable ATTEND_KERNEL", environment);
}

std::size_t hash_of(DType type, std::initializer_list<std::int64_t> sizes) noexcept {
  auto hash = static_cast<std::uint64_t>(type);
  for (const std::int64_t size : sizes)
    hash = (hash ^ static_cast<std::uint64_t>(size)) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 32;
}

}  // namespace

std::size_t ProblemHash::operator()(const Problem& p) const noexcept {
  return hash_of(p.type, {p.batch, p.heads, p.kv_heads, p.q_length, p.k_length, p.d, p.dv});
}
std::size_t ProblemHash::operator()(const MergeProblem& p) const noexcept {
  return hash_of(p.type, {p.batch, p.heads, p.q_length, p.dv, p.parts});
}

ContextState::ContextState(const ContextOptions& options)
    : threads(thread_count(options.threads)), parallel_for(options.parallel_for),
      allocator(complete(options.allocator)), tensors(make_tensor_pool(allocator)),
      interrupt(options.interrupt), forced(forced_kernels(options)),
      pool(options.parallel_for ? 1 : threads) {
  free_memory.reserve(kMostFreeBlocks);
  enter_registry(this);
}

ContextState::~ContextState() {
  leave_registry(this);
  close(*tensors);
  for (const Allocation& memory : free_memory) allocator.deallocate(memory.data, memory.bytes);
}

std::string_view ContextState::forced_kernel(std::string_view operation) const noexcept {
  for (const auto& [of, name] : forced)
    if (of == operation) return name;
  return {};
}

template <class Operation>
std::shared_ptr<const Decision<Operation>> ContextState::plan_for(
    const typename Operation::Problem& problem) {
  auto& made_so_far = std::get<Plans<Operation>>(plans).made;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = made_so_far.find(problem); found != made_so_far.end())
      return found->second;
  }
  auto made = std::make_shared<const Decision<Operation>>(
      decide<Operation>(problem, machine, threads, forced_kernel(Operation::kName)));
  const std::lock_guard lock(mutex);
  if (made_so_far.size() >= kMostPlans) made_so_far.clear();  // lengths that grow step by step
  return made_so_far.emplace(problem, std::move(made)).first->second;
}
template std::shared_ptr<const Decision<Forward>> ContextState::plan_for<Forward>(
    const ForwardProblem&);
template std::shared_ptr<const Decision<Backward>> ContextState::plan_for<Backward>(
    const BackwardProblem&);
template std::shared_ptr<const Decision<Merge>> ContextState::plan_for<Merge>(const MergeProblem&);
template std::shared_ptr<const Decision<Inspect>> ContextState::plan_for<Inspect>(
    const InspectProblem&);
template std::shared_ptr<const Decision<Weights>> ContextState::plan_for<Weights>(
    const WeightsProblem&);

template <class Operation>
const Kernel<Operation>& ContextState::row_for(const typename Operation::Problem& problem) const {
  auto& kept = std::get<ChosenRows<Operation>>(chosen)
                   .of[static_cast<std::size_t>(problem.type)][problem.variant()];
  const bool host = problem.device == Device{};
  if (const Kernel<Operation>* row = host ? kept.load(std::memory_order_relaxed) : nullptr)
    return *row;
  std::vector<std::pair<std::string_view, std::string>> declined;
  const Kernel<Operation>& row =
      choose<Operation>(problem, machine, forced_kernel(Operation::kName), declined);
  if (host) kept.store(&row, std::memory_order_relaxed);
  return row;
}
template const Kernel<Product>& ContextState::row_for<Product>(const ProductProblem&) const;
template const Kernel<NormForward>& ContextState::row_for<NormForward>(const NormProblem&) const;
template const Kernel<NormBackward>& ContextState::row_for<NormBackward>(const NormProblem&) const;
template const Kernel<ActivationForward>& ContextState::row_for<ActivationForward>(
    const ActivationProblem&) const;
template const Kernel<ActivationBackward>& ContextState::row_for<ActivationBackward>(
    const ActivationProblem&) const;
template const Kernel<RotaryForward>& ContextState::row_for<RotaryForward>(
    const RotaryProblem&) const;
template const Kernel<Convert>& ContextState::row_for<Convert>(const ConvertProblem&) const;
template const Kernel<Add>& ContextState::row_for<Add>(const AddProblem&) const;

// The smallest free block that is large enough, or a new one of exactly this size.
ContextState::Allocation ContextState::acquire(std::size_t bytes) {
  if (bytes == 0) return {};
  {
    const std::lock_guard lock(mutex);
    auto best = free_memory.end();
    for (auto block = free_memory.begin(); block != free_memory.end(); ++block)
      if (block->bytes >= bytes && (best == free_memory.end() || block->bytes < best->bytes))
        best = block;
    if (best != free_memory.end()) {
      const Allocation memory = *best;
      free_memory.erase(best);
      return memory;
    }
  }
  // More than half of the address space is a sum that overflowed: no allocator is to round it up.
  constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  void* data = bytes <= kMost ? allocator.allocate(bytes, kWorkspaceAlignment) : nullptr;
  if (data == nullptr && bytes <= kMost && give_up_kept_memory(*tensors))
    data = allocator.allocate(bytes, kWorkspaceAlignment);
  if (data == nullptr)
    throw OutOfMemory(text("context: no memory for a workspace of ", bytes, " bytes"));
  return {static_cast<std::byte*>(data), bytes};
}

void ContextState::release(Allocation memory) noexcept {
  if (memory.data == nullptr) return;
  {
    const std::lock_guard lock(mutex);
    if (free_memory.size() == kMostFreeBlocks) {  // the smallest is the easiest to have again
      const auto smallest = std::min_element(
          free_memory.begin(), free_memory.end(),
          [](const Allocation& a, const Allocation& b) { return a.bytes < b.bytes; });
      if (smallest->bytes < memory.bytes) std::swap(*smallest, memory);
    } else {
      free_memory.push_back(memory);  // reserved for kMostFreeBlocks: does not allocate
      return;
    }
  }
  allocator.deallocate(memory.data, memory.bytes);
}

Lease::Lease(Context& context, std::size_t bytes) : Lease(ContextState::of(context), bytes) {}
void Lease::acquire(std::size_t bytes) {
  const ContextState::Allocation memory = state_.acquire(bytes);
  data_ = memory.data;
  bytes_ = memory.bytes;
}
Lease::Lease(const Where& where, std::size_t bytes, Device device)
    : state_(ContextState::of(where)) {
  if (bytes == 0) return;
  if (device == Device{}) {
    acquire(bytes);
    return;
  }
  queue_ = &queue_for("workspace", device, where.queue());
  Status why;
  data_ = static_cast<std::byte*>(queue_->take(bytes, why));
  bytes_ = bytes;
  if (why.kind == Status::Kind::out_of_memory)
    throw OutOfMemory(text("workspace: ", device, " has no memory for ", bytes, " bytes"));
  check_launched("workspace", device, why);
}
void Lease::release() noexcept {
  if (queue_ != nullptr) queue_->give(data_, bytes_);
  else state_.release({data_, bytes_});
}

// ---- Public ------------------------------------------------------------------------------------

Context::Context(const ContextOptions& options) try
    : state_(std::make_unique<ContextState>(options)) {
} catch (const std::bad_alloc&) {
  throw OutOfMemory("context: out of memory");
}
Context::~Context() = default;

int Context::threads() const noexcept { return state_->threads; }

std::vector<KernelInfo> Context::kernels() {
  std::vector<KernelInfo> rows;
  for_each_operation([&]<class Operation>(Operation) {
    for (const Kernel<Operation>* kernel : kernel_table<Operation>())
      rows.push_back(
          {std::string(kernel->name), std::string(Operation::kName), kernel->only_if_forced});
  });
  return rows;
}

Context& default_context() {
  static auto* context = new Context;  // never destroyed: other static objects may still use it
  return *context;
}

}  // namespace attend
