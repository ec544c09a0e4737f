// Puts to other nodes through a proxy over a fake wire: payload, order, counts, back-pressure, failures.
#include "daemon/dataplane/proxy.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <random>

#include "tests/support/proxy_fixture.h"

namespace mkernel::test {
namespace {

using std::chrono::milliseconds;

std::uint64_t counter(const std::atomic<std::uint64_t>& value) {
  return value.load(std::memory_order_relaxed);
}

void fill_random(const memory::Region& region, std::mt19937_64& random) {
  for (std::uint64_t i = 0; i < region.bytes; ++i) region.host(0)[i] = static_cast<std::byte>(random());
}

TEST_CASE("a proxy that cannot stay on its CPUs says so, with the CPUs, and works") {
  RecordingSink sink;
  std::promise<Status> told;
  dataplane::ProxyOptions options;
  options.cpus = {1 << 20};
  options.not_pinned = [&told](const Status& why) { told.set_value(why); };
  dataplane::Proxy proxy(options, std::make_unique<FakeTransport>(std::make_shared<FakeWire>()), sink);
  proxy.start();
  auto why = told.get_future();
  REQUIRE(why.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  const Status status = why.get();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(status.text().find("1048576") != std::string::npos);
  proxy.stop(milliseconds(0));
}

TEST_CASE("puts reach the transport whole, in order, and their completion is published") {
  ProxyFixture node;
  node.wire->allow_everything();
  auto client = node.join(
      1, {.rank = 2, .lanes = 2, .first_channel = 30, .ranks = {{.peer = 4}, {.peer = 5}, {.session = 1}}});
  std::mt19937_64 random(1);
  fill_random(*client.region, random);

  struct Expected {
    std::uint64_t from, to;
    std::uint32_t length;
  };
  std::map<transport::ChannelKey, std::vector<Expected>> expected;
  std::uint64_t bytes = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto target = static_cast<std::uint32_t>(random() % 2);
    const auto lane = static_cast<std::uint32_t>(random() % 2);
    const auto length = static_cast<std::uint32_t>(random() % 5 == 0 ? 0 : random() % 2000);
    const Expected put{length == 0 ? 0 : random() % 60000, length == 0 ? 0 : random() % 60000, length};
    client.put(target, length, put.from, put.to, lane);
    expected[client.key(target, lane)].push_back(put);
    bytes += length;
  }
  REQUIRE(eventually([&] { return node.wire->put_count() == 2000; }));

  std::map<transport::ChannelKey, std::size_t> seen;
  for (const RecordedPut& record : node.wire->puts()) {
    const std::size_t at = seen[record.key]++;
    const Expected& want = expected.at(record.key).at(at);
    CHECK(record.put.sequence == at + 1);
    CHECK(record.put.length == want.length);
    CHECK(record.put.remote_offset == want.to);
    REQUIRE(record.payload.size() == want.length);
    CHECK(std::equal(record.payload.begin(), record.payload.end(), client.region->host(want.from)));
  }
  const std::size_t first = expected[client.key(0, 1)].size();
  CHECK(completed(*client.group, 0, 1) == 0);
  node.wire->complete(client.key(0, 1), first - 1);
  CHECK(eventually([&] { return completed(*client.group, 0, 1) == first - 1; }));
  CHECK(completed(*client.group, 0, 0) == 0);
  node.wire->complete_at_once();
  CHECK(eventually([&] { return counter(client.session->counters[0].completed_total) == 2000; }));
  CHECK(completed(*client.group, 1, 0) == expected[client.key(1, 0)].size());
  CHECK(counter(client.session->counters[0].requests_total) == 2000);
  CHECK(counter(client.session->counters[0].bytes_total) == bytes);
  CHECK(counter(client.group->channels[1].requests_total) == first);
  CHECK(node.sink.sessions().empty());
}

TEST_CASE("a transport that is full stalls the session, and every put goes once room is there") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1));
  for (int i = 0; i < 100; ++i) client.put(1, 64, static_cast<std::uint64_t>(i) * 64);
  auto& counters = client.session->counters[0];
  REQUIRE(eventually([&] { return counter(counters.stalls_total) == 1; }));
  CHECK(node.wire->put_count() == 0);
  const std::uint64_t in_hand = client.ring->tail();  // one batch of what was written when it looked
  CHECK(in_hand >= 1);
  CHECK(in_hand <= 32);
  CHECK(eventually([&] { return counter(counters.ring_depth) == 100 - in_hand; }));
  node.wire->allow(in_hand / 2);
  CHECK(eventually([&] { return node.wire->put_count() == in_hand / 2; }));
  CHECK(counter(counters.stalls_total) == 1);  // the rest of the batch still waits
  node.wire->allow_everything();
  CHECK(eventually([&] { return node.wire->put_count() == 100; }));
  CHECK(eventually([&] { return counter(counters.stall_nanoseconds_total) > 0; }));
  CHECK(eventually([&] { return counter(counters.ring_depth) == 0; }));
  const auto puts = node.wire->puts();
  for (std::size_t i = 0; i < puts.size(); ++i) CHECK(puts[i].put.source_offset == i * 64);
}

