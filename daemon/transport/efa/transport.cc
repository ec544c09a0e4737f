#include "daemon/transport/efa/transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/abi/work_request.h"

namespace mkernel::transport::efa {
namespace {

/// How long the devices' events may lie in busy times.
constexpr std::chrono::microseconds kLook{1000};

Status check(const EfaOptions& options) {
  const auto wrong = [](const std::string& what) {
    return Status{StatusCode::kInvalidArgument, "EFA transport: " + what};
  };
  if (options.window < 1 || options.window > kMaxWindow) return wrong("window must be 1 to 32767");
  if (options.credit < 1 || options.credit > 65536) return wrong("credit must be 1 to 65536");
  if (options.send_queue != 0 && options.send_queue < 16) return wrong("send_queue must be at least 16");
  if (options.service_level > 15) return wrong("service_level must be 0 to 15");
  return options.devices.size() <= rdma::kMaxPaths ? Status() : wrong("more than 64 devices");
}

Status system_error(const std::string& what) {
  return {StatusCode::kResourceExhausted, "EFA transport: " + what + ": " + std::strerror(errno)};
}

}  // namespace

EfaTransport::EfaTransport(const EfaOptions& options) {
  context_.options = options;
  capabilities_.name = "efa";
  capabilities_.gpu_memory = options.gpu_memory;
  capabilities_.counts_bytes = false;
  capabilities_.max_put_bytes = abi::kMaxPutBytes;
  capabilities_.max_in_flight_puts = options.window;
}

/// All at the start: what cannot be used is refused by name before anything relies on it, and opening costs
/// little. What costs much, queue pairs, address handles and registrations, is made when a route needs it.
Result<std::unique_ptr<EfaTransport>> EfaTransport::make(const EfaOptions& options) {
  MK_RETURN_IF_ERROR(check(options));
  std::unique_ptr<EfaTransport> made(new EfaTransport(options));
  auto registrar = rdma::Registrar::make();
  if (!registrar.ok()) return registrar.status().with_context("EFA transport");
  made->context_.registrar = std::move(*registrar);
  if (options.devices.empty()) MK_RETURN_IF_ERROR(made->open_device(""));
  for (const std::string& name : options.devices) MK_RETURN_IF_ERROR(made->open_device(name));
  MK_RETURN_IF_ERROR(made->make_events());
  return made;
}

Status EfaTransport::open_device(const std::string& name) {
  auto device = Device::open(context_.options, name);
  if (!device.ok()) return device.status().with_context("EFA transport");
  const Abilities& can = (*device)->abilities();
  // Without unsolicited receives the peer's puts and acknowledgements consume posted ones.
  EfaOptions& kept = context_.options;
  if (!can.unsolicited) kept.credit = std::min(kept.credit, can.receive_queue / 2);
  if (kept.gpu_memory && !can.dma_buf) {
    return {StatusCode::kFailedPrecondition, "transport.gpu_memory = true: " + (*device)->name() +
                                                 " takes no dma-bufs: its driver or the kernel is too old"};
  }
  capabilities_.max_put_bytes = std::min(capabilities_.max_put_bytes, can.max_put_bytes);
  endpoint_ += (endpoint_.empty() ? "" : ", ") + (*device)->name();
  context_.paths.push_back(std::move(*device));
  return {};
}

Status EfaTransport::make_events() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return system_error("epoll_create1");
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return system_error("timerfd_create");
  MK_RETURN_IF_ERROR(watch(timer_.get()));
  MK_RETURN_IF_ERROR(watch(context_.registrar->event_fd()));
  for (const auto& device : context_.paths) {
    MK_RETURN_IF_ERROR(watch(device->completions()->fd));
    MK_RETURN_IF_ERROR(watch(device->context()->async_fd));
  }
  return {};
}

/// Edge-triggered: a timer that went off is never read.
Status EfaTransport::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? Status() : system_error("epoll_ctl");
}

EfaTransport::~EfaTransport() {
  close();
}

void EfaTransport::close() {
  if (std::exchange(closed_, true)) return;
  for (auto& [id, peer] : peers_) peer->close();
  if (context_.registrar != nullptr) context_.registrar->stop();
  ends_.clear();
  inbox_.clear();
  context_.outbox.clear();
}

