// Calls like one before: what is known of each, the table of them, and the lock of a group. A part of
// short_way.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10d {
class ProcessGroup;
}

namespace mkernel_torch {

enum Operator { kGather, kScatter, kReduce, kOperators };

constexpr size_t kMostB = 4;                // that one launch multiplies
constexpr size_t kMostArgumentBytes = 256;  // of the struct that a launch takes
// For so long nothing here looks for Ctrl-C; then Python goes on.
constexpr std::chrono::milliseconds kSlice(50);
constexpr uintptr_t kAlignment = 16;  // bytes, of operands on a GPU

// The lock of one group, recursive. Calls that go through Python take it, too. Any thread.
class Lock {
 public:
  bool acquire(std::chrono::milliseconds most) {
    const auto self = std::this_thread::get_id();
    if (owner_.load(std::memory_order_relaxed) != self) {
      if (!mutex_.try_lock() && !mutex_.try_lock_for(most)) return false;
      owner_.store(self, std::memory_order_relaxed);
    }
    ++depth_;
    return true;
  }

  void release() {
    if (--depth_ != 0) return;
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

  // How often this thread holds it.
  int depth() const {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id() ? depth_ : 0;
  }

 private:
  std::timed_mutex mutex_;
  std::atomic<std::thread::id> owner_;
  int depth_ = 0;
};

// What Membership of _groups.py has here. The stream belongs to the lock.
struct Group {
  Lock lock;
  bool has_stream = false;      // a launch was queued
  c10::StreamId stream_id = 0;  // PyTorch's name of the stream of the last one
  void* stream = nullptr;       // the same as a cudaStream_t
};

// Holds a lock, unless it could not be had within a slice.
class Held {
 public:
  explicit Held(Lock& lock) : lock_(lock), is_held_(lock.acquire(kSlice)) {}
  ~Held() {
    if (is_held_) lock_.release();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  explicit operator bool() const { return is_held_; }

 private:
  Lock& lock_;
  bool is_held_;
};

// Functions of libmkernel: mk_gemm_enqueue, mk_gemm_launch, mk_pending_wait and mk_pending_destroy.
using Enqueue = int (*)(void* operation, const void* arguments, void* stream, const void* options);
using Launch = int (*)(void* operation, const void* arguments, const void* options, void** pending);
using Wait = int (*)(const void* pending, uint32_t milliseconds);
using Destroy = void (*)(void* pending);
// Of the CUDA driver: cuStreamIsCapturing. 0: `status` says whether a graph captures the stream.
using IsCapturing = int (*)(void* stream, int* status);

// What a call launches, as Python hands it over: Description of _extension.py has the same fields.
struct Description {
  size_t struct_size;
  std::shared_ptr<Group>* group;
  void* operation;        // lives until Python has called mkernel_torch_forget()
  const void* arguments;  // copied: the struct of a launch, with its size in it
  size_t argument_bytes;
  const void* options;  // copied: the struct of the launch's options
  size_t option_bytes;
  size_t a, b, c, gathered, more_b, more_c;  // offsets in `arguments`
  int64_t* uses;             // of all plans of the group, counted under its lock; live as `operation` does
  int64_t* last_used;        // the number of the plan's last use among those
  Enqueue enqueue;           // null: the launch is waited for
  IsCapturing is_capturing;  // null: nothing captures the stream
  Launch launch;
  Wait wait;
  Destroy destroy;
  int64_t fused[kMostB];  // which B is b, and which are more_b
};

// What must be the same of a tensor.
struct Layout {
  explicit Layout(const at::Tensor& tensor)
      : dtype(tensor.scalar_type()),
        device(tensor.device()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()) {}

  bool fits(const at::Tensor& tensor) const {
    return tensor.scalar_type() == dtype && tensor.device() == device &&
           tensor.sizes() == at::IntArrayRef(sizes) && tensor.strides() == at::IntArrayRef(strides);
  }

  c10::ScalarType dtype;
  c10::Device device;
  std::vector<int64_t> sizes, strides;
};

// The arguments of a call that the table is asked with.
struct Asked {
  Operator kind;
  const std::string& group_name;
  const at::Tensor& a;
  at::TensorList bs;
  bool gathered;  // the gathered A is wanted

  size_t hash() const {
    size_t sum = static_cast<size_t>(kind) * 2 + (gathered ? 1 : 0) + bs.size() * 16;
    const auto add = [&sum](size_t value) { sum = (sum ^ value) * 0x9E3779B97F4A7C15u; };
    add(std::hash<std::string>()(group_name));
    for (const int64_t size : a.sizes()) add(static_cast<size_t>(size));
    for (const at::Tensor& b : bs) add(static_cast<size_t>(b.numel()));
    return sum ^ (sum >> 32);
  }
};

struct Call {
  Operator kind;
  std::string group_name;
  bool gathered;
  Layout a;
  std::vector<Layout> bs;
  std::vector<int64_t> lead;  // the sizes of every result but the last
  std::shared_ptr<Group> group;
  const c10d::ProcessGroup* process_group;  // only compared: Python forgets the call before it goes
  Description what;
  std::vector<char> options;
  alignas(8) std::array<char, kMostArgumentBytes> arguments;
  std::atomic<bool> is_forgotten = false;

  bool fits(const Asked& asked) const {
    if (asked.kind != kind || asked.gathered != gathered || asked.bs.size() != bs.size()) return false;
    if (asked.group_name != group_name || !a.fits(asked.a)) return false;
    for (size_t i = 0; i < bs.size(); ++i) {
      if (!bs[i].fits(asked.bs[i])) return false;
    }
    return true;
  }
};

// The calls that Python has remembered. Any thread.
class Table {
 public:
  std::shared_ptr<Call> find(const Asked& asked) {
    if (is_paused_ || size_.load(std::memory_order_relaxed) == 0) return nullptr;
    const size_t hash = asked.hash();
    const std::lock_guard<std::mutex> held(mutex_);
    const auto [begin, end] = calls_.equal_range(hash);
    const auto found =
        std::find_if(begin, end, [&asked](const auto& entry) { return entry.second->fits(asked); });
    return found == end ? nullptr : found->second;
  }

  void add(const Asked& asked, std::shared_ptr<Call> call) {
    const size_t hash = asked.hash();
    const std::lock_guard<std::mutex> held(mutex_);
    const auto [begin, end] = calls_.equal_range(hash);
    const auto known =
        std::find_if(begin, end, [&asked](const auto& entry) { return entry.second->fits(asked); });
    if (known == end) {
      calls_.emplace(hash, std::move(call));
    } else {
      known->second->is_forgotten = true;
      known->second = std::move(call);
    }
    size_ = calls_.size();
  }

  // Meanwhile no call is found.
  void pause(bool is_paused) { is_paused_ = is_paused; }

  void forget() {
    const std::lock_guard<std::mutex> held(mutex_);
    for (auto& entry : calls_) entry.second->is_forgotten = true;
    calls_.clear();
    size_ = 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_multimap<size_t, std::shared_ptr<Call>> calls_;
  std::atomic<size_t> size_ = 0;
  std::atomic<bool> is_paused_ = false;
};

}  // namespace mkernel_torch
