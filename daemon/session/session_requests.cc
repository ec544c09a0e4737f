// What a client may ask for, one handler per message. A request that cannot be met is answered with a status
// that names value and limit, and the session goes on; a packet that is no message ends the session.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/base/printable.h"
#include "daemon/base/sha256.h"
#include "daemon/dataplane/group_memory.h"
#include "daemon/memory/open_region.h"
#include "daemon/session/message_decoder.h"
#include "daemon/session/session_send.h"

namespace mkernel::session {
namespace {

constexpr std::uint32_t kMaxWeight = 64;
/// An exchange is one message to each node of the group, and a copy for each rank here. Jobs make many: ten
/// count as one join.
constexpr double kExchangeMessages = 0.1;
constexpr std::chrono::milliseconds kMaxTimeout = std::chrono::hours(24);

using abi::MessageType;

/// Names go into errors, logs and tables of other tenants: nothing unprintable.
Status check_name(std::string_view name, const char* what) {
  if (name.empty()) return {StatusCode::kInvalidArgument, std::string(what) + " is empty"};
  const auto odd = base::first_unprintable(name);
  if (!odd) return {};
  return {StatusCode::kInvalidArgument,
          std::string(what) + " holds byte " + std::to_string(static_cast<unsigned char>(name[*odd])) +
              " at position " + std::to_string(*odd) + ", allowed is printable ASCII"};
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

/// A status that came from a client: an unknown code becomes kUnknown.
Status client_status(std::uint32_t code, std::string_view text, const JoinRequest& who) {
  const bool known = code <= static_cast<std::uint32_t>(StatusCode::kDataLoss);
  return {known ? static_cast<StatusCode>(code) : StatusCode::kUnknown,
          "rank " + std::to_string(who.rank) + " (\"" + who.client_name + "\", pid " +
              std::to_string(who.pid) + "): " + base::one_line(text)};
}

}  // namespace

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
  const PacketView view{
      {packet.data, packet.bytes}, packet.fds.size(), packet.truncated, packet.fds_truncated};
  if (packet.fds_lost && refuse_lost_fds(view)) return;
  const auto message = decode(view);
  if (!message.ok()) return end(message.status().with_context(describe() + " broke the protocol"));
  const bool is_hello = std::holds_alternative<abi::Hello>(message.value());
  if (is_hello == introduced()) {
    return end({StatusCode::kFailedPrecondition,
                describe() + " broke the protocol: " +
                    (is_hello ? "a second hello" : "its first message is not hello")});
  }
  std::visit([&](const auto& body) { on(body, packet); }, message.value());
}

bool Session::refuse_lost_fds(const PacketView& view) {
  const auto header = decode_header(view);
  const bool region = header.ok() && static_cast<MessageType>(header->type) == MessageType::kRegisterRegion;
  if (!region || !introduced()) return false;
  // It is nobody's breach of the protocol that this process has no fd left.
  reply(MessageType::kRegisterRegionReply, header->sequence,
        {StatusCode::kResourceExhausted, "register_region: node " + services_.node_name +
                                             " has no fd left (RLIMIT_NOFILE = " +
                                             std::to_string(services_.accounts.budget().fd_limit) + ")"});
  return true;
}

// ---- hello

Status Session::check_hello(const abi::Hello& hello) const {
  MK_RETURN_IF_ERROR(check_name(ipc::text_of(hello.client_name), "hello: client name"));
  if (hello.weight > kMaxWeight) {
    return {StatusCode::kInvalidArgument, "hello: weight = " + std::to_string(hello.weight) +
                                              ", allowed are 1 to " + std::to_string(kMaxWeight) +
                                              " (0 = 1)"};
  }
  const Status full = services_.accounts.check_shared(
      account_, Resource::kSessions, account_.user().ledger.held(Resource::kSessions),
      services_.session_count(), services_.limits.max_sessions);
  if (!full.ok()) {
    ++account_.user().refusals_total;
    return full;
  }
  if (hello.device >= -1) return {};
  return {StatusCode::kInvalidArgument, "hello: device = " + std::to_string(hello.device) +
                                            ", allowed are GPU ordinals and -1 for host only"};
}

Status Session::create_port(const abi::Hello& hello, ipc::UniqueFd& segment_fd) {
  abi::SessionSegment layout{};
  const std::uint64_t bytes = abi::layout_session(layout, services_.rails(), services_.log2_slots);
  auto charge = services_.accounts.take(
      account_, {{Resource::kSessions, 1},
                 {Resource::kFds, services_.rails()},
                 {Resource::kMappings, 1},
                 {Resource::kDaemonBytes, session_memory_bytes(bytes, services_.rails())}});
  if (!charge.ok()) return charge.status().with_context("hello");
  auto segment = create_session_segment(id_, services_.rails(), services_.log2_slots);
  if (!segment.ok()) return segment.status();
  auto port = std::make_shared<dataplane::SessionPort>();
  port->id = id_;
  port->name = ipc::text_of(hello.client_name);
  port->weight = std::max(hello.weight, 1U);
  port->uid = uid();
  port->user_weight = account_.rights().limits.weight;
  port->bytes_per_second = account_.rights().limits.bytes_per_second;
  port->requests_per_second = account_.rights().limits.requests_per_second;
  port->segment = std::move(segment->mapping);
  for (std::uint32_t ring = 0; ring < services_.rails(); ++ring) {
    auto doorbell = ipc::create_event();
    if (!doorbell.ok()) return doorbell.status();
    port->doorbell.push_back(std::move(doorbell).value());
  }
  port->counters = std::vector<dataplane::Counters>(services_.rails());
  segment_fd = std::move(segment->fd);
  port_ = std::move(port);
  session_charge_ = std::move(charge).value();
  return {};
}

void Session::on(const abi::Hello& hello, ipc::Packet&) {
  ipc::UniqueFd segment_fd;
  Status status = check_hello(hello);
  if (status.ok()) status = create_port(hello, segment_fd);
  // Refused, not ended: the client may say hello again, until limits.hello_timeout_ms.
  if (!status.ok()) return reply(MessageType::kHelloReply, hello.header.sequence, status);
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
  status = send_with_fds(answer, fds);
  if (!status.ok()) {
    port_.reset();
    session_charge_.reset();
    return reply(MessageType::kHelloReply, hello.header.sequence, status.with_context("hello"));
  }
  hello_timer_.cancel();
  client_name_ = port_->name;
  device_ = hello.device;
  rails_ = services_.rails_near(hello.pci_address);
  for (dataplane::Proxy* proxy : services_.proxies) proxy->attach_session(port_);
  if (services_.lines->admit(uid())) {
    spdlog::info("session {}: {}, user {}, weight {}", id_, describe(), uid(), port_->weight);
  }
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

/// Only the hash leaves this function: over the group's name too, so that it says nothing about other groups
/// of the same secret.
Result<std::string> Session::hash_of_secret(const abi::JoinGroup& join) {
  const std::string secret(reinterpret_cast<const char*>(join.secret), sizeof(join.secret));
  if (secret.find_first_not_of('\0') == std::string::npos) return std::string();
  return base::sha256(std::string(ipc::text_of(join.name)) + '\0' + secret);
}

Result<Charge> Session::charge_for_group(const abi::JoinGroup& join) {
  // Which ranks are on other nodes is known when the group is formed: all that may be are counted.
  const dataplane::GroupFootprint footprint{
      .world_size = join.world_size,
      .lanes = join.lanes,
      .region_capacity = join.region_capacity,
      .rails = services_.rails(),
      .remote_ranks = join.world_size - 1,
      .window = services_.proxies.front()->capabilities().max_in_flight_puts};
  const std::uint64_t channels = std::uint64_t{join.world_size} * join.lanes;
  auto charge =
      services_.accounts.take(account_, {{Resource::kChannels, channels},
                                         {Resource::kMappings, 1},
                                         {Resource::kDaemonBytes, dataplane::group_memory_bytes(footprint)}});
  if (charge.ok()) return charge;
  return charge.status().with_context("join_group \"" + std::string(ipc::text_of(join.name)) + "\"");
}

void Session::on(const abi::JoinGroup& join, ipc::Packet&) {
  const std::uint32_t sequence = join.header.sequence;
  if (const Status wrong = check_join(join); !wrong.ok()) {
    return reply(MessageType::kJoinGroupReply, sequence, wrong);
  }
  auto charge = charge_for_group(join);
  if (!charge.ok()) return reply(MessageType::kJoinGroupReply, sequence, charge.status());
  const auto secret_hash = hash_of_secret(join);
  if (!secret_hash.ok()) return reply(MessageType::kJoinGroupReply, sequence, secret_hash.status());
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
  request.uid = uid();
  request.secret_hash = secret_hash.value();
  request.has_gpu = device_ >= 0;
  request.pid = identity_.pid;
  request.client_name = client_name_;
  const std::uint32_t handle = request.key.handle;
  auto group = std::make_shared<SessionGroup>(services_, std::move(request), *first_channel,
                                              std::move(charge).value());
  groups_[handle] = group;
  spend(1);
  group->join([weak = weak_from_this(), handle, sequence](const Status& status) {
    if (const auto self = weak.lock()) self->joined(handle, sequence, status);
  });
}

void Session::joined(std::uint32_t handle, std::uint32_t sequence, const Status& status) {
  const auto group = find_group(handle);
  if (group == nullptr) return;
  const auto refuse = [&](const Status& why) {
    reply(MessageType::kJoinGroupReply, sequence, why);
    group->leave([weak = weak_from_this(), handle](const Status&) {
      if (const auto self = weak.lock()) self->forget_group(handle);
    });
  };
  if (!status.ok()) return refuse(status);
  if (services_.lines->admit(uid())) {
    spdlog::info("session {}: group \"{}\" is ready, rank {} of {}", id_, group->request().name,
                 group->request().rank, group->request().world_size);
  }
  abi::JoinGroupReply answer{};
  answer.header = ipc::header_of<abi::JoinGroupReply>(MessageType::kJoinGroupReply, sequence);
  answer.group = handle;
  answer.segment_bytes = group->segment_bytes();
  const int fd = group->segment_fd().get();
  if (const Status sent = send_with_fds(answer, {&fd, 1}); !sent.ok()) {
    return refuse(sent.with_context("join_group \"" + group->request().name + "\""));
  }
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
  spend(*group, kExchangeMessages);
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
    spend(*group, 1);
    group->fail(culprit, services_.node_name, why);
    services_.coordinator->fail(group->key(), culprit, why);
  }
  reply(MessageType::kFailGroupReply, fail.header.sequence, status);
}

void Session::on(const abi::RejectLaunch& reject, ipc::Packet&) {
  const auto group = require_group(reject.group, reject.header);
  if (group == nullptr) return;
  Status status;
  if (reject.code == 0) {
    status = {StatusCode::kInvalidArgument, "reject_launch: code = 0 (OK) rejects nothing"};
  } else if (group->state() != SessionGroup::State::kReady) {
    status = {StatusCode::kFailedPrecondition, "reject_launch: the group is not formed or is being left"};
  } else {
    spend(*group, 1);
    group->reject(reject.launch);
    services_.coordinator->reject(group->key(), reject.launch,
                                  client_status(reject.code, ipc::text_of(reject.text), group->request()));
  }
  reply(MessageType::kRejectLaunchReply, reject.header.sequence, status);
}

}  // namespace mkernel::session
