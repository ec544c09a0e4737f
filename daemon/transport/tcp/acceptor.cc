#include "daemon/transport/tcp/acceptor.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "daemon/transport/tcp/link.h"
#include "daemon/transport/tcp/peer.h"
#include "daemon/transport/tcp/socket.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::tcp {
namespace {

/// Accepted in one poll(): whoever floods the port may not hold up the connections that carry puts.
constexpr std::size_t kAcceptsPerPoll = 32;
constexpr std::chrono::milliseconds kAcceptRetry{100};

/// Whether two connections come from one place: one address, whatever the port.
bool same_source(const SocketAddress& a, const SocketAddress& b) {
  if (a.storage.ss_family != b.storage.ss_family) return false;
  if (a.storage.ss_family == AF_INET6) {
    const auto& left = reinterpret_cast<const sockaddr_in6&>(a.storage).sin6_addr;
    const auto& right = reinterpret_cast<const sockaddr_in6&>(b.storage).sin6_addr;
    return std::memcmp(&left, &right, sizeof(left)) == 0;
  }
  return reinterpret_cast<const sockaddr_in&>(a.storage).sin_addr.s_addr ==
         reinterpret_cast<const sockaddr_in&>(b.storage).sin_addr.s_addr;
}

}  // namespace

/// A connection that has not proven whose it is.
class Acceptor::Incoming final : public Watch {
 public:
  Incoming(Acceptor& acceptor, ipc::UniqueFd accepted, const SocketAddress& from)
      : socket(std::move(accepted)),
        source(from),
        until(Clock::now() + kHelloPatience),
        acceptor_(acceptor) {}

  void on_events(std::uint32_t) override { acceptor_.serve(*this); }

  ipc::UniqueFd socket;  ///< given up when the handshake is over
  const SocketAddress source;
  Clock::time_point until;
  bool greeted = false;  ///< the Hello is here and was answered
  bool named = false;    ///< it names a peer that may dial: the last to be dropped for want of room
  std::size_t bytes = 0;
  Hello hello{};
  Challenge challenge{};
  Proof proof{};

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
  open_ = 0;
  waiting_ = false;
  accept_again_ = kNever;
}

// Accepting

std::size_t Acceptor::poll() {
  std::size_t accepted = 0;
  while (waiting_ && accepted < kAcceptsPerPoll) {
    if (accept_one()) ++accepted;
  }
  if (open_ < incoming_.size()) {
    std::erase_if(incoming_, [](const auto& incoming) { return !incoming->socket.valid(); });
  }
  return accepted;
}

