#include "tests/support/host_stack.h"

#include <cstdint>
#include <utility>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MKERNEL_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define MKERNEL_ADDRESS_SANITIZER
#endif
#if defined(MKERNEL_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Pushes what a called function must preserve, keeps the top of this stack in `*from`, and goes on with what
// lies on top of `to`. The control words of the floating point units are the same on all stacks.
extern "C" void mkernel_change_stack(void** from, void* to);
asm(R"(
  .pushsection .text
  .type mkernel_change_stack, @function
mkernel_change_stack:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size mkernel_change_stack, . - mkernel_change_stack
  .popsection
)");
#endif

namespace mkernel::test {
namespace {

thread_local HostStack* left = nullptr;
thread_local HostStack* entered = nullptr;
/// Of stacks that are no more. The last ones, which caches still hold, are the first to be used again.
thread_local std::vector<std::unique_ptr<char[]>> unused;

std::unique_ptr<char[]> take_memory() {
  if (unused.empty()) return std::make_unique_for_overwrite<char[]>(HostStack::kBytes);
  auto memory = std::move(unused.back());
  unused.pop_back();
#if defined(MKERNEL_ADDRESS_SANITIZER)
  // What ran on it did not return, so that the borders of its variables are still marked.
  __asan_unpoison_memory_region(memory.get(), HostStack::kBytes);
#endif
  return memory;
}

}  // namespace

HostStack::HostStack(void (*enter)())
    : memory_(take_memory()), enter_(enter), bottom_(memory_.get()), bytes_(kBytes) {
#if defined(__x86_64__)
  // As if begin() had been called and had changed to another stack: six registers, where it goes on, and no
  // caller, where unwinding ends.
  auto* top =
      reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::uintptr_t>(memory_.get() + kBytes) & ~15ULL);
  *--top = 0;
  *--top = reinterpret_cast<std::uint64_t>(&HostStack::begin);
  for (int i = 0; i < 6; ++i) *--top = 0;
  top_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = memory_.get();
  context_.uc_stack.ss_size = kBytes;
  makecontext(&context_, &HostStack::begin, 0);
#endif
}

HostStack::~HostStack() {
  if (memory_) unused.push_back(std::move(memory_));
}

void HostStack::begin() {
  arrive(nullptr);
  entered->enter_();
}

/// The first thing on a stack that was changed to.
void HostStack::arrive([[maybe_unused]] void* fake_stack) {
#if defined(MKERNEL_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(fake_stack, &left->bottom_, &left->bytes_);
#endif
}

void HostStack::change_to(HostStack& next, [[maybe_unused]] bool ends) {
  void* fake_stack = nullptr;
#if defined(MKERNEL_ADDRESS_SANITIZER)
  __sanitizer_start_switch_fiber(ends ? nullptr : &fake_stack, next.bottom_, next.bytes_);
#endif
  left = this;
  entered = &next;
#if defined(__x86_64__)
  mkernel_change_stack(&top_, next.top_);
#else
  swapcontext(&context_, &next.context_);
#endif
  arrive(fake_stack);
}

}  // namespace mkernel::test
