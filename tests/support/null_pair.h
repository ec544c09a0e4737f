// Two transports over fake NICs whose queues complete at once and move nothing: what remains is the post
// path.
#pragma once

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

/// One thread.
class NullPair {
 public:
  static constexpr std::uint64_t kRegionBytes = 1U << 20;

  /// `channels` from the first node to the second.
  NullPair(std::uint32_t channels, const NullKind& kind) : receiver_works_(kind.receiver_works) {
    for (int i = 0; i < 2; ++i) {
      ends_[i].region = make_region(kRegionBytes, abi::RegionKind::kHostMemory);
      ends_[i].words.resize(channels);
      transport::TransportOptions options;
      options.identity = identity(i);
      ends_[i].transport = kind.make(fabric_, options);
      ends_[i].transport->attach(ends_[i]);
      ends_[i].other = &ends_[1 - i];
    }
    for (int i = 0; i < 2; ++i) {
      const int other = 1 - i;
      if (!ends_[i].transport->connect(1, {identity(other), ""}).ok()) std::terminate();
    }
    for (std::uint32_t channel = 0; channel < channels; ++channel) {
      if (!ends_[0].transport->open_outbound(channel, 1, channel + 1).ok()) std::terminate();
      if (!ends_[1].transport->open_inbound(channel, 1, channel + 1).ok()) std::terminate();
    }
    submitted_.resize(channels);
    ends_[0].counts.resize(channels);
    puts_.reserve(kBatch);
  }

  /// Submits `count` puts of `length` bytes in turn over the channels, and polls, until all are completed.
  /// Where the receiver does not work it takes part in the first call only.
  void put(std::uint64_t count, std::uint32_t length) {
    transport::Transport& sender = *ends_[0].transport;
    std::uint64_t left = count;
    const std::uint64_t target = done() + count;
    while (done() < target) {
      while (left > 0 && puts_.size() < kBatch) {
        const auto channel = static_cast<std::uint32_t>(left-- % submitted_.size());
        puts_.push_back({.channel = channel,
                         .sequence = ++submitted_[channel],
                         .source = ends_[0].region.get(),
                         .length = length});
      }
      const std::size_t taken = sender.submit(puts_);
      puts_.erase(puts_.begin(), puts_.begin() + static_cast<std::ptrdiff_t>(taken));
      sender.poll();
      if (!warm_ || receiver_works_) ends_[1].transport->poll();
    }
    warm_ = true;
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
    void send_to_peer(transport::PeerId, std::span<const std::byte> message) override {
      other->transport->receive_from_peer(1, message);
    }
    std::shared_ptr<memory::Region> region;
    std::vector<std::uint64_t> words;
    std::vector<std::uint64_t> counts;  ///< completed, by channel
    std::uint64_t total = 0;
    End* other = nullptr;
    std::unique_ptr<transport::Transport> transport;
  };

  std::uint64_t done() const { return ends_[0].total; }
  static transport::Identity identity(int i) { return {"node-" + std::to_string(i), 10U + i}; }

  nic::Fabric fabric_;
  End ends_[2];
  std::vector<std::uint64_t> submitted_;
  std::vector<transport::Put> puts_;
  const bool receiver_works_;
  bool warm_ = false;
};

}  // namespace mkernel::test
