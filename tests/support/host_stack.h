// Stacks between which one thread of the host changes, as fibers do: without the two system calls of
// swapcontext(), which keeps the signal mask too and took half of the time of what is played (host_grid.h).
#pragma once

#include <cstddef>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace mkernel::test {

/// A stack, and where the thread goes on when it comes back to it. Not thread-safe: every change is made by
/// the same thread.
class HostStack {
 public:
  static constexpr std::size_t kBytes = 256 << 10;

  /// The stack that the thread runs on already.
  HostStack() = default;
  /// One of kBytes, on which the first change calls `enter`, which must not return. Its memory comes from a
  /// stack that was destroyed before, where there is one: a grid has thousands, and the next has them again.
  explicit HostStack(void (*enter)());
  HostStack(const HostStack&) = delete;
  HostStack& operator=(const HostStack&) = delete;
  ~HostStack();

  /// From this stack, which the thread runs on, to `next`; returns when another stack changes to this one.
  /// `ends`: none ever will.
  void change_to(HostStack& next, bool ends = false);

 private:
  static void begin();
  static void arrive(void* fake_stack);

  std::unique_ptr<char[]> memory_;
  void (*enter_)() = nullptr;
#if defined(__x86_64__)
  void* top_ = nullptr;  ///< while the thread is elsewhere: what it has to restore lies there
#else
  ucontext_t context_{};
#endif
  // For AddressSanitizer, which learns those of the thread's own stack when it is left.
  [[maybe_unused]] const void* bottom_ = nullptr;
  [[maybe_unused]] std::size_t bytes_ = 0;
};

}  // namespace mkernel::test
