// What mkctl sees: plain values, read off the sessions.
#include "daemon/session/inspect.h"

#include <atomic>

#include "daemon/base/hex.h"
#include "daemon/memory/open_region.h"
#include "daemon/session/session.h"
#include "daemon/session/session_group.h"

namespace mkernel::session {
namespace {

const char* state_name(const SessionGroup& group) {
  if (group.failure()) return "failed";
  switch (group.state()) {
    case SessionGroup::State::kForming:
    case SessionGroup::State::kOpening: return "forming";
    case SessionGroup::State::kReady: return "ready";
    case SessionGroup::State::kClosing: break;
  }
  return "closing";
}

std::string dma_buf_text(const memory::Region& region) {
  if (!region.on_gpu()) return "";
  if (region.dma_buf.valid()) return "yes";
  return region.no_dma_buf.empty() ? "no" : "no: " + region.no_dma_buf;
}

std::string owner_text(const JoinRequest& request) {
  if (request.secret_hash.empty()) return "user " + std::to_string(request.uid);
  std::uint64_t start = 0;
  for (const char c : request.secret_hash.substr(0, sizeof(start)))
    start = start << 8 | static_cast<unsigned char>(c);
  return "secret " + base::hex(start);
}

std::string rails_text(const abi::RingShare& share) {
  std::string text;
  for (std::uint32_t lane = 0; lane < share.count(); ++lane)
    text += (lane == 0 ? "" : ",") + std::to_string(share.ring(lane));
  return text;
}

}  // namespace

CounterSnapshot snapshot(const dataplane::Counters& counters) {
  const auto read = [](const std::atomic<std::uint64_t>& value) {
    return value.load(std::memory_order_relaxed);
  };
  return {read(counters.requests_total),      read(counters.bytes_total),
          read(counters.completed_total),     read(counters.arrivals_total),
          read(counters.arrived_bytes_total), read(counters.errors_total),
          read(counters.stalls_total),        read(counters.stall_nanoseconds_total),
          read(counters.ring_depth)};
}

CounterSnapshot& operator+=(CounterSnapshot& sum, const CounterSnapshot& more) {
  sum.requests_total += more.requests_total;
  sum.bytes_total += more.bytes_total;
  sum.completed_total += more.completed_total;
  sum.arrivals_total += more.arrivals_total;
  sum.arrived_bytes_total += more.arrived_bytes_total;
  sum.errors_total += more.errors_total;
  sum.stalls_total += more.stalls_total;
  sum.stall_nanoseconds_total += more.stall_nanoseconds_total;
  sum.ring_depth += more.ring_depth;
  return sum;
}

UserSnapshot snapshot(const User& user) {
  UserSnapshot seen;
  seen.uid = user.uid;
  seen.connections = user.ledger.held(Resource::kConnections);
  seen.sessions = user.ledger.held(Resource::kSessions);
  seen.fds = user.ledger.held(Resource::kFds);
  seen.regions = user.ledger.held(Resource::kRegions);
  seen.pinned_bytes = user.ledger.held(Resource::kPinnedBytes);
  seen.gpu_bytes = user.ledger.held(Resource::kGpuBytes);
  seen.daemon_bytes = user.ledger.held(Resource::kDaemonBytes);
  seen.channels = user.ledger.held(Resource::kChannels);
  seen.refusals_total = user.refusals_total;
  seen.limits = user.rights.limits;
  return seen;
}

SessionSnapshot Session::snapshot() const {
  SessionSnapshot seen;
  seen.id = id_;
  seen.client_name = client_name_;
  seen.pid = identity_.pid;
  seen.uid = identity_.uid;
  seen.device = device_;
  seen.weight = port_->weight;
  seen.active = active();
  seen.launches_total = std::atomic_ref(port_->header()->launches).load(std::memory_order_relaxed);
  seen.fallbacks_total = std::atomic_ref(port_->header()->fallbacks).load(std::memory_order_relaxed);
  seen.age_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
  seen.pinned_bytes = pinned_bytes();
  seen.groups = groups_.size();
  for (const auto& [handle, group] : groups_) {
    seen.regions += group->region_count();
    seen.gpu_bytes += group->gpu_bytes();
  }
  for (const dataplane::Counters& rail : port_->counters) seen.counters += session::snapshot(rail);
  return seen;
}

GroupSnapshot SessionGroup::snapshot() const {
  GroupSnapshot seen;
  seen.session = request_.key.session;
  seen.handle = request_.key.handle;
  seen.name = request_.name;
  seen.owner = owner_text(request_);
  seen.state = state_name(*this);
  seen.instance = formed_.instance;
  seen.rank = request_.rank;
  seen.world_size = request_.world_size;
  seen.lanes = request_.lanes;
  for (const abi::Member& member : number_members(formed_.members)) {
    seen.nodes = std::max(seen.nodes, member.node + 1);
  }
  if (port_ != nullptr) seen.rails = rails_text(port_->ranks[request_.rank].ring_share(services_.rails()));
  if (failure_) seen.failure = failure_->to_string();
  return seen;
}

bool SessionGroup::list_regions(std::uint64_t& row, std::size_t& left,
                                std::vector<RegionSnapshot>& out) const {
  for (auto held = regions_.lower_bound(static_cast<std::uint32_t>(row)); held != regions_.end(); ++held) {
    row = held->first;
    if (left == 0) return false;
    --left;
    const memory::Region& region = *held->second.region;
    out.push_back({request_.key.session, request_.name, memory::kind_name(region.kind), held->first,
                   region.bytes, region.shared, region.device, dma_buf_text(region)});
  }
  return true;
}

bool SessionGroup::list_channels(bool all, std::uint64_t& row, std::size_t& left,
                                 std::vector<ChannelSnapshot>& out) const {
  if (port_ == nullptr) return true;
  const std::uint64_t rows = std::uint64_t{request_.world_size} * request_.lanes;
  for (; row < rows; ++row) {
    if (left == 0) return false;
    --left;
    const CounterSnapshot seen = session::snapshot(port_->channels[row]);
    if (!all && seen.requests_total == 0 && seen.arrivals_total == 0) continue;
    const auto peer = static_cast<std::uint32_t>(row / request_.lanes);
    const auto lane = static_cast<std::uint32_t>(row % request_.lanes);
    out.push_back({request_.key.session, request_.name, formed_.members[peer].node_name, request_.rank, peer,
                   lane, seen.requests_total, seen.bytes_total, seen.completed_total, seen.arrivals_total,
                   seen.arrived_bytes_total});
  }
  return true;
}

}  // namespace mkernel::session
