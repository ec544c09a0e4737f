#include "daemon/transport/verbs/transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "daemon/topology/rdma_device.h"
#include "daemon/transport/rdma/dma_buf.h"
#include "proto/abi/work_request.h"

namespace mkernel::transport::verbs {
namespace {

/// How long events other than completions may lie: in a turn without work, and in busy times.
constexpr std::chrono::microseconds kIdleLook{20};
constexpr std::chrono::microseconds kBusyLook{1000};
constexpr std::chrono::milliseconds kShortestInterval{1};
constexpr std::chrono::milliseconds kLongestInterval{20};

Status check(const VerbsOptions& options) {
  const auto wrong = [](const std::string& what) {
    return Status{StatusCode::kInvalidArgument, "verbs transport: " + what};
  };
  if (options.ports.empty()) return wrong("no port to use");
  if (options.ports.size() > rdma::kMaxPaths) return wrong(std::to_string(options.ports.size()) + " ports");
  if (options.qps_per_peer < 1 || options.qps_per_peer > 64) return wrong("qps_per_peer must be 1 to 64");
  if (options.send_queue < 64) return wrong("send_queue must be at least 64");
  if (options.window < 1 || options.window > kMaxWindow) return wrong("window must be 1 to 32767");
  if (options.max_inline < 8) return wrong("max_inline must be at least 8: counts are sent inline");
  if (options.timeout < 1 || options.timeout > 31)
    return wrong("timeout must be 1 to 31: others wait for ever");
  if (!std::has_single_bit(options.chunk_bytes) || options.chunk_bytes < 4096) return wrong("chunk_bytes");
  if (options.retry_count > 7) return wrong("retry_count must be 0 to 7");
  return {};
}

Status require_dma_bufs(const rdma::VerbsLibrary& verbs, const Path& path) {
  const auto takes = rdma::takes_dma_bufs(verbs, path.pd());
  if (!takes.ok()) return takes.status().with_context(path.text());
  if (takes.value()) return {};
  return {StatusCode::kFailedPrecondition,
          path.text() +
              " takes no dma-bufs, so it cannot reach GPU memory: a newer kernel or driver does, or set "
              "transport.gpu_memory = false"};
}

Status system_error(const std::string& what) {
  return {StatusCode::kResourceExhausted, "verbs transport: " + what + ": " + std::strerror(errno)};
}

}  // namespace

// Making

VerbsTransport::VerbsTransport(const VerbsOptions& options) {
  context_.options = options;
  capabilities_.name = "verbs";
  capabilities_.publishes = true;
  capabilities_.counts_bytes = false;
  capabilities_.gpu_memory = options.gpu_memory;
  capabilities_.max_put_bytes = abi::kMaxPutBytes;
  capabilities_.max_in_flight_puts = options.window;
}

Result<std::unique_ptr<VerbsTransport>> VerbsTransport::make(const VerbsOptions& options) {
  MK_RETURN_IF_ERROR(check(options));
  std::unique_ptr<VerbsTransport> made(new VerbsTransport(options));
  Context& context = made->context_;
  auto registrar = rdma::Registrar::make();
  if (!registrar.ok()) return registrar.status().with_context("verbs transport");
  context.registrar = std::move(*registrar);
  for (const VerbsPort& port : options.ports) {
    auto path = Path::open(context.options, port, context.registrar.get());
    if (!path.ok()) return path.status();
    made->endpoint_ += (made->endpoint_.empty() ? "" : ", ") + topology::port_name(port.device, port.number);
    if (options.gpu_memory) MK_RETURN_IF_ERROR(require_dma_bufs(options.verbs, **path));
    context.paths.push_back(std::move(*path));
  }
  MK_RETURN_IF_ERROR(made->make_events());
  return made;
}

Status VerbsTransport::make_events() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return system_error("epoll_create1");
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return system_error("timerfd_create");
  MK_RETURN_IF_ERROR(watch(timer_.get()));
  MK_RETURN_IF_ERROR(watch(context_.registrar->event_fd()));
  for (const auto& path : context_.paths) {
    MK_RETURN_IF_ERROR(watch(path->completions()->fd));
    MK_RETURN_IF_ERROR(watch(path->context()->async_fd));
  }
  return {};
}

/// Edge-triggered: a timer that went off is never read.
Status VerbsTransport::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? Status() : system_error("epoll_ctl");
}

VerbsTransport::~VerbsTransport() {
  close();
}

void VerbsTransport::close() {
  if (std::exchange(closed_, true)) return;
  for (auto& [id, peer] : peers_) {
    peer->sender.close();
    peer->receiver.close();
  }
  if (context_.registrar != nullptr) context_.registrar->stop();
  inbox_.clear();
  context_.outbox.clear();
}

// Peers

