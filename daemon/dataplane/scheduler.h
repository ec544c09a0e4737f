// Deficit round robin by bytes and by requests, over users first and over the sessions of each user second.
// Pure bookkeeping: what a turn does is the caller's.
//
// A user's turn starts with one quantum per unit of its weight and ends when that is used up or none of its
// sessions has anything left to send; within it the sessions take turns in the same way, by their own
// weights. So it does not matter how many sessions a user opens. The last put of a turn may overdraw; the
// debt is paid from later turns. A session that the transport refuses keeps its turn and what is left of it:
// the others go on in this round, and it is first in the next one. So a full transport is shared by weight as
// well, and one full peer holds up only those who send to it. A user with a rate limit sends no more than its
// bucket holds. A member without a limit that is alone has a whole turn in every round and owes nothing: all
// that is counted for the others' sake would be up to a tenth of a signal's latency.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/dataplane/allowance.h"
#include "daemon/dataplane/token_bucket.h"

namespace mkernel::dataplane {

/// How a visit ended.
enum class Turn : std::uint8_t {
  kIdle,     ///< nothing left to send
  kUsedUp,   ///< more to send, allowance used up
  kRefused,  ///< more to send, the transport takes no more for now
};

/// Whose member it is, and what is due to both.
struct Share {
  std::uint32_t user = 0;
  std::uint32_t user_weight = 1;
  std::uint32_t weight = 1;               ///< among the members of the user
  std::uint64_t bytes_per_second = 0;     ///< of the user, 0 = no limit
  std::uint64_t requests_per_second = 0;  ///< likewise
};

/// Member must have `Allowance allowance`, `bool in_turn` and `bool throttled`, all the scheduler's own: what
/// it may still send, whether its turn goes on in the next round, whether its user's rate limit holds it up.
/// `bool has_work() const` says whether a visit would find something to send; most rounds find nothing, and
/// what a round costs then is in the latency of every put. Not owned.
template <typename Member>
class Scheduler {
 public:
  Scheduler(std::uint64_t quantum_bytes, std::uint32_t quantum_requests)
      : quantum_{std::max<std::int64_t>(1, static_cast<std::int64_t>(quantum_bytes)),
                 std::max<std::int64_t>(1, quantum_requests)} {}

  /// The last one to be added says what its user's weight and limits are.
  void add(Member* member, const Share& share);
  void remove(Member* member);
  const std::vector<Member*>& members() const { return members_; }

  /// Visits every member with work once: `serve(member)` sends while member.allowance.left() and returns how
  /// it ended. `now()` is called only when some user has a rate limit.
  template <typename Serve, typename Now>
  void round(Serve&& serve, Now&& now);

 private:
  struct Entry {
    Member* member = nullptr;
    std::int64_t weight = 1;
    bool served = false;   ///< in this round
    bool waiting = false;  ///< has more to send and has used up its own allowance
  };
  struct User {
    std::uint32_t id = 0;
    std::int64_t weight = 1;
    Allowance allowance;
    bool in_turn = false;
    bool waiting = false;  ///< as for a member
    TokenBucket bucket;
    std::vector<Entry> entries;
    std::size_t next = 0;           ///< whose turn it is
    std::size_t first_in_turn = 0;  ///< who asks first of those whose turn goes on
    std::size_t in_turns = 0;       ///< members whose turn goes on

    bool may_send() const { return allowance.left() && (!bucket.limited() || bucket.left().left()); }
    bool has_work() const {
      return std::any_of(entries.begin(), entries.end(),
                         [](const Entry& entry) { return entry.member->has_work(); });
    }
  };
  /// What a visit to the members of a user came to.
  struct Visit {
    bool used_up = false;  ///< somebody has more to send and may not
    bool refused = false;  ///< somebody has more to send and cannot
    bool waiting = false;  ///< somebody has used up its own allowance
    bool sent = false;
    std::size_t first_in_turn = 0;
  };

  void settle();
  template <typename Serve>
  void serve_lone(Serve& serve);
  void pass_over(User& user);
  void pass_over(Entry& entry, const User& user);
  static void renew(Allowance& allowance, const Allowance& quantum);
  static void recover(Allowance& allowance, const Allowance& quantum);
  template <typename Serve>
  void visit(User& user, Visit& seen, Serve& serve);
  template <typename Serve>
  void visit_member(User& user, std::size_t at, Visit& seen, Serve& serve);
  static std::size_t wrap(std::size_t at, std::size_t count) { return at < count ? at : at - count; }
  Allowance quanta(std::int64_t count) const { return {quantum_.bytes * count, quantum_.requests * count}; }

  // Everybody with something to send pays off an overdraft (one huge put): skip the rounds in which nobody
  // could. `ledger` of an element of `all`: its allowance, weight and whether it waits.
  struct Ledger {
    Allowance& allowance;
    std::int64_t weight;
    bool waiting;
  };
  template <typename All, typename LedgerOf>
  void forgive(All& all, LedgerOf&& ledger_of) const;

