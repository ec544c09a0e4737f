#include "daemon/base/mailbox.h"

#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace mkernel::base {

Mailbox::Mailbox() {
  auto event = ipc::create_event();
  if (!event.ok()) throw std::runtime_error("mailbox: " + event.status().to_string());
  event_ = std::move(event).value();
}

Mailbox::~Mailbox() {
  for (Node* first : {waiting_, take_in_order()}) {
    for (Node* node = first; node != nullptr;) {
      const std::unique_ptr<Node> owner(node);
      node = node->next;
    }
  }
}

// push() writes newest_ and then reads sleeping_; begin_sleep() writes sleeping_ and then reads newest_. All
// four are sequentially consistent, so at least one side sees the other: a command is never left with a
// sleeper.
void Mailbox::push(Node* node) {
  node->next = newest_.load(std::memory_order_relaxed);
  while (!newest_.compare_exchange_weak(node->next, node, std::memory_order_seq_cst)) {
  }
  if (!sleeping_.load(std::memory_order_seq_cst)) return;
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the fd is readable anyway.
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
}

Mailbox::Node* Mailbox::take_in_order() {
  Node* oldest = nullptr;
  for (Node* node = newest_.exchange(nullptr, std::memory_order_acquire); node != nullptr;) {
    Node* const next = std::exchange(node->next, oldest);
    oldest = std::exchange(node, next);
  }
  return oldest;
}

std::size_t Mailbox::run(WorkBudget& budget) {
  if (!has_work()) return 0;
  if (waiting_ == nullptr) waiting_ = take_in_order();
  std::size_t count = 0;
  while (waiting_ != nullptr) {
    const std::unique_ptr<Node> owner(std::exchange(waiting_, waiting_->next));
    owner->run();
    ++count;
    if (!budget.left()) break;
  }
  return count;
}

bool Mailbox::begin_sleep() {
  sleeping_.store(true, std::memory_order_seq_cst);
  return waiting_ == nullptr && newest_.load(std::memory_order_seq_cst) == nullptr;
}

void Mailbox::end_sleep() {
  sleeping_.store(false, std::memory_order_seq_cst);
  std::uint64_t drained = 0;
  [[maybe_unused]] const auto got = ::read(event_.get(), &drained, sizeof(drained));
}

}  // namespace mkernel::base
