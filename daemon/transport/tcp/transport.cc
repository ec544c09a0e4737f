#include "daemon/transport/tcp/transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/abi/version.h"

namespace mkernel::transport::tcp {
namespace {

/// What one poll() does, of all connections together: acknowledgements leave after it, and rings are looked
/// at. In bytes; frames and calls of the kernel count as bytes too. The last connection to have its turn may
/// overshoot by a batch.
constexpr std::size_t kReadWork = std::size_t{1} << 20;
constexpr std::size_t kWriteWork = std::size_t{1} << 20;

Capabilities capabilities_of(const TcpOptions& options) {
  Capabilities capabilities;
  capabilities.name = "tcp";
  capabilities.gpu_memory = options.engines != nullptr;
  capabilities.max_put_bytes = abi::kMaxPutBytes;
  capabilities.max_in_flight_puts = options.window;
  return capabilities;
}

template <typename Channel>
Channel* at(const std::vector<std::unique_ptr<Channel>>& table, ChannelId id) {
  return id < table.size() ? table[id].get() : nullptr;
}

template <typename Channel>
Channel& put_into(std::vector<std::unique_ptr<Channel>>& table, std::unique_ptr<Channel> channel) {
  const ChannelId id = channel->id;
  if (id >= table.size()) table.resize(id + 1);
  table[id] = std::move(channel);
  return *table[id];
}

Status system_error(const std::string& what) {
  return {StatusCode::kResourceExhausted, "TCP transport: " + what + ": " + std::strerror(errno)};
}

}  // namespace

// Making

TcpTransport::TcpTransport(const TcpOptions& options, ipc::UniqueFd listener, std::string endpoint)
    : capabilities_(capabilities_of(options)),
      endpoint_(std::move(endpoint)),
      acceptor_(context_, *this, std::move(listener)) {
  context_.options = options;
  context_.gpu.use(std::move(context_.options.engines));
  context_.max_put_bytes = capabilities_.max_put_bytes;
}

TcpTransport::~TcpTransport() {
  close();
}

Result<std::unique_ptr<TcpTransport>> TcpTransport::make(const TcpOptions& options, ipc::UniqueFd listener,
                                                         std::string endpoint) {
  std::unique_ptr<TcpTransport> made(new TcpTransport(options, std::move(listener), std::move(endpoint)));
  Context& context = made->context_;
  context.epoll.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!context.epoll.valid()) return system_error("epoll_create1");
  context.timer.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!context.timer.valid()) return system_error("timerfd_create");
  auto kick = ipc::create_event();
  if (!kick.ok()) return kick.status();
  context.kick = std::move(*kick);
  // Neither needs a watcher: being readable is all they have to say. Edge-triggered, so never read either.
  for (const int fd : {context.timer.get(), context.kick.get()}) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    if (::epoll_ctl(context.epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) return system_error("epoll_ctl");
  }
  MK_RETURN_IF_ERROR(made->acceptor_.start());
  return made;
}

void TcpTransport::attach(TransportSink& sink) {
  context_.sink = &sink;
}

void TcpTransport::close() {
  if (closed_) return;
  closed_ = true;
  for (auto& [id, peer] : peers_) peer->close();
  acceptor_.close();
  context_.events.clear();
}

// Peers

Peer* TcpTransport::find_peer(std::uint64_t boot_id, std::string_view node) {
  for (auto& [id, peer] : peers_) {
    if (peer->identity().boot_id == boot_id && peer->identity().node == node) return peer.get();
  }
  return nullptr;
}

Status TcpTransport::connect(PeerId peer, const PeerAddress& address) {
  const Identity& self = context_.options.base.identity;
  const std::string who = "peer " + std::to_string(peer) + " (node " + address.identity.node + ")";
  if (peers_.contains(peer)) return {StatusCode::kAlreadyExists, who + " is connected already"};
  if (address.identity.boot_id == self.boot_id && address.identity.node == self.node) {
    return {StatusCode::kInvalidArgument, who + " is this node itself"};
  }
  auto remote = parse_endpoint(address.endpoint);
  if (!remote.ok()) return remote.status().with_context(who);
  auto made = std::make_unique<Peer>(context_, peer, address, *remote);
  MK_RETURN_IF_ERROR(made->start(Clock::now()));
  peers_[peer] = std::move(made);
  arm_timer();
  return {};
}

void TcpTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second->close();
  context_.events.forget_peer(peer);
  for (ChannelId id = 0; id < outbound_.size(); ++id) {
    if (outbound_[id] && &outbound_[id]->peer == found->second.get()) close_channel(id);
  }
  for (ChannelId id = 0; id < inbound_.size(); ++id) {
    if (inbound_[id] && &inbound_[id]->peer == found->second.get()) close_channel(id);
  }
  peers_.erase(found);
}

void TcpTransport::receive_from_peer(PeerId peer, std::span<const std::byte> message) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || closed_) return;  // disconnected meanwhile
  found->second->receive(message, Clock::now());
  if (context_.deadlines_changed) arm_timer();
}

// Channels

Result<Peer*> TcpTransport::peer_for_channel(ChannelId channel, PeerId peer, ChannelKey key) {
  const std::string who = "channel " + std::to_string(channel) + " (key " + std::to_string(key) + ")";
  if (at(outbound_, channel) != nullptr || at(inbound_, channel) != nullptr) {
    return Status(StatusCode::kAlreadyExists, who + " is open already");
  }
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    return Status(StatusCode::kNotFound, who + ": no peer " + std::to_string(peer));
  }
  return found->second.get();
}

