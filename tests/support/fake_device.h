// A device that is none: queues whose work is done when somebody waits, memory that is overwritten
// when it is free again, and errors on demand. It holds the seam that rows for devices have.
#pragma once

#include "plan/plan.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>

namespace attend::test {

inline constexpr Device kFakeDevice{Device::Kind::cuda, 0};

class FakeQueue : public Queue {
 public:
  using Work = std::function<Status()>;

  ~FakeQueue() override {
    while (!free_.empty()) std::free(free_.extract(free_.begin()).mapped());
    for (const auto& [memory, bytes] : taken_) std::free(memory);
  }

  Device device() const noexcept override { return own_device; }

  void* take(std::size_t bytes, Status& why) noexcept override {
    why = exhausted ? Status{Status::Kind::out_of_memory, "none is left"} : state();
    if (!why) return nullptr;
    void* memory = nullptr;
    if (const auto found = free_.find(bytes); found != free_.end())
      memory = free_.extract(found).mapped();
    else memory = std::malloc(bytes);
    if (memory != nullptr) taken_[memory] = bytes;
    return memory;
  }

  // Work that comes later may have it at once: it is done after all work so far.
  void give(void* memory, std::size_t bytes) noexcept override {
    wrong_gifts += taken_.count(memory) != 1 || taken_[memory] != bytes;
    taken_.erase(memory);
    free_.emplace(bytes, memory);
    put([memory, bytes] {
      std::memset(memory, 0xFF, bytes);  // NaN
      return Status{};
    });
  }

  Status copy(void* to, const void* from, std::size_t bytes) noexcept override {
    const Status done = wait();
    if (done) std::memcpy(to, from, bytes);
    return done;
  }

  void put(Work work) { work_.push_back(std::move(work)); }

  // Does all that was put in; the first failure is the last thing that happens.
  Status wait() {
    while (!work_.empty() && failed_) {
      Work next = std::move(work_.front());
      work_.pop_front();
      failed_ = next();
    }
    work_.clear();
    return failed_;
  }
  // What a launch finds: a failure from before.
  Status state() const {
    Status found = failed_;
    found.earlier = !failed_;
    return found;
  }

  std::size_t in_use() const { return taken_.size(); }
  std::size_t waiting() const { return work_.size(); }

  bool exhausted = false;
  bool refuses = false;  // the next launch
  int wrong_gifts = 0;
  Device own_device = kFakeDevice;

