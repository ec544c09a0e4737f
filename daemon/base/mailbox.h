// Commands from any thread to one: a lock-free stack that the owner takes whole and turns round, and an
// eventfd that is written only when the owner sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "daemon/base/work_budget.h"
#include "proto/ipc/fd.h"

namespace mkernel::base {

/// Thread rule: post() from any thread; everything else by the owner. The commands of one poster run in the
/// order in which it posted them. Commands that were never run are destroyed with the mailbox.
///
/// The owner sleeps like this:
///   if (mailbox.begin_sleep()) wait_for_readable(mailbox.event_fd());
///   mailbox.end_sleep();
class Mailbox {
 public:
  Mailbox();  ///< throws std::runtime_error when the process has no fd left
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// `command` is called once, without arguments, on the owner's thread. It may be move-only.
  template <typename Command>
  void post(Command command) {
    push(new Letter<Command>(std::move(command)));
  }

  /// Runs what has been posted so far; returns how many commands that was. When the budget is used up the
  /// rest waits for the next call.
  std::size_t run(WorkBudget& budget);
  std::size_t run() {
    WorkBudget budget = WorkBudget::unlimited();
    return run(budget);
  }

  /// False when run() would find nothing. By the owner.
  bool has_work() const { return waiting_ != nullptr || newest_.load(std::memory_order_relaxed) != nullptr; }

  /// True when nothing has been posted: from here on post() makes event_fd() readable. False: run() first.
  bool begin_sleep();
  /// Back to work: post() makes no system call. (A poster that was just about to ring may still do so: the
  /// next sleep then ends once too early, never too late.)
  void end_sleep();
  /// Readable when something was posted after begin_sleep().
  int event_fd() const { return event_.get(); }

 private:
  struct Node {
    virtual ~Node() = default;
    virtual void run() = 0;
    Node* next = nullptr;
  };
  template <typename Command>
  struct Letter final : Node {
    explicit Letter(Command c) : command(std::move(c)) {}
    void run() override { command(); }
    Command command;
  };

  void push(Node* node);
  Node* take_in_order();

  std::atomic<Node*> newest_{nullptr};
  Node* waiting_ = nullptr;  ///< the owner's: taken, in order, not run yet
  std::atomic<bool> sleeping_{false};
  ipc::UniqueFd event_;
};

}  // namespace mkernel::base