bool Acceptor::accept_one() {
  SocketAddress source;
  source.bytes = sizeof(source.storage);
  auto* const address = reinterpret_cast<sockaddr*>(&source.storage);
  ipc::UniqueFd socket(::accept4(listener_.get(), address, &source.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid()) {
    accept_failed(errno);
    return false;
  }
  make_room(source);
  const int fd = socket.get();
  incoming_.push_back(std::make_unique<Incoming>(*this, std::move(socket), source));
  ++open_;
  Incoming& incoming = *incoming_.back();
  context_.deadlines_changed = true;
  if (!context_.watch(fd, incoming).ok()) {
    end(incoming);
  } else {
    serve(incoming);  // an honest Hello is mostly here already
  }
  return true;
}

void Acceptor::accept_failed(int error) {
  if (error == EINTR || error == ECONNABORTED) return;
  waiting_ = false;
  if (error == EAGAIN || !listener_.valid()) return;
  // No fd or no memory: those that wait in the backlog announce themselves no more.
  accept_again_ = Clock::now() + kAcceptRetry;
  context_.deadlines_changed = true;
}

void Acceptor::make_room(const SocketAddress& source) {
  std::size_t of_source = 0;
  for (const auto& each : incoming_) {
    if (each->socket.valid() && same_source(each->source, source)) ++of_source;
  }
  const bool crowd = of_source >= kMaxIncomingPerSource;
  if (!crowd && open_ < kMaxIncoming) return;
  const auto oldest = [&](bool named) {
    return std::find_if(incoming_.begin(), incoming_.end(), [&](const auto& each) {
      return each->socket.valid() && each->named == named && (!crowd || same_source(each->source, source));
    });
  };
  auto victim = oldest(false);
  if (victim == incoming_.end()) victim = oldest(true);
  ++context_.statistics.strangers_dropped;
  end(**victim);
}

void Acceptor::end(Incoming& incoming) {
  incoming.socket.reset();
  --open_;
}

// The handshake

void Acceptor::serve(Incoming& incoming) {
  if (!incoming.socket.valid()) return;
  if (!incoming.greeted && !read_hello(incoming)) return;
  switch (fill(incoming.socket.get(), &incoming.proof, sizeof(Proof), incoming.bytes)) {
    case Filled::kNotYet: return;
    case Filled::kEnded: return end(incoming);
    case Filled::kWhole: return answer(incoming);
  }
}

/// True once it is here and has been answered.
bool Acceptor::read_hello(Incoming& incoming) {
  const int socket = incoming.socket.get();
  const Hello& hello = incoming.hello;
  const Filled filled = fill(socket, &incoming.hello, sizeof(Hello), incoming.bytes);
  const bool ours = incoming.bytes < sizeof(hello.magic) || hello.magic == kWireMagic;
  if (filled == Filled::kEnded || !ours) {  // who is not one of ours would not understand an answer
    end(incoming);
    return false;
  }
  constexpr std::size_t kVersioned = offsetof(Hello, version) + sizeof(hello.version);
  const bool other_version = incoming.bytes >= kVersioned && hello.version != kWireVersion;
  if (filled == Filled::kNotYet && !other_version) return false;
  Challenge& challenge = incoming.challenge;
  challenge = {kChallengeMagic, kWireVersion, 0, 0, {}};
  if (other_version) {
    challenge.code = static_cast<std::uint32_t>(StatusCode::kFailedPrecondition);
    ++context_.statistics.handshakes_refused;
  }
  const bool drawn = !other_version && draw_random(challenge.nonce).ok();
  const bool sent = (drawn || other_version) && send_whole(socket, &challenge, sizeof(challenge));
  if (!drawn || !sent) {
    end(incoming);
    return false;
  }
  incoming.named = caller(hello) != nullptr;
  incoming.greeted = true;
  incoming.bytes = 0;
  incoming.until = Clock::now() + kProofPatience;
  context_.deadlines_changed = true;
  return true;
}

/// The peer that the Hello is from, if it may be: that it is has still to be proven.
Peer* Acceptor::caller(const Hello& hello) const {
  if (hello.expected_boot_id != context_.options.base.identity.boot_id) return nullptr;
  if (hello.connections == 0 || hello.connections > kMaxConnections) return nullptr;
  if (hello.connection >= hello.connections) return nullptr;
  Peer* const peer = peers_.find_peer(hello.boot_id, ipc::text_of(hello.node));
  return peer == nullptr || peer->dials() || peer->failed() ? nullptr : peer;
}

void Acceptor::answer(Incoming& incoming) {
  const auto transcript = {bytes_of_layout(incoming.hello), bytes_of_layout(incoming.challenge)};
  Peer* const peer = caller(incoming.hello);
  Welcome welcome{kWelcomeMagic, 0, {}};
  if (peer == nullptr || !peer->secret().proven(Prover::kDialler, transcript, incoming.proof.mac)) {
    ++context_.statistics.handshakes_refused;
    welcome.code = static_cast<std::uint32_t>(StatusCode::kUnavailable);
    send_whole(incoming.socket.get(), &welcome, sizeof(welcome));
    return end(incoming);
  }
  // Only after the old connection is closed may the answer go out: it promises the fence.
  Link& link = peer->fence(incoming.hello);
  welcome.mac = peer->secret().prove(Prover::kListener, transcript);
  if (send_whole(incoming.socket.get(), &welcome, sizeof(welcome))) link.adopt(std::move(incoming.socket));
  end(incoming);
}

// Time

Clock::time_point Acceptor::deadline() const {
  Clock::time_point nearest = accept_again_;
  for (const auto& incoming : incoming_) {
    if (incoming->socket.valid()) nearest = std::min(nearest, incoming->until);
  }
  return nearest;
}

void Acceptor::expire(Clock::time_point now) {
  if (now >= accept_again_) {
    accept_again_ = kNever;
    waiting_ = true;
  }
  for (const auto& incoming : incoming_) {
    if (incoming->socket.valid() && now >= incoming->until) end(*incoming);
  }
}

}  // namespace mkernel::transport::tcp
