// Two transports over fake NICs whose queues complete at once and move nothing: what remains is the post
// path.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/transport/transport.h"
#include "tests/support/fake_nic/fabric.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {

/// What to join.
struct NullKind {
  /// A transport over a device with null queues, added to the fabric for it.
  std::function<std::unique_ptr<transport::Transport>(nic::Fabric&, const transport::TransportOptions&)> make;
  /// Its proxy takes part in every put. Where NICs do without, it only makes channels and regions known.
  bool receiver_works = false;
};

/// A first node and its peers. One thread.
class NullPair {
 public:
  static constexpr std::uint64_t kRegionBytes = 1U << 20;

  /// `channels` from the first node to each of `peers` others. `back`: as many in the other direction, which
  /// nobody uses.
  NullPair(std::uint32_t channels, const NullKind& kind, std::uint32_t peers = 1, bool back = false)
      : channels_(channels), receiver_works_(kind.receiver_works) {
    for (std::uint32_t node = 0; node <= peers; ++node) add_node(kind, node, node == 0 ? peers : 1);
    for (std::uint32_t peer = 1; peer <= peers; ++peer) join(peer, peers, back);
    submitted_.resize(channels * peers);
    ends_[0]->counts.resize(channels * peers);
    puts_.reserve(kBatch);
  }

  /// Submits `count` puts of `length` bytes in turn over the channels, and polls, until all are completed.
  /// Where the receiver does not work it takes part in the first call only.
  void put(std::uint64_t count, std::uint32_t length) {
    std::uint64_t left = count;
    const std::uint64_t target = done() + count;
    while (done() < target) {
      while (left > 0 && puts_.size() < kBatch) {
        add_put(static_cast<std::uint32_t>(left-- % submitted_.size()), length);
      }
      submit();
      for (std::size_t node = 1; node < ends_.size() && (!warm_ || receiver_works_); ++node) {
        ends_[node]->transport->poll();
      }
    }
    warm_ = true;
  }

  /// After put(): `count` puts of `length` bytes over one channel, each when the one before it is completed.
  /// Of the peers only the channel's polls, where it works.
  void put_alone(std::uint32_t channel, std::uint64_t count, std::uint32_t length) {
    transport::Transport& receiver = *ends_[1 + channel / channels_]->transport;
    for (std::uint64_t left = count; left > 0; --left) {
      const std::uint64_t target = done() + 1;
      add_put(channel, length);
      while (done() < target) {
        submit();
        if (receiver_works_) receiver.poll();
      }
    }
  }

 private:
  static constexpr std::size_t kBatch = 64;

  [[noreturn]] static void give_up(const Status& why) {
    std::fprintf(stderr, "null queues: %s\n", why.to_string().c_str());
    std::abort();
  }

  struct End final : transport::TransportSink {
    Status place(transport::ChannelId, std::uint16_t, std::uint64_t offset, std::uint32_t,
                 transport::Target& target) override {
      target = {region.get(), offset};
      return {};
    }
    void arrived(transport::ChannelId, std::uint64_t) override {}
    void completed(transport::ChannelId channel, std::uint64_t count) override {
      total += count - std::exchange(counts[channel], count);
    }
    void channel_failed(transport::ChannelId, const Status& why) override { give_up(why); }
    void peer_connected(transport::PeerId) override {}
    void peer_failed(transport::PeerId, const Status& why) override { give_up(why); }
    Status arrival_word(transport::ChannelId channel, transport::ArrivalWord& place) override {
      place = {&words[channel], std::as_writable_bytes(std::span(words))};
      return {};
    }
    void send_to_peer(transport::PeerId peer, std::span<const std::byte> message) override {
      others[peer - 1]->transport->receive_from_peer(name_there, message);
    }
    std::shared_ptr<memory::Region> region;
    std::vector<std::uint64_t> words;
    std::vector<std::uint64_t> counts;  ///< completed, by channel
    std::uint64_t total = 0;
    std::vector<End*> others;          ///< peers, 1 first
    transport::PeerId name_there = 1;  ///< how they call this node
    std::unique_ptr<transport::Transport> transport;
  };

  static void require(const Status& status) {
    if (!status.ok()) give_up(status);
  }

  void add_node(const NullKind& kind, std::uint32_t node, std::uint32_t peers) {
    End& end = *ends_.emplace_back(std::make_unique<End>());
    end.region = make_region(kRegionBytes, abi::RegionKind::kHostMemory);
    end.words.resize(std::size_t{2} * channels_ * peers);
    transport::TransportOptions options;
    options.identity = identity(node);
    end.transport = kind.make(fabric_, options);
    end.transport->attach(end);
    end.name_there = std::max(node, 1U);
  }

  /// The first node's channels to the peer, and then those back, follow those of the peers before it.
  void join(std::uint32_t peer, std::uint32_t peers, bool back) {
    End& first = *ends_[0];
    End& other = *ends_[peer];
    first.others.push_back(&other);
    other.others.push_back(&first);
    require(first.transport->connect(peer, {identity(peer), ""}));
    require(other.transport->connect(1, {identity(0), ""}));
    for (std::uint32_t i = 0; i < channels_; ++i) {
      const std::uint32_t here = (peer - 1) * channels_ + i;
      require(first.transport->open_outbound(here, peer, here + 1));
      require(other.transport->open_inbound(i, 1, here + 1));
      if (!back) continue;
      const std::uint32_t there = peers * channels_ + here;
      require(other.transport->open_outbound(channels_ + i, 1, there + 1));
      require(first.transport->open_inbound(there, peer, there + 1));
    }
  }

  void add_put(std::uint32_t channel, std::uint32_t length) {
    puts_.push_back({.channel = channel,
                     .sequence = ++submitted_[channel],
                     .source = ends_[0]->region.get(),
                     .length = length});
  }

  void submit() {
    const std::size_t taken = ends_[0]->transport->submit(puts_);
    puts_.erase(puts_.begin(), puts_.begin() + static_cast<std::ptrdiff_t>(taken));
    ends_[0]->transport->poll();
  }

  std::uint64_t done() const { return ends_[0]->total; }
  static transport::Identity identity(std::uint32_t i) { return {"node-" + std::to_string(i), 10U + i}; }

  nic::Fabric fabric_;
  std::vector<std::unique_ptr<End>> ends_;  ///< the first node, then its peers
  const std::uint32_t channels_;
  std::vector<std::uint64_t> submitted_;
  std::vector<transport::Put> puts_;
  const bool receiver_works_;
  bool warm_ = false;
};

}  // namespace mkernel::test
