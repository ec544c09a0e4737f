#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/transport/emulated/context.h"
#include "daemon/transport/emulated/emulated.h"
#include "daemon/transport/emulated/handshake.h"
#include "daemon/transport/emulated/link.h"
#include "daemon/transport/emulated/socket.h"

namespace mkernel::transport {
namespace emulated {
namespace {

// Tokens of the epoll set: a link's is its PeerId, which leaves the upper half free.
constexpr std::uint64_t kListenerToken = std::uint64_t{1} << 32;
constexpr std::uint64_t kVisitorToken = std::uint64_t{2} << 32;
constexpr std::size_t kMaxVisitors = 64;
constexpr std::chrono::seconds kVisitorPatience{5};
/// What is due so soon, or copied by an engine, is worth no timer and no sleep: the owner polls again.
constexpr std::chrono::microseconds kImminent{50};

/// A connection that has not said yet who it is.
struct Visitor {
  ipc::UniqueFd socket;
  Time due;
};

struct Route {
  Link* link = nullptr;  ///< nullptr = channel not open
  bool outbound = false;
};

class Fabric final : public EmulatedTransport {
 public:
  Fabric(const EmulatedOptions& options, std::string endpoint, ipc::UniqueFd listener, Wakeup wakeup);
  ~Fabric() override { close(); }

  const Capabilities& capabilities() const override { return capabilities_; }
  std::string local_endpoint() const override { return endpoint_; }
  const FaultCounters& faults() const override { return context_.faults; }
  void attach(TransportSink& sink) override { context_.sink = &sink; }
  Status connect(PeerId peer, const PeerAddress& address) override;
  void disconnect(PeerId peer) override;
  Status open_outbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  Status open_inbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  void close_channel(ChannelId channel) override;
  std::size_t submit(std::span<const Put> puts) override;
  std::size_t poll() override;
  int event_fd() const override { return wakeup_.fd(); }
  bool holds(const memory::Region& region) const override;
  void forget(const memory::Region& region) override;
  Status set_link(PeerId peer, const LinkShape& shape) override;
  void close() override;

 private:
  Link* find(PeerId peer);
  Result<Route*> route_for(ChannelId channel, PeerId peer);
  void admit_visitors(Time now);
  std::size_t hear_visitor(int socket, Time now);
  void greet(Visitor visitor, Greeting greeting, Time now);
  std::optional<Time> next_deadline(Time now) const;
  void arm_timer(Time now) { wakeup_.arm(next_deadline(now)); }

