// What a rank of this node and its group hear of the other ranks: who is gone, what is rejected, how it ends.
#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/session/gather.h"
#include "daemon/session/session_group.h"

namespace mkernel::session {
namespace {

/// Kernels look at one word of the host's, which ends them as a whole. So that a launch of a GPU that needs
/// nothing more of a lost rank finishes, and one that does need it ends long before its deadline, the word is
/// raised so long after the loss.
constexpr std::chrono::seconds kGpuGrace{2};

/// How many launches ranks can be apart before a rejection by all of them is taken for one by some.
constexpr std::size_t kRejectionsKept = 64;

}  // namespace

void SessionGroup::fail(std::int32_t culprit, const std::string& node, const Status& why) {
  if (std::exchange(aborted_, true)) return;
  if (port_ != nullptr && !failure_) write_group_record(port_->segment, culprit, node, why);
  if (!failure_) failure_ = why;
  if (port_ != nullptr) abort_group(port_->segment, *failure_);
  finish_exchange(*failure_);
  finish_join(*failure_);
}

/// Proxies first: who sees that the rank is gone finds that its puts to it are completed.
void SessionGroup::rank_gone(std::uint32_t rank, const std::string& node, const Status& why) {
  if (port_ == nullptr || rank >= request_.world_size || rank == request_.rank) return;
  if (!why.ok() && !failure_) {
    failure_ = why;
    write_group_record(port_->segment, static_cast<std::int32_t>(rank), node, why);
  }
  // A proxy finds out by itself that a rank of this node is gone.
  if (port_->ranks[rank].local) return part_from(rank, why);
  const auto on_all = gather(services_.io, services_.rails(), [weak = weak_from_this(), rank, why](Status) {
    if (const auto self = weak.lock()) self->part_from(rank, why);
  });
  for (dataplane::Proxy* proxy : services_.proxies) {
    proxy->rank_left(key(), rank);
    proxy->settle([on_all] { on_all(Status()); });
  }
}

void SessionGroup::part_from(std::uint32_t rank, const Status& why) {
  if (port_ == nullptr) return;
  if (!why.ok()) end_group(port_->segment, *failure_);
  write_presence(port_->segment, shape_, rank, why.ok() ? abi::Presence::kLeft : abi::Presence::kLost);
  if (why.ok()) return;
  finish_exchange(*failure_);
  finish_join(*failure_);
  if (!request_.has_gpu || aborted_ || grace_ != nullptr) return;
  grace_ = std::make_unique<boost::asio::steady_timer>(services_.io, kGpuGrace);
  grace_->async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || self->port_ == nullptr) return;
    abort_group(self->port_->segment, *self->failure_);
  });
}

void SessionGroup::reject(std::uint64_t launch) {
  rejected_.push_back(launch);
  if (rejected_.size() > kRejectionsKept) rejected_.pop_front();
}

/// The client raises its launches before it looks at the rejections: one of the two sees the other. A launch
/// that it rejects too may be counted there before the client has come to say so.
Status SessionGroup::launch_rejected(std::uint32_t rank, std::uint64_t launch, const Status& why) {
  if (port_ == nullptr || failure_) return {};
  if (std::find(rejected_.begin(), rejected_.end(), launch) != rejected_.end()) return {};
  write_rejection(port_->segment, shape_, rank, launch, why);
  const abi::RankState own = read_own_state(port_->segment, shape_);
  if (own.launches < launch) return {};
  if (own.launches == launch && own.phase == static_cast<std::uint32_t>(abi::RankPhase::kRejected)) return {};
  return why.with_context("rank " + std::to_string(rank) + " rejected launch " + std::to_string(launch));
}

abi::RankState SessionGroup::state_of_rank() const {
  return port_ == nullptr ? abi::RankState{} : read_own_state(port_->segment, shape_);
}

void SessionGroup::states_known(const std::vector<RankReport>& states) {
  if (port_ == nullptr) return;
  for (const RankReport& report : states) write_state(port_->segment, shape_, report);
}

void SessionGroup::abandon(const Status& why) {
  abandoned_ = true;
  join_done_ = nullptr;
  exchange_done_ = nullptr;
  fail(static_cast<std::int32_t>(request_.rank), services_.node_name, why);
}

}  // namespace mkernel::session
