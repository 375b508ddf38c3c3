// Large blocks that tensors give back are kept for the next ones. The C library would return them
// to the system, and get them back page by page, each with a fault: a training step of 16 threads
// (8 sequences of 128 tokens, width 512) took 38 ms with 42,000 faults, and 9 ms without.
#include "api/tensor_memory.h"

#include "api/context.h"
#include "api/launch.h"
#include "core/text.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace attend {
namespace {

constexpr std::size_t kAlignment = kWorkspaceAlignment;
constexpr std::size_t kLeast = std::size_t{256} << 10, kMost = std::size_t{64} << 20;  // of a block
constexpr std::size_t kMostKept = std::size_t{128} << 20;                              // of all
// Under the address sanitizer, what is used after it was freed shall be found.
#ifndef __has_feature
#define __has_feature(name) 0
#endif
#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = !__has_feature(address_sanitizer);
#endif

// What lies before a tensor's elements.
struct alignas(kAlignment) Block {
  std::size_t bytes;                 // of the elements
  std::shared_ptr<TensorPool> pool;  // none while it is kept
  std::shared_ptr<Queue> queue{};    // the elements are in its memory, there
  void* there = nullptr;
};

bool worth_keeping(std::size_t bytes) noexcept {
  return kKeeps && bytes >= kLeast && bytes <= kMost;
}

}  // namespace

// Whoever makes or drops a tensor and finds it locked does without.
class TensorPool {
 public:
  explicit TensorPool(const Allocator& allocator) : allocator_(allocator) {}
  ~TensorPool() { give_up(); }
  TensorPool(const TensorPool&) = delete;
  TensorPool& operator=(const TensorPool&) = delete;

  Block* allocate(std::size_t bytes) const noexcept {
    void* memory = allocator_.allocate(bytes + sizeof(Block), kAlignment);
    return memory == nullptr ? nullptr : new (memory) Block{bytes, nullptr};
  }
  void deallocate(Block* block) const noexcept {
    const std::size_t bytes = block->bytes + sizeof(Block);
    block->~Block();
    allocator_.deallocate(block, bytes);
  }

  // The smallest block that is large enough, if that is not a waste.
  Block* take(std::size_t wanted) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    Block** best = nullptr;
    for (Block*& block : blocks_)
      if (block->bytes >= wanted && block->bytes <= wanted + wanted / 4 &&
          (best == nullptr || block->bytes < (*best)->bytes))
        best = &block;
    if (best == nullptr) return nullptr;
    Block* const block = *best;
    blocks_.erase(blocks_.begin() + (best - blocks_.data()));
    bytes_ -= block->bytes;
    return block;
  }

  // The oldest make room for it: shapes change.
  bool keep(Block* block) noexcept try {
    std::vector<Block*> gone;
    {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock || closed_) return false;
      std::size_t many = 0, bytes = bytes_ + block->bytes;
      for (; many < blocks_.size() && bytes > kMostKept; ++many) bytes -= blocks_[many]->bytes;
      const auto end = blocks_.begin() + static_cast<std::ptrdiff_t>(many);
      gone.assign(blocks_.begin(), end);
      blocks_.reserve(blocks_.size() + 1);  // before anything is changed
      blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(many));
      blocks_.push_back(block);
      bytes_ = bytes;
    }
    for (Block* old : gone) deallocate(old);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  bool give_up() noexcept { return free_kept(std::unique_lock(mutex_, std::try_to_lock)); }

  void close() noexcept {
    std::unique_lock lock(mutex_);
    closed_ = true;
    free_kept(std::move(lock));
  }

  void before_fork() noexcept { mutex_.lock(); }
  void after_fork() noexcept { mutex_.unlock(); }

 private:
  bool free_kept(std::unique_lock<std::mutex> lock) noexcept {
    if (!lock) return false;
    std::vector<Block*> gone;
    gone.swap(blocks_);
    bytes_ = 0;
    lock.unlock();
    for (Block* block : gone) deallocate(block);
    return !gone.empty();
  }

  const Allocator allocator_;
  std::mutex mutex_;  // of what follows
  std::vector<Block*> blocks_;
  std::size_t bytes_ = 0;
  bool closed_ = false;
};

std::shared_ptr<TensorPool> make_tensor_pool(const Allocator& allocator) {
  return std::make_shared<TensorPool>(allocator);
}

void close(TensorPool& pool) noexcept { pool.close(); }
void before_fork(TensorPool& pool) noexcept { pool.before_fork(); }
void after_fork(TensorPool& pool) noexcept { pool.after_fork(); }

bool give_up_kept_memory(TensorPool& pool) noexcept { return pool.give_up(); }

void* take_memory(std::size_t bytes, const std::shared_ptr<TensorPool>& pool) noexcept {
  constexpr auto kMostBytes = static_cast<std::size_t>(-1) / 2 - sizeof(Block);
  if (bytes > kMostBytes) return nullptr;
  if (pool == nullptr) {
    void* memory =
        ::operator new (bytes + sizeof(Block), std::align_val_t{kAlignment}, std::nothrow);
    return memory == nullptr ? nullptr : new (memory) Block{bytes, nullptr} + 1;
  }
  Block* block = worth_keeping(bytes) ? pool->take(bytes) : nullptr;
  if (block == nullptr) block = pool->allocate(bytes);
  if (block == nullptr && pool->give_up()) block = pool->allocate(bytes);
  if (block == nullptr) return nullptr;
  block->pool = pool;
  return block + 1;
}

