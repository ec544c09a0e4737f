// Deficit round robin over sessions, by bytes and by requests. Pure bookkeeping: what a turn does is the
// caller's.
//
// A member's turn starts with one quantum per unit of weight and ends when the quantum is used up or nothing
// is left to send. The last put of a turn may overdraw; the debt is paid from later turns. A member that the
// transport refuses keeps its turn and what is left of it: the others go on in this round, and it is first in
// the next one. So a full transport is shared by weight as well, and one full peer holds up only those who
// send to it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace mkernel::dataplane {

/// What a member may still send in its turn.
struct Allowance {
  std::int64_t bytes = 0;
  std::int64_t requests = 0;

  bool left() const { return bytes > 0 && requests > 0; }
  void charge(std::uint64_t more_bytes) {
    bytes -= static_cast<std::int64_t>(more_bytes);
    --requests;
  }
};

/// How a visit ended.
enum class Turn : std::uint8_t {
  kIdle,     ///< nothing left to send
  kUsedUp,   ///< more to send, allowance used up
  kRefused,  ///< more to send, the transport takes no more for now
};

/// Member must have `Allowance allowance` and `bool in_turn`, both the scheduler's own. Not owned.
template <typename Member>
class Scheduler {
 public:
  Scheduler(std::uint64_t quantum_bytes, std::uint32_t quantum_requests)
      : quantum_bytes_(std::max<std::int64_t>(1, static_cast<std::int64_t>(quantum_bytes))),
        quantum_requests_(std::max<std::int64_t>(1, quantum_requests)) {}

  void add(Member* member) { members_.push_back(member); }
  void remove(Member* member) {
    members_.erase(std::remove(members_.begin(), members_.end(), member), members_.end());
    if (first_ >= members_.size()) first_ = 0;
  }
  const std::vector<Member*>& members() const { return members_; }

  /// Visits every member once: `serve(member)` sends while member.allowance.left() and returns how it ended;
  /// `weight(member)` is its share, at least 1.
  template <typename Serve, typename Weight>
  void round(Serve&& serve, Weight&& weight) {
    const std::size_t count = members_.size();
    std::size_t first_refused = count;
    bool somebody_in_debt = false;
    bool somebody_could_send = false;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = first_ + i < count ? first_ + i : first_ + i - count;
      Member& member = *members_[at];
      if (!member.in_turn) begin_turn(member.allowance, weight(member));
      const bool could_send = member.allowance.left();
      const Turn turn = serve(member);
      member.in_turn = turn == Turn::kRefused;
      if (turn == Turn::kIdle) forfeit(member.allowance);
      if (turn == Turn::kRefused && first_refused == count) first_refused = at;
      if (turn != Turn::kIdle) (could_send ? somebody_could_send : somebody_in_debt) = true;
    }
    if (first_refused != count) first_ = first_refused;
    if (somebody_in_debt && !somebody_could_send) forgive(weight);
  }

 private:
  // What is left of the last turn is not carried over, so nobody saves up; debts are.
  void begin_turn(Allowance& allowance, std::uint32_t weight) {
    forfeit(allowance);
    allowance.bytes += quantum_bytes_ * weight;
    allowance.requests += quantum_requests_ * weight;
  }
  static void forfeit(Allowance& allowance) {
    allowance.bytes = std::min<std::int64_t>(allowance.bytes, 0);
    allowance.requests = std::min<std::int64_t>(allowance.requests, 0);
  }

  // Everybody with something to send pays off an overdraft (one huge put): skip the rounds in which nobody
  // could.
  template <typename Weight>
  void forgive(Weight&& weight) {
    std::int64_t rounds = std::numeric_limits<std::int64_t>::max();
    for (const Member* member : members_) {
      if (member->allowance.bytes >= 0) continue;
      rounds = std::min(rounds, -member->allowance.bytes / (quantum_bytes_ * weight(*member)));
    }
    for (Member* member : members_) {
      if (member->allowance.bytes >= 0) continue;
      member->allowance.bytes += rounds * quantum_bytes_ * weight(*member);
    }
  }

  std::int64_t quantum_bytes_;
  std::int64_t quantum_requests_;
  std::vector<Member*> members_;
  std::size_t first_ = 0;
};

}  // namespace mkernel::dataplane
