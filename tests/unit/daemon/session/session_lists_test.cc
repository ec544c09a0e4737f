// Lists for mkctl: long ones come in parts, so that none of them holds up the control thread.
#include <map>
#include <set>
#include <tuple>

#include "tests/unit/daemon/session/harness.h"

namespace mkernel::session::testing {
namespace {

constexpr std::uint32_t kRanks = 8, kLanes = 64;

/// A session with all ranks of a group that has 4,096 channels.
std::unique_ptr<RawClient> wide(Harness& harness, const std::string& group) {
  auto client = std::make_unique<RawClient>(harness.socket());
  REQUIRE(client->hello().status.code == 0);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) client->start_join(group, kRanks, rank, kLanes);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) REQUIRE(client->finish_join().status.code == 0);
  return client;
}

/// Parts of the list of all channels; `between(part)` is called behind each.
template <typename Between>
std::vector<std::vector<ChannelSnapshot>> channel_parts(Harness& harness, bool all, const Between& between) {
  std::vector<std::vector<ChannelSnapshot>> parts;
  ListCursor at;
  while (!at.end) {
    parts.push_back(harness.control([&](SessionServer& server) { return server.channels(all, at); }));
    REQUIRE(parts.size() < 1000);
    between(parts.size());
  }
  return parts;
}

TEST_CASE("a long list comes in short parts, which hold every row once") {
  Harness harness;
  const auto a = wide(harness, "a"), b = wide(harness, "b");
  const auto parts = channel_parts(harness, true, [](std::size_t) {});
  std::set<std::tuple<std::string, std::uint32_t, std::uint32_t, std::uint32_t>> rows;
  std::size_t count = 0;
  for (const auto& part : parts) {
    CHECK(part.size() <= 2048);
    count += part.size();
    for (const ChannelSnapshot& row : part) rows.emplace(row.group, row.rank, row.peer_rank, row.lane);
  }
  CHECK(count == 2 * kRanks * kRanks * kLanes);
  CHECK(rows.size() == count);
  // Rows that are left out cost time as well.
  const auto carried = channel_parts(harness, false, [](std::size_t) {});
  CHECK(carried.size() == parts.size());
  CHECK(harness.control([](SessionServer& server) { return server.groups(); }).size() == 2 * kRanks);
  CHECK(harness.control([](SessionServer& server) { return server.sessions(); }).size() == 2);
  const Counts counts = harness.control([](SessionServer& server) { return server.counts(); });
  CHECK(counts.sessions == 2);
  CHECK(counts.groups == 2 * kRanks);
}

TEST_CASE("a list goes on when the session that it had come to is gone") {
  Harness harness;
  auto a = wide(harness, "a");
  const auto b = wide(harness, "b");
  const auto parts = channel_parts(harness, true, [&](std::size_t part) {
    if (part != 1) return;
    a.reset();
    REQUIRE(eventually([&] { return harness.session_count() == 1; }));
  });
  std::map<std::string, std::size_t> rows;
  for (const auto& part : parts) {
    for (const ChannelSnapshot& row : part) ++rows[row.group];
  }
  CHECK(rows["a"] < kRanks * kRanks * kLanes);
  CHECK(rows["b"] == kRanks * kRanks * kLanes);
}

TEST_CASE("regions are listed in parts as well") {
  Harness harness;
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  const ipc::UniqueFd fd = std::move(ipc::create_shared_memory("region", 4096)).value();
  for (int group = 0; group < 3; ++group) {
    REQUIRE(client.join("g" + std::to_string(group), 1, 0).status.code == 0);
    for (const std::uint32_t index : {1U, 7U}) REQUIRE(client.register_region(fd.get(), index, 0, 4096).ok());
  }
  const auto regions = harness.control([](SessionServer& server) { return server.regions(); });
  REQUIRE(regions.size() == 6);
  CHECK(regions[1].index == 7);
  CHECK(regions[5].group == "g2");
}

}  // namespace
}  // namespace mkernel::session::testing