  const Allowance quantum_;
  std::vector<Member*> members_;
  std::vector<std::unique_ptr<User>> users_;
  std::size_t first_ = 0;
  std::size_t limited_ = 0;  ///< users with a rate limit
  User* lone_ = nullptr;     ///< whose member is the only one, where nobody has a rate limit
};

template <typename Member>
void Scheduler<Member>::add(Member* member, const Share& share) {
  auto found = std::find_if(users_.begin(), users_.end(),
                            [&share](const auto& user) { return user->id == share.user; });
  if (found == users_.end()) {
    users_.push_back(std::make_unique<User>());
    found = users_.end() - 1;
    (*found)->id = share.user;
  }
  User& user = **found;
  user.weight = std::max<std::uint32_t>(1, share.user_weight);
  user.bucket = TokenBucket(share.bytes_per_second, share.requests_per_second, quantum_);
  user.entries.push_back({member, std::max<std::uint32_t>(1, share.weight)});
  members_.push_back(member);
  settle();
}

template <typename Member>
void Scheduler<Member>::remove(Member* member) {
  std::erase(members_, member);
  for (auto& user : users_) {
    const std::size_t before = user->entries.size();
    std::erase_if(user->entries, [member](const Entry& entry) { return entry.member == member; });
    if (user->entries.size() == before) continue;
    if (member->in_turn) --user->in_turns;
    user->next = user->first_in_turn = 0;
  }
  std::erase_if(users_, [](const auto& user) { return user->entries.empty(); });
  if (first_ >= users_.size()) first_ = 0;
  settle();
}

/// After members came or went. Of what one that is alone now had to share and owed nothing remains.
template <typename Member>
void Scheduler<Member>::settle() {
  limited_ = static_cast<std::size_t>(
      std::count_if(users_.begin(), users_.end(), [](const auto& one) { return one->bucket.limited(); }));
  lone_ = members_.size() == 1 && limited_ == 0 ? users_.front().get() : nullptr;
  if (lone_ == nullptr) return;
  lone_->allowance = {};
  lone_->in_turn = lone_->waiting = false;
  lone_->in_turns = 0;
  lone_->entries.front().waiting = false;
  Member& member = *members_.front();
  member.allowance = {};
  member.in_turn = member.throttled = false;
}

template <typename Member>
template <typename Serve>
void Scheduler<Member>::serve_lone(Serve& serve) {
  Member& member = *members_.front();
  if (!member.has_work()) return;
  member.allowance = quanta(lone_->weight);
  serve(member);
  member.allowance = {};
}

template <typename Member>
template <typename Serve, typename Now>
void Scheduler<Member>::round(Serve&& serve, Now&& now) {
  if (lone_ != nullptr) return serve_lone(serve);
  if (limited_ > 0) {
    const base::TimePoint time = now();
    for (auto& user : users_) {
      if (user->bucket.limited()) user->bucket.refill(time);
    }
  }
  const std::size_t count = users_.size();
  std::size_t first_refused = count;
  bool somebody_in_debt = false;
  bool somebody_could_send = false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = wrap(first_ + i, count);
    User& user = *users_[at];
    if (!user.in_turn && !user.has_work()) {
      pass_over(user);
      continue;
    }
    if (!user.in_turn) {
      renew(user.allowance, quanta(user.weight));
    }
    const bool throttled = user.bucket.limited() && !user.bucket.left().left();
    const bool could_send = user.allowance.left();
    Visit seen;
    visit(user, seen, serve);
    user.in_turn = seen.refused && !seen.used_up;
    user.waiting = seen.used_up;
    if (!seen.refused && !seen.used_up) user.allowance.forfeit();
    if (seen.refused && first_refused == count) first_refused = at;
    if ((seen.refused || seen.used_up) && !throttled) {
      (could_send ? somebody_could_send : somebody_in_debt) = true;
    }
  }
  if (first_refused != count) first_ = first_refused;
  if (somebody_in_debt && !somebody_could_send) {
    forgive(users_, [](auto& user) { return Ledger{user->allowance, user->weight, user->waiting}; });
  }
}

/// A turn begins: one quantum, less what is owed.
template <typename Member>
void Scheduler<Member>::renew(Allowance& allowance, const Allowance& quantum) {
  allowance.forfeit();
  allowance += quantum;
}

/// Of whoever has nothing to send: a quantum pays off a debt, and nothing else is carried over.
template <typename Member>
void Scheduler<Member>::recover(Allowance& allowance, const Allowance& quantum) {
  if (allowance == Allowance{}) return;
  renew(allowance, quantum);
  allowance.forfeit();
}

template <typename Member>
void Scheduler<Member>::pass_over(User& user) {
  recover(user.allowance, quanta(user.weight));
  user.waiting = false;
  for (Entry& entry : user.entries) pass_over(entry, user);
}

