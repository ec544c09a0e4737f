// What a client may ask for, one handler per message. A request that cannot be met is answered with a status
// that names value and limit, and the session goes on; a packet that is no message ends the session.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/base/utf8.h"
#include "daemon/memory/open_region.h"
#include "daemon/session/message_decoder.h"
#include "daemon/session/session.h"

namespace mkernel::session {
namespace {

constexpr std::uint32_t kMaxWeight = 64;
constexpr std::chrono::milliseconds kMaxTimeout = std::chrono::hours(24);

using abi::MessageType;

/// Names go into errors, logs and tables of other tenants: nothing unprintable.
Status check_name(std::string_view name, const char* what) {
  if (name.empty()) return {StatusCode::kInvalidArgument, std::string(what) + " is empty"};
  const auto odd =
      std::find_if(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; });
  if (odd == name.end()) return {};
  return {StatusCode::kInvalidArgument,
          std::string(what) + " holds byte " + std::to_string(static_cast<unsigned char>(*odd)) +
              " at position " + std::to_string(odd - name.begin()) + ", allowed is printable ASCII"};
}

Status check_at_most(std::uint64_t value, std::uint64_t limit, const std::string& what,
                     const char* limit_name) {
  if (value <= limit) return {};
  return {StatusCode::kResourceExhausted,
          what + " = " + std::to_string(value) + " is above " + limit_name + " = " + std::to_string(limit)};
}

std::chrono::milliseconds timeout_of(std::uint32_t asked_ms, std::chrono::milliseconds standard) {
  return asked_ms == 0 ? standard : std::min(std::chrono::milliseconds(asked_ms), kMaxTimeout);
}

/// A client's text that will stand in the logs and tables of others, and in messages to peers and mkctl,
/// keeps to one printable line of UTF-8.
std::string one_line(std::string_view text) {
  std::string line = base::valid_utf8(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return line;
}

/// A status that came from a client: an unknown code becomes kUnknown.
Status client_status(std::uint32_t code, std::string_view text, const JoinRequest& who) {
  const bool known = code <= static_cast<std::uint32_t>(StatusCode::kDataLoss);
  return {known ? static_cast<StatusCode>(code) : StatusCode::kUnknown,
          "rank " + std::to_string(who.rank) + " (\"" + who.client_name + "\", pid " +
              std::to_string(who.pid) + "): " + one_line(text)};
}

}  // namespace

template <typename Reply>
void Session::send(const Reply& reply, std::span<const int> fds) {
  if (ending_) return;
  const Status sent = ipc::send_message(socket_.native_handle(), reply, fds);
  if (sent.ok()) return;
  if (sent.code() == StatusCode::kUnavailable) return gone();
  end({StatusCode::kResourceExhausted, describe() + " does not read its replies: " + sent.text()});
}

void Session::reply(MessageType type, std::uint32_t sequence, const Status& status) {
  // An error reply of any type is the plain one, filled up with zeros to the size of its type.
  const auto answer = [&](auto message) {
    message.header = ipc::header_of<decltype(message)>(type, sequence);
    message.status = ipc::to_reply(status);
    send(message);
  };
  switch (type) {
    case MessageType::kHelloReply: return answer(abi::HelloReply{});
    case MessageType::kJoinGroupReply: return answer(abi::JoinGroupReply{});
    case MessageType::kMapRegionReply: return answer(abi::MapRegionReply{});
    default: return answer(abi::PlainReply{});
  }
}

SessionGroup::Done Session::replier(MessageType type, std::uint32_t sequence) {
  return [weak = weak_from_this(), type, sequence](const Status& status) {
    if (const auto self = weak.lock()) self->reply(type, sequence, status);
  };
}

void Session::handle(ipc::Packet& packet) {
  const auto message =
      decode({{packet.data, packet.bytes}, packet.fds.size(), packet.truncated, packet.fds_truncated});
  if (!message.ok()) return end(message.status().with_context(describe() + " broke the protocol"));
  const bool is_hello = std::holds_alternative<abi::Hello>(message.value());
  if (is_hello == introduced()) {
    return end({StatusCode::kFailedPrecondition,
                describe() + " broke the protocol: " +
                    (is_hello ? "a second hello" : "its first message is not hello")});
  }
  std::visit([&](const auto& body) { on(body, packet); }, message.value());
}

// ---- hello

Status Session::check_hello(const abi::Hello& hello) const {
  MK_RETURN_IF_ERROR(check_name(ipc::text_of(hello.client_name), "hello: client name"));
  if (hello.weight > kMaxWeight) {
    return {StatusCode::kInvalidArgument, "hello: weight = " + std::to_string(hello.weight) +
                                              ", allowed are 1 to " + std::to_string(kMaxWeight) +
                                              " (0 = 1)"};
  }
  const std::size_t sessions = services_.session_count();
  if (sessions >= services_.limits.max_sessions) {
    return {StatusCode::kResourceExhausted,
            "node " + services_.node_name + " has " + std::to_string(sessions) +
                " sessions, limits.max_sessions = " + std::to_string(services_.limits.max_sessions)};
  }
  if (hello.device >= -1) return {};
  return {StatusCode::kInvalidArgument, "hello: device = " + std::to_string(hello.device) +
                                            ", allowed are GPU ordinals and -1 for host only"};
}

Status Session::create_port(const abi::Hello& hello, ipc::UniqueFd& segment_fd) {
  auto segment = create_session_segment(id_, services_.rails(), services_.log2_slots);
  if (!segment.ok()) return segment.status();
  auto port = std::make_shared<dataplane::SessionPort>();
  port->id = id_;
  port->name = ipc::text_of(hello.client_name);
  port->weight = std::max(hello.weight, 1U);
  port->segment = std::move(segment->mapping);
  for (std::uint32_t ring = 0; ring < services_.rails(); ++ring) {
    auto doorbell = ipc::create_event();
    if (!doorbell.ok()) return doorbell.status();
    port->doorbell.push_back(std::move(doorbell).value());
  }
  port->counters = std::vector<dataplane::Counters>(services_.rails());
  segment_fd = std::move(segment->fd);
  port_ = std::move(port);
  return {};
}

void Session::on(const abi::Hello& hello, ipc::Packet&) {
  ipc::UniqueFd segment_fd;
  Status status = check_hello(hello);
  if (status.ok()) status = create_port(hello, segment_fd);
  // Refused, not ended: the client may say hello again, until limits.hello_timeout_ms.
  if (!status.ok()) return reply(MessageType::kHelloReply, hello.header.sequence, status);
  hello_timer_.cancel();
  client_name_ = port_->name;
  device_ = hello.device;
  rails_ = services_.rails_near(hello.pci_address);
  for (dataplane::Proxy* proxy : services_.proxies) proxy->attach_session(port_);

  spdlog::info("session {}: {}, user {}, weight {}", id_, describe(), uid(), port_->weight);

  abi::HelloReply answer{};
  answer.header = ipc::header_of<abi::HelloReply>(MessageType::kHelloReply, hello.header.sequence);
  answer.session_id = id_;
  answer.boot_id = services_.boot_id;
  answer.ring_count = services_.rails();
  answer.max_lanes = services_.limits.max_lanes;
  answer.segment_bytes = port_->segment.bytes();
  ipc::copy_text(answer.node_name, services_.node_name);
  std::vector<int> fds{segment_fd.get()};
  for (const ipc::UniqueFd& doorbell : port_->doorbell) fds.push_back(doorbell.get());
  send(answer, fds);
}

// ---- groups

Status Session::check_join(const abi::JoinGroup& join) const {
  const config::Limits& limits = services_.limits;
  MK_RETURN_IF_ERROR(check_name(ipc::text_of(join.name), "join_group: group name"));
  const std::string who = "join_group \"" + std::string(ipc::text_of(join.name)) + "\": ";
  if (join.world_size == 0 || join.lanes == 0) {
    return {StatusCode::kInvalidArgument,
            who + (join.lanes == 0 ? "lanes" : "world size") + " = 0, allowed are 1 and more"};
  }
  MK_RETURN_IF_ERROR(
      check_at_most(join.world_size, limits.max_world_size, who + "world size", "limits.max_world_size"));
  MK_RETURN_IF_ERROR(check_at_most(join.lanes, limits.max_lanes, who + "lanes", "limits.max_lanes"));
  MK_RETURN_IF_ERROR(
      check_at_most(join.region_capacity, abi::kMaxRegions, who + "region capacity", "the layout's maximum"));
  MK_RETURN_IF_ERROR(check_at_most(groups_.size() + 1, limits.max_groups, who + "groups of this session",
                                   "limits.max_groups"));
  if (join.rank < join.world_size) return {};
  return {StatusCode::kInvalidArgument, who + "rank = " + std::to_string(join.rank) + " of a world of " +
                                            std::to_string(join.world_size) + " ranks"};
}

void Session::on(const abi::JoinGroup& join, ipc::Packet&) {
  const std::uint32_t sequence = join.header.sequence;
  if (const Status wrong = check_join(join); !wrong.ok()) {
    return reply(MessageType::kJoinGroupReply, sequence, wrong);
  }
  const auto first_channel = channels_.take(join.world_size * join.lanes);
  if (!first_channel) {
    return reply(MessageType::kJoinGroupReply, sequence,
                 {StatusCode::kResourceExhausted, "join_group: no run of " +
                                                      std::to_string(join.world_size * join.lanes) +
                                                      " free channels in this session's 2^24"});
  }
  JoinRequest request;
  request.key = {id_, ++last_handle_};
  request.name = ipc::text_of(join.name);
  request.world_size = join.world_size;
  request.rank = join.rank;
  request.lanes = join.lanes;
  request.region_capacity = join.region_capacity;
  request.rails = rails_;
  request.timeout = timeout_of(join.timeout_ms, services_.limits.join_timeout);
  request.pid = identity_.pid;
  request.client_name = client_name_;
  const std::uint32_t handle = request.key.handle;
  auto group = std::make_shared<SessionGroup>(services_, std::move(request), *first_channel);
  groups_[handle] = group;
  group->join([weak = weak_from_this(), handle, sequence](const Status& status) {
    if (const auto self = weak.lock()) self->joined(handle, sequence, status);
  });
}

void Session::joined(std::uint32_t handle, std::uint32_t sequence, const Status& status) {
  const auto group = find_group(handle);
  if (group == nullptr) return;
  if (!status.ok()) {
    reply(MessageType::kJoinGroupReply, sequence, status);
    return group->leave([weak = weak_from_this(), handle](const Status&) {
      if (const auto self = weak.lock()) self->forget_group(handle);
    });
  }
  spdlog::info("session {}: group \"{}\" is ready, rank {} of {}", id_, group->request().name,
               group->request().rank, group->request().world_size);
  abi::JoinGroupReply answer{};
  answer.header = ipc::header_of<abi::JoinGroupReply>(MessageType::kJoinGroupReply, sequence);
  answer.group = handle;
  answer.segment_bytes = group->segment_bytes();
  const int fd = group->segment_fd().get();
  send(answer, {&fd, 1});
  group->drop_segment_fd();
}

void Session::forget_group(std::uint32_t handle) {
  const auto group = find_group(handle);
  if (group == nullptr) return;
  channels_.give_back(group->first_channel());
  groups_.erase(handle);
  services_.group_closed();
}

std::shared_ptr<SessionGroup> Session::require_group(std::uint32_t handle, const abi::Header& request) {
  auto group = find_group(handle);
  if (group != nullptr) return group;
  reply(static_cast<MessageType>(request.type + 100), request.sequence,
        {StatusCode::kNotFound, "group handle " + std::to_string(handle) + " is not joined by this session"});
  return nullptr;
}

void Session::on(const abi::LeaveGroup& leave, ipc::Packet&) {
  const auto group = require_group(leave.group, leave.header);
  if (group == nullptr) return;
  const std::uint32_t sequence = leave.header.sequence;
  if (group->state() != SessionGroup::State::kReady) {
    return reply(MessageType::kLeaveGroupReply, sequence,
                 {StatusCode::kFailedPrecondition, "group handle " + std::to_string(leave.group) +
                                                       " is not formed yet or is being left already"});
  }
  group->leave([weak = weak_from_this(), handle = leave.group, sequence](const Status& status) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->forget_group(handle);
    self->reply(MessageType::kLeaveGroupReply, sequence, status);
  });
}

