#include "daemon/transport/tcp/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "daemon/base/hex.h"
#include "daemon/transport/tcp/link.h"
#include "daemon/transport/tcp/peer.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::tcp {
namespace {

/// Connections whose Hello is awaited. More wait in the kernel's backlog.
constexpr std::size_t kMaxIncoming = 256;

Welcome welcome_of(const Identity& self, const Status& verdict) {
  Welcome welcome{
      kWelcomeMagic, kWireVersion, self.boot_id, static_cast<std::uint32_t>(verdict.code()), 0, {}, {}};
  ipc::copy_text(welcome.node, self.node);
  ipc::copy_text(welcome.text, verdict.text());
  return welcome;
}

}  // namespace

/// A connection that has not said yet whose it is.
class Acceptor::Incoming final : public Watch {
 public:
  Incoming(Acceptor& acceptor, ipc::UniqueFd accepted, Clock::time_point patience)
      : socket(std::move(accepted)), until(patience), acceptor_(acceptor) {}

  void on_events(std::uint32_t) override { acceptor_.serve(*this); }

  ipc::UniqueFd socket;  ///< given up when the handshake is over
  const Clock::time_point until;
  Hello hello{};
  std::size_t bytes = 0;

 private:
  Acceptor& acceptor_;
};

Acceptor::Acceptor(Context& context, PeerDirectory& peers, ipc::UniqueFd listener)
    : context_(context), peers_(peers), listener_(std::move(listener)) {}

Acceptor::~Acceptor() = default;

Status Acceptor::start() {
  return context_.watch(listener_.get(), *this);
}

void Acceptor::close() {
  listener_.reset();
  incoming_.clear();
}

void Acceptor::on_events(std::uint32_t) {
  while (incoming_.size() < kMaxIncoming) {
    ipc::UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    const int fd = socket.get();
    const auto until = Clock::now() + context_.options.base.peer_timeout;
    incoming_.push_back(std::make_unique<Incoming>(*this, std::move(socket), until));
    context_.deadlines_changed = true;
    if (!context_.watch(fd, *incoming_.back()).ok()) incoming_.pop_back();
  }
}

void Acceptor::serve(Incoming& incoming) {
  auto* bytes = reinterpret_cast<std::byte*>(&incoming.hello);
  while (incoming.bytes < sizeof(Hello)) {
    const ssize_t got = ::read(incoming.socket.get(), bytes + incoming.bytes, sizeof(Hello) - incoming.bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return incoming.socket.reset();
    incoming.bytes += static_cast<std::size_t>(got);
    if (incoming.bytes >= sizeof(incoming.hello.magic) && incoming.hello.magic != kWireMagic) {
      return incoming.socket.reset();  // not one of ours: it would not understand an answer
    }
  }
  Peer* peer = nullptr;
  const Status verdict = judge(incoming.hello, peer);
  // Only after the old connection is closed may the answer go out: it promises the fence.
  Link* link = verdict.ok() ? &peer->fence(incoming.hello) : nullptr;
  if (link == nullptr) ++context_.statistics.handshakes_refused;
  const Welcome welcome = welcome_of(context_.options.base.identity, verdict);
  const ssize_t sent = ::send(incoming.socket.get(), &welcome, sizeof(welcome), MSG_NOSIGNAL);
  if (link != nullptr && sent == sizeof(welcome)) return link->adopt(std::move(incoming.socket));
  incoming.socket.reset();
}

Status Acceptor::judge(const Hello& hello, Peer*& peer) {
  const Identity& self = context_.options.base.identity;
  const std::string caller(ipc::text_of(hello.node));
  if (hello.version != kWireVersion) {
    return {StatusCode::kFailedPrecondition, "node " + self.node + " speaks TCP wire version " +
                                                 std::to_string(kWireVersion) + ", node " + caller +
                                                 " version " + std::to_string(hello.version)};
  }
  if (hello.expected_boot_id != self.boot_id) {
    return {StatusCode::kFailedPrecondition, "node " + caller + " meant to reach another life of node " +
                                                 self.node + ": boot " + base::hex(hello.expected_boot_id) +
                                                 " expected, this is " + base::hex(self.boot_id)};
  }
  peer = peers_.find_peer(hello.boot_id, caller);
  if (peer == nullptr) {
    return {StatusCode::kUnavailable, "node " + self.node + " does not know node " + caller + " with boot " +
                                          base::hex(hello.boot_id) + " (yet)"};
  }
  if (peer->dials() || peer->failed()) {
    return {StatusCode::kFailedPrecondition,
            "node " + self.node + (peer->failed() ? " has given up node " : " is the one that dials node ") +
                caller};
  }
  if (hello.connections == 0 || hello.connections > kMaxConnections ||
      hello.connection >= hello.connections) {
    return {StatusCode::kInvalidArgument, "connection " + std::to_string(hello.connection) + " of " +
                                              std::to_string(hello.connections) + "; the limit is " +
                                              std::to_string(kMaxConnections)};
  }
  return {};
}

void Acceptor::sweep() {
  const bool full = incoming_.size() >= kMaxIncoming;
  std::erase_if(incoming_, [](const auto& incoming) { return !incoming->socket.valid(); });
  if (full && listener_.valid())
    on_events(0);  // those that waited in the backlog announce themselves no more
}

Clock::time_point Acceptor::deadline() const {
  return incoming_.empty() ? kNever : incoming_.front()->until;  // in order of arrival
}

void Acceptor::expire(Clock::time_point now) {
  std::erase_if(incoming_, [&](const auto& incoming) { return now >= incoming->until; });
}

}  // namespace mkernel::transport::tcp
