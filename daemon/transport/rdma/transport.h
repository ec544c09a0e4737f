// What the verbs and the EFA transport do in the same way: the tables of peers and channels, messages in and
// out, one poll() that visits whom it must, and what wakes its owner.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/transport/rdma/context.h"
#include "daemon/transport/rdma/wake.h"

namespace mkernel::transport::rdma {

/// `Parts` names the types of one transport: Context, Peer, Outbound, Inbound; and says how its messages are
/// checked (check) and how many idle peers a poll looks at in turn (kIdleVisits). A Peer derives from
/// PeerEntry and has the members that are called below. A channel's end is failed when `failed` is true.
template <typename Parts>
class PeerTransport : public Transport {
 public:
  using Context = typename Parts::Context;
  using Peer = typename Parts::Peer;
  using Outbound = typename Parts::Outbound;
  using Inbound = typename Parts::Inbound;

  ~PeerTransport() override { PeerTransport::close(); }

  const Capabilities& capabilities() const final { return capabilities_; }
  /// The ports or devices by preference: peers know by it how many there are. What else they need travels by
  /// send_to_peer().
  std::string local_endpoint() const final { return endpoint_; }
  std::uint32_t message_version() const final { return kMessageVersion; }
  void attach(TransportSink& sink) final { context_.sink = &sink; }

  Status connect(PeerId id, const PeerAddress& address) final {
    const Identity& self = context_.options.base.identity;
    const std::string who = "peer " + std::to_string(id) + " (node " + address.identity.node + ")";
    if (peers_.contains(id)) return {StatusCode::kAlreadyExists, who + " is connected already"};
    if (address.identity.boot_id == self.boot_id && address.identity.node == self.node) {
      return {StatusCode::kInvalidArgument, who + " is this node itself"};
    }
    auto& peer = peers_[id] = std::make_unique<Peer>(context_, id, address, Clock::now());
    visits_.add(*peer);
    offered_.reserve(peers_.size());
    return {};
  }

  void disconnect(PeerId id) final {
    const auto found = peers_.find(id);
    if (found == peers_.end()) return;
    Peer* const peer = found->second.get();
    for (End& end : ends_) {
      if (end.peer == peer) end = {};
    }
    visits_.remove(*peer);
    std::erase(offered_, peer);
    peers_.erase(found);
  }

  void receive_from_peer(PeerId id, std::span<const std::byte> message) final {
    if (!closed_) inbox_.emplace_back(id, std::vector<std::byte>(message.begin(), message.end()));
  }

  Status open_outbound(ChannelId channel, PeerId id, ChannelKey key) final {
    auto peer = peer_for_channel(channel, id);
    if (!peer.ok()) return peer.status();
    auto made = (*peer)->add_outbound(channel, key);
    if (!made.ok()) return made.status();
    set_end(channel, {*peer, *made, nullptr});
    return {};
  }

  Status open_inbound(ChannelId channel, PeerId id, ChannelKey key) final {
    auto peer = peer_for_channel(channel, id);
    if (!peer.ok()) return peer.status();
    auto made = (*peer)->add_inbound(channel, key);
    if (!made.ok()) return made.status();
    set_end(channel, {*peer, nullptr, *made});
    return {};
  }

  void close_channel(ChannelId channel) final {
    if (channel >= ends_.size()) return;
    const End end = std::exchange(ends_[channel], {});
    if (end.outbound != nullptr) end.peer->remove(*end.outbound);
    if (end.inbound != nullptr) end.peer->remove(*end.inbound);
    if (end.peer != nullptr) visits_.wake(*end.peer);
  }

  std::size_t submit(std::span<const Put> puts) final {
    if (closed_) return puts.size();
    const Time now = Clock::now();
    std::size_t taken = 0;
    while (taken < puts.size() && take(puts[taken], now)) ++taken;
    // By index: whoever is told of a failed channel may disconnect.
    for (std::size_t i = 0; i < offered_.size(); ++i) {
      offered_[i]->offered = false;
      if (!offered_[i]->failed) offered_[i]->flow(now);
    }
    offered_.clear();
    return taken;
  }

