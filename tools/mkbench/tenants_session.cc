#include "tools/mkbench/tenants_session.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace mkernel::bench {
namespace {

constexpr timeval kPatience{30, 0};

Status failed(const std::string& what) {
  return {StatusCode::kUnavailable, what + ": " + std::strerror(errno)};
}

}  // namespace

Result<RawSession> RawSession::connect(const std::string& daemon, const std::string& name) {
  RawSession session;
  session.socket_ = ipc::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!session.socket_.valid()) return failed("socket");
  for (const int which : {SO_RCVTIMEO, SO_SNDTIMEO})
    ::setsockopt(session.socket_.get(), SOL_SOCKET, which, &kPatience, sizeof(kPatience));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  daemon.copy(address.sun_path, sizeof(address.sun_path) - 1);
  if (::connect(session.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return failed("connecting to " + daemon);
  abi::Hello hello{};
  ipc::copy_text(hello.client_name, name);
  hello.device = -1;
  MK_RETURN_IF_ERROR(session.send(abi::MessageType::kHello, hello));
  MK_RETURN_IF_ERROR(session.receive());
  return session;
}

Status RawSession::next(ipc::Packet& packet) {
  const Status received = ipc::receive_packet(socket_.get(), packet);
  if (received.code() == StatusCode::kNotFound)
    return {StatusCode::kDeadlineExceeded, "the daemon does not answer within 30 s"};
  MK_RETURN_IF_ERROR(received);
  if (packet.bytes < sizeof(abi::PlainReply))
    return {StatusCode::kInternal, "a reply of " + std::to_string(packet.bytes) + " bytes"};
  abi::PlainReply reply;
  std::memcpy(&reply, packet.data, sizeof(reply));
  if (reply.header.type == static_cast<std::uint16_t>(abi::MessageType::kSessionEnded))
    return {StatusCode::kUnavailable, "the session ended: " + ipc::from_reply(reply.status).text()};
  return {};
}

Status RawSession::receive() {
  const auto packet = std::make_unique<ipc::Packet>();
  MK_RETURN_IF_ERROR(next(*packet));
  abi::PlainReply reply;
  std::memcpy(&reply, packet->data, sizeof(reply));
  return ipc::from_reply(reply.status);
}

Status RawSession::start_join(const RawJoin& join) {
  abi::JoinGroup message{};
  ipc::copy_text(message.name, join.name);
  message.world_size = join.world_size;
  message.rank = join.rank;
  message.lanes = join.lanes;
  message.region_capacity = join.region_capacity;
  message.timeout_ms = join.timeout_ms;
  return send(abi::MessageType::kJoinGroup, message);
}

Result<std::uint32_t> RawSession::finish_join() {
  const auto packet = std::make_unique<ipc::Packet>();
  MK_RETURN_IF_ERROR(next(*packet));
  abi::JoinGroupReply reply{};
  std::memcpy(&reply, packet->data, std::min(packet->bytes, sizeof(reply)));
  MK_RETURN_IF_ERROR(ipc::from_reply(reply.status));
  return reply.group;
}

Result<std::uint32_t> RawSession::join(const RawJoin& join) {
  MK_RETURN_IF_ERROR(start_join(join));
  return finish_join();
}

Status RawSession::ask(std::uint32_t group) {
  abi::UnregisterRegion message{};
  message.group = group;
  MK_RETURN_IF_ERROR(send(abi::MessageType::kUnregisterRegion, message));
  const Status answer = receive();
  return answer.code() == StatusCode::kNotFound ? Status() : answer;
}

abi::RegisterRegion host_region(std::uint32_t group, std::uint32_t index, std::uint64_t offset,
                                std::uint64_t bytes, bool shared) {
  abi::RegisterRegion message{};
  message.group = group;
  message.index = index;
  message.kind = static_cast<std::uint32_t>(abi::RegionKind::kHostMemory);
  message.shared = shared ? 1 : 0;
  message.offset = offset;
  message.bytes = bytes;
  return message;
}

}  // namespace mkernel::bench
