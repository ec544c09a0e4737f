#include "daemon/session/session_group.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "daemon/session/gather.h"

namespace mkernel::session {

SessionGroup::SessionGroup(Services& services, JoinRequest request, std::uint32_t first_channel,
                           Charge charge)
    : services_(services), request_(std::move(request)), charge_(std::move(charge)) {
  shape_ = {request_.name,  request_.world_size,      request_.rank,
            request_.lanes, request_.region_capacity, first_channel};
}

std::string SessionGroup::describe() const {
  return "group \"" + request_.name + "\" (rank " + std::to_string(request_.rank) + ")";
}

// ---- the way in

void SessionGroup::join(Done done) {
  join_done_ = std::move(done);
  services_.coordinator->join(request_, [weak = weak_from_this()](Result<FormedGroup> group) {
    if (const auto self = weak.lock()) self->formed(std::move(group));
  });
}

void SessionGroup::formed(Result<FormedGroup> group) {
  if (state_ != State::kForming || !join_done_) return;
  if (!group.ok()) return finish_join(group.status());
  state_ = State::kOpening;
  if (const Status built = build(std::move(group).value()); !built.ok()) return opened(built);
  const auto on_all =
      gather(services_.io, services_.rails(), [weak = weak_from_this()](const Status& status) {
        if (const auto self = weak.lock()) self->opened(status);
      });
  for (dataplane::Proxy* proxy : services_.proxies) proxy->open_group(port_, on_all);
}

Status SessionGroup::build(FormedGroup group) {
  formed_ = std::move(group);
  if (formed_.members.size() != request_.world_size) {
    return {StatusCode::kInternal, describe() + " formed with " + std::to_string(formed_.members.size()) +
                                       " members instead of " + std::to_string(request_.world_size)};
  }
  MK_RETURN_IF_ERROR(check_rails());
  MK_RETURN_IF_ERROR(check_users());
  auto segment = create_group_segment(shape_, formed_);
  if (!segment.ok()) return segment.status().with_context(describe());

  const std::size_t channels = std::size_t{request_.world_size} * request_.lanes;
  auto port = std::make_shared<dataplane::GroupPort>();
  port->key = request_.key;
  port->name = request_.name;
  port->instance = formed_.instance;
  port->rank = request_.rank;
  port->world_size = request_.world_size;
  port->lanes = request_.lanes;
  port->region_capacity = request_.region_capacity;
  port->first_channel = shape_.first_channel;
  const std::vector<abi::Member> places = number_members(formed_.members);
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    dataplane::PeerRank& peer = port->ranks.emplace_back(formed_.members[rank].port);
    const auto same_node = [&](const abi::Member& other) { return other.node == places[rank].node; };
    peer.local_rank = places[rank].local_rank;
    peer.local_ranks = static_cast<std::uint32_t>(std::count_if(places.begin(), places.end(), same_node));
  }
  port->segment = std::move(segment->mapping);
  port->channels.grow(channels);
  segment_fd_ = std::move(segment->fd);
  port_ = std::move(port);
  return {};
}

/// What other nodes say of their ranks came over a wire.
Status SessionGroup::check_rails() const {
  for (std::size_t rank = 0; rank < formed_.members.size(); ++rank) {
    const FormedMember& member = formed_.members[rank];
    if (std::uint64_t{member.port.rails} >> services_.rails() == 0) continue;
    return {StatusCode::kInvalidArgument, describe() + ": rank " + std::to_string(rank) + " on node " +
                                              member.node_name + " goes over rails of mask " +
                                              std::to_string(member.port.rails) + ", this node has " +
                                              std::to_string(services_.rails())};
  }
  return {};
}

/// Ranks of one node reach each other's memory without asking again, so they belong to one user. The
/// coordinator sees to it; this does not rest on that.
Status SessionGroup::check_users() const {
  for (std::size_t rank = 0; rank < formed_.members.size(); ++rank) {
    const dataplane::PeerRank& port = formed_.members[rank].port;
    const auto uid = port.local ? services_.uid_of(port.local_key.session) : std::nullopt;
    if (!uid || *uid == request_.uid) continue;
    return {StatusCode::kPermissionDenied, describe() + ": rank " + std::to_string(rank) +
                                               " on this node belongs to user " + std::to_string(*uid) +
                                               ", this one to user " + std::to_string(request_.uid)};
  }
  return {};
}

void SessionGroup::opened(const Status& status) {
  if (state_ != State::kOpening || failure_) return;
  if (!status.ok()) {
    services_.coordinator->fail(key(), static_cast<std::int32_t>(request_.rank), status);
    return fail(static_cast<std::int32_t>(request_.rank), services_.node_name, status);
  }
  services_.coordinator->ready(key(), [weak = weak_from_this()](const Status& all_ready) {
    if (const auto self = weak.lock()) self->finish_join(all_ready);
  });
}