TEST_CASE("a bad slot ends its session once, with what was taken before it, and no other") {
  ProxyFixture node;
  node.wire->allow_everything();
  node.wire->complete_at_once();
  auto bad = node.join(1, pair_shape(1, 100));
  auto good = node.join(2, pair_shape(2, 200));
  bad.put(1, 64);
  bad.put(1, 64, (1U << 16) - 63);
  bad.put(1, 64);
  for (int i = 0; i < 50; ++i) good.put(1, 64);
  REQUIRE(eventually([&] { return completed(*good.group, 1) == 50; }));
  REQUIRE(eventually([&] { return node.sink.sessions().size() == 1; }));
  CHECK(eventually([&] { return completed(*bad.group, 1) == 1; }));
  CHECK(node.sink.sessions()[0].first == 1);
  const Status why = node.sink.sessions()[0].second;
  CHECK(why.code() == StatusCode::kOutOfRange);
  for (const char* part : {"session 1 (client-1)", "slot 1", "rank 0 -> rank 1", "65473", "65536"}) {
    CAPTURE(why.text());
    CHECK(why.text().find(part) != std::string::npos);
  }
  CHECK(bad.ring->tail() == 1);  // the bad slot was not taken, the third not looked at
  CHECK(detach_session(node.proxy, 1, milliseconds(1000)));
  good.put(1, 64);
  CHECK(eventually([&] { return completed(*good.group, 1) == 51; }));
  CHECK(node.sink.sessions().size() == 1);
}

TEST_CASE(
    "a session's threads and its GPU put through rings of their own, and neither keeps the other waiting") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1), 1U << 16, 10);
  RingWriter gpu(client.session, 0, abi::RingWriter::kGpu);
  // Nothing is taken yet, so both rings are full of work when the transport opens.
  for (int i = 0; i < 500; ++i) client.put(1, 8);
  for (int i = 0; i < 500; ++i) gpu.write(put_request(client.channel(1), 1, 16));
  CHECK(eventually([&] { return counter(client.session->counters[0].ring_depth) >= 1000 - 32; }));
  node.wire->allow_everything();
  node.wire->complete_at_once();
  REQUIRE(eventually([&] { return completed(*client.group, 1) == 1000; }));
  CHECK(client.ring->tail() == 500);
  CHECK(gpu.tail() == 500);
  std::size_t longest = 0, run = 0;
  const auto puts = node.wire->puts();
  for (std::size_t i = 0; i < puts.size(); ++i) {
    run = i > 0 && puts[i].put.length == puts[i - 1].put.length ? run + 1 : 1;
    // Behind the 500th of one ring the other has the rail to itself.
    if (i < 900) longest = std::max(longest, run);
  }
  CHECK(longest <= 64);
  CHECK(node.sink.sessions().empty());
}

TEST_CASE("a bad slot of the GPU is named as the GPU's, and its doubt is not that of the threads") {
  ProxyFixture node;
  node.wire->allow_everything();
  node.wire->complete_at_once();
  auto client = node.join(1, pair_shape(1));
  RingWriter gpu(client.session, 0, abi::RingWriter::kGpu);
  gpu.write(put_request(client.channel(1), 1, 64));
  REQUIRE(eventually([&] { return completed(*client.group, 1) == 1; }));
  gpu.write(put_request(4711, 1, 64));
  REQUIRE(eventually([&] { return node.sink.sessions().size() == 1; }));
  const Status why = node.sink.sessions()[0].second;
  CHECK_MESSAGE(why.text().find("session 1 (client-1): GPU ring 0 slot 1: channel 4711") == 0, why.text());
  CHECK(gpu.tail() == 1);
}

TEST_CASE("inbound puts are checked against what is registered, then placed and counted") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1));
  const auto key = dataplane::channel_key(77, 1, 0, 0);
  std::mt19937_64 random(3);
  std::vector<std::byte> payload(5000);
  for (std::byte& b : payload) b = static_cast<std::byte>(random());
  node.wire->inbound(key, 0, 777, payload, 1);
  REQUIRE(eventually([&] { return arrivals(*client.group, 1) == 1; }));
  CHECK(std::memcmp(client.region->host(777), payload.data(), payload.size()) == 0);
  CHECK(counter(client.group->channels[1].arrivals_total) == 1);
  CHECK(counter(client.session->counters[0].arrived_bytes_total) == 5000);

  node.wire->inbound(key, 0, (1U << 16) - 4999, payload, 2);
  node.wire->inbound(key, 3, 0, payload, 3);
  REQUIRE(eventually([&] { return node.wire->refused_inbound().size() == 2; }));
  CHECK(node.wire->refused_inbound()[0].code() == StatusCode::kOutOfRange);
  CHECK(node.wire->refused_inbound()[0].text().find("65536") != std::string::npos);
  CHECK(node.wire->refused_inbound()[1].code() == StatusCode::kNotFound);
  CHECK(arrivals(*client.group, 1) == 1);
}