void Session::on(const abi::Exchange& exchange, ipc::Packet&) {
  const auto group = require_group(exchange.group, exchange.header);
  if (group == nullptr) return;
  Blob blob;
  std::copy_n(reinterpret_cast<const std::byte*>(exchange.payload), blob.size(), blob.begin());
  group->exchange(exchange.round, blob, timeout_of(exchange.timeout_ms, services_.limits.join_timeout),
                  replier(MessageType::kExchangeReply, exchange.header.sequence));
}

void Session::on(const abi::FailGroup& fail, ipc::Packet&) {
  const auto group = require_group(fail.group, fail.header);
  if (group == nullptr) return;
  Status status;
  if (fail.code == 0) {
    status = {StatusCode::kInvalidArgument, "fail_group: code = 0 (OK) is no failure"};
  } else if (group->state() != SessionGroup::State::kReady) {
    status = {StatusCode::kFailedPrecondition, "fail_group: the group is not formed or is being left"};
  } else {
    const Status why = client_status(fail.code, ipc::text_of(fail.text), group->request());
    const auto culprit = static_cast<std::int32_t>(group->request().rank);
    group->fail(culprit, services_.node_name, why);
    services_.coordinator->fail(group->key(), culprit, why);
  }
  reply(MessageType::kFailGroupReply, fail.header.sequence, status);
}

