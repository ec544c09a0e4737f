// Channels that come and go on one connection: their numbers are used again, what comes late is nobody's, and
// nobody sends more than the receiver has room for.
#include <doctest/doctest.h>

#include <deque>
#include <map>

#include "daemon/transport/efa/channel_numbers.h"
#include "daemon/transport/efa/context.h"
#include "daemon/transport/efa/efa.h"
#include "daemon/transport/efa/immediate.h"
#include "tests/support/fake_nic/fabric.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {
namespace {

using namespace transport;

TEST_CASE("a number comes back when the peer has released it and no acknowledgement carries it any more") {
  transport::efa::ChannelNumbers numbers;
  efa::Context context;
  efa::Inbound one(context, 1, 1), other(context, 2, 2);
  for (std::uint32_t i = 0; i < efa::kMaxChannels; ++i) REQUIRE(numbers.take(one) == i);
  CHECK_FALSE(numbers.any_free());
  CHECK_FALSE(numbers.take(other));
  CHECK_FALSE(numbers.release(7));  // in use
  CHECK_FALSE(numbers.release(efa::kMaxChannels));
  numbers.set_acknowledging(7, true);
  numbers.close(7);
  numbers.close(3);
  CHECK(numbers.closing() == 2);
  CHECK(numbers.at(7) == nullptr);
  CHECK(numbers.release(7));
  CHECK_FALSE(numbers.take(other));  // acknowledged with it, and the peer may still take that for another's
  CHECK_FALSE(numbers.release(7));   // twice
  numbers.set_acknowledging(7, false);
  CHECK(numbers.release(3));
  CHECK(numbers.take(other) == 7);  // in the order in which they came back
  CHECK(numbers.at(7) == &other);
  CHECK(numbers.take(other) == 3);
  CHECK(numbers.closing() == 0);
  CHECK_FALSE(numbers.take(other));
}

/// One of two nodes, with channel ids that the test chooses.
struct End final : TransportSink {
  void open(nic::Fabric& fabric, const std::string& node, std::uint64_t boot_id, std::uint32_t window,
            std::uint32_t credit) {
    fabric.add_device(node, {.name = "efa-" + node, .efa = nic::EfaSettings()});
    EfaOptions options;
    options.base.identity = {node, boot_id};
    options.verbs = fabric.verbs(node);
    options.efa = fabric.efa();
    options.window = window;
    options.credit = credit;
    transport = make_efa(options).value();
    transport->attach(*this);
  }
  void pump() {
    for (const auto& message : std::exchange(inbox, {})) transport->receive_from_peer(1, message);
    transport->poll();
  }
  /// `count` puts of `length` bytes behind what the channel has sent; the number taken.
  std::size_t put(ChannelId channel, std::uint64_t first, std::uint64_t count, std::uint32_t length) {
    std::vector<Put> puts;
    for (std::uint64_t i = 0; i < count; ++i) {
      puts.push_back({.channel = channel, .sequence = first + i, .source = region.get(), .length = length});
    }
    return transport->submit(puts);
  }

  Status place(ChannelId, std::uint16_t, std::uint64_t offset, std::uint32_t, Target& target) override {
    target = {region.get(), offset};
    return {};
  }
  void arrived(ChannelId channel, std::uint64_t count) override { arrivals[channel] = count; }
  void completed(ChannelId channel, std::uint64_t count) override { completions[channel] = count; }
  void channel_failed(ChannelId, const Status& why) override { failure = why; }
  void peer_connected(PeerId) override { connected = true; }
  void peer_failed(PeerId, const Status& why) override { failure = why; }
  void path_changed(PeerId, std::string_view, const Status& lost) override { failure = lost; }
  void send_to_peer(PeerId, std::span<const std::byte> message) override {
    other->inbox.emplace_back(message.begin(), message.end());
  }