TEST_CASE("a failed channel fails its group and names the rank; the session's other group goes on") {
  ProxyFixture node;
  node.wire->allow_everything();
  node.wire->complete_at_once();
  auto client = node.join(1, pair_shape(1));
  GroupShape other = pair_shape(1, 500);
  other.handle = 2;
  other.first_channel = 2;
  const auto second = make_group(1, other);
  REQUIRE(open_group(node.proxy, second).ok());

  node.wire->fail_channel(client.key(1), {StatusCode::kOutOfRange, "the peer said no"});
  REQUIRE(eventually([&] { return node.sink.groups().size() == 1; }));
  const auto end = node.sink.groups()[0];
  CHECK(end.group == client.group->key);
  CHECK(end.culprit == 1);
  CHECK(end.why.code() == StatusCode::kOutOfRange);
  CHECK(end.why.text().find("the peer said no") != std::string::npos);

  client.put(1, 64);                             // dropped: the group has failed
  client.ring->write(put_request(2 + 1, 1, 0));  // a signal in the other group
  CHECK(eventually([&] { return completed(*second, 1) == 1; }));
  CHECK(completed(*client.group, 1) == 0);
  CHECK(node.sink.sessions().empty());
  CHECK(close_group(node.proxy, client.group->key, milliseconds(60000)));  // a failed group does not wait
}

TEST_CASE("a lost peer fails every group that has a rank there, and only those") {
  ProxyFixture node;
  auto here = node.join(1, pair_shape(1, 100));
  auto there = node.join(2, {.instance = 200, .ranks = {{.session = 2}, {.peer = 6}, {.peer = 6}}});
  node.proxy.connect_peer(6, {});
  REQUIRE(eventually([&] { return node.sink.peers().size() == 1; }));
  node.wire->fail_peer(6, {StatusCode::kUnavailable, "node b does not answer"});
  REQUIRE(eventually([&] { return node.sink.groups().size() == 1 && node.sink.peers().size() == 2; }));
  CHECK(node.sink.groups()[0].group == there.group->key);
  CHECK(node.sink.groups()[0].culprit == 1);
  CHECK(node.sink.peers()[0].second.ok());
  CHECK(node.sink.peers()[1].second.code() == StatusCode::kUnavailable);
  node.wire->allow_everything();
  here.put(1, 8);
  CHECK(eventually([&] { return node.wire->put_count() == 1; }));
}

TEST_CASE("paths that are lost and found are handed on with their rail, and fail nothing") {
  ProxyFixture node({.index = 1, .count = 2});
  node.proxy.connect_peer(6, {});
  node.wire->change_path(6, "x -> y", {StatusCode::kUnavailable, "pulled"});
  node.wire->change_path(6, "x -> z", {});
  REQUIRE(eventually([&] { return node.sink.paths().size() == 2; }));
  CHECK(node.sink.paths()[0] == "rail 1 to peer 6: x -> y lost: pulled");
  CHECK(node.sink.paths()[1] == "rail 1 to peer 6: x -> z");
  CHECK(node.sink.peers().size() == 1);
}

// Puts of a dead group that the transport never took must not stand in the way of the session's other groups.
TEST_CASE("a stalled put of a group that fails makes way") {
  ProxyFixture node;
  auto client = node.join(1, pair_shape(1));
  GroupShape other = pair_shape(1, 500);
  other.handle = 2;
  other.first_channel = 2;
  const auto second = make_group(1, other);
  REQUIRE(open_group(node.proxy, second).ok());
  client.put(1, 64);
  client.ring->write(put_request(2 + 1, 1, 0));
  REQUIRE(eventually([&] { return counter(client.session->counters[0].stalls_total) == 1; }));
  node.wire->fail_channel(client.key(1), {StatusCode::kUnavailable, "gone"});
  REQUIRE(eventually([&] { return node.sink.groups().size() == 1; }));
  node.wire->allow(1);
  CHECK(eventually([&] { return node.wire->put_count() == 1; }));
  CHECK(node.wire->puts()[0].put.length == 0);
}