// Peers

Status EfaTransport::connect(PeerId peer, const PeerAddress& address) {
  const Identity& self = context_.options.base.identity;
  const std::string who = "peer " + std::to_string(peer) + " (node " + address.identity.node + ")";
  if (peers_.contains(peer)) return {StatusCode::kAlreadyExists, who + " is connected already"};
  if (address.identity.boot_id == self.boot_id && address.identity.node == self.node) {
    return {StatusCode::kInvalidArgument, who + " is this node itself"};
  }
  peers_[peer] = std::make_unique<Peer>(context_, peer, address, Clock::now());
  return {};
}

void EfaTransport::disconnect(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  for (End& end : ends_) {
    if (end.peer == found->second.get()) end = {};
  }
  peers_.erase(found);
}

void EfaTransport::receive_from_peer(PeerId peer, std::span<const std::byte> message) {
  if (!closed_) inbox_.emplace_back(peer, std::vector<std::byte>(message.begin(), message.end()));
}

void EfaTransport::fail(PeerId id, Peer& peer, const Status& why, bool tell) {
  if (peer.failed()) return;
  for (End& end : ends_) {
    if (end.peer == &peer) end = {&peer, nullptr, nullptr};
  }
  peer.close();
  const Status named(StatusCode::kUnavailable, "node " + peer.identity().node + ": " + why.text());
  if (tell) context_.say(id, bytes_of(refusal({.type = MessageType::kGivenUp}, named)));
  context_.sink->peer_failed(id, named);
}

// Channels

Result<Peer*> EfaTransport::peer_for_channel(ChannelId channel, PeerId peer) const {
  const std::string who = "channel " + std::to_string(channel);
  if (channel < ends_.size() && ends_[channel].peer != nullptr) {
    return Status(StatusCode::kAlreadyExists, who + " is open already");
  }
  const auto found = peers_.find(peer);
  if (found != peers_.end()) return found->second.get();
  return Status(StatusCode::kNotFound, who + ": no peer " + std::to_string(peer));
}

EfaTransport::End& EfaTransport::end_of(ChannelId channel) {
  if (channel >= ends_.size()) ends_.resize(channel + 1);
  return ends_[channel];
}

Status EfaTransport::open_outbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto found = peer_for_channel(channel, peer);
  if (!found.ok()) return found.status();
  auto made = (*found)->add_outbound(channel, key);
  if (!made.ok()) return made.status();
  end_of(channel) = {*found, *made, nullptr};
  return {};
}

Status EfaTransport::open_inbound(ChannelId channel, PeerId peer, ChannelKey key) {
  auto found = peer_for_channel(channel, peer);
  if (!found.ok()) return found.status();
  auto made = (*found)->add_inbound(channel, key);
  if (!made.ok()) return made.status();
  end_of(channel) = {*found, nullptr, *made};
  return {};
}

void EfaTransport::close_channel(ChannelId channel) {
  if (channel >= ends_.size()) return;
  const End end = std::exchange(ends_[channel], {});
  if (end.outbound != nullptr) end.peer->remove(*end.outbound);
  if (end.inbound != nullptr) end.peer->remove(*end.inbound);
}

void EfaTransport::retire(const memory::Region& region) {
  for (auto& [id, peer] : peers_) peer->retire(region);
}

bool EfaTransport::holds(const memory::Region& region) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const auto& entry) { return entry.second->holds(region); });
}

void EfaTransport::forget(const memory::Region& region) {
  for (auto& [id, peer] : peers_) peer->forget(region);
}

// The data path

bool EfaTransport::take(const Put& put, Time now) {
  const End end = put.channel < ends_.size() ? ends_[put.channel] : End{};
  // Nobody waits for what a dead channel is given: it has been reported, and must not hold up the others.
  if (end.outbound == nullptr || end.outbound->failed) return true;
  Outbound& channel = *end.outbound;
  if (channel.window.full()) return false;
  if (!channel.window.push(put, now)) {
    refuse(end, put);
    return true;
  }
  end.peer->offer(channel);
  return true;
}

