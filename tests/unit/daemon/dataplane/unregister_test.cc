// "Unregistered" means that nothing writes there any more: when the answer comes, and what it says.
#include <cstring>
#include <future>

#include "tests/support/proxy_fixture.h"

namespace mkernel::test {
namespace {

using std::chrono::milliseconds;

/// An unregistration whose answer can be waited for.
struct Clearing {
  Clearing(ProxyFixture& node, const dataplane::GroupKey& group, milliseconds limit) {
    node.proxy.clear_region(group, 0, limit, [answer = answer](Status status) { answer->set_value(status); });
  }
  bool answered() { return future.wait_for(milliseconds(0)) == std::future_status::ready; }
  Status get() {
    REQUIRE(future.wait_for(kLong) == std::future_status::ready);
    return future.get();
  }

  std::shared_ptr<std::promise<Status>> answer = std::make_shared<std::promise<Status>>();
  std::future<Status> future = answer->get_future();
};

TEST_CASE("the answer comes when the transport lets go of the region, not before") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1));
  node.wire->hold(*client.region);  // a put of the peer is half way
  Clearing clearing(node, client.group->key, kLong);
  settle(node);
  CHECK_FALSE(clearing.answered());
  CHECK_FALSE(node.wire->forgotten(*client.region));
  CHECK(client.region.use_count() > 1);
  const std::vector<std::byte> payload(8, std::byte{1});
  node.wire->inbound(dataplane::channel_key(77, 1, 0, 0), 0, 0, payload, 1);
  CHECK(eventually([&] { return node.wire->refused_inbound().size() == 1; }));  // no new ones
  CHECK_FALSE(clearing.answered());
  node.wire->release(*client.region);
  CHECK(clearing.get().ok());
  CHECK(node.wire->forgotten(*client.region));
  CHECK(eventually([&] { return client.region.use_count() == 1; }));
  CHECK(node.sink.groups().empty());
  CHECK(node.wire->open_channels() == 2);
}

TEST_CASE("at the limit the group's channels are closed first, then the answer says so") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1, 77, 3));
  auto other = node.join(2, pair_shape(2, 200));
  REQUIRE(node.wire->open_channels() == 8);
  node.wire->hold(*client.region);
  std::size_t open_at_answer = 99;
  bool forgotten_at_answer = false;
  std::promise<Status> answer;
  node.proxy.clear_region(client.group->key, 0, milliseconds(20), [&](const Status& status) {
    open_at_answer = node.wire->open_channels();
    forgotten_at_answer = node.wire->forgotten(*client.region);
    answer.set_value(status);
  });
  auto future = answer.get_future();
  REQUIRE(future.wait_for(kLong) == std::future_status::ready);
  const Status why = future.get();
  CHECK(why.code() == StatusCode::kDeadlineExceeded);
  for (const char* part : {"group-1", "region 0", "rank 0", "20 ms"}) {
    CAPTURE(why.text());
    CHECK(why.text().find(part) != std::string::npos);
  }
  CHECK(open_at_answer == 2);  // those of the other session
  CHECK(forgotten_at_answer);
  REQUIRE(eventually([&] { return node.sink.groups().size() == 1; }));
  CHECK(node.sink.groups()[0].group == client.group->key);
  CHECK(node.sink.groups()[0].why.code() == StatusCode::kDeadlineExceeded);
  CHECK(eventually([&] { return client.region.use_count() == 1; }));

  client.ring->write(put_request(1 * 3, 1, 0));  // a failed group: goes nowhere
  node.wire->allow_everything();
  node.wire->complete_at_once();
  other.put(1, 64);
  CHECK(eventually([&] { return completed(*other.group, 1) == 1; }));
  CHECK(node.sink.sessions().empty());
  CHECK(close_group(node.proxy, client.group->key, kLong));
  CHECK(node.wire->open_channels() == 2);
}

TEST_CASE("a group that has failed does not wait: its puts never end, its channels are closed") {
  ProxyFixture node;
  node.wire->allow_everything();
  auto client = node.join(1, pair_shape(1));
  client.put(1, 64);
  REQUIRE(eventually([&] { return node.wire->put_count() == 1; }));
  node.wire->hold(*client.region);
  node.wire->fail_peer(5, {StatusCode::kUnavailable, "gone"});
  REQUIRE(eventually([&] { return node.sink.groups().size() == 1; }));
  CHECK(clear_region(node.proxy, client.group->key, 0, kLong).ok());
  CHECK(node.wire->open_channels() == 0);
  CHECK(node.wire->forgotten(*client.region));
  CHECK(node.sink.groups().size() == 1);
}

TEST_CASE("a region of a group that is being left is let go of with the group") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1));
  node.wire->hold(*client.region);
  Clearing clearing(node, client.group->key, kLong);
  settle(node);
  CHECK(close_group(node.proxy, client.group->key, kLong));
  CHECK(clearing.get().ok());
  CHECK(node.wire->open_channels() == 0);
  CHECK(clear_region(node.proxy, client.group->key, 0, kLong).ok());  // of a group that is gone
}

// A neighbour's put of many pieces: once the region went between two of them, and the put failed.
TEST_CASE("a local put that has begun ends before its target is unregistered") {
  constexpr std::uint64_t kBytes = 64U << 20;
  ProxyFixture node({.quantum_bytes = 4096});
  std::vector<ProxyFixture::Client> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(node.join(
        rank + 1, {.rank = rank, .first_channel = 2 * rank, .ranks = {{.session = 1}, {.session = 2}}},
        kBytes));
  }
  auto* words = ranks[0].region->mapping.at<std::uint64_t>(0);
  for (std::uint64_t i = 0; i < kBytes / 8; ++i) words[i] = i + 1;
  ranks[0].put(1, kBytes);
  REQUIRE(eventually(
      [&] { return ranks[0].session->counters[0].requests_total == 1; }));  // its first piece is there
  CHECK(clear_region(node.proxy, ranks[1].group->key, 0, kLong).ok());
  CHECK(arrivals(*ranks[1].group, 0) == 1);
  CHECK(node.sink.groups().empty());
  CHECK(std::memcmp(ranks[1].region->host(0), ranks[0].region->host(0), kBytes) == 0);
}

// Looking is a walk over all puts in flight: a receiver that has stopped must not make the proxy do only
// that.
TEST_CASE("a transport that holds a region for long is asked now and then") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1));
  node.wire->hold(*client.region);
  Clearing clearing(node, client.group->key, kLong);
  REQUIRE(eventually([&] { return node.wire->asked_for_holds() > 0; }));
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t before = node.wire->asked_for_holds();
  CHECK(eventually([&] { return std::chrono::steady_clock::now() > begin + milliseconds(50); }));
  const auto asked = node.wire->asked_for_holds() - before;
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  CHECK(asked > 0);
  CHECK(asked <= 1 + static_cast<std::uint64_t>(elapsed / std::chrono::microseconds(50)));
  node.wire->release(*client.region);
  CHECK(clearing.get().ok());
}

}  // namespace
}  // namespace mkernel::test
