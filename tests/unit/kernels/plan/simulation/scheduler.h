// Step machines that wait for each other's counts: the roles of a launch as coroutines, resumed one at a time
// in an order drawn from a seed. What a role does between two co_awaits is one step that nobody sees half of;
// everything that takes time begins in one step and ends in another.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace mkernel::test {

/// A role, or a part of one that it awaits. Starts when it is awaited or spawned. Pass everything that it
/// keeps by value, but for what outlives it.
class [[nodiscard]] Task {
 public:
  struct Promise {
    std::coroutine_handle<> awaiting = std::noop_coroutine();

    struct Final {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
        return ended.promise().awaiting;
      }
      void await_resume() const noexcept {}
    };
    Task get_return_object() { return Task(std::coroutine_handle<Promise>::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    Final final_suspend() const noexcept { return {}; }
    void return_void() const {}
    [[noreturn]] void unhandled_exception() const { std::terminate(); }
  };
  using promise_type = Promise;

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const { return handle_.done(); }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) {
    handle_.promise().awaiting = awaiting;
    return handle_;
  }
  void await_resume() const {}

  std::coroutine_handle<> handle() const { return handle_; }
  bool done() const { return handle_.done(); }

 private:
  explicit Task(std::coroutine_handle<Promise> handle) : handle_(handle) {}
  std::coroutine_handle<Promise> handle_;
};

/// A role that was spawned.
struct Actor {
  const char* name;
  std::int32_t rank;  ///< whose launch it belongs to; behind those of all ranks: a part of the fabric
  Task task;
  std::coroutine_handle<> next;  ///< what is resumed in the actor's next step
  struct Word* blocked_on = nullptr;
  std::uint64_t expected = 0;
  bool may_give_up = false;       ///< the wait that it is blocked in
  std::size_t blocked_index = 0;  ///< among those that are blocked
};

/// A count that somebody waits for.
struct Word {
  std::uint64_t value = 0;
  std::vector<Actor*> waiting;
};

class Scheduler {
 public:
  /// What belongs to no rank's launch, each as slow as it likes: counts from the number of ranks.
  static constexpr std::int32_t kPuts = 0, kCompletions = 1, kFabric = 2;

  /// `expire_one_in`: so many steps pass, on average, until a wait reaches its deadline; 0: none does.
  Scheduler(std::uint64_t seed, std::int32_t ranks, std::uint64_t expire_one_in);

  void spawn(std::int32_t rank, const char* name, Task task);

  /// Whether a wait of the rank's has reached its deadline: from then on all its waits give up.
  bool aborted(std::int32_t rank) const { return aborted_[static_cast<std::size_t>(rank)]; }
  bool may_expire() const { return expire_one_in_ > 0; }

  struct Step {
    Scheduler& scheduler;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> next) const {
      scheduler.current_->next = next;
      scheduler.make_ready(scheduler.current_);
    }
    void await_resume() const {}
  };
  /// One step ends here; the next one comes at any later time.
  Step step() { return {*this}; }

  struct Wait {
    Scheduler& scheduler;
    Word& word;
    std::uint64_t expected;
    bool may_give_up;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> next) const { scheduler.block(*this, next); }
    /// Whether the word is there; otherwise the wait gave up.
    bool await_resume() const {
      if (word.value >= expected) return true;
      scheduler.abort_waits_of(scheduler.current_->rank);
      return false;
    }
  };
  /// The bounded wait of a kernel, for another CTA, rank or node.
  Wait wait(Word& word, std::uint64_t expected) { return {*this, word, expected, true}; }
  /// A barrier between roles that cannot fail each other: of a CTA, or the end of a launch.
  Wait meet(Word& word, std::uint64_t expected) { return {*this, word, expected, false}; }

  void add(Word& word, std::uint64_t more) { set(word, word.value + more); }
  void set(Word& word, std::uint64_t value);

  /// The first one is what run() returns.
  void report(const std::string& error) {
    if (error_.empty()) error_ = error;
  }
  /// Until all roles have ended, or one has reported an error. "" when all is well.
  std::string run();

 private:
  void block(const Wait& wait, std::coroutine_handle<> next);
  void unblock(Actor* actor);
  void make_ready(Actor* actor);
  void abort_waits_of(std::int32_t rank);
  void draw_lazy_ranks();
  Actor* pick();
  Actor* take(std::vector<Actor*>& ready);
  /// Lets a wait reach its deadline. False when there is none.
  bool expire_one();
  std::string stuck() const;
  bool one_in(std::uint64_t many) { return many > 0 && random_() % many == 0; }

  std::mt19937_64 random_;
  std::uint64_t expire_one_in_;
  std::string error_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::size_t alive_ = 0;
  Actor* current_ = nullptr;
  std::vector<Actor*> prompt_, lazy_;  ///< those that may go on; lazy ones seldom do while others can
  std::vector<Actor*> blocked_;
  std::vector<bool> aborted_;
  // How the seed spreads the steps: some ranks (or a part of the fabric) are slow for a while, so that they
  // come late by whole launches, and some steps of everybody are.
  std::vector<bool> lazy_ranks_;
  std::uint64_t lazy_step_one_in_;   ///< so many steps of ranks that are not lazy
  std::uint64_t lazy_taken_one_in_;  ///< how seldom a lazy step is taken before a prompt one; 0: never
  std::uint64_t redraw_one_in_;      ///< after how many steps other ranks become lazy; 0: never
};

}  // namespace mkernel::test
