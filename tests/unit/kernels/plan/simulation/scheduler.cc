#include "tests/unit/kernels/plan/simulation/scheduler.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mkernel::test {

Scheduler::Scheduler(std::uint64_t seed, std::int32_t ranks, std::uint64_t expire_one_in)
    : random_(seed),
      expire_one_in_(expire_one_in),
      aborted_(static_cast<std::size_t>(ranks + kFabric)),
      lazy_ranks_(static_cast<std::size_t>(ranks + kFabric)) {
  constexpr std::uint64_t kLazy[] = {0, 2, 8, 64}, kTaken[] = {0, 8, 64, 1024}, kRedraws[] = {0, 300, 5000};
  lazy_step_one_in_ = kLazy[random_() % 4];
  lazy_taken_one_in_ = kTaken[random_() % 4];
  redraw_one_in_ = kRedraws[random_() % 3];
  draw_lazy_ranks();
}

void Scheduler::draw_lazy_ranks() {
  const std::size_t ranks = lazy_ranks_.size();
  const std::size_t one = random_() % ranks;
  const std::uint64_t which = random_() % 6;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const bool lazy[] = {
        false, rank == one, rank != one, random_() % 2 == 0, rank + 1 == ranks, rank + 2 == ranks};
    lazy_ranks_[rank] = lazy[which];
  }
}

void Scheduler::spawn(std::int32_t rank, const char* name, Task task) {
  actors_.push_back(std::make_unique<Actor>(Actor{name, rank, std::move(task), nullptr}));
  Actor* actor = actors_.back().get();
  actor->next = actor->task.handle();
  ++alive_;
  make_ready(actor);
}

void Scheduler::make_ready(Actor* actor) {
  const bool lazy = lazy_ranks_[static_cast<std::size_t>(actor->rank)] || one_in(lazy_step_one_in_);
  (lazy ? lazy_ : prompt_).push_back(actor);
}

void Scheduler::block(const Wait& wait, std::coroutine_handle<> next) {
  current_->next = next;
  if (wait.word.value >= wait.expected || (wait.may_give_up && aborted(current_->rank)))
    return make_ready(current_);
  current_->blocked_on = &wait.word;
  current_->expected = wait.expected;
  current_->may_give_up = wait.may_give_up;
  current_->blocked_index = blocked_.size();
  blocked_.push_back(current_);
  wait.word.waiting.push_back(current_);
}

void Scheduler::unblock(Actor* actor) {
  std::erase(actor->blocked_on->waiting, actor);
  actor->blocked_on = nullptr;
  blocked_.back()->blocked_index = actor->blocked_index;
  std::swap(blocked_[actor->blocked_index], blocked_.back());
  blocked_.pop_back();
  make_ready(actor);
}

void Scheduler::set(Word& word, std::uint64_t value) {
  word.value = value;
  for (std::size_t i = word.waiting.size(); i > 0; --i)
    if (word.waiting[i - 1]->expected <= value) unblock(word.waiting[i - 1]);
}

void Scheduler::abort_waits_of(std::int32_t rank) {
  aborted_[static_cast<std::size_t>(rank)] = true;
  for (std::size_t i = blocked_.size(); i > 0; --i)
    if (blocked_[i - 1]->rank == rank && blocked_[i - 1]->may_give_up) unblock(blocked_[i - 1]);
}

bool Scheduler::expire_one() {
  const std::size_t count = blocked_.size(), first = count > 0 ? random_() % count : 0;
  for (std::size_t i = 0; i < count; ++i) {
    Actor* actor = blocked_[(first + i) % count];
    if (!actor->may_give_up) continue;
    unblock(actor);
    return true;
  }
  return false;
}

Actor* Scheduler::take(std::vector<Actor*>& ready) {
  std::swap(ready[random_() % ready.size()], ready.back());
  Actor* actor = ready.back();
  ready.pop_back();
  return actor;
}

Actor* Scheduler::pick() {
  if (one_in(redraw_one_in_)) draw_lazy_ranks();
  if (one_in(expire_one_in_)) expire_one();
  if (prompt_.empty() && lazy_.empty() && (!may_expire() || !expire_one())) return nullptr;
  if (prompt_.empty() || (!lazy_.empty() && one_in(lazy_taken_one_in_))) return take(lazy_);
  return take(prompt_);
}

std::string Scheduler::run() {
  while (alive_ > 0 && error_.empty()) {
    current_ = pick();
    if (current_ == nullptr) return stuck();
    current_->next.resume();
    if (!current_->task.done()) continue;
    --alive_;
    if (actors_.size() > 2 * alive_ + 64)
      std::erase_if(actors_, [](const std::unique_ptr<Actor>& actor) { return actor->task.done(); });
  }
  return error_;
}

std::string Scheduler::stuck() const {
  std::string text = "stuck:";
  constexpr std::size_t kMost = 40;
  for (std::size_t i = 0; i < blocked_.size() && i < kMost; ++i) {
    const Actor& actor = *blocked_[i];
    text += " [rank " + std::to_string(actor.rank) + " " + actor.name + ": " +
            std::to_string(actor.blocked_on->value) + " of " + std::to_string(actor.expected) + "]";
  }
  return text;
}

}  // namespace mkernel::test
