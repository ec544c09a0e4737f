#include "tests/unit/daemon/transport/tcp/harness.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "daemon/transport/tcp/socket.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::tcp {
namespace {

constexpr std::chrono::seconds kPatience{30};

bool readable(int fd, int milliseconds) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, milliseconds) > 0;
}

}  // namespace

std::unique_ptr<memory::Region> make_region(std::uint64_t bytes, abi::RegionKind kind) {
  static std::uint64_t next_id = 1;
  auto region = std::make_unique<memory::Region>();
  region->id = next_id++;
  region->kind = kind;
  region->bytes = bytes;
  region->fd = ipc::create_shared_memory("tcp-test", bytes).value();
  region->mapping = ipc::Mapping::map(region->fd.get(), 0, bytes).value();
  std::memset(region->host(0), 0xa5, bytes);
  return region;
}

void fill_random(memory::Region& region, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::uint64_t at = 0; at + 8 <= region.bytes; at += 8)
    *region.mapping.at<std::uint64_t>(at) = random();
}

End::End(std::uint64_t boot_id, TcpOptions options, std::uint64_t region_bytes, abi::RegionKind kind)
    : identity_{"node-" + std::to_string(boot_id), boot_id}, region_(make_region(region_bytes, kind)) {
  options.base.identity = identity_;
  options.base.reconnect_interval = std::chrono::milliseconds(2);
  transport_ = make_tcp(options).value();
  transport_->attach(*this);
}

void End::meet(End& other, const PeerAddress& address) {
  REQUIRE(transport_->connect(kPeer, address).ok());
  other_ = &other;
  met_ = true;
}

std::size_t End::deliver() {
  if (other_ == nullptr || !other_->met_) return 0;
  const auto messages = std::exchange(said, {});
  for (const auto& message : messages) other_->transport_->receive_from_peer(kPeer, message);
  return messages.size();
}

Put End::put(ChannelId channel, std::uint64_t sequence, std::uint64_t offset, std::uint32_t length) const {
  return {.channel = channel,
          .sequence = sequence,
          .source = region_.get(),
          .source_offset = offset,
          .remote_offset = offset,
          .length = length,
          .remote_region = 0};
}

Status End::place(ChannelId, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
                  Target& target) {
  if (region != 0 || !memory::in_bounds(offset, length, region_->bytes)) {
    return {StatusCode::kOutOfRange, "region " + std::to_string(region) + " has no such place"};
  }
  target = {region_.get(), offset};
  return {};
}

bool run(const std::vector<End*>& ends, const std::function<bool()>& condition) {
  const auto limit = Clock::now() + kPatience;
  while (!condition()) {
    if (Clock::now() > limit) return false;
    std::size_t happened = 0;
    for (End* end : ends) happened += end->transport().poll() + end->deliver();
    if (happened == 0) readable(ends.front()->transport().event_fd(), 1);
  }
  return true;
}

void connect(End& a, End& b) {
  a.meet(b);
  b.meet(a);
}

RawPeer::RawPeer(End& target) : target_(target) {
  const auto address = parse_endpoint(target.transport().local_endpoint()).value();
  socket_.reset(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(socket_.get(), address.get(), address.bytes) == 0);
}

RawListener::RawListener() : socket_(listen_at(parse_address("127.0.0.1", 0).value()).value()) {
  endpoint_ = local_address(socket_.get()).value().text();
}

RawPeer RawListener::accept(End& target) {
  REQUIRE(run({&target}, [&] { return readable(socket_.get(), 0); }));
  return {target, ipc::UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

void RawPeer::send(const void* data, std::size_t bytes) {
  REQUIRE(::send(socket_.get(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

Hello RawPeer::hello(std::uint64_t boot_id) const {
  Hello hello{kWireMagic, kWireVersion, boot_id, target_.identity().boot_id, 0, 1, {}, {}};
  ipc::copy_text(hello.node, "raw");
  REQUIRE(draw_random(hello.nonce).ok());
  return hello;
}

Welcome RawPeer::greet(const Hello& hello,
                       const std::function<SecretBytes(const Hello&, const Challenge&)>& prove) {
  say(hello);
  Challenge challenge{};
  REQUIRE(receive(&challenge, sizeof(challenge)));
  CHECK(challenge.magic == kChallengeMagic);
  CHECK(challenge.code == 0);
  say(Proof{prove(hello, challenge)});
  Welcome welcome{};
  REQUIRE(receive(&welcome, sizeof(welcome)));
  CHECK(welcome.magic == kWelcomeMagic);
  return welcome;
}

Welcome RawPeer::greet(const Hello& hello, const PeerSecret& secret) {
  return greet(hello, [&](const Hello& said, const Challenge& challenge) {
    return secret.prove(Prover::kDialler, {bytes_of_layout(said), bytes_of_layout(challenge)});
  });
}

void agree(End& target, PeerSecret& secret) {
  REQUIRE(secret.draw().ok());
  const SecretMessage half = secret.message();
  target.transport().receive_from_peer(kPeer, bytes_of_layout(half));
  REQUIRE(run({&target}, [&] { return !target.said.empty(); }));  // first or in answer, as the roles have it
  REQUIRE(target.said.size() == 1);
  REQUIRE(secret.receive(target.said.front()).ok());
  target.said.clear();
}

PeerSecret raw_secret(const End& target, std::uint64_t boot_id, bool dials) {
  return {kProtocol, {"raw", boot_id}, target.identity(), dials};
}

bool RawPeer::receive(void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  const auto limit = Clock::now() + kPatience;
  while (bytes > 0 && Clock::now() < limit) {
    target_.transport().poll();
    if (!readable(socket_.get(), 1)) continue;
    const ssize_t got = ::recv(socket_.get(), at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return bytes == 0;
}

bool RawPeer::closed() {
  const auto limit = Clock::now() + kPatience;
  while (Clock::now() < limit) {
    target_.transport().poll();
    std::byte rest[256];
    if (readable(socket_.get(), 1) && ::recv(socket_.get(), rest, sizeof(rest), 0) <= 0) return true;
  }
  return false;
}

}  // namespace mkernel::transport::tcp
