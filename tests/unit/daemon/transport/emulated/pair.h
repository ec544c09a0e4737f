// Two emulated transports with one channel between them, each end with a region of its own to put into.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "daemon/transport/emulated/emulated.h"

namespace mkernel::transport::emulated {

inline constexpr std::uint64_t kBytes = 64;

inline std::unique_ptr<memory::Region> make_region(std::uint64_t id,
                                                   abi::RegionKind kind = abi::RegionKind::kHostMemory) {
  auto region = std::make_unique<memory::Region>();
  region->id = id;
  region->kind = kind;
  region->bytes = kBytes;
  region->fd = ipc::create_shared_memory("sources-test", kBytes).value();
  region->mapping = ipc::Mapping::map(region->fd.get(), 0, kBytes).value();
  return region;
}

inline void fill(memory::Region& region, int byte) {
  std::memset(region.host(0), byte, kBytes);
}

/// Every byte of it.
inline bool is(const memory::Region& region, int byte) {
  const std::byte* at = region.host(0);
  return std::all_of(at, at + kBytes, [byte](std::byte b) { return b == static_cast<std::byte>(byte); });
}

struct End final : TransportSink {
  End(const char* node, std::uint64_t boot, std::shared_ptr<memory::CopyEngines> engines,
      std::chrono::milliseconds retransmit_timeout) {
    EmulatedOptions options;
    options.base.identity = {node, boot};
    options.retransmit_timeout = retransmit_timeout;
    options.engines = std::move(engines);
    transport = make_emulated(options).value();
    transport->attach(*this);
  }
  Status place(ChannelId, std::uint16_t, std::uint64_t offset, std::uint32_t, Target& at) override {
    at = {memory.get(), offset};
    return {};
  }
  void arrived(ChannelId, std::uint64_t count) override { arrivals = count; }
  void completed(ChannelId, std::uint64_t count) override { completions = count; }
  void channel_failed(ChannelId, const Status& why) override { failure = why; }
  void peer_connected(PeerId) override {}
  void peer_failed(PeerId, const Status& why) override { failure = why; }

  const FaultCounters& faults() const { return dynamic_cast<EmulatedTransport&>(*transport).faults(); }

  std::unique_ptr<memory::Region> memory = make_region(1);
  std::unique_ptr<Transport> transport;
  std::uint64_t arrivals = 0;
  std::uint64_t completions = 0;
  Status failure;
};

struct Pair {
  explicit Pair(std::shared_ptr<memory::CopyEngines> sending = nullptr,
                std::shared_ptr<memory::CopyEngines> receiving = nullptr,
                std::chrono::milliseconds retransmit_timeout = std::chrono::milliseconds(5)) {
    static std::uint64_t pairs = 0;
    const auto boot = static_cast<std::uint64_t>(::getpid()) * 100000 + ++pairs;
    sender = std::make_unique<End>("sources-sender", boot, std::move(sending), retransmit_timeout);
    receiver = std::make_unique<End>("sources-receiver", boot, std::move(receiving), retransmit_timeout);
    REQUIRE(sender->transport->connect(0, {{"sources-receiver", boot}, receiver->transport->local_endpoint()})
                .ok());
    REQUIRE(receiver->transport->connect(0, {{"sources-sender", boot}, sender->transport->local_endpoint()})
                .ok());
    REQUIRE(sender->transport->open_outbound(0, 0, 5).ok());
    REQUIRE(receiver->transport->open_inbound(0, 0, 5).ok());
  }

  void submit(const memory::Region& source, std::uint64_t sequence) {
    const Put put{.channel = 0, .sequence = sequence, .source = &source, .length = kBytes};
    REQUIRE(sender->transport->submit({&put, 1}) == 1);
  }

  void set_down(bool down) {
    REQUIRE(sender->transport->set_link(0, {.down = down}).ok());
    REQUIRE(receiver->transport->set_link(0, {.down = down}).ok());
  }

  void pump(int times = 1) {
    for (int i = 0; i < times; ++i) {
      sender->transport->poll();
      receiver->transport->poll();
    }
  }

  template <typename Condition>
  bool until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition() && std::chrono::steady_clock::now() < end) pump();
    return condition();
  }

  bool completed(std::uint64_t count) {
    return until([&] { return sender->completions >= count; }) && sender->completions == count;
  }

  std::unique_ptr<End> sender;
  std::unique_ptr<End> receiver;
};

}  // namespace mkernel::transport::emulated
