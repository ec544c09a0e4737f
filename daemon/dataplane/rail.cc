#include "daemon/dataplane/rail.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "daemon/base/thread.h"

namespace mkernel::dataplane {
namespace {

// A session that says "active" and writes nothing may write again without ringing: its ring is still looked
// at.
constexpr std::chrono::milliseconds kLongNap{10};

// How long commands and chores may hold up the rings in one round.
constexpr std::chrono::microseconds kControlSlice{200};

bool says_active(const Session& session) {
  const memory::Touching touching(session.port->id);
  auto& word = session.port->header()->active;
  return session.reading && std::atomic_ref<std::uint32_t>(word).load(std::memory_order_acquire) != 0;
}

}  // namespace

Rail::Rail(const ProxyOptions& options, transport::Transport& transport, ControlSink& sink,
           base::Mailbox& mailbox)
    : options_(options),
      transport_(transport),
      sink_(sink),
      mailbox_(mailbox),
      traits_{options.index, options.count, transport.capabilities().max_put_bytes,
              transport.capabilities().gpu_memory},
      tools_{transport, ends_, traits_},
      events_(ends_, failures_, transport.capabilities()),
      local_(groups_, failures_),
      server_(transport, local_, sink, options.index),
      scheduler_(options.quantum_bytes, options.quantum_requests),
      sleeper_(mailbox, transport.event_fd()) {
  transport_.attach(events_);
}

Rail::~Rail() = default;

void Rail::run() {
  meter_.begin();
  while (running_) {
    if (step() > 0) {
      idle_ = false;
    } else {
      rest();
    }
  }
  finish_everything();
}

std::size_t Rail::step() {
  std::size_t work = serve_control();
  work += transport_.poll();
  scheduler_.round([this](Session& session) { return server_.serve(session); },
                   [] { return base::Clock::now(); });
  work += server_.take_progress();
  if (!failures_.empty()) work += handle_failures();
  if (events_.has_peer_events()) work += handle_peer_events();
  if (events_.has_messages()) work += hand_on_messages();
  meter_.end_slice();
  return work;
}

std::size_t Rail::serve_control() {
  if (chores_.empty() && !mailbox_.has_work()) return 0;
  base::WorkBudget budget(kControlSlice);
  std::size_t work = mailbox_.run(budget);
  if (!chores_.empty()) work += advance_chores(budget, base::Clock::now());
  meter_.end_slice();
  return work;
}

/// Each of them once, or as many as the budget allows: the next round goes on behind the last one.
std::size_t Rail::advance_chores(base::WorkBudget& budget, base::TimePoint now) {
  std::size_t worked = 0;
  for (std::size_t count = chores_.size(); count > 0; --count) {
    std::list<Chore> one;
    one.splice(one.begin(), chores_, chores_.begin());
    const Progress progress = one.front()(budget, now);
    if (progress != Progress::kWaiting) ++worked;
    if (progress != Progress::kDone) chores_.splice(chores_.end(), one);
    if (!budget.left(8)) break;
  }
  return worked;
}

// Poll while something may come soon, then yield, then nap, and block when nobody has work. A wake-up is
// never lost: a client sets `active` or writes its slot before it rings, a ring is an edge that stays in the
// epoll set until a wait takes it, and the rings are looked at once more after `active` was seen zero.
void Rail::rest() {
  const base::TimePoint now = base::Clock::now();
  if (!std::exchange(idle_, true)) idle_since_ = now;
  bool attentive = any_in_flight();
  bool quiet_but_active = false;
  for (Session* session : scheduler_.members()) {
    if (std::exchange(session->wrote, false)) session->last_write = now;
    const bool active = says_active(*session);
    if (active && !session->was_active) session->last_write = now;
    session->was_active = active;
    const bool recent = now - session->last_write < options_.idle_after;
    attentive = attentive || (active && recent);
    quiet_but_active = quiet_but_active || (active && !recent);
  }
  const auto waited = now - idle_since_;
  if (attentive && waited < options_.spin) return base::cpu_relax();
  if (attentive && waited < 2 * options_.spin) {
    ::sched_yield();
    return;
  }
  bool throttled = false;
  for (Session* session : scheduler_.members()) {
    if (session->stalled) {
      RingServer::look_at_depth(*session);
    } else if (session->reading && session->has_slots()) {
      if (!session->throttled) return;
      throttled = true;
    }
  }
  meter_.end_slice();
  if (attentive || throttled || !chores_.empty()) {
    sleeper_.wait(options_.nap);
  } else {
    sleeper_.wait(quiet_but_active ? std::optional<std::chrono::nanoseconds>(kLongNap) : std::nullopt);
  }
  meter_.woke_up();
}

bool Rail::any_in_flight() const {
  return std::any_of(groups_.all().begin(), groups_.all().end(),
                     [](const auto& entry) { return entry.second->in_flight > 0; });
}

std::size_t Rail::handle_failures() {
  const std::vector<GroupFailure> failures = failures_.take();
  for (const GroupFailure& failure : failures) {
    if (Group* group = groups_.find(failure.key)) drop_pending(*group);
    sink_.group_failed(failure.key, failure.culprit, failure.why);
  }
  return failures.size();
}

std::size_t Rail::handle_peer_events() {
  const std::vector<EventSink::PeerEvent> events = events_.take_peer_events();
  for (const EventSink::PeerEvent& event : events) {
    if (!event.path.empty()) {
      sink_.path_changed(options_.index, event.peer, event.path, event.status);
      continue;
    }
    if (event.status.ok()) {
      sink_.peer_connected(options_.index, event.peer);
      continue;
    }
    for (const auto& [key, group] : groups_.all()) {
      const auto dead =
          std::lower_bound(group->peers.begin(), group->peers.end(), std::pair(event.peer, std::uint32_t{0}));
      if (dead != group->peers.end() && dead->first == event.peer) {
        failures_.note(*group, static_cast<std::int32_t>(dead->second), event.status);
      }
    }
    sink_.peer_failed(event.peer, event.status);
  }
  return events.size();
}

std::size_t Rail::hand_on_messages() {
  std::vector<EventSink::PeerMessage> messages = events_.take_messages();
  for (EventSink::PeerMessage& message : messages) {
    sink_.message_to_peer(options_.index, message.peer, std::move(message.bytes));
  }
  return messages.size();
}

void Rail::finish_everything() {
  base::WorkBudget endless = base::WorkBudget::unlimited();
  const auto finish_chores = [&] {
    while (!chores_.empty()) advance_chores(endless, base::TimePoint::max());
  };
  finish_chores();
  for (const auto& [id, session] : sessions_) close_groups_of(id, endless);
  finish_chores();
  while (!sessions_.empty()) erase_session(sessions_.begin()->first);
  transport_.close();
}

}  // namespace mkernel::dataplane