void EfaTransport::refuse(const End& end, const Put& put) {
  end.peer->fail(*end.outbound, end.outbound->window.out_of_order(put));
}

std::size_t EfaTransport::submit(std::span<const Put> puts) {
  if (closed_) return puts.size();
  const Time now = Clock::now();
  std::size_t taken = 0;
  while (taken < puts.size() && take(puts[taken], now)) ++taken;
  for (auto& [id, peer] : peers_) peer->flow(now);
  return taken;
}

std::size_t EfaTransport::poll() {
  if (closed_ || context_.sink == nullptr) return 0;
  const Time now = Clock::now();
  std::size_t events = now - looked_ >= kLook ? look_at_devices(now) : 0;
  events += take_registrations();
  events += receive_messages(now) + poll_peers(now);
  events += send_messages();
  if (events > 0) return events;
  // Nothing to do: what comes from here on wakes the owner, and what came meanwhile is found now.
  for (const auto& device : context_.paths) device->take_notifications();
  for (auto& [id, peer] : peers_) {
    if (!peer->arm()) return 1;
  }
  events = look_at_devices(now) + poll_peers(now) + send_messages();
  arm_timer(now);
  return events;
}

std::size_t EfaTransport::take_registrations() {
  const std::size_t finished = context_.registrar->run();
  if (finished == 0) return 0;
  for (auto& [id, peer] : peers_) {
    if (!peer->failed()) peer->registered();
  }
  return finished;
}

std::size_t EfaTransport::receive_messages(Time now) {
  std::size_t received = 0;
  // By index: whoever is told something may answer into the same list, in tests.
  for (; received < inbox_.size(); ++received) {
    const auto found = peers_.find(inbox_[received].first);
    if (found == peers_.end() || found->second->failed()) continue;
    const auto& message = inbox_[received].second;
    Status status = check_message(message);
    const bool given_up = status.ok() && read_as<Message>(message).type == MessageType::kGivenUp;
    if (status.ok()) status = found->second->receive(message, now);
    if (!status.ok()) fail(found->first, *found->second, status, !given_up);
  }
  inbox_.clear();
  return received;
}

std::size_t EfaTransport::poll_peers(Time now) {
  std::size_t events = 0;
  for (auto& [id, peer] : peers_) {
    if (peer->failed()) continue;
    Status lost;
    events += peer->poll(now, lost);
    if (lost.ok()) continue;
    fail(id, *peer, lost, true);
    ++events;
  }
  return events;
}

std::size_t EfaTransport::send_messages() {
  const auto messages = std::exchange(context_.outbox, {});
  for (const auto& [peer, bytes] : messages) context_.sink->send_to_peer(peer, bytes);
  return messages.size();
}

std::size_t EfaTransport::look_at_devices(Time now) {
  looked_ = now;
  std::size_t events = 0;
  for (std::uint32_t local = 0; local < context_.paths.size(); ++local) {
    const Device::News news = context_.paths[local]->take_events();
    if (!news.changed) continue;
    ++events;
    for (auto& [id, peer] : peers_) {
      if (!peer->failed()) peer->device_changed(local, news, now);
    }
  }
  return events == 0 ? 0 : events + fail_without_devices();
}

/// A dead device never comes back: where all are dead there is nothing to wait for.
std::size_t EfaTransport::fail_without_devices() {
  if (!std::all_of(context_.paths.begin(), context_.paths.end(),
                   [](const auto& device) { return device->dead(); })) {
    return 0;
  }
  for (auto& [id, peer] : peers_) {
    if (peer->failed()) continue;
    fail(id, *peer, {StatusCode::kUnavailable, "no EFA device is left here: " + peer->why_lost()}, true);
  }
  return 1;
}

/// Wakes the owner for the next thing that has a time.
void EfaTransport::arm_timer(Time now) {
  Time due = kNever;
  for (const auto& [id, peer] : peers_) {
    if (!peer->failed()) due = std::min(due, peer->deadline(now));
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

}  // namespace mkernel::transport::efa

namespace mkernel::transport {

Result<std::unique_ptr<Transport>> make_efa(const EfaOptions& options) {
  auto made = efa::EfaTransport::make(options);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Transport>(std::move(*made));
}

}  // namespace mkernel::transport