  std::size_t poll() final {
    if (closed_ || context_.sink == nullptr) return 0;
    const Time now = Clock::now();
    if (now - looked_ >= kBusyLook) look_at_events(now);
    visits_.wake_due(now);
    for (std::size_t i = 0; i < Parts::kIdleVisits; ++i) visits_.wake_next();
    std::size_t events = take_registrations() + receive_messages(now) + visit(now) + poll_more(now);
    events += send_messages();
    if (events > 0) return events;
    if (now - looked_ >= kIdleLook && look_at_events(now)) return 1;
    if (!settle(now)) return 1;
    wake_.at(std::min(visits_.due(), due_more()), now);
    return send_messages();
  }
  int event_fd() const final { return wake_.fd(); }

  void retire(const memory::Region& region) final {
    for (Peer* peer : visits_.all()) peer->retire(region);
  }
  bool holds(const memory::Region& region) const override {
    return std::any_of(visits_.all().begin(), visits_.all().end(),
                       [&](const Peer* peer) { return !peer->failed && peer->holds(region); });
  }

  void close() final {
    if (std::exchange(closed_, true)) return;
    for (Peer* peer : visits_.all()) peer->close();
    if (context_.registrar != nullptr) context_.registrar->stop();
    ends_.clear();
    inbox_.clear();
    context_.outbox.clear();
  }

 protected:
  using Time = rdma::Time;

  /// A channel id in use: one of the two ends is set, none when the peer is lost.
  struct End {
    Peer* peer = nullptr;
    Outbound* outbound = nullptr;
    Inbound* inbound = nullptr;
  };

  /// Before the paths are opened.
  Status make_registrar(const std::string& who) {
    auto registrar = Registrar::make();
    if (!registrar.ok()) return registrar.status().with_context(who);
    context_.registrar = std::move(*registrar);
    return {};
  }
  /// When all paths are open.
  Status make_events(const std::string& who) {
    MK_RETURN_IF_ERROR(wake_.make(who));
    MK_RETURN_IF_ERROR(wake_.watch(context_.registrar->event_fd()));
    for (const auto& path : context_.paths) {
      MK_RETURN_IF_ERROR(wake_.watch(path->completions()->fd));
      MK_RETURN_IF_ERROR(wake_.watch(path->context()->async_fd));
    }
    return {};
  }

  End end_of(ChannelId channel) const { return channel < ends_.size() ? ends_[channel] : End{}; }
  /// Peers that are not lost.
  template <typename Call>
  void for_each_peer(Call&& call) {
    for (Peer* peer : visits_.all()) {
      if (!peer->failed) call(*peer);
    }
  }

  void fail(Peer& peer, const Status& why, bool tell) {
    if (peer.failed) return;
    for (End& end : ends_) {
      if (end.peer == &peer) end = {&peer, nullptr, nullptr};
    }
    peer.failed = true;
    peer.close();
    const Status named(StatusCode::kUnavailable, "node " + peer.identity.node + ": " + why.text());
    if (tell) context_.say(peer.id, refusal({.type = MessageType::kGivenUp}, named));
    context_.sink->peer_failed(peer.id, named);
  }

  /// Takes the asynchronous events of the paths and tells the peers. True when there were any: every peer is
  /// visited then.
  virtual bool look_at_paths(Time now) = 0;
  /// What a poll does beside its visits to peers, and when it has to be called for that.
  virtual std::size_t poll_more(Time) { return 0; }
  virtual Time due_more() const { return kNever; }

  Context context_;  ///< first: what peers made goes before the paths
  Capabilities capabilities_;
  std::string endpoint_;

 private:
  /// How long events other than completions may lie: in a poll without work, and in busy times.
  static constexpr std::chrono::microseconds kIdleLook{20};
  static constexpr std::chrono::microseconds kBusyLook{1000};

  Result<Peer*> peer_for_channel(ChannelId channel, PeerId id) {
    const std::string who = "channel " + std::to_string(channel);
    if (end_of(channel).peer != nullptr) {
      return Status(StatusCode::kAlreadyExists, who + " is open already");
    }
    const auto found = peers_.find(id);
    if (found == peers_.end()) {
      return Status(StatusCode::kNotFound, who + ": no peer " + std::to_string(id));
    }
    visits_.wake(*found->second);
    return found->second.get();
  }

