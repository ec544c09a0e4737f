// A session server with its control thread and one proxy, and a client that speaks raw packets to it.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/session/control_bridge.h"
#include "daemon/session/session_server.h"
#include "proto/abi/work_request.h"
#include "proto/ipc/packet.h"
#include "tests/unit/daemon/session/fakes.h"

namespace mkernel::session::testing {

inline constexpr std::chrono::seconds kPatience{30};  ///< a loaded machine is slow, a hang is for ever

/// Polls until `condition` holds; false after kPatience.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "mkernel-test-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

class Harness {
 public:
  explicit Harness(const std::function<void(ServerOptions&)>& adjust = {}, std::uint32_t rails = 1) {
    options_.node_name = "here";
    options_.boot_id = 42;
    options_.ring_slots = 64;
    options_.listener.path = folder_.file("mkerneld.sock");
    options_.limits.drain = std::chrono::milliseconds(500);
    if (adjust) adjust(options_);
    std::vector<dataplane::Proxy*> proxies;
    for (std::uint32_t rail = 0; rail < rails; ++rail) {
      dataplane::ProxyOptions proxy;
      proxy.index = rail;
      proxy.count = rails;
      proxies_.push_back(
          std::make_unique<dataplane::Proxy>(proxy, std::make_unique<NullTransport>(gate_), bridge_));
      proxies.push_back(proxies_.back().get());
    }
    server_ = std::make_unique<SessionServer>(io_, options_, proxies);
    coordinator_.set_events(*server_);
    bridge_.bind(*server_, {});
    for (const auto& proxy : proxies_) proxy->start();
    started_ = server_->start(coordinator_);
    thread_ = std::thread([this] { io_.run(); });
  }
  /// Whatever state the sessions are in.
  ~Harness() {
    gate_.open();
    for (const auto& proxy : proxies_) proxy->stop(std::chrono::milliseconds(0));
    work_.reset();
    io_.stop();
    thread_.join();
  }

  const Status& started() const { return started_; }
  const std::string& socket() const { return options_.listener.path; }

  /// Runs `call` on the control thread and returns what it returns.
  template <typename Call>
  auto control(Call call) {
    std::promise<decltype(call(*server_))> promise;
    auto future = promise.get_future();
    boost::asio::post(io_, [&] { promise.set_value(call(*server_)); });
    return future.get();
  }
  std::size_t session_count() {
    return control([](SessionServer& server) { return server.session_count(); });
  }
  LocalCoordinator& coordinator() { return coordinator_; }
  /// Where proxy threads come by in every round.
  Gate& gate() { return gate_; }

