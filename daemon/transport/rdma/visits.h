// Which peers a poll looks at: those that have something to do, not all there are.
//
// A peer is woken by everything that may give it work: puts, messages, notifications of its completion
// queues, its time. It is then visited by every poll until it says that it has nothing to do, and its queues
// have been armed and found empty after that: whatever comes later notifies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "daemon/transport/rdma/routes.h"

namespace mkernel::transport::rdma {

/// What is kept of each peer; base class of it.
struct Visited {
  bool busy = false;
  Time wake_at = kNever;  ///< while not busy
};

/// One thread. `Peer` derives from Visited.
template <typename Peer>
class Visits {
 public:
  void add(Peer& peer) {
    all_.push_back(&peer);
    wake(peer);
  }
  /// Also in the middle of for_each().
  void remove(Peer& peer) {
    std::erase(all_, &peer);
    std::erase(busy_, &peer);
  }

  const std::vector<Peer*>& all() const { return all_; }
  std::size_t busy() const { return busy_.size(); }

  void wake(Peer& peer) {
    if (std::exchange(peer.busy, true)) return;
    busy_.push_back(&peer);
  }
  void wake_all() {
    for (Peer* peer : all_) wake(*peer);
  }
  /// Wakes those whose time has come.
  void wake_due(Time now) {
    if (now < due_) return;
    due_ = kNever;
    for (Peer* peer : all_) {
      if (!peer->busy && peer->wake_at <= now) wake(*peer);
      if (!peer->busy) due_ = std::min(due_, peer->wake_at);
    }
  }
  /// Wakes the next one: each call another, all in turn.
  void wake_next() {
    if (all_.empty()) return;
    next_ = next_ + 1 < all_.size() ? next_ + 1 : 0;
    wake(*all_[next_]);
  }

  /// Calls `visit` for every peer that is awake; it may wake, add and remove peers.
  template <typename Visit>
  void for_each_busy(Visit&& visit) {
    for (std::size_t i = 0; i < busy_.size(); ++i) visit(*busy_[i]);
  }

  /// Sends those to sleep for which `idle` says so. `due_of`: when each is to be woken at the latest.
  template <typename Idle, typename DueOf>
  void settle(Idle&& idle, DueOf&& due_of) {
    std::erase_if(busy_, [&](Peer* peer) {
      peer->wake_at = due_of(*peer);
      due_ = std::min(due_, peer->wake_at);
      peer->busy = !idle(*peer);
      return !peer->busy;
    });
  }
  /// When somebody has to be woken at the latest; it may be early.
  Time due() const { return due_; }

 private:
  std::vector<Peer*> all_;
  std::vector<Peer*> busy_;
  std::size_t next_ = 0;
  Time due_ = kNever;
};

}  // namespace mkernel::transport::rdma