// ---- regions

void Session::on(const abi::RegisterRegion& ask, ipc::Packet& packet) {
  const auto group = require_group(ask.group, ask.header);
  if (group == nullptr) return;
  const auto refuse = [&](const Status& why) {
    reply(MessageType::kRegisterRegionReply, ask.header.sequence, why.with_context("register_region"));
  };
  if (const Status wrong = group->check_new_region(ask.index); !wrong.ok()) return refuse(wrong);
  if (ask.shared > 1) {
    return refuse(
        {StatusCode::kInvalidArgument, "shared = " + std::to_string(ask.shared) + ", allowed are 0 and 1"});
  }
  const std::uint64_t pinned = pinned_bytes(), limit = services_.limits.max_pinned_bytes;
  if (ask.bytes > limit || pinned > limit - ask.bytes) {
    return refuse({StatusCode::kResourceExhausted,
                   std::to_string(ask.bytes) + " bytes on top of " + std::to_string(pinned) +
                       " are above limits.max_pinned_bytes = " + std::to_string(limit)});
  }
  // Its own fd, where this kind has one, then its dma-buf: the decoder has counted them.
  std::vector<ipc::UniqueFd>& fds = packet.fds;
  const std::size_t own = ask.kind == static_cast<std::uint32_t>(abi::RegionKind::kIpc) ? 0 : 1;
  memory::RegionRequest request{.kind = ask.kind,
                                .shared = ask.shared == 1,
                                .fd = own > 0 ? std::move(fds.front()) : ipc::UniqueFd(),
                                .offset = ask.offset,
                                .bytes = ask.bytes,
                                .device = device_,
                                .cuda_ipc = ask.ipc,
                                .dma_buf = fds.size() > own ? std::move(fds[own]) : ipc::UniqueFd(),
                                .dma_buf_offset = ask.dma_buf_offset,
                                .no_dma_buf = one_line(ipc::text_of(ask.no_dma_buf))};
  auto region = memory::open_region(std::move(request), ++services_.last_region_id,
                                    {services_.limits.max_region_bytes, services_.gpu_major});
  if (!region.ok()) return refuse(region.status());
  group->add_region(ask.index, std::move(region).value(),
                    replier(MessageType::kRegisterRegionReply, ask.header.sequence));
}