 private:
  TemporaryFolder folder_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  ControlBridge bridge_{io_};
  Gate gate_;
  std::vector<std::unique_ptr<dataplane::Proxy>> proxies_;  ///< by rail
  LocalCoordinator coordinator_{io_};
  ServerOptions options_;
  std::unique_ptr<SessionServer> server_;
  Status started_;
  std::thread thread_;
};

/// Blocking; every receive gives up after kPatience.
class RawClient {
 public:
  explicit RawClient(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    const timeval patience{kPatience.count(), 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    connected_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

  template <typename Body>
  static Body message(abi::MessageType type) {
    Body body{};
    body.header = ipc::header_of<Body>(type, 1);
    return body;
  }

  Status send(std::span<const std::byte> bytes, std::span<const int> fds = {}) {
    return ipc::send_packet(socket_.get(), bytes, fds);
  }
  /// The next packet; kUnavailable at the end of the session.
  Status receive(ipc::Packet& packet) { return ipc::receive_packet(socket_.get(), packet); }

  /// Sends a request and returns its reply, which must be of type Reply; fds that came stay in last_fds().
  template <typename Reply, typename Body>
  Reply request(Body body, std::span<const int> fds = {}) {
    body.header.sequence = ++sequence_;
    const Status sent = ipc::send_message(socket_.get(), body, fds);
    REQUIRE_MESSAGE(sent.ok(), sent.text());
    ipc::Packet packet;
    const Status received = receive(packet);
    REQUIRE_MESSAGE(received.ok(), received.text());
    REQUIRE(packet.bytes == sizeof(Reply));
    Reply reply;
    std::memcpy(&reply, packet.data, sizeof(reply));
    CHECK(reply.header.type == body.header.type + 100);
    CHECK(reply.header.sequence == sequence_);
    fds_ = std::move(packet.fds);
    return reply;
  }
  std::vector<ipc::UniqueFd>& last_fds() { return fds_; }

  abi::HelloReply hello(const std::string& name = "test", std::int32_t device = -1,
                        std::uint64_t pci_address = 0) {
    auto body = message<abi::Hello>(abi::MessageType::kHello);
    body.device = device;
    body.pci_address = pci_address;
    ipc::copy_text(body.client_name, name);
    auto reply = request<abi::HelloReply>(body);
    if (reply.status.code == 0)
      session_ = std::move(ipc::Mapping::map(fds_.at(0).get(), 0, reply.segment_bytes)).value();
    return reply;
  }

  static abi::JoinGroup join_message(const std::string& name, std::uint32_t world_size, std::uint32_t rank) {
    auto body = message<abi::JoinGroup>(abi::MessageType::kJoinGroup);
    ipc::copy_text(body.name, name);
    body.world_size = world_size;
    body.rank = rank;
    body.lanes = 2;
    body.region_capacity = 8;
    return body;
  }
  void start_join(const std::string& name, std::uint32_t world_size, std::uint32_t rank,
                  std::uint32_t lanes = 2) {
    auto body = join_message(name, world_size, rank);
    body.lanes = lanes;
    body.header.sequence = ++sequence_;
    REQUIRE(ipc::send_message(socket_.get(), body).ok());
  }
  abi::JoinGroupReply finish_join() {
    ipc::Packet packet;
    const Status received = receive(packet);
    REQUIRE_MESSAGE(received.ok(), received.text());
    REQUIRE(packet.bytes == sizeof(abi::JoinGroupReply));
    abi::JoinGroupReply reply;
    std::memcpy(&reply, packet.data, sizeof(reply));
    if (reply.status.code == 0) {
      group_ = std::move(ipc::Mapping::map(packet.fds.at(0).get(), 0, reply.segment_bytes)).value();
      handle_ = reply.group;
    }
    return reply;
  }
  abi::JoinGroupReply join(const std::string& name, std::uint32_t world_size, std::uint32_t rank) {
    start_join(name, world_size, rank);
    return finish_join();
  }

  Status register_region(int fd, std::uint32_t index, std::uint64_t offset, std::uint64_t bytes,
                         bool shared = false, abi::RegionKind kind = abi::RegionKind::kHostMemory,
                         bool keep = false) {
    auto body = message<abi::RegisterRegion>(abi::MessageType::kRegisterRegion);
    body.group = handle_;
    body.index = index;
    body.kind = static_cast<std::uint32_t>(kind);
    body.shared = shared ? 1 : 0;
    body.keep = keep ? 1 : 0;
    body.offset = offset;
    body.bytes = bytes;
    // As the client library does. What is no memory the daemon refuses anyway.
    if (kind == abi::RegionKind::kHostMemory && ipc::check_shared_memory(fd, offset, bytes).ok()) {
      auto mapping = ipc::Mapping::map(fd, offset, bytes);
      if (mapping.ok()) REQUIRE(mapping->populate().ok());
    }
    return ipc::from_reply(request<abi::PlainReply>(body, {&fd, 1}).status);
  }
  /// Plain GPU memory, with its dma-buf or, where `dma_buf` is -1, why there is none.
  Status register_plain(abi::RegisterRegion body, int dma_buf = -1) {
    body.header = message<abi::RegisterRegion>(abi::MessageType::kRegisterRegion).header;
    body.group = handle_;
    body.kind = static_cast<std::uint32_t>(abi::RegionKind::kIpc);
    return ipc::from_reply(request<abi::PlainReply>(body, {&dma_buf, dma_buf < 0 ? 0U : 1U}).status);
  }
  Status seal_region(std::uint32_t index) {
    auto body = message<abi::SealRegion>(abi::MessageType::kSealRegion);
    body.group = handle_;
    body.index = index;
    return ipc::from_reply(request<abi::PlainReply>(body).status);
  }
  abi::MapRegionReply map_region(std::uint32_t rank, std::uint32_t index) {
    auto body = message<abi::MapRegion>(abi::MessageType::kMapRegion);
    body.group = handle_;
    body.rank = rank;
    body.index = index;
    return request<abi::MapRegionReply>(body);
  }
  Status leave() {
    auto body = message<abi::LeaveGroup>(abi::MessageType::kLeaveGroup);
    body.group = handle_;
    return ipc::from_reply(request<abi::PlainReply>(body).status);
  }

  /// Waits for the daemon's last word and the end of the stream after it.
  Status wait_for_end() {
    ipc::Packet packet;
    const Status received = receive(packet);
    if (!received.ok()) return received.with_context("no SessionEnded came");
    abi::SessionEnded event;
    if (packet.bytes != sizeof(event)) return {StatusCode::kUnknown, "another packet came"};
    std::memcpy(&event, packet.data, sizeof(event));
    if (event.header.type != static_cast<std::uint16_t>(abi::MessageType::kSessionEnded)) {
      return {StatusCode::kUnknown, "another packet came"};
    }
    CHECK(event.header.sequence == 0);
    CHECK(receive(packet).code() == StatusCode::kUnavailable);
    return ipc::from_reply(event.status);
  }

  abi::SessionSegment& session_segment() { return *session_.at<abi::SessionSegment>(0); }
  abi::GroupSegment& group_segment() { return *group_.at<abi::GroupSegment>(0); }
  ipc::Mapping& group_mapping() { return group_; }
  ipc::Mapping& session_mapping() { return session_; }
  std::uint32_t handle() const { return handle_; }

 private:
  ipc::UniqueFd socket_;
  bool connected_ = false;
  std::uint32_t sequence_ = 0;
  std::uint32_t handle_ = 0;
  std::vector<ipc::UniqueFd> fds_;
  ipc::Mapping session_, group_;
};

/// Both say hello as "a" and "b" and become ranks 0 and 1 of group "g".
inline void join_both(RawClient& a, RawClient& b, std::int32_t device = -1) {
  REQUIRE(a.hello("a", device).status.code == 0);
  REQUIRE(b.hello("b", device).status.code == 0);
  a.start_join("g", 2, 0);
  REQUIRE(b.join("g", 2, 1).status.code == 0);
  REQUIRE(a.finish_join().status.code == 0);
}

/// Publishes `request` as the first slot of ring 0 and rings its doorbell.
inline void put(RawClient& client, int doorbell, const abi::WorkRequest& request) {
  abi::SessionSegment& segment = client.session_segment();
  std::atomic_ref<std::uint32_t>(segment.active).store(1);
  auto* slot = client.session_mapping().at<abi::WorkSlot>(segment.slots_offset);
  abi::store_slot(*slot, abi::encode(request, abi::lap_bit(0, segment.log2_slots)));
  const std::uint64_t one = 1;
  REQUIRE(::write(doorbell, &one, sizeof(one)) == sizeof(one));
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace mkernel::session::testing