template <typename Member>
void Scheduler<Member>::pass_over(Entry& entry, const User& user) {
  recover(entry.member->allowance, quanta(entry.weight * user.weight));
  entry.member->throttled = false;
  entry.waiting = false;
}

// Those whose turn goes on come first, then the others from where the last visit ended. Who is visited when
// the user may send no more only says whether it would. While the user may send more, those that had a debt
// to pay get another quantum.
template <typename Member>
template <typename Serve>
void Scheduler<Member>::visit(User& user, Visit& seen, Serve& serve) {
  const std::size_t count = user.entries.size();
  seen.first_in_turn = count;
  for (std::size_t i = 0, from = user.first_in_turn; i < count && user.in_turns > 0; ++i) {
    const std::size_t at = wrap(from + i, count);
    if (user.entries[at].member->in_turn) visit_member(user, at, seen, serve);
  }
  for (std::size_t i = 0, from = user.next; i < count; ++i) {
    const std::size_t at = wrap(from + i, count);
    if (!user.entries[at].served) {
      const bool could_send = user.allowance.left();
      visit_member(user, at, seen, serve);
      if (could_send && !user.allowance.left()) user.next = wrap(at + 1, count);
    }
    user.entries[at].served = false;
  }
  while (seen.waiting && user.may_send()) {
    if (!std::exchange(seen.sent, false)) {
      forgive(user.entries, [&user](Entry& entry) {
        return Ledger{entry.member->allowance, entry.weight * user.weight, entry.waiting};
      });
    }
    seen.waiting = false;
    for (std::size_t i = 0, from = user.next; i < count; ++i) {
      const std::size_t at = wrap(from + i, count);
      if (user.entries[at].waiting) visit_member(user, at, seen, serve);
      user.entries[at].served = false;
    }
  }
  if (seen.first_in_turn != count) user.first_in_turn = seen.first_in_turn;
}

// A member's quantum is as large as its user's, so that one alone uses up what the user may send.
template <typename Member>
template <typename Serve>
void Scheduler<Member>::visit_member(User& user, std::size_t at, Visit& seen, Serve& serve) {
  Entry& entry = user.entries[at];
  Member& member = *entry.member;
  entry.served = true;
  if (!member.in_turn && !member.has_work()) return pass_over(entry, user);
  if (member.in_turn) {
    --user.in_turns;
  } else if (user.allowance.left()) {
    renew(member.allowance, quanta(entry.weight * user.weight));
  }
  const Allowance own = member.allowance;
  const bool limited = user.bucket.limited();
  Allowance grant = at_most(own, user.allowance);
  if (limited) grant = at_most(grant, user.bucket.left());
  member.allowance = grant;
  const Turn turn = serve(member);
  const Allowance used = grant - member.allowance;
  member.allowance = own - used;
  user.allowance -= used;
  if (limited) user.bucket.charge(used);

  member.throttled = limited && turn == Turn::kUsedUp && !user.bucket.left().left();
  if (turn == Turn::kIdle) member.allowance.forfeit();
  // Cut short by what its user may send: its turn goes on as well.
  member.in_turn = turn == Turn::kRefused || (turn == Turn::kUsedUp && member.allowance.left());
  entry.waiting = turn == Turn::kUsedUp && !member.in_turn;
  if (member.in_turn) ++user.in_turns;
  if (member.in_turn && seen.first_in_turn == user.entries.size()) seen.first_in_turn = at;
  seen.used_up = seen.used_up || turn == Turn::kUsedUp;
  seen.refused = seen.refused || turn == Turn::kRefused;
  seen.waiting = seen.waiting || entry.waiting;
  seen.sent = seen.sent || used.requests > 0 || used.bytes > 0;
}

template <typename Member>
template <typename All, typename LedgerOf>
void Scheduler<Member>::forgive(All& all, LedgerOf&& ledger_of) const {
  std::int64_t rounds = std::numeric_limits<std::int64_t>::max();
  for (auto& one : all) {
    const Ledger ledger = ledger_of(one);
    if (!ledger.waiting) continue;
    const std::int64_t debt = std::max<std::int64_t>(0, -ledger.allowance.bytes);
    rounds = std::min(rounds, debt / (quantum_.bytes * ledger.weight));
  }
  if (rounds == std::numeric_limits<std::int64_t>::max()) return;
  for (auto& one : all) {
    const Ledger ledger = ledger_of(one);
    if (ledger.allowance.bytes >= 0) continue;
    const std::int64_t debt = -ledger.allowance.bytes;
    const std::int64_t worth = quantum_.bytes * ledger.weight;
    ledger.allowance.bytes = rounds > debt / worth ? 0 : ledger.allowance.bytes + rounds * worth;
  }
}

}  // namespace mkernel::dataplane