void Session::on(const abi::UnregisterRegion& unregister, ipc::Packet&) {
  const auto group = require_group(unregister.group, unregister.header);
  if (group == nullptr) return;
  group->remove_region(unregister.index,
                       replier(MessageType::kUnregisterRegionReply, unregister.header.sequence));
}

Result<std::shared_ptr<const memory::Region>> Session::find_shared_region(const SessionGroup& group,
                                                                          const abi::MapRegion& map) const {
  const std::string what = "map_region " + std::to_string(map.index) + " of rank " + std::to_string(map.rank);
  const FormedMember* member = group.member(map.rank);
  if (member == nullptr) {
    return Status(StatusCode::kOutOfRange,
                  what + ": the group has " + std::to_string(group.request().world_size) + " ranks");
  }
  if (!member->port.local) {
    return Status(StatusCode::kPermissionDenied, what + ": that rank is on node " + member->node_name +
                                                     ", only regions of the own node " + services_.node_name +
                                                     " can be mapped");
  }
  const Session* owner = services_.find_session(member->port.local_key.session);
  const auto theirs = owner == nullptr ? nullptr : owner->find_group(member->port.local_key.handle);
  const auto region = theirs == nullptr ? nullptr : theirs->region(map.index);
  if (region == nullptr) return Status(StatusCode::kNotFound, what + ": nothing is registered there");
  if (!region->shared) {
    return Status(StatusCode::kPermissionDenied, what + ": its owner did not register it as shared");
  }
  if (owner->uid() != uid()) {
    return Status(StatusCode::kPermissionDenied, what + ": it belongs to user " +
                                                     std::to_string(owner->uid()) +
                                                     ", this session to user " + std::to_string(uid()));
  }
  return region;
}

void Session::on(const abi::MapRegion& map, ipc::Packet&) {
  const auto group = require_group(map.group, map.header);
  if (group == nullptr) return;
  const auto region = find_shared_region(*group, map);
  if (!region.ok()) return reply(MessageType::kMapRegionReply, map.header.sequence, region.status());
  const memory::Region& found = *region.value();
  abi::MapRegionReply answer{};
  answer.header = ipc::header_of<abi::MapRegionReply>(MessageType::kMapRegionReply, map.header.sequence);
  answer.kind = static_cast<std::uint32_t>(found.kind);
  answer.offset = found.offset;
  answer.bytes = found.bytes;
  answer.ipc = found.cuda_ipc;
  const int fd = found.fd.get();
  const std::size_t fds = found.kind == abi::RegionKind::kIpc ? 0 : 1;  // a dma-buf is the daemon's alone
  send(answer, {&fd, fds});
}

}  // namespace mkernel::session
