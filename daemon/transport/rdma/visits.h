// Which peers a poll looks at: those that have something to do, not all there are.
//
// A peer is woken by everything that may give it work: puts, messages, notifications of its completion
// queues, its time. It is then visited by every poll until a visit finds nothing and it says that nothing is
// under way. Before the owner sleeps, the queues of all who were awake are armed, and found empty after that:
// whatever comes later notifies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "daemon/transport/rdma/routes.h"

namespace mkernel::transport::rdma {

/// What is kept of each peer; base class of it.
struct Visited {
  bool busy = false;       ///< every poll visits it
  bool rests = false;      ///< its visit has found nothing to do, and nothing has woken it since
  bool unsettled = false;  ///< was busy since the owner could sleep last
  Time wake_at = kNever;   ///< while not busy
};

/// One thread. `Peer` derives from Visited.
template <typename Peer>
class Visits {
 public:
  void add(Peer& peer) {
    all_.push_back(&peer);
    wake(peer);
  }
  /// Also in the middle of for_each_busy().
  void remove(Peer& peer) {
    std::erase(all_, &peer);
    std::erase(busy_, &peer);
    std::erase(unsettled_, &peer);
  }

  const std::vector<Peer*>& all() const { return all_; }

  void wake(Peer& peer) {
    peer.rests = false;
    if (std::exchange(peer.busy, true)) return;
    busy_.push_back(&peer);
    if (!std::exchange(peer.unsettled, true)) unsettled_.push_back(&peer);
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

  /// Sends those to sleep that rest. `due_of`: when each is to be woken at the latest.
  template <typename DueOf>
  void rest(DueOf&& due_of) {
    std::erase_if(busy_, [&](Peer* peer) {
      if (!peer->rests) return false;
      peer->busy = false;
      peer->wake_at = due_of(*peer);
      due_ = std::min(due_, peer->wake_at);
      return true;
    });
  }
  /// The owner would like to sleep. `arm` is called for all that have been awake since it could, and answers
  /// whether the peer was armed before: it has been visited since then. True when all were; the others are
  /// awake. `due_of` as above.
  template <typename Arm, typename DueOf>
  bool settle(Arm&& arm, DueOf&& due_of) {
    bool settled = true;
    std::erase_if(unsettled_, [&](Peer* peer) {
      if (!arm(*peer)) {
        settled = false;
        wake(*peer);
        return false;
      }
      if (peer->busy) due_ = std::min(due_, due_of(*peer));
      peer->unsettled = peer->busy;
      return !peer->busy;
    });
    return settled;
  }
  /// When somebody has to be woken at the latest; it may be early.
  Time due() const { return due_; }

 private:
  std::vector<Peer*> all_;
  std::vector<Peer*> busy_;
  std::vector<Peer*> unsettled_;  ///< all that are busy, and some that sleep
  std::size_t next_ = 0;
  Time due_ = kNever;
};

}  // namespace mkernel::transport::rdma
