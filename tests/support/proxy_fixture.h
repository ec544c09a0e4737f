// A running proxy over a fake wire, for tests: sessions in, puts and counts out.
#pragma once

#include <doctest/doctest.h>

#include <memory>

#include "tests/support/dataplane_rig.h"
#include "tests/support/fake_transport.h"

namespace mkernel::test {

struct ProxyFixture {
  explicit ProxyFixture(const dataplane::ProxyOptions& options = {})
      : proxy(options, std::make_unique<FakeTransport>(wire), sink) {
    proxy.start();
  }

  /// A session whose one group has `shape`, with region 0 of `bytes` on every rank. Remote ranks are on the
  /// wire.
  struct Client {
    std::shared_ptr<dataplane::SessionPort> session;
    std::shared_ptr<dataplane::GroupPort> group;
    std::shared_ptr<const memory::Region> region;
    std::unique_ptr<RingWriter> ring;

    std::uint32_t channel(std::uint32_t target, std::uint32_t lane = 0) const {
      return group->first_channel + target * group->lanes + lane;
    }
    transport::ChannelKey key(std::uint32_t target, std::uint32_t lane = 0) const {
      return dataplane::channel_key(group->instance, group->rank, target, lane);
    }
    /// Writes a put from region 0 to region 0.
    void put(std::uint32_t target, std::uint32_t length, std::uint64_t from = 0, std::uint64_t to = 0,
             std::uint32_t lane = 0) const {
      ring->write(put_request(channel(target, lane), target, length, from, to));
    }
  };

  Client join(dataplane::SessionId id, const GroupShape& shape, std::uint64_t bytes = 1U << 16,
              std::uint32_t log2_slots = 8, std::uint32_t weight = 1, std::uint32_t rings = 1) {
    Client client;
    client.session = make_session(id, log2_slots, weight, rings);
    client.ring = std::make_unique<RingWriter>(client.session);
    client.ring->set_active(1);
    proxy.attach_session(client.session);
    client.group = make_group(id, shape);
    const Status opened = open_group(proxy, client.group);
    REQUIRE_MESSAGE(opened.ok(), opened.to_string());
    client.region = make_region(bytes);
    set_region(proxy, client.group->key, 0, client.region);
    for (std::uint32_t rank = 0; rank < shape.ranks.size(); ++rank) {
      proxy.set_remote_region(client.group->key, rank, 0, bytes);
    }
    client.ring->ring_doorbell();
    return client;
  }

  std::shared_ptr<FakeWire> wire = std::make_shared<FakeWire>();
  RecordingSink sink;
  dataplane::Proxy proxy;
};

/// A limit that no test reaches.
inline constexpr std::chrono::milliseconds kLong{60000};

/// Returns when the proxy has run what was posted before, and has looked at what waits a few times.
inline void settle(ProxyFixture& node) {
  for (int i = 0; i < 5; ++i) REQUIRE(close_group(node.proxy, {999, 999}, kLong));
}

/// Two ranks: this one and one on peer 5.
inline GroupShape pair_shape(dataplane::SessionId session, std::uint64_t instance = 77,
                             std::uint32_t lanes = 1) {
  return {.lanes = lanes, .instance = instance, .ranks = {{.session = session}, {.peer = 5}}};
}

}  // namespace mkernel::test