  void set_end(ChannelId channel, const End& end) {
    if (channel >= ends_.size()) ends_.resize(channel + 1);
    ends_[channel] = end;
  }

  bool take(const Put& put, Time now) {
    // Nobody waits for what a dead channel is given: it has been reported, and must not hold up the others.
    if (put.channel >= ends_.size()) return true;
    const End& end = ends_.data()[put.channel];
    if (end.outbound == nullptr || end.outbound->failed) return true;
    Outbound& channel = *end.outbound;
    if (channel.window.full()) return false;
    if (!channel.window.push(put, now)) {
      refuse(end, put);
      return true;
    }
    end.peer->offer(channel);
    if (!std::exchange(end.peer->offered, true)) {
      offered_.push_back(end.peer);
      visits_.wake(*end.peer);
    }
    return true;
  }

  [[gnu::cold]] void refuse(const End& end, const Put& put) {
    end.peer->fail(*end.outbound, end.outbound->window.out_of_order(put));
  }

  std::size_t take_registrations() {
    const std::size_t finished = context_.registrar->run();
    if (finished == 0) return 0;
    for_each_peer([](Peer& peer) { peer.registered(); });
    visits_.wake_all();
    return finished;
  }

  std::size_t receive_messages(Time now) {
    std::size_t received = 0;
    // By index: whoever is told something may answer into the same list, in tests.
    for (; received < inbox_.size(); ++received) {
      const auto found = peers_.find(inbox_[received].first);
      if (found == peers_.end() || found->second->failed) continue;
      const auto message = std::move(inbox_[received].second);
      receive(*found->second, message, now);
    }
    inbox_.clear();
    return received;
  }

  void receive(Peer& peer, std::span<const std::byte> message, Time now) {
    visits_.wake(peer);
    Status status = Parts::check(message);
    const bool given_up = status.ok() && read_as<Message>(message).type == MessageType::kGivenUp;
    if (given_up) {
      status = status_of(read_as<Refusal>(message)).with_context("it has given this node up");
    } else if (status.ok()) {
      status = peer.receive(message, now);
    }
    if (!status.ok()) fail(peer, status, !given_up);
  }

  std::size_t visit(Time now) {
    std::size_t events = 0;
    bool any_rests = false;
    visits_.for_each_busy([&](Peer& peer) {
      Status lost;
      const std::size_t found = peer.failed ? 0 : peer.poll(now, lost);
      peer.rests = found == 0 && (peer.failed || peer.idle());
      any_rests = any_rests || peer.rests;
      events += found;
      if (lost.ok()) return;
      fail(peer, lost, true);
      ++events;
    });
    if (any_rests) visits_.rest([&](Peer& peer) { return deadline_of(peer, now); });
    return events;
  }
  Time deadline_of(Peer& peer, Time now) const { return peer.failed ? kNever : peer.deadline(now); }

  std::size_t send_messages() {
    const auto messages = std::exchange(context_.outbox, {});
    for (const auto& [id, bytes] : messages) context_.sink->send_to_peer(id, bytes);
    return messages.size();
  }

  /// True when something has happened: those whom it concerns are awake.
  bool look_at_events(Time now) {
    looked_ = now;
    if (!wake_.take()) return false;
    notified_.clear();
    for (const auto& path : context_.paths) {
      take_notifications(context_.options.verbs, path->completions(), notified_);
    }
    for (const PeerId id : notified_) {
      if (const auto found = peers_.find(id); found != peers_.end()) visits_.wake(*found->second);
    }
    if (look_at_paths(now)) visits_.wake_all();
    return true;
  }

  /// Nothing has happened in this poll. False: some queues were not armed before it, and may have got
  /// something between the visit and now.
  bool settle(Time now) {
    return visits_.settle([](Peer& peer) { return peer.failed || peer.arm(); },
                          [&](Peer& peer) { return deadline_of(peer, now); });
  }

  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  Visits<Peer> visits_;
  std::vector<Peer*> offered_;  ///< by this submit()
  std::vector<End> ends_;       ///< by channel id
  std::vector<std::pair<PeerId, std::vector<std::byte>>> inbox_;
  std::vector<PeerId> notified_;
  bool closed_ = false;

  Wake wake_;
  Time looked_{};  ///< at events
};

}  // namespace mkernel::transport::rdma
