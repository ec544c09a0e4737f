// Source regions over the life of a link: announced when needed, forgotten when not, and asked for by
// holds().
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "daemon/transport/emulated/copier.h"
#include "tests/support/thread_time.h"
#include "tests/unit/daemon/transport/emulated/pair.h"

namespace mkernel::transport::emulated {
namespace {

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
    fill(*source, static_cast<int>(i % 251));
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

TEST_CASE("whoever drops a large source does not wait until it is unmapped") {
  constexpr std::uint64_t kLarge = std::uint64_t{256} << 20;
  const ipc::UniqueFd fd(::memfd_create("sources-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(fd.get(), kLarge) == 0);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const std::size_t before = mapped_regions();
  Copier copier;
  auto source = copier.import({abi::RegionKind::kHostMemory, fd.get(), 0, kLarge, {}});
  REQUIRE(source.ok());
  // Reading makes the pages too. The mapping is for reading alone.
  std::byte seen{};
  for (std::uint64_t page = 0; page < kLarge; page += 4096) seen |= (*source)->mapping.data()[page];
  CHECK(seen == std::byte{0});
  CHECK(mapped_regions() == before + 1);
  const auto begin = test::thread_time();
  source->reset();
  CHECK(test::thread_time() - begin < std::chrono::milliseconds(3));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (mapped_regions() > before && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(mapped_regions() == before);
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
}  // namespace mkernel::transport::emulated