void SessionGroup::finish_join(Status status) {
  if (!join_done_) return;
  if (status.ok()) state_ = State::kReady;
  std::exchange(join_done_, nullptr)(std::move(status));
}

// ---- in use

Status SessionGroup::check_usable() const {
  if (failure_) return failure_->with_context(describe() + " has failed");
  if (state_ == State::kReady) return {};
  return {StatusCode::kFailedPrecondition,
          describe() + (state_ == State::kClosing ? " is being left" : " is not formed yet")};
}

Status SessionGroup::check_new_region(std::uint32_t index) const {
  MK_RETURN_IF_ERROR(check_usable());
  if (index >= request_.region_capacity) {
    return {StatusCode::kOutOfRange, "region index " + std::to_string(index) + " of " + describe() +
                                         ", whose region capacity is " +
                                         std::to_string(request_.region_capacity)};
  }
  if (opening_.count(index) != 0) {
    return {StatusCode::kAlreadyExists,
            "region index " + std::to_string(index) + " of " + describe() + " is being registered"};
  }
  if (const auto held = regions_.find(index); held != regions_.end()) {
    return {StatusCode::kAlreadyExists,
            "region index " + std::to_string(index) + " of " + describe() +
                (held->second.leaving
                     ? " is being unregistered"
                     : " is taken by a region of " + std::to_string(held->second.region->bytes) + " bytes")};
  }
  return {};
}

Status SessionGroup::end_region(std::uint32_t index) {
  opening_.erase(index);
  return check_usable();
}

void SessionGroup::add_region(std::uint32_t index, std::shared_ptr<const memory::Region> region,
                              Charge charge, Done done) {
  const abi::RegionEntry entry{region->bytes, static_cast<std::uint32_t>(region->kind), 0};
  regions_[index] = {region, std::move(charge)};
  if (region->needs_seal()) {
    announce(index, entry);
    return done({});
  }
  hand_to_proxies(index, region, [weak = weak_from_this(), index, entry, done](const Status& status) {
    if (const auto self = weak.lock()) self->announce(index, entry);
    done(status);
  });
}

void SessionGroup::hand_to_proxies(std::uint32_t index, const std::shared_ptr<const memory::Region>& region,
                                   Done done) {
  const auto on_all = gather(services_.io, services_.rails(),
                             [weak = weak_from_this(), done = std::move(done)](const Status& status) {
                               if (weak.lock() != nullptr) done(status);
                             });
  for (dataplane::Proxy* proxy : services_.proxies) {
    proxy->set_region(key(), index, region, [on_all] { on_all(Status()); });
  }
}

void SessionGroup::announce(std::uint32_t index, const abi::RegionEntry& entry) {
  if (state_ != State::kReady || abandoned_) return;
  services_.coordinator->announce_region(key(), index, entry);
}

Result<std::shared_ptr<const memory::Region>> SessionGroup::begin_seal(std::uint32_t index) {
  MK_RETURN_IF_ERROR(check_usable());
  const std::string what = "region at index " + std::to_string(index) + " of " + describe();
  const auto held = regions_.find(index);
  if (held == regions_.end() || held->second.leaving) {
    return Status(StatusCode::kNotFound, "no " + what);
  }
  if (!held->second.region->needs_seal()) {
    return Status(StatusCode::kFailedPrecondition, what + " is not shared host memory: it needs no seal");
  }
  if (std::exchange(held->second.sealing, true)) {
    return Status(StatusCode::kAlreadyExists, what + " is sealed or being sealed");
  }
  return held->second.region;
}

void SessionGroup::end_seal(std::uint32_t index, const std::shared_ptr<const memory::Region>& region,
                            const Status& status, Done done) {
  const auto held = regions_.find(index);
  if (held == regions_.end() || held->second.region != region || held->second.leaving) {
    return done({StatusCode::kAborted, "region at index " + std::to_string(index) + " of " + describe() +
                                           " was unregistered while it was being sealed"});
  }
  if (!status.ok()) {
    held->second.sealing = false;
    return done(status);
  }
  hand_to_proxies(index, region, std::move(done));
}

void SessionGroup::remove_region(std::uint32_t index, Done done) {
  const auto held = regions_.find(index);
  if (held == regions_.end() || held->second.leaving || state_ != State::kReady) {
    const bool gone = held == regions_.end() || held->second.leaving;
    return done(gone ? Status(StatusCode::kNotFound,
                              "no region at index " + std::to_string(index) + " of " + describe())
                     : check_usable());
  }
  held->second.leaving = true;
  // Peers first: whoever still writes to it is told here, by name, rather than by the proxy after the fact.
  services_.coordinator->announce_region(key(), index, abi::RegionEntry{});
  const auto on_all =
      gather(services_.io, services_.rails(), [weak = weak_from_this(), index, done](const Status& status) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        self->regions_.erase(index);
        done(status);
      });
  for (dataplane::Proxy* proxy : services_.proxies) {
    proxy->clear_region(key(), index, services_.limits.drain, on_all);
  }
}