  Context context_;
  const std::string endpoint_;
  Capabilities capabilities_;
  ipc::UniqueFd listener_;
  Wakeup wakeup_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Link>> departed_;  ///< disconnected, perhaps from within one of their own calls
  std::vector<Route> routes_;                    ///< by ChannelId
  std::vector<Visitor> visitors_;
};

Fabric::Fabric(const EmulatedOptions& options, std::string endpoint, ipc::UniqueFd listener, Wakeup wakeup)
    : context_{.options = options},
      endpoint_(std::move(endpoint)),
      capabilities_{.name = "emulated",
                    .gpu_memory = context_.copier.moves_gpu_memory(),
                    .max_put_bytes = abi::kMaxPutBytes,
                    .max_in_flight_puts = kWindow},
      listener_(std::move(listener)),
      wakeup_(std::move(wakeup)) {
  wakeup_.add(listener_.get(), kListenerToken);
}

Link* Fabric::find(PeerId peer) {
  const auto at =
      std::find_if(links_.begin(), links_.end(), [&](const auto& link) { return link->id() == peer; });
  return at == links_.end() ? nullptr : at->get();
}

Status Fabric::connect(PeerId peer, const PeerAddress& address) {
  if (find(peer) != nullptr) {
    return {StatusCode::kAlreadyExists, "emulated: peer " + std::to_string(peer) + " is connected already"};
  }
  if (same(address.identity, context_.options.base.identity)) {
    return {StatusCode::kInvalidArgument, "emulated: " + describe(address.identity) + " is this node itself"};
  }
  const Time now = Clock::now();
  auto link = Link::create(context_, wakeup_, peer, address, now);
  if (!link.ok()) return link.status();
  links_.push_back(std::move(link).value());
  arm_timer(now);
  return {};
}

void Fabric::disconnect(PeerId peer) {
  const auto at =
      std::find_if(links_.begin(), links_.end(), [&](const auto& link) { return link->id() == peer; });
  if (at == links_.end()) return;
  for (Route& route : routes_) {
    if (route.link == at->get()) route = {};
  }
  (*at)->close();
  departed_.push_back(std::move(*at));
  links_.erase(at);
}

Result<Route*> Fabric::route_for(ChannelId channel, PeerId peer) {
  Link* link = find(peer);
  if (link == nullptr) {
    return Status{StatusCode::kFailedPrecondition, "emulated: channel " + std::to_string(channel) +
                                                       " to peer " + std::to_string(peer) +
                                                       ", which was never connected"};
  }
  if (channel >= routes_.size()) routes_.resize(channel + 1);
  if (routes_[channel].link != nullptr) {
    return Status{StatusCode::kAlreadyExists,
                  "emulated: channel " + std::to_string(channel) + " is open already"};
  }
  routes_[channel].link = link;
  return &routes_[channel];
}

Status Fabric::open_outbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto route = route_for(channel, peer);
  if (!route.ok()) return route.status();
  (*route)->outbound = true;
  const Status opened = (*route)->link->sender().open(channel, key);
  if (!opened.ok()) **route = {};
  return opened;
}

Status Fabric::open_inbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto route = route_for(channel, peer);
  if (!route.ok()) return route.status();
  (*route)->outbound = false;
  const Status opened = (*route)->link->receiver().open(channel, key);
  if (!opened.ok())
    **route = {};
  else
    (*route)->link->flush(Clock::now());
  return opened;
}

void Fabric::close_channel(ChannelId channel) {
  if (channel >= routes_.size() || routes_[channel].link == nullptr) return;
  const Route route = std::exchange(routes_[channel], {});
  if (route.outbound) {
    route.link->sender().close(channel);
  } else {
    route.link->receiver().close(channel);
  }
}

std::size_t Fabric::submit(std::span<const Put> puts) {
  const Time now = Clock::now();
  std::size_t taken = 0;
  for (const Put& put : puts) {
    const Route route = put.channel < routes_.size() ? routes_[put.channel] : Route{};
    // A put of a closed channel or to a lost peer has nobody left to complete for: it is taken and forgotten.
    const bool alive = route.link != nullptr && route.outbound && !route.link->failed();
    if (alive && !route.link->sender().submit(put, now)) break;
    ++taken;
  }
  for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->flush(now);
  if (taken == 0) arm_timer(now);  // else the owner polls next
  return taken;
}

std::size_t Fabric::poll() {
  departed_.clear();
  const Time now = Clock::now();
  std::size_t handled = 0;
  for (const epoll_event& event : wakeup_.poll()) {
    const std::uint64_t token = event.data.u64;
    if (token == kListenerToken) {
      admit_visitors(now);
      ++handled;
    } else if ((token & kVisitorToken) != 0) {
      handled += hear_visitor(static_cast<int>(token & 0xffffffffU), now);
    } else if (Link* link = find(static_cast<PeerId>(token))) {
      link->wake();
    }
  }
  std::erase_if(visitors_, [&](const Visitor& visitor) { return visitor.due <= now; });
  // By index: the sink may connect and disconnect peers while it is told of events.
  for (std::size_t i = 0; i < links_.size(); ++i) handled += links_[i]->progress(now);
  const std::optional<Time> next = next_deadline(now);
  if (next && *next <= now + kImminent) return handled + 1;
  wakeup_.arm(next);
  return handled;
}

std::optional<Time> Fabric::next_deadline(Time now) const {
  std::optional<Time> next;
  for (const auto& link : links_) {
    next = base::sooner(next, link->next_deadline(now));
  }
  for (const Visitor& visitor : visitors_) next = base::sooner(next, visitor.due);
  return next;
}

void Fabric::admit_visitors(Time now) {
  while (visitors_.size() < kMaxVisitors) {
    ipc::UniqueFd socket = accept_from(listener_.get(), context_.copier.workers());
    if (!socket.valid()) return;
    wakeup_.add(socket.get(), kVisitorToken | static_cast<std::uint64_t>(socket.get()));
    visitors_.push_back({std::move(socket), now + kVisitorPatience});
  }
}

std::size_t Fabric::hear_visitor(int socket, Time now) {
  const auto at = std::find_if(visitors_.begin(), visitors_.end(),
                               [&](const Visitor& v) { return v.socket.get() == socket; });
  if (at == visitors_.end()) return 0;
  ipc::Packet packet;
  const Status got = ipc::receive_packet(socket, packet);
  if (got.code() == StatusCode::kNotFound) return 0;
  Visitor visitor = std::move(*at);
  visitors_.erase(at);
  if (!got.ok()) return 1;
  auto greeting = read_hello(packet);
  if (greeting.ok()) {
    greet(std::move(visitor), std::move(greeting).value(), now);
  } else {
    send_refusal(visitor.socket.get(), {greeting.status(), true});
  }
  return 1;
}

void Fabric::greet(Visitor visitor, Greeting greeting, Time now) {
  const Identity& self = context_.options.base.identity;
  const auto refuse = [&](bool final, const std::string& why) {
    const std::string text =
        "emulated: " + describe(self) + " refuses " + describe(greeting.from) + ": " + why;
    send_refusal(visitor.socket.get(), {{StatusCode::kFailedPrecondition, text}, final});
  };
  if (!same(greeting.to, self)) return refuse(true, "the call was meant for " + describe(greeting.to));
  const auto by_node = [&](const auto& link) { return link->identity().node == greeting.from.node; };
  const auto exact = [&](const auto& link) { return same(link->identity(), greeting.from); };
  if (const auto at = std::find_if(links_.begin(), links_.end(), exact); at != links_.end()) {
    if ((*at)->failed()) return refuse(true, "that peer was given up");
    if (greeting.wire >= (*at)->wires().count()) {
      return refuse(
          true, "wire " + std::to_string(greeting.wire) + " of " + std::to_string((*at)->wires().count()));
    }
    if (!(*at)->wires().carries(greeting.wire)) return;  // pulled: silence is what the peer would meet
    wakeup_.remove(visitor.socket.get());
    (*at)->adopt(std::move(visitor.socket), std::move(greeting), now);
    return;
  }
  const auto other = std::find_if(links_.begin(), links_.end(), by_node);
  // Not final: this daemon may be about to learn of the peer, or of its new life.
  if (other == links_.end()) return refuse(false, "it does not know this peer (yet)");
  refuse(false, "it expects " + describe((*other)->identity()));
}

bool Fabric::holds(const memory::Region& region) const {
  return std::any_of(links_.begin(), links_.end(), [&](const auto& link) {
    return link->sender().reads(region) || link->receiver().writes(region);
  });
}

void Fabric::forget(const memory::Region& region) {
  context_.copier.forget(region);
  const Time now = Clock::now();
  for (const auto& link : links_) link->forget(region, now);
  arm_timer(now);
}

Status Fabric::set_link(PeerId peer, const LinkShape& shape) {
  Link* link = find(peer);
  if (link == nullptr) {
    return {StatusCode::kNotFound, "emulated: no link to peer " + std::to_string(peer)};
  }
  const Time now = Clock::now();
  link->set_shape(shape, now);
  arm_timer(now);
  return {};
}

void Fabric::close() {
  if (!listener_.valid()) return;
  for (const auto& link : links_) link->close();
  for (auto& link : links_) departed_.push_back(std::move(link));
  links_.clear();
  routes_.clear();
  visitors_.clear();
  stop_listening(std::move(listener_), context_.copier.workers());
  if (endpoint_.front() != '@') ::unlink(endpoint_.c_str());
}

}  // namespace
}  // namespace emulated

Result<std::unique_ptr<Transport>> make_emulated(const EmulatedOptions& options) {
  std::string endpoint = emulated::address_of(options);
  auto listener = emulated::listen_at(endpoint);
  if (!listener.ok()) return listener.status();
  auto wakeup = emulated::Wakeup::create();
  if (!wakeup.ok()) return wakeup.status();
  return std::unique_ptr<Transport>(std::make_unique<emulated::Fabric>(
      options, std::move(endpoint), std::move(listener).value(), std::move(wakeup).value()));
}

}  // namespace mkernel::transport