 private:
  std::deque<Work> work_;
  std::map<void*, std::size_t> taken_;
  std::multimap<std::size_t, void*> free_;
  Status failed_;
};

// ---- Rows that launch --------------------------------------------------------------------------

template <class Operation>
const Kernel<Operation>& reference_row() {
  for (const Kernel<Operation>* kernel : kernel_table<Operation>())
    if (kernel->name == "reference." + std::string(Operation::kName)) return *kernel;
  std::abort();
}

// What each of them begins with: memory of the queue, or why there is none.
inline Status begin_launch(FakeQueue& queue, std::size_t bytes, std::byte*& memory) noexcept {
  Status why;
  memory = static_cast<std::byte*>(queue.take(bytes, why));
  if (memory == nullptr) return why;
  if (!std::exchange(queue.refuses, false)) return {};
  queue.give(memory, bytes);
  return {Status::Kind::failed, "too much shared memory"};
}

// Two pieces of work: q is copied into memory of the queue, then the reference reads it there. That
// memory must be left alone between them; `early` gives it back too soon, as a call would that
// frees its workspace when it returns.
template <bool early>
Status launch_reference(const ForwardProblem& problem, const ForwardCall& call,
                        Queue& queue) noexcept {
  auto& fake = static_cast<FakeQueue&>(queue);
  const Kernel<Forward>& row = reference_row<Forward>();
  const Tiles tiles = row.tiles(problem, {});
  const auto count =
      static_cast<std::size_t>(problem.batch * problem.heads * problem.q_length * problem.d);
  const std::size_t scratch = row.workspace(problem, tiles).per_strand;
  const std::size_t bytes = scratch + count * sizeof(float);
  std::byte* memory = nullptr;
  if (const Status begun = begin_launch(fake, bytes, memory); !begun) return begun;
  ForwardCall moved = call;
  moved.q.data = memory + scratch;
  fake.put([=] {  // by value: the caller's Problem and Call are gone
    std::memcpy(memory + scratch, call.q.data, count * sizeof(float));  // contiguous
    return Status{};
  });
  if (early) queue.give(memory, bytes);
  fake.put([=, &row] {
    for (std::int64_t n = 0; n < row.tasks(problem, tiles, 0); ++n)
      row.run(problem, tiles, moved, {.index = n, .scratch = memory});
    return Status{};
  });
  if (!early) queue.give(memory, bytes);
  return {};
}

template <bool early>
inline const Kernel<Forward> kFakeForward{
    .name = "fake.forward",
    .only_if_forced = false,
    .takes = Features{Feature::f32, Feature::device_memory, Feature::causal, Feature::grouped_heads,
                      Feature::own_value_size},
    .declines = [](const ForwardProblem&, const Machine&) { return std::string(); },
    .launch = launch_reference<early>,
};

// By a table of that row, and the reference behind it.
template <bool early = false>
Decision<Forward> fake_plan(const ForwardProblem& problem) {
  const Kernel<Forward>* const table[] = {&kFakeForward<early>, &reference_row<Forward>()};
  return decide<Forward>(problem, this_machine(), 1, "", table);
}

// The tasks of a reference row, as one piece of work.
template <class Operation>
Status launch_tasks(const typename Operation::Problem& problem,
                    const typename Operation::Call& call, Queue& queue) noexcept {
  auto& fake = static_cast<FakeQueue&>(queue);
  const Kernel<Operation>& row = reference_row<Operation>();
  const Tiles tiles = row.tiles(problem, {});
  const std::size_t bytes = row.workspace(problem, tiles).per_strand;
  std::byte* memory = nullptr;
  if (const Status begun = begin_launch(fake, bytes, memory); !begun) return begun;
  fake.put([=, &row] {
    for (std::int64_t n = 0; n < row.tasks(problem, tiles, 0); ++n)
      row.run(problem, tiles, call, {.index = n, .scratch = memory});
    return Status{};
  });
  queue.give(memory, bytes);
  return {};
}
template <class Operation>
inline const Kernel<Operation> kFakeTasks{
    .name = "fake.tasks",
    .only_if_forced = false,
    .takes = reference_row<Operation>().takes | Features{Feature::device_memory},
    .declines = [](const typename Operation::Problem&, const Machine&) { return std::string(); },
    .launch = launch_tasks<Operation>,
};

// Likewise c = relu(a b + bias), of matrices whose rows lie one behind the other: a is copied
// first.
inline Status launch_product(const ProductProblem& problem, const ProductCall& call,
                             Queue& queue) noexcept {
  auto& fake = static_cast<FakeQueue&>(queue);
  const std::size_t bytes = static_cast<std::size_t>(call.m * call.k) * sizeof(float);
  std::byte* memory = nullptr;
  if (const Status begun = begin_launch(fake, bytes, memory); !begun) return begun;
  fake.put([=] {
    std::memcpy(memory, call.a.data, bytes);
    return Status{};
  });
  fake.put([=] {
    float* const c = static_cast<float*>(call.c);
    const Matrices<float> p{.m = call.m,
                            .n = call.n,
                            .k = call.k,
                            .a = reinterpret_cast<const float*>(memory),
                            .a_row = call.k,
                            .a_depth = 1,
                            .b = static_cast<const float*>(call.b.data),
                            .b_depth = call.b.row,
                            .b_column = call.b.column,
                            .bias = static_cast<const float*>(call.bias),
                            .c = c,
                            .c_row = call.c_row};
    reference_row<Product>().f32.run(p, {0, p.m, 0, p.n});
    for (std::int64_t n = 0; problem.activation && n < p.m * p.n; ++n) c[n] = c[n] < 0 ? 0 : c[n];
    return Status{};
  });
  queue.give(memory, bytes);
  return {};
}
inline const Kernel<Product> kFakeProduct{
    .name = "fake.product",
    .only_if_forced = false,
    .takes = Features{Feature::f32, Feature::device_memory, Feature::row_bias,
                      Feature::row_activation, Feature::relu},
    .declines = [](const ProductProblem&, const Machine&) { return std::string(); },
    .launch = launch_product,
};

// And hidden = act(up).
inline Status launch_activation(const ActivationProblem& problem, const ActivationCall& call,
                                std::int64_t rows, Queue& queue) noexcept {
  auto& fake = static_cast<FakeQueue&>(queue);
  const std::size_t bytes = static_cast<std::size_t>(rows * call.features) * sizeof(float);
  std::byte* memory = nullptr;
  if (const Status begun = begin_launch(fake, bytes, memory); !begun) return begun;
  fake.put([=] {
    std::memcpy(memory, call.up, bytes);
    return Status{};
  });
  fake.put([=] {
    reference_row<ActivationForward>().run(problem, {call.features, memory, nullptr, call.hidden},
                                           {0, rows});
    return Status{};
  });
  queue.give(memory, bytes);
  return {};
}
inline const Kernel<ActivationForward> kFakeActivation{
    .name = "fake.activation",
    .only_if_forced = false,
    .takes = Features{Feature::f32, Feature::device_memory, Feature::gelu},
    .declines = [](const ActivationProblem&, const Machine&) { return std::string(); },
    .launch = launch_activation,
};

// By a table of one of these, and the reference behind it.
template <class Operation>
const Kernel<Operation>& fake_row(const Kernel<Operation>& row,
                                  const typename Operation::Problem& problem) {
  const Kernel<Operation>* const table[] = {&row, &reference_row<Operation>()};
  std::vector<std::pair<std::string_view, std::string>> declined;
  return choose<Operation>(problem, this_machine(), "", declined, table);
}

}  // namespace attend::test