void SessionGroup::exchange(std::uint64_t round, const Blob& blob, std::chrono::milliseconds timeout,
                            Done done) {
  if (const Status usable = check_usable(); !usable.ok()) return done(usable);
  if (exchange_done_) {
    return done({StatusCode::kFailedPrecondition,
                 describe() + ": exchange " + std::to_string(round_) + " is still under way"});
  }
  if (round != round_ + 1) {
    return done({StatusCode::kInvalidArgument, describe() + ": exchange round " + std::to_string(round) +
                                                   ", the next one is " + std::to_string(round_ + 1)});
  }
  round_ = round;
  exchanged_ = false;
  exchange_done_ = std::move(done);
  services_.coordinator->exchange(key(), round, blob, timeout,
                                  [weak = weak_from_this(), round](Result<Round> blobs) {
                                    const auto self = weak.lock();
                                    if (self != nullptr && self->round_ == round && self->exchange_done_)
                                      self->exchanged(std::move(blobs));
                                  });
}

/// The client may write to every region that was announced before: once the proxies know all of them.
void SessionGroup::exchanged(Result<Round> blobs) {
  // Once the client can see in its segment that the group has ended, part_from() answers.
  if (!blobs.ok() && failure_ && !aborted_) return;
  if (!blobs.ok()) return finish_exchange(blobs.status());
  write_board(port_->segment, shape_, **blobs);
  exchanged_ = true;
  if (changes_ == 0) finish_exchange(Status());
}

void SessionGroup::finish_exchange(Status status) {
  if (exchange_done_) std::exchange(exchange_done_, nullptr)(std::move(status));
}

bool SessionGroup::region_changes(std::uint32_t rank, std::uint32_t index, const abi::RegionEntry& entry) {
  if (port_ == nullptr || state_ == State::kClosing) return false;
  if (rank >= request_.world_size || index >= request_.region_capacity) return false;
  for (dataplane::Proxy* proxy : services_.proxies) {
    proxy->set_remote_region(key(), rank, index, entry.bytes);
  }
  ++changes_;
  return true;
}

void SessionGroup::region_changed(std::uint32_t rank, std::uint32_t index, const abi::RegionEntry& entry) {
  --changes_;
  if (port_ == nullptr || state_ == State::kClosing) return;
  write_region_entry(port_->segment, shape_, rank, index, entry);
  if (changes_ == 0 && exchanged_) finish_exchange(Status());
}

// ---- the way out

void SessionGroup::leave(Done done) {
  state_ = State::kClosing;
  finish_exchange({StatusCode::kCancelled, describe() + " is being left"});
  const auto finish = [weak = weak_from_this(), done = std::move(done)](const Status&) {
    if (const auto self = weak.lock()) self->closed(done);
  };
  if (port_ == nullptr) return boost::asio::post(services_.io, [finish] { finish(Status()); });
  const auto on_all = gather(services_.io, services_.rails(), finish);
  for (dataplane::Proxy* proxy : services_.proxies) {
    proxy->close_group(key(), drain_limit(), [on_all] { on_all(Status()); });
  }
}

std::chrono::milliseconds SessionGroup::drain_limit() const {
  return aborted_ ? std::chrono::milliseconds(0) : services_.limits.drain;
}

void SessionGroup::closed(const Done& done) {
  regions_.clear();
  port_.reset();
  if (!formed_.members.empty() && !abandoned_) services_.coordinator->leave(key());
  done(Status());
}

// ---- what others see

std::uint64_t SessionGroup::pinned_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [index, held] : regions_) sum += held.region->bytes;
  return sum;
}

std::uint64_t SessionGroup::gpu_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [index, held] : regions_) sum += held.region->on_gpu() ? held.region->bytes : 0;
  return sum;
}

std::shared_ptr<const memory::Region> SessionGroup::region(std::uint32_t index) const {
  const auto held = regions_.find(index);
  return held == regions_.end() || held->second.leaving ? nullptr : held->second.region;
}

bool SessionGroup::spans_nodes() const {
  return std::any_of(formed_.members.begin(), formed_.members.end(),
                     [](const FormedMember& member) { return !member.port.local; });
}

std::uint32_t SessionGroup::ranks_here() const {
  return static_cast<std::uint32_t>(
      std::count_if(formed_.members.begin(), formed_.members.end(),
                    [](const FormedMember& member) { return member.port.local; }));
}

bool SessionGroup::uses_peer(transport::PeerId peer) const {
  return port_ != nullptr && std::any_of(port_->ranks.begin(), port_->ranks.end(), [peer](const auto& rank) {
           return !rank.local && rank.peer == peer;
         });
}

const FormedMember* SessionGroup::member(std::uint32_t rank) const {
  return rank < formed_.members.size() ? &formed_.members[rank] : nullptr;
}

}  // namespace mkernel::session
