// Leaving: what waits for puts in flight, what is given up at the limit, and that no reference stays behind.
#include "tests/support/proxy_fixture.h"

namespace mkernel::test {
namespace {

using std::chrono::milliseconds;

/// A `done` that can be looked at.
struct Flag {
  std::shared_ptr<std::atomic<bool>> value = std::make_shared<std::atomic<bool>>(false);
  auto setter() const {
    return [value = value](auto&&...) { value->store(true); };
  }
  bool set() const { return value->load(); }
};

TEST_CASE("detach waits for the puts in flight, then drops every reference") {
  ProxyFixture node;
  node.wire->allow_everything();
  auto client = node.join(1, pair_shape(1, 77, 2));
  for (int i = 0; i < 40; ++i) client.put(1, 64);
  REQUIRE(eventually([&] { return node.wire->put_count() == 40; }));
  CHECK(node.wire->open_channels() == 4);
  Flag drained, gone;
  node.proxy.detach_session(1, kLong, drained.setter(), gone.setter());
  settle(node);       // the proxy knows: a slot written while the command was under way could still be read
  client.put(1, 64);  // written too late: never read
  settle(node);
  CHECK_FALSE(gone.set());
  node.wire->complete(client.key(1), 39);
  CHECK(eventually([&] { return completed(*client.group, 1) == 39; }));
  settle(node);
  CHECK_FALSE(drained.set());
  CHECK(node.wire->open_channels() == 4);
  node.wire->keep_busy(true);  // its channels do not close yet
  node.wire->complete(client.key(1), 40);
  REQUIRE(eventually([&] { return drained.set(); }));
  REQUIRE(eventually([&] { return gone.set(); }));
  CHECK(completed(*client.group, 1) == 40);
  CHECK(node.wire->open_channels() == 0);
  CHECK(node.wire->put_count() == 40);
  CHECK(eventually([&] { return client.session.use_count() == 2; }));  // this test and its writer
  CHECK(eventually([&] { return client.group.use_count() == 1; }));
  CHECK(eventually([&] { return client.region.use_count() == 1; }));
}

TEST_CASE("puts to a rank that is gone complete, and neither its channels nor its peer fail the group") {
  ProxyFixture node;
  node.wire->allow(5);
  auto client =
      node.join(1, {.lanes = 2, .instance = 77, .ranks = {{.session = 1}, {.peer = 5}, {.peer = 6}}});
  for (int i = 0; i < 20; ++i) client.put(1, 64);  // five with the transport, others with the proxy
  REQUIRE(eventually([&] { return node.wire->put_count() == 5; }));
  REQUIRE(node.wire->open_channels() == 8);
  node.wire->keep_busy(true);
  node.proxy.rank_left(client.group->key, 1);
  CHECK(eventually([&] { return completed(*client.group, 1) == 20; }));
  node.wire->fail_channel(client.key(1), {StatusCode::kUnavailable, "no such channel"});
  settle(node);
  client.put(1, 64);
  CHECK(eventually([&] { return completed(*client.group, 1) == 21; }));
  node.wire->complete(client.key(1), 5);
  node.wire->keep_busy(false);
  CHECK(eventually([&] { return node.wire->open_channels() == 6; }));  // the two that it would get puts on
  node.proxy.rank_left(client.group->key, 1);                          // told again
  node.wire->fail_peer(5, {StatusCode::kUnavailable, "peer 5 is no more"});
  node.wire->allow_everything();
  client.put(2, 64);
  REQUIRE(eventually([&] { return node.wire->put_count() == 6; }));
  node.wire->complete(client.key(2), 1);
  CHECK(eventually([&] { return completed(*client.group, 2) == 1; }));
  CHECK(completed(*client.group, 1) == 21);
  CHECK(node.sink.groups().empty());
  node.wire->fail_peer(6, {StatusCode::kUnavailable, "peer 6 is no more"});  // one that is needed
  CHECK(eventually([&] { return node.sink.groups().size() == 1; }));
}

// Channels of other sessions share their connections: one that closes with puts under way disturbs them.
TEST_CASE("a group's channels stop before they close, and close all the same when a peer does not answer") {
  for (const bool answers : {true, false}) {
    CAPTURE(answers);
    ProxyFixture node;
    auto client = node.join(1, pair_shape(1, 77, 3));
    REQUIRE(node.wire->open_channels() == 6);
    node.wire->keep_busy(true);
    Flag gone;
    const auto begin = std::chrono::steady_clock::now();
    node.proxy.close_group(client.group->key, milliseconds(0), gone.setter());
    REQUIRE(eventually([&] { return node.wire->stopped_channels() == 6; }));
    if (answers) {
      CHECK(node.wire->open_channels() == 6);
      node.wire->keep_busy(false);
    }
    REQUIRE(eventually([&] { return gone.set(); }));
    const auto took = std::chrono::steady_clock::now() - begin;
    if (!answers) CHECK(took >= milliseconds(100));
    CHECK(node.wire->open_channels() == 0);
    CHECK(eventually([&] { return client.region.use_count() == 1; }));
  }
}

TEST_CASE("detach gives up at its limit, also with puts that the transport never took") {
  ProxyFixture node;
  node.wire->allow(5);
  auto client = node.join(1, pair_shape(1));
  for (int i = 0; i < 20; ++i) client.put(1, 64);
  REQUIRE(eventually([&] { return node.wire->put_count() == 5; }));
  CHECK(detach_session(node.proxy, 1, milliseconds(1)));
  CHECK(node.wire->open_channels() == 0);
  CHECK(eventually([&] { return client.region.use_count() == 1; }));
  node.wire->allow_everything();
  auto next = node.join(2, pair_shape(2));
  next.put(1, 8);
  CHECK(eventually([&] { return node.wire->put_count() == 6; }));
}

TEST_CASE("closing a group sends what was written before, and its channel numbers may be used again") {
  ProxyFixture node;
  node.wire->allow_everything();
  node.wire->complete_at_once();
  auto client = node.join(1, pair_shape(1));
  RingWriter gpu(client.session, 0, abi::RingWriter::kGpu);
  for (int i = 0; i < 200; ++i) client.put(1, 64);
  for (int i = 0; i < 100; ++i) gpu.write(put_request(client.channel(1), 1, 64));
  CHECK(close_group(node.proxy, client.group->key, kLong));
  CHECK(completed(*client.group, 1) == 300);
  CHECK(node.wire->open_channels() == 0);
  CHECK(node.wire->forgotten(*client.region));

  GroupShape again = pair_shape(1, 78);
  again.handle = 2;
  const auto second = make_group(1, again);
  REQUIRE(open_group(node.proxy, second).ok());
  CHECK(open_group(node.proxy, second).code() == StatusCode::kInternal);  // twice
  client.ring->write(put_request(1, 1, 0));
  CHECK(eventually([&] { return completed(*second, 1) == 1; }));
  CHECK(close_group(node.proxy, second->key, kLong));
  client.ring->write(put_request(1, 1, 0));  // the channel is gone
  REQUIRE(eventually([&] { return node.sink.sessions().size() == 1; }));
  CHECK(node.sink.sessions()[0].second.code() == StatusCode::kNotFound);
}

TEST_CASE("a region stays until the puts that use it are done, then new ones are refused") {
  ProxyFixture node;
  node.wire->allow_everything();
  auto client = node.join(1, pair_shape(1));
  client.put(1, 64);
  REQUIRE(eventually([&] { return node.wire->put_count() == 1; }));
  Flag cleared;
  node.proxy.clear_region(client.group->key, 0, kLong, cleared.setter());
  settle(node);
  CHECK_FALSE(cleared.set());
  CHECK(client.region.use_count() == 2);
  CHECK_FALSE(node.wire->forgotten(*client.region));
  client.ring->write(put_request(1, 1, 0));  // later traffic of the group holds up nothing
  REQUIRE(eventually([&] { return node.wire->put_count() == 2; }));
  node.wire->complete(client.key(1), 1);
  REQUIRE(eventually([&] { return cleared.set(); }));
  CHECK(eventually([&] { return client.region.use_count() == 1; }));
  CHECK(node.wire->forgotten(*client.region));
  client.put(1, 64);
  REQUIRE(eventually([&] { return node.sink.sessions().size() == 1; }));
  CHECK(node.sink.sessions()[0].second.text().find("local region 0") != std::string::npos);
}

TEST_CASE("stop drains, closes the transport and answers everybody") {
  ProxyFixture node;
  node.wire->allow_everything();
  auto client = node.join(1, pair_shape(1));
  client.put(1, 64);
  REQUIRE(eventually([&] { return node.wire->put_count() == 1; }));
  Flag detached, closed;
  node.proxy.detach_session(
      1, kLong, [] {}, detached.setter());
  node.proxy.close_group(client.group->key, kLong, closed.setter());
  node.proxy.stop(milliseconds(1));  // the put never completes
  CHECK(detached.set());
  CHECK(closed.set());
  CHECK(node.wire->closed());
  CHECK(client.group.use_count() == 1);
  // After the end every call still answers.
  Flag late;
  node.proxy.detach_session(
      1, kLong, [] {}, late.setter());
  CHECK(late.set());
  CHECK_FALSE(open_group(node.proxy, make_group(1, pair_shape(1))).ok());
  node.proxy.attach_session(make_session(8));
  REQUIRE(node.sink.sessions().size() == 1);
  CHECK(node.sink.sessions()[0].second.code() == StatusCode::kUnavailable);
}

TEST_CASE("a proxy that was never started answers too") {
  RecordingSink sink;
  Flag done;
  {
    dataplane::Proxy proxy({}, std::make_unique<FakeTransport>(std::make_shared<FakeWire>()), sink);
    proxy.detach_session(
        1, kLong, [] {}, done.setter());
  }
  CHECK(done.set());
}

}  // namespace
}  // namespace mkernel::test