TEST_CASE("a channel is on the rail of the rank that it begins at, at both ends") {
  // Two nodes of two ranks, two rails; this is rank 2, the first of the second node.
  const GroupShape shape{.rank = 2,
                         .lanes = 3,
                         .ranks = {{.peer = 4, .local_rank = 0, .local_ranks = 2},
                                   {.peer = 4, .local_rank = 1, .local_ranks = 2},
                                   {.session = 1, .local_rank = 0, .local_ranks = 2},
                                   {.session = 2, .local_rank = 1, .local_ranks = 2}}};
  const std::vector<std::byte> payload(64, std::byte{7});
  for (const std::uint32_t rail : {0U, 1U}) {
    ProxyFixture node({.index = rail, .count = 2});
    node.wire->allow_everything();
    auto client = node.join(1, shape, 1U << 16, 8, 1, 2);
    CHECK(node.wire->open_channels() == (rail == 0 ? 2 * 3 + 3 : 3));
    for (const std::uint32_t source : {0U, 1U}) {
      if (source != rail) continue;  // the other's come over the other rail
      node.wire->inbound(dataplane::channel_key(client.group->instance, source, 2, 1), 0, 0, payload, 1);
      CHECK(eventually([&] { return arrivals(*client.group, source, 1) == 1; }));
    }
  }
}

TEST_CASE("a rank goes over the rails near its GPU, and beside it one without goes over its share") {
  // Rank 0 is near rails 2 and 3; rank 1 has no GPU; this is rank 2, near rail 0.
  const GroupShape shape{.rank = 2,
                         .lanes = 4,
                         .ranks = {{.peer = 4, .local_rank = 0, .local_ranks = 2, .rails = 0b1100},
                                   {.peer = 4, .local_rank = 1, .local_ranks = 2},
                                   {.session = 1, .rails = 0b0001}}};
  const std::vector<std::byte> payload(64, std::byte{7});
  const std::uint32_t inbound_lanes[][2] = {{0, 0}, {0, 2}, {2, 0}, {2, 2}};  // of ranks 0 and 1, by rail
  for (std::uint32_t rail = 0; rail < 4; ++rail) {
    CAPTURE(rail);
    ProxyFixture node({.index = rail, .count = 4});
    node.wire->allow_everything();
    auto client = node.join(1, shape, 1U << 16, 8, 1, 4);
    const std::uint32_t outbound = rail == 0 ? 2 * 4 : 0;
    CHECK(node.wire->open_channels() == outbound + inbound_lanes[rail][0] + inbound_lanes[rail][1]);
    if (rail != 3) continue;
    node.wire->inbound(dataplane::channel_key(client.group->instance, 0, 2, 1), 0, 0, payload, 1);
    CHECK(eventually([&] { return arrivals(*client.group, 0, 1) == 1; }));
  }
}

TEST_CASE("a user's rate limit holds for all its sessions together, and what waits is sent in time") {
  ProxyFixture node;
  node.wire->allow_everything();
  node.wire->complete_at_once();
  constexpr std::uint64_t kRate = 4000, kEach = 150;
  std::vector<std::shared_ptr<dataplane::GroupPort>> groups;
  std::vector<std::unique_ptr<RingWriter>> writers;
  for (const dataplane::SessionId id : {1U, 2U}) {
    auto session = make_session(id);
    session->uid = 1001;
    session->requests_per_second = kRate;
    writers.push_back(std::make_unique<RingWriter>(session));
    writers.back()->set_active(1);
    node.proxy.attach_session(session);
    groups.push_back(make_group(id, pair_shape(id, 100 + id)));
    REQUIRE(open_group(node.proxy, groups.back()).ok());
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& writer : writers) {
    writer->write_together(std::vector<abi::WorkRequest>(kEach, put_request(1, 1, 0)));
    writer->ring_doorbell();
  }
  for (const auto& group : groups) CHECK(eventually([&] { return completed(*group, 1) == kEach; }));
  // What may be saved up goes at once, the last batch may overdraw; the rest takes its time.
  constexpr std::uint64_t kAtOnce = 80 + 2 * 32;
  const auto least = std::chrono::milliseconds(1000 * (2 * kEach - kAtOnce) / kRate);
  CHECK(std::chrono::steady_clock::now() - begin >= least);
}

TEST_CASE("transports of two nodes talk through proxies and control threads") {
  ProxyFixture node({.index = 0, .count = 1});
  const std::string text = "qpn 17";
  const auto bytes = std::as_bytes(std::span(text));
  node.proxy.receive_from_peer(4, {bytes.begin(), bytes.end()});
  CHECK(eventually([&] { return !node.sink.messages().empty(); }));
  CHECK(node.sink.messages() == std::vector<std::string>{"rail 0 to peer 4: echo qpn 17"});
}

}  // namespace
}  // namespace mkernel::test
