// Source regions over the life of a link: announced when needed, forgotten when not, and asked for by
// holds().
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "daemon/transport/emulated/emulated.h"

namespace mkernel::transport {
namespace {

constexpr std::uint64_t kBytes = 64;

std::unique_ptr<memory::Region> make_region(std::uint64_t id) {
  auto region = std::make_unique<memory::Region>();
  region->id = id;
  region->kind = abi::RegionKind::kHostMemory;
  region->bytes = kBytes;
  region->fd = ipc::create_shared_memory("sources-test", kBytes).value();
  region->mapping = ipc::Mapping::map(region->fd.get(), 0, kBytes).value();
  return region;
}

struct End final : TransportSink {
  End(const char* node, std::uint64_t boot) {
    EmulatedOptions options;
    options.base.identity = {node, boot};
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

  std::unique_ptr<memory::Region> memory = make_region(1);
  std::unique_ptr<Transport> transport;
  std::uint64_t arrivals = 0;
  std::uint64_t completions = 0;
  Status failure;
};

struct Pair {
  Pair() {
    const auto boot = static_cast<std::uint64_t>(::getpid()) * 1000 + 1;
    sender = std::make_unique<End>("sources-sender", boot);
    receiver = std::make_unique<End>("sources-receiver", boot);
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

  bool completed(std::uint64_t count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (sender->completions < count && std::chrono::steady_clock::now() < end) {
      sender->transport->poll();
      receiver->transport->poll();
    }
    return sender->completions == count;
  }

  std::unique_ptr<End> sender;
  std::unique_ptr<End> receiver;
};

/// Mappings of this process that are this test's regions.
std::size_t mapped_regions() {
  std::size_t count = 0;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  char line[4096];
  while (std::fgets(line, sizeof(line), maps) != nullptr)
    count += std::strstr(line, "sources-test") != nullptr ? 1 : 0;
  std::fclose(maps);
  return count;
}

TEST_CASE("a long life with many short-lived source regions keeps a bounded number of them mapped") {
  Pair pair;
  const std::size_t before = mapped_regions();
  for (std::uint64_t i = 1; i <= 5000; ++i) {
    // Each region is gone as soon as its put is complete, as when a client unregisters it.
    const auto source = make_region(100 + i);
    std::memset(source->host(0), static_cast<int>(i % 251), kBytes);
    pair.submit(*source, i);
    REQUIRE(pair.completed(i));
    REQUIRE(*pair.receiver->memory->host(kBytes - 1) == static_cast<std::byte>(i % 251));
  }
  CHECK(pair.receiver->failure.ok());
  CHECK(mapped_regions() - before <= 1025);
  CHECK(pair.receiver->arrivals == 5000);
}

TEST_CASE("closing the channel makes the peer forget its sources") {
  Pair pair;
  const std::size_t before = mapped_regions();
  const auto source = make_region(7);
  pair.submit(*source, 1);
  REQUIRE(pair.completed(1));
  CHECK(mapped_regions() == before + 2);  // the source itself, and the peer's mapping
  pair.sender->transport->close_channel(0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (mapped_regions() > before + 1 && std::chrono::steady_clock::now() < end) {
    pair.sender->transport->poll();
    pair.receiver->transport->poll();
  }
  CHECK(mapped_regions() == before + 1);
}

TEST_CASE("a region is held while a put of it is under way, no longer") {
  Pair pair;
  const auto source = make_region(7);
  const auto stranger = make_region(8);
  CHECK(!pair.sender->transport->holds(*source));
  pair.submit(*source, 1);
  CHECK(pair.sender->transport->holds(*source));
  CHECK(!pair.sender->transport->holds(*stranger));
  REQUIRE(pair.completed(1));
  CHECK(!pair.sender->transport->holds(*source));
  CHECK(!pair.receiver->transport->holds(*pair.receiver->memory));
  pair.submit(*source, 2);
  pair.sender->transport->close_channel(0);
  CHECK(!pair.sender->transport->holds(*source));
}

TEST_CASE("memory that cannot be copied fails the channel by name") {
  Pair pair;
  const auto source = make_region(9);
  source->kind = abi::RegionKind::kVmm;
  pair.submit(*source, 1);
  CHECK(pair.sender->failure.code() == StatusCode::kUnimplemented);
  CHECK(pair.sender->failure.text().find("region 9") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::transport