  std::shared_ptr<memory::Region> region = make_region(1U << 16, abi::RegionKind::kHostMemory);
  std::map<ChannelId, std::uint64_t> arrivals, completions;
  std::deque<std::vector<std::byte>> inbox;
  Status failure;  ///< of anything
  bool connected = false;
  End* other = nullptr;
  std::unique_ptr<Transport> transport;
};

struct Nodes {
  explicit Nodes(std::uint32_t window_b = 1024, std::uint32_t credit_b = 4096) {
    a.other = &b;
    b.other = &a;
    a.open(fabric, "a", 1, 1024, 4096);
    b.open(fabric, "b", 2, window_b, credit_b);
    REQUIRE(a.transport->connect(1, {{"b", 2}, b.transport->local_endpoint()}).ok());
    REQUIRE(b.transport->connect(1, {{"a", 1}, a.transport->local_endpoint()}).ok());
    until([&] { return a.connected && b.connected; });
  }
  ~Nodes() {
    a.transport.reset();
    b.transport.reset();
    CHECK(fabric.complaints().empty());
  }
  void pump() {
    a.pump();
    b.pump();
  }
  void until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      pump();
      REQUIRE_MESSAGE(a.failure.ok(), a.failure.text());
      REQUIRE_MESSAGE(b.failure.ok(), b.failure.text());
      REQUIRE(std::chrono::steady_clock::now() < end);
    }
  }
  /// Channel `id` at both ends.
  void open(ChannelId id, ChannelKey key, bool receiver_first) {
    a.completions[id] = b.arrivals[id] = 0;
    if (receiver_first) REQUIRE(b.transport->open_inbound(id, 1, key).ok());
    REQUIRE(a.transport->open_outbound(id, 1, key).ok());
    if (!receiver_first) REQUIRE(b.transport->open_inbound(id, 1, key).ok());
  }

  nic::Fabric fabric;
  End a, b;
};

// 32,767 numbers: the next channel once failed between two healthy nodes, and all that followed, for good.
TEST_CASE("40,000 channels are opened and closed on one connection") {
  Nodes nodes;
  nodes.fabric.every_path({.jitter = std::chrono::microseconds(5)});
  const std::uint64_t queue_pairs = nodes.fabric.queue_pairs("efa-a");
  constexpr std::uint64_t kChannels = 40000;
  for (std::uint64_t i = 0; i < kChannels; ++i) {
    const auto id = static_cast<ChannelId>(i % 3);
    nodes.open(id, i + 1, i % 2 == 0);
    const std::uint64_t puts = 1 + i % 4;
    REQUIRE(nodes.a.put(id, 1, puts, i % 8 == 0 ? 64 : 0) == puts);
    // Most channels end with all that was put; some are closed with puts and acknowledgements under way.
    const std::uint64_t last = i % 5 == 0 ? 1 : puts;
    const bool acknowledged = i % 7 != 0;
    nodes.until(
        [&] { return nodes.b.arrivals[id] >= last && (!acknowledged || nodes.a.completions[id] >= last); });
    REQUIRE(nodes.b.arrivals[id] <= puts);
    if (i % 2 == 0) {
      nodes.a.transport->close_channel(id);
      if (i % 3 == 0) nodes.pump();
      nodes.b.transport->close_channel(id);
    } else {
      nodes.b.transport->close_channel(id);
      if (i % 3 == 0) nodes.pump();
      nodes.a.transport->close_channel(id);
    }
  }
  CHECK(nodes.fabric.queue_pairs("efa-a") == queue_pairs);  // all of it on one connection
}