Status TcpTransport::open_outbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto found = peer_for_channel(channel, peer, key);
  if (!found.ok()) return found.status();
  if ((*found)->outbound(key) != nullptr) {
    return {StatusCode::kAlreadyExists, "outbound channel key " + std::to_string(key) + " is open already"};
  }
  (*found)->add(put_into(outbound_, std::make_unique<Outbound>(channel, key, **found, context_.options.window,
                                                               (*found)->load())));
  return {};
}

Status TcpTransport::open_inbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto found = peer_for_channel(channel, peer, key);
  if (!found.ok()) return found.status();
  if ((*found)->inbound(key) != nullptr) {
    return {StatusCode::kAlreadyExists, "inbound channel key " + std::to_string(key) + " is open already"};
  }
  // A put into host memory lands at once, also ahead of copies into GPU memory: as far as any sender may go.
  const std::uint32_t window = context_.gpu.available() ? kMaxWindow : context_.options.window;
  (*found)->add(put_into(inbound_, std::make_unique<Inbound>(channel, key, **found, window)));
  return {};
}

void TcpTransport::close_channel(ChannelId channel) {
  if (Outbound* outbound = at(outbound_, channel)) {
    outbound->peer.remove(*outbound);
    context_.events.forget(*outbound);
    outbound_[channel].reset();
  }
  if (Inbound* inbound = at(inbound_, channel)) {
    inbound->peer.remove(*inbound);
    context_.events.forget(*inbound);
    inbound_[channel].reset();
  }
}

bool TcpTransport::holds(const memory::Region& region) const {
  for (const auto& channel : outbound_) {
    if (channel == nullptr) continue;
    for (std::uint64_t n = channel->window.acknowledged() + 1; n <= channel->window.submitted(); ++n) {
      if (channel->window.at(n).source == &region) return true;
    }
  }
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const auto& entry) { return entry.second->uses(region); });
}

// The data path

bool TcpTransport::take(const Put& put, Clock::time_point now) {
  Outbound* channel = at(outbound_, put.channel);
  // Nobody waits for what a dead channel is given: it has been reported, and must not hold up the others.
  if (channel == nullptr || channel->failed || channel->peer.failed()) return true;
  if (channel->window.full()) return false;
  if (!channel->window.push(put, now)) {
    channel->failed = true;
    context_.events.channel_failed(channel->id, channel->window.out_of_order(put).with_context(
                                                    "channel " + std::to_string(channel->id)));
    context_.kick_once();
    return true;
  }
  channel->peer.link_of(channel->key).offer(*channel);
  return true;
}

std::size_t TcpTransport::submit(std::span<const Put> puts) {
  const auto now = Clock::now();
  std::size_t taken = 0;
  while (taken < puts.size() && take(puts[taken], now)) ++taken;
  return taken;
}

std::size_t TcpTransport::poll() {
  if (closed_ || context_.sink == nullptr) return 0;
  collect_events();
  std::size_t done = acceptor_.poll();
  context_.gpu.poll();  // what is over, for everybody's receive() and send()
  // Everybody has a turn, or as many as do so much work: the next poll begins with the others.
  auto& ready = context_.ready;
  auto& in_turn = context_.in_turn;
  std::size_t left = kReadWork;
  for (std::size_t turns = ready.size(); turns > 0 && left > 0 && !ready.empty(); --turns) {
    Served* connection = ready.pop();
    in_turn.push(*connection);
    done += connection->receive(left);
  }
  // Counts are published before the acknowledgements that say so leave.
  done += context_.events.deliver(*context_.sink);
  if (closed_) return done;
  for (left = kWriteWork; left > 0 && !in_turn.empty();) {
    Served* connection = in_turn.pop();
    done += connection->send(left);
    if (connection->has_work()) ready.push(*connection);
  }
  ready.prepend(in_turn);
  context_.gpu.poll();  // hands over the copies that were started
  context_.kicked = false;
  if (!ready.empty() || !context_.events.empty() || acceptor_.has_work()) context_.kick_once();
  if (context_.deadlines_changed) arm_timer();
  return done;
}

void TcpTransport::collect_events() {
  std::array<epoll_event, 64> events;
  context_.kicked = true;  // until the end of poll(): what comes up meanwhile is served by it
  const int count = ::epoll_wait(context_.epoll.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr != nullptr) static_cast<Watch*>(events[i].data.ptr)->on_events(events[i].events);
  }
  if (armed_ != kNever && Clock::now() >= armed_) expire();
}

// Time

void TcpTransport::expire() {
  const auto now = Clock::now();
  acceptor_.expire(now);
  for (auto& [id, peer] : peers_) peer->expire(now);
  arm_timer();
}

void TcpTransport::arm_timer() {
  context_.deadlines_changed = false;
  auto nearest = acceptor_.deadline();
  for (const auto& [id, peer] : peers_) nearest = std::min(nearest, peer->deadline());
  if (nearest == armed_ && nearest > Clock::now()) return;
  armed_ = nearest;
  itimerspec setting{};  // all zero: disarmed
  if (nearest != kNever) {
    using std::chrono::duration_cast;
    const auto since = nearest.time_since_epoch();
    const auto seconds = duration_cast<std::chrono::seconds>(since);
    setting.it_value.tv_sec = seconds.count();
    setting.it_value.tv_nsec = duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  }
  ::timerfd_settime(context_.timer.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
}

}  // namespace mkernel::transport::tcp