Status VerbsTransport::connect(PeerId peer, const PeerAddress& address) {
  const Identity& self = context_.options.base.identity;
  const std::string who = "peer " + std::to_string(peer) + " (node " + address.identity.node + ")";
  if (peers_.contains(peer)) return {StatusCode::kAlreadyExists, who + " is connected already"};
  if (address.identity.boot_id == self.boot_id && address.identity.node == self.node) {
    return {StatusCode::kInvalidArgument, who + " is this node itself"};
  }
  peers_[peer] = std::make_unique<Peer>(context_, peer, address, Clock::now());
  return {};
}

void VerbsTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  for (End& end : ends_) {
    if (end.peer == found->second.get()) end = {};
  }
  peers_.erase(found);
}

void VerbsTransport::receive_from_peer(PeerId peer, std::span<const std::byte> message) {
  if (!closed_) inbox_.emplace_back(peer, std::vector<std::byte>(message.begin(), message.end()));
}

void VerbsTransport::fail(Peer& peer, const Status& why, bool tell) {
  if (std::exchange(peer.failed, true)) return;
  peer.sender.close();
  peer.receiver.close();
  const Status named(StatusCode::kUnavailable, "node " + peer.identity.node + ": " + why.text());
  if (tell) {
    const Message head{.type = MessageType::kGivenUp};
    context_.say(peer.id, bytes_of(refusal(head, named)));
  }
  context_.sink->peer_failed(peer.id, named);
}

// Channels

Result<VerbsTransport::Peer*> VerbsTransport::peer_for_channel(ChannelId channel, PeerId peer) const {
  const std::string who = "channel " + std::to_string(channel);
  if (channel < ends_.size() && ends_[channel].peer != nullptr) {
    return Status(StatusCode::kAlreadyExists, who + " is open already");
  }
  const auto found = peers_.find(peer);
  if (found != peers_.end()) return found->second.get();
  return Status(StatusCode::kNotFound, who + ": no peer " + std::to_string(peer));
}

Status VerbsTransport::open_outbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto found = peer_for_channel(channel, peer);
  if (!found.ok()) return found.status();
  MK_RETURN_IF_ERROR((*found)->sender.add(channel, key));
  if (channel >= ends_.size()) ends_.resize(channel + 1);
  ends_[channel] = {*found, (*found)->sender.find(key), nullptr};
  return {};
}

Status VerbsTransport::open_inbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto found = peer_for_channel(channel, peer);
  if (!found.ok()) return found.status();
  MK_RETURN_IF_ERROR((*found)->receiver.add(channel, key));
  if (channel >= ends_.size()) ends_.resize(channel + 1);
  ends_[channel] = {*found, nullptr, (*found)->receiver.find(key)};
  look_interval_ = kShortestInterval;
  return {};
}

void VerbsTransport::quiesce(ChannelId channel) {
  const End end = channel < ends_.size() ? ends_[channel] : End{};
  if (end.outbound != nullptr) end.peer->sender.quiesce(*end.outbound);
  if (end.inbound != nullptr) end.peer->receiver.quiesce(*end.inbound);
}

bool VerbsTransport::quiet(ChannelId channel) const {
  const End end = channel < ends_.size() ? ends_[channel] : End{};
  if (end.outbound != nullptr) return !end.outbound->in_flight();
  if (end.inbound == nullptr) return true;
  // Its keys may be among those that still go, and who closes it expects that they have gone.
  return end.inbound->path == nullptr &&
         std::none_of(context_.paths.begin(), context_.paths.end(),
                      [](const auto& path) { return path->registrations().any_leaving(); });
}

void VerbsTransport::close_channel(ChannelId channel) {
  if (channel >= ends_.size()) return;
  const End end = std::exchange(ends_[channel], {});
  if (end.outbound != nullptr) end.peer->sender.remove(*end.outbound);
  if (end.inbound != nullptr) end.peer->receiver.remove(*end.inbound);
}

void VerbsTransport::retire(const memory::Region& region) {
  for (auto& [id, peer] : peers_) peer->receiver.retire(region);
}

bool VerbsTransport::holds(const memory::Region& region) const {
  const auto leaving = [&](const auto& path) { return path->registrations().leaving(region); };
  if (std::any_of(context_.paths.begin(), context_.paths.end(), leaving)) return true;
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    const Peer& peer = *entry.second;
    return !peer.failed && (peer.sender.holds(region) || peer.receiver.holds(region));
  });
}

void VerbsTransport::forget(const memory::Region& region) {
  for (const auto& path : context_.paths) path->registrations().forget(region);
}

// The data path

bool VerbsTransport::take(const Put& put, Time now) {
  const End end = put.channel < ends_.size() ? ends_[put.channel] : End{};
  // Nobody waits for what a dead channel is given: it has been reported, and must not hold up the others.
  if (end.outbound == nullptr || end.outbound->failed || end.peer->failed) return true;
  Outbound& channel = *end.outbound;
  if (channel.window.full()) return false;
  if (!channel.window.push(put, now)) {
    refuse(channel, put);
    return true;
  }
  channel.link.offer(channel);
  return true;
}

void VerbsTransport::refuse(Outbound& channel, const Put& put) {
  fail_channel(context_, channel, channel.window.out_of_order(put));
}

