// A transport takes part of a batch, and the group that the rest belongs to goes away. The batch once kept
// its old end, so that the session's next puts were written behind the array: by an ordinary client, on the
// proxy thread of a privileged process.
#include "tests/support/proxy_fixture.h"

namespace mkernel::test {
namespace {

using std::chrono::milliseconds;

constexpr transport::PeerId kDyingPeer = 6;

/// How the first group goes away.
enum class Way : std::uint8_t { kLeave, kFail, kPeerLost, kUnregister };

/// One session with two groups on one ring. A put of the dying group carries bytes, one of the other is a
/// signal.
struct TwoGroups {
  explicit TwoGroups(ProxyFixture& fixture) : node(fixture) {
    dying = node.join(1, {.instance = 77, .ranks = {{.session = 1}, {.peer = kDyingPeer}}});
    GroupShape shape = pair_shape(1, 500);
    shape.handle = 2;
    shape.first_channel = 2;
    other = make_group(1, shape);
    const Status opened = open_group(node.proxy, other);
    REQUIRE_MESSAGE(opened.ok(), opened.to_string());
  }

  static abi::WorkRequest of_dying() { return put_request(1, 1, 64); }
  static abi::WorkRequest of_other() { return put_request(2 + 1, 1, 0); }

  void end(Way way) const {
    const auto& counters = dying.session->counters[0];
    REQUIRE(eventually([&] { return counters.stalls_total == 1; }));
    switch (way) {
      case Way::kLeave: CHECK(close_group(node.proxy, dying.group->key, milliseconds(0))); return;
      case Way::kFail: node.wire->fail_channel(dying.key(1), {StatusCode::kUnavailable, "gone"}); break;
      case Way::kPeerLost: node.wire->fail_peer(kDyingPeer, {StatusCode::kUnavailable, "gone"}); break;
      case Way::kUnregister: {
        // The puts in hand read from the region and cannot go: it is given up with its group.
        const Status why = clear_region(node.proxy, dying.group->key, 0, milliseconds(0));
        CHECK(why.code() == StatusCode::kDeadlineExceeded);
        break;
      }
    }
    REQUIRE(eventually([&] { return node.sink.groups().size() == 1; }));
    CHECK(node.sink.groups()[0].group == dying.group->key);
  }

  ProxyFixture& node;
  ProxyFixture::Client dying;
  std::shared_ptr<dataplane::GroupPort> other;
};

/// `taken` puts of a batch of 32 are taken, the dying group has every `every`-th of the rest, three batches
/// of the other group wait behind.
void run(Way way, std::uint32_t taken, std::uint32_t every) {
  CAPTURE(static_cast<int>(way));
  CAPTURE(taken);
  CAPTURE(every);
  constexpr std::uint32_t kBatch = 32;
  ProxyFixture node;
  const TwoGroups groups(node);
  node.wire->complete_at_once();
  node.wire->allow(taken);
  std::vector<abi::WorkRequest> requests;
  std::uint32_t signals = 0;
  for (std::uint32_t i = 0; i < 4 * kBatch; ++i) {
    const bool dying = i >= taken && i < kBatch && (i - taken) % every == 0;
    requests.push_back(dying ? TwoGroups::of_dying() : TwoGroups::of_other());
    if (!dying) ++signals;
  }
  groups.dying.ring->write_together(requests);
  REQUIRE(eventually([&] { return node.wire->put_count() == taken; }));
  groups.end(way);
  node.wire->allow_everything();
  CHECK(eventually([&] { return completed(*groups.other, 1) == signals; }));
  CHECK(node.sink.sessions().empty());
  std::uint64_t next = 0;
  for (const RecordedPut& record : node.wire->puts()) {
    if (record.key != dataplane::channel_key(500, 0, 1, 0)) continue;
    CHECK(record.put.sequence == ++next);
    CHECK(record.put.length == 0);
    CHECK(record.put.source == nullptr);
  }
  CHECK(next == signals);
  groups.dying.ring->write(TwoGroups::of_other());
  CHECK(eventually([&] { return completed(*groups.other, 1) == signals + 1; }));
}

TEST_CASE("part of a batch was taken, and the group of the rest goes away") {
  for (const Way way : {Way::kLeave, Way::kFail, Way::kPeerLost, Way::kUnregister}) {
    for (std::uint32_t taken = 0; taken < 32; ++taken) run(way, taken, 1);
  }
}

TEST_CASE("part of a batch was taken, and one of the two groups of the rest goes away") {
  for (const Way way : {Way::kLeave, Way::kFail, Way::kPeerLost, Way::kUnregister}) {
    for (std::uint32_t taken = 0; taken < 32; taken += 3) {
      run(way, taken, 2);
      run(way, taken, 5);
    }
  }
}

}  // namespace
}  // namespace mkernel::test