void give_memory(void* memory) noexcept {
  Block* const block = static_cast<Block*>(memory) - 1;
  const std::shared_ptr<TensorPool> pool = std::move(block->pool);
  block->pool = nullptr;
  if (block->queue != nullptr) block->queue->give(block->there, block->bytes);
  if (pool == nullptr) {
    block->~Block();
    ::operator delete (static_cast<void*>(block), std::align_val_t{kAlignment});
  } else if (!worth_keeping(block->bytes) || !pool->keep(block)) {
    pool->deallocate(block);
  }
}

DeviceBlock take_device_memory(std::size_t bytes, Queue& queue, Status& why) noexcept {
  void* const owner = take_memory(0);
  if (owner == nullptr) why = {Status::Kind::out_of_memory, "the host has none"};
  void* const data = owner == nullptr ? nullptr : queue.take(bytes, why);
  if (data == nullptr) {
    if (owner != nullptr) give_memory(owner);
    return {};
  }
  Block* const block = static_cast<Block*>(owner) - 1;
  block->queue = queue.weak_from_this().lock();
  if (block->queue == nullptr)  // not a shared one
    block->queue = std::shared_ptr<Queue>(std::shared_ptr<void>(), &queue);
  block->bytes = bytes;
  block->there = data;
  return {owner, data};
}

Queue* queue_of(void* owner) noexcept { return (static_cast<Block*>(owner) - 1)->queue.get(); }

namespace {

// Calls copy(offset, done, bytes), all in bytes, for each piece of the view: its last dimensions
// that lie one behind the other.
template <class Copy>
void for_each_piece(const ConstTensorView& view, Copy copy) {
  if (view.count() == 0) return;
  const std::int64_t size = size_of(view.dtype());
  std::int64_t piece = 1;
  int outer = view.rank();
  while (outer > 0 && (view.strides()[outer - 1] == piece || view.size(outer - 1) == 1))
    piece *= view.size(--outer);
  Shape index = view.shape();
  for (int dim = 0; dim < index.rank(); ++dim) index[dim] = 0;
  for (std::int64_t done = 0; done < view.count(); done += piece) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < outer; ++dim) offset += index[dim] * view.strides()[dim];
    copy(offset * size, done * size, static_cast<std::size_t>(piece * size));
    for (int dim = outer - 1; dim >= 0 && ++index[dim] == view.size(dim); --dim) index[dim] = 0;
  }
}

}  // namespace

void copy_elements(const ConstTensorView& from, std::byte* to) {
  const auto* const data = static_cast<const std::byte*>(from.data());
  for_each_piece(from, [&](std::int64_t offset, std::int64_t done, std::size_t bytes) {
    std::memcpy(to + done, data + offset, bytes);
  });
}

void copy_elements(const std::byte* from, const TensorView& to) {
  auto* const data = static_cast<std::byte*>(to.data());
  for_each_piece(to, [&](std::int64_t offset, std::int64_t done, std::size_t bytes) {
    std::memcpy(data + offset, from + done, bytes);
  });
}

namespace {

// The floating-point type of so many bytes: a copy changes no bit.
DType copied_as(const ConstTensorView& view) {
  switch (size_of(view.dtype())) {
    case 8: return DType::f64;
    case 4: return DType::f32;
    case 2: return DType::bf16;
    default:
      throw Unsupported(text("copy: ", view.shape(), " of ", view.dtype(), " on ", view.device(),
                             " is not copied there"));
  }
}

}  // namespace

// On a device the last two dimensions are a launch.
void copy_elements(const ConstTensorView& from, const TensorView& to, const Where& where) {
  if (from.count() == 0) return;
  if (from.device() == Device{}) return copy_elements(from, static_cast<std::byte*>(to.data()));
  const AddProblem problem{.device = from.device(), .type = copied_as(from)};
  const Kernel<Add>& row = ContextState::of(where).row_for<Add>(problem);
  const std::int64_t size = size_of(from.dtype());
  const bool whole = is_contiguous(from) && is_contiguous(to);
  const int rank = from.rank(), outer = whole ? 0 : std::max(rank - 2, 0);
  const std::int64_t rows = whole || rank < 2 ? 1 : from.size(rank - 2);
  const std::int64_t features = whole ? from.count() : rank == 0 ? 1 : from.size(rank - 1);
  const auto stride = [&](const ConstTensorView& view, int back) {
    if (whole || rank < back) return back == 1 ? std::int64_t{1} : features;
    return view.strides()[rank - back];
  };
  Shape index = from.shape();
  for (int dim = 0; dim < rank; ++dim) index[dim] = 0;
  for (std::int64_t left = from.count() / (rows * features); left > 0; --left) {
    std::int64_t at_from = 0, at_to = 0;
    for (int dim = 0; dim < outer; ++dim) {
      at_from += index[dim] * from.strides()[dim];
      at_to += index[dim] * to.strides()[dim];
    }
    const AddCall call{.features = features,
                       .a = {static_cast<const std::byte*>(from.data()) + at_from * size,
                             stride(from, 2), stride(from, 1)},
                       .b = {},
                       .y = static_cast<std::byte*>(to.data()) + at_to * size,
                       .y_row = stride(to, 2),
                       .y_column = stride(to, 1)};
    launch("copy", from.device(), where.queue(),
           [&](Queue& queue) { return row.launch(problem, call, rows, queue); });
    for (int dim = outer - 1; dim >= 0 && ++index[dim] == from.size(dim); --dim) index[dim] = 0;
  }
}

Tensor copied(const ConstTensorView& view, const Where& where) {
  if (!view) return {};
  Tensor tensor = Tensor::uninitialized(view.shape(), view.dtype(), view.device(), where);
  if (view.device() == Device{}) copy_elements(view, static_cast<std::byte*>(tensor.view().data()));
  else copy_elements(view, tensor.view(), where);
  return tensor;
}

}  // namespace attend