std::size_t VerbsTransport::submit(std::span<const Put> puts) {
  if (closed_) return puts.size();
  const Time now = Clock::now();
  std::size_t taken = 0;
  while (taken < puts.size() && take(puts[taken], now)) ++taken;
  for (auto& [id, peer] : peers_) {
    if (!peer->failed) peer->sender.flow(now);
  }
  return taken;
}

std::size_t VerbsTransport::poll() {
  if (closed_ || context_.sink == nullptr) return 0;
  const Time now = Clock::now();
  if (now - looked_ >= kBusyLook) look_at_events(now);
  std::size_t events = take_registrations() + receive_messages(now) + poll_peers(now);
  events += send_messages();
  if (events > 0) return events;
  if (now - looked_ >= kIdleLook) look_at_events(now);
  if (!arm_completions()) return 1;
  arm_timer(now);
  return send_messages();
}

std::size_t VerbsTransport::take_registrations() {
  const std::size_t finished = context_.registrar->run();
  if (finished == 0) return 0;
  for (auto& [id, peer] : peers_) {
    if (peer->failed) continue;
    peer->sender.registered();
    peer->receiver.registered();
  }
  return finished;
}

std::size_t VerbsTransport::receive_messages(Time now) {
  std::size_t received = 0;
  // By index: whoever is told something may answer into the same list, in tests.
  for (; received < inbox_.size(); ++received) {
    const auto found = peers_.find(inbox_[received].first);
    if (found == peers_.end() || found->second->failed) continue;
    receive(*found->second, inbox_[received].second, now);
  }
  inbox_.clear();
  return received;
}

void VerbsTransport::receive(Peer& peer, std::span<const std::byte> message, Time now) {
  Status status = check_message(message);
  if (status.ok()) {
    const MessageType type = read_as<Message>(message).type;
    if (type == MessageType::kGivenUp) {
      const Status why = status_of(read_as<Refusal>(message));
      return fail(peer, why.with_context("it has given this node up"), false);
    }
    status = type < MessageType::kOpened ? peer.receiver.receive(message) : peer.sender.receive(message, now);
  }
  if (!status.ok()) fail(peer, status, true);
}

std::size_t VerbsTransport::poll_peers(Time now) {
  std::size_t events = 0;
  for (auto& [id, peer] : peers_) {
    if (peer->failed) continue;
    Status lost;
    events += peer->sender.poll(now, lost);
    const std::size_t arrivals = peer->receiver.poll();
    if (arrivals > 0) look_interval_ = kShortestInterval;
    events += arrivals;
    if (lost.ok()) continue;
    fail(*peer, lost, true);
    ++events;
  }
  return events;
}

std::size_t VerbsTransport::send_messages() {
  const auto messages = std::exchange(context_.outbox, {});
  for (const auto& [peer, bytes] : messages) context_.sink->send_to_peer(peer, bytes);
  return messages.size();
}

// Events and time

void VerbsTransport::look_at_events(Time now) {
  looked_ = now;
  std::array<epoll_event, 16> events;
  if (::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0) <= 0) return;
  const Status broken(StatusCode::kUnavailable, "the device reported an error of the queue pair");
  for (const auto& path : context_.paths) {
    path->take_notifications();
    const Path::News news = path->take_events();
    for (auto& [id, peer] : peers_) {
      if (peer->failed) continue;
      if (news.changed) {
        peer->sender.path_changed(*path, now);
        peer->receiver.path_changed(*path);
      }
      for (const Path::News::BrokenQueue& queue : news.broken) {
        peer->sender.queue_broken(queue.qpn, broken, now);
        peer->receiver.queue_broken(queue);
      }
    }
  }
}

bool VerbsTransport::arm_completions() {
  bool quiet = true;
  for (auto& [id, peer] : peers_) quiet = (peer->failed || peer->sender.arm()) && quiet;
  return quiet;
}

/// Wakes the owner for the next thing that has a time, and to look for arrivals.
void VerbsTransport::arm_timer(Time now) {
  Time due = kNever;
  bool listens = false;
  for (const auto& [id, peer] : peers_) {
    if (peer->failed) continue;
    due = std::min(due, peer->sender.deadline(now));
    listens = listens || peer->receiver.has_channels();
  }
  if (listens) {
    if (next_look_ <= now) {
      next_look_ = now + look_interval_;
      look_interval_ = std::min(2 * look_interval_, kLongestInterval);
    }
    due = std::min(due, next_look_);
  }
  if (due == timer_due_ && due > now) return;
  timer_due_ = due;
  itimerspec setting{};  // all zero: disarmed
  if (due != kNever) {
    using std::chrono::duration_cast;
    const auto since = std::max(due, now + std::chrono::microseconds(1)).time_since_epoch();
    const auto seconds = duration_cast<std::chrono::seconds>(since);
    setting.it_value.tv_sec = seconds.count();
    setting.it_value.tv_nsec = duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
}

}  // namespace mkernel::transport::verbs