// A sender once went by its own window alone: the receiver, with a smaller one, took the put that was too far
// ahead for none of the channel's, and the connection was lost, again after every replay.
TEST_CASE("the smaller of two windows counts") {
  for (const std::uint32_t window : {1U, 16U, 32767U}) {
    CAPTURE(window);
    Nodes nodes(window);
    nodes.fabric.every_path({.jitter = std::chrono::microseconds(100)});  // puts overtake each other
    nodes.open(0, 5, true);
    REQUIRE(nodes.b.transport->open_outbound(9, 1, 6).ok());
    REQUIRE(nodes.a.transport->open_inbound(9, 1, 6).ok());
    constexpr std::uint64_t kPuts = 1000;
    REQUIRE(nodes.a.put(0, 1, kPuts, 64) == kPuts);
    std::uint64_t sent = 0;
    nodes.until([&] {
      sent += nodes.b.put(9, sent + 1, kPuts - sent, 64);
      return nodes.b.arrivals[0] == kPuts && nodes.a.completions[0] == kPuts && nodes.a.arrivals[9] == kPuts;
    });
  }
}

// The count of what may still arrive once went down when its channel was closed.
TEST_CASE("who opens channels, sends and leaves does not send more than the receiver has room for") {
  constexpr std::uint32_t kCredit = 64, kChannels = 8, kPuts = 32;
  for (const bool payload : {false, true}) {
    CAPTURE(payload);
    Nodes nodes(1024, kCredit);
    const std::uint32_t length = payload ? 4096 : 0;
    for (ChannelId id = 0; id < kChannels; ++id) {
      nodes.open(id, id + 1, true);
      REQUIRE(nodes.a.put(id, 1, 1, length) == 1);
    }
    nodes.until([&] {
      for (ChannelId id = 0; id < kChannels; ++id) {
        if (nodes.a.completions[id] != 1) return false;
      }
      return true;
    });
    const std::uint64_t before = nodes.fabric.received("efa-b");
    for (ChannelId id = 0; id < kChannels; ++id) {  // the receiving proxy stands meanwhile
      REQUIRE(nodes.a.put(id, 2, kPuts, length) == kPuts);
      for (int i = 0; i < 20; ++i) nodes.a.pump();
      nodes.a.transport->close_channel(id);
    }
    CHECK(nodes.fabric.received("efa-b") > before);
    CHECK(nodes.fabric.received("efa-b") <= before + kCredit);
    for (ChannelId id = 0; id < kChannels; ++id) nodes.b.transport->close_channel(id);
    // When it goes on, the whole credit is there again.
    nodes.open(kChannels, 100, true);
    REQUIRE(nodes.a.put(kChannels, 1, 500, length) == 500);
    nodes.until([&] { return nodes.a.completions[kChannels] == 500; });
    const std::uint64_t then = nodes.fabric.received("efa-b");
    REQUIRE(nodes.a.put(kChannels, 501, kCredit, length) == kCredit);
    for (int i = 0; i < 50; ++i) nodes.a.pump();
    CHECK(nodes.fabric.received("efa-b") == then + kCredit);
  }
}

// The sender closes its end with puts under way, and opens it again: what arrives late belongs to the earlier
// life of the channel.
TEST_CASE("a channel that its sender closes and opens again gets another number") {
  Nodes nodes;
  nodes.fabric.every_path({.jitter = std::chrono::microseconds(200)});
  for (int round = 0; round < 300; ++round) {
    const ChannelKey key = 1000 + static_cast<ChannelKey>(round);
    nodes.open(0, key, round % 2 == 0);
    const std::uint64_t puts = 40;
    REQUIRE(nodes.a.put(0, 1, puts, 0) == puts);
    nodes.until([&] { return nodes.b.arrivals[0] > 0; });
    nodes.a.transport->close_channel(0);
    for (int i = 0; i < round % 4; ++i) nodes.pump();
    nodes.b.transport->close_channel(0);
    nodes.open(0, key, round % 3 == 0);
    REQUIRE(nodes.a.put(0, 1, puts, 0) == puts);
    nodes.until([&] { return nodes.a.completions[0] == puts; });
    CHECK(nodes.b.arrivals[0] == puts);
    nodes.a.transport->close_channel(0);
    nodes.b.transport->close_channel(0);
  }
}

}  // namespace
}  // namespace mkernel::test
