// Groups in use, and every way in which they end. Most cases run over several random interleavings.
#include <doctest/doctest.h>

#include "tests/unit/daemon/cluster/group_cases.h"

namespace mkernel::cluster {

using std::chrono::milliseconds;

TEST_CASE("regions reach every rank, also those that became ready later") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& zero = cluster.join(0, "g", 0, 2);
    RankView& one = cluster.join(1, "g", 1, 2);
    while (!zero.is_formed()) REQUIRE(cluster.step());
    cluster.directory(0).ready(zero.key, [&](const Status& status) { zero.ready = status; });
    cluster.directory(0).announce_region(zero.key, 3, {4096, 1, 0});
    cluster.settle();
    CHECK(zero.regions[{0, 3}] == 4096);  // one's own too
    CHECK(one.regions.empty());
    cluster.ready_all();
    cluster.settle();
    CHECK(one.regions[{0, 3}] == 4096);
    cluster.directory(1).announce_region(one.key, 0, {77, 1, 0});
    cluster.directory(0).announce_region(zero.key, 3, {0, 0, 0});
    cluster.settle();
    CHECK(zero.regions[{1, 0}] == 77);
    CHECK(one.regions[{0, 3}] == 0);
    CHECK(cluster.dropped.empty());
  });
}

TEST_CASE("a region is made known to all ranks of a node with one call") {
  DirectoryCluster cluster(2);
  const auto ranks = make_group(cluster, 2, 8);
  cluster.region_calls = 0;
  cluster.directory(0).announce_region(ranks[3]->key, 5, {77, 1, 0});
  cluster.settle();
  CHECK(cluster.region_calls == 2);  // there were 16
  for (RankView* rank : ranks) CHECK(rank->regions[{3, 5}] == 77);
  // A rank that leaves before the call is not called, and takes nothing from the others.
  cluster.directory(0).announce_region(ranks[3]->key, 6, {78, 1, 0});
  cluster.directory(0).leave(ranks[0]->key);
  cluster.settle();
  CHECK(ranks[0]->regions.count({3, 6}) == 0);
  CHECK(ranks[1]->regions[{3, 6}] == 78);
}

TEST_CASE("exchanges bring every blob to every rank, round by round") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(3, seed);
    const auto ranks = make_group(cluster, 3, 2);
    constexpr std::uint64_t kRounds = 5;
    // Each rank goes on as soon as it can, so some are a round ahead of others.
    std::vector<std::uint64_t> next(ranks.size(), 1);
    for (bool more = true; more;) {
      more = false;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (next[r] > kRounds || ranks[r]->exchanges.size() + 1 != next[r]) continue;
        cluster.exchange(*ranks[r], next[r], static_cast<std::uint8_t>(16 * next[r] + r), milliseconds(1000));
        ++next[r];
      }
      more = cluster.step();
    }
    for (const RankView* rank : ranks) {
      REQUIRE(rank->exchanges.size() == kRounds);
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        REQUIRE(rank->exchanges[round - 1].ok());
        const std::size_t first_of_node = rank->node * 2;  // ranks of one node get one copy
        CHECK(rank->exchanges[round - 1].value() == ranks[first_of_node]->exchanges[round - 1].value());
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          CHECK((*rank->exchanges[round - 1].value())[r].front() == static_cast<std::byte>(16 * round + r));
          CHECK((*rank->exchanges[round - 1].value())[r].back() == static_cast<std::byte>(16 * round + r));
        }
      }
    }
    CHECK(cluster.dropped.empty());
  });
}

TEST_CASE("an exchange that times out names the missing ranks") {
  DirectoryCluster cluster(2);
  const auto ranks = make_group(cluster, 2, 2);
  cluster.exchange(*ranks[0], 1, 1, milliseconds(500));
  cluster.exchange(*ranks[3], 1, 1, milliseconds(5000));
  cluster.settle();
  cluster.advance(500);
  REQUIRE(ranks[0]->exchanges.size() == 1);
  CHECK(ranks[0]->exchanges[0].status().code() == StatusCode::kDeadlineExceeded);
  CHECK(contains(ranks[0]->exchanges[0].status(), "ranks 1, 2"));
  CHECK(ranks[3]->exchanges.empty());
  cluster.exchange(*ranks[0], 2, 1, milliseconds(500));
  cluster.settle();
  CHECK(ranks[0]->exchanges[1].status().code() == StatusCode::kFailedPrecondition);
  CHECK(cluster.dropped.empty());
}

TEST_CASE(
    "a lost rank is reported with what all ranks do, and a rank that needs it fails the group for all") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    const auto ranks = make_group(cluster, 2, 2);
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r]->state.launches = 10 + r;
    cluster.directory(1).session_gone(ranks[3]->key.session, {StatusCode::kUnavailable, "exited"});
    cluster.settle();
    for (const RankView* rank : {ranks[0], ranks[1], ranks[2]}) {
      CHECK(rank->gone.at(3).code() == StatusCode::kUnavailable);
      CHECK(rank->aborts == 0);
      for (std::uint32_t other : {0U, 1U, 2U, 3U}) CHECK(rank->states.at(other).launches == 10 + other);
    }
    cluster.directory(0).fail(ranks[1]->key, 1, {StatusCode::kUnavailable, "needs rank 3"});
    cluster.settle();
    for (const RankView* rank : {ranks[0], ranks[1], ranks[2]}) {
      CHECK(rank->aborts == 1);
      CHECK(contains(rank->failure, "exited"));
    }
    CHECK(cluster.dropped.empty());
  });
}

TEST_CASE(
    "while the last puts of a session that ends are on their way, its group goes on and its name is free") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    const auto ranks = make_group(cluster, 2, 2);
    cluster.exchange(*ranks[0], 1, 1, milliseconds(5000));
    RankView& waiting = cluster.join(1, "whose other rank never comes", 0, 2);
    const Status why(StatusCode::kUnavailable, "exited");
    cluster.directory(1).session_ending(waiting.key.session, why);
    cluster.directory(1).session_ending(ranks[3]->key.session, why);
    cluster.settle();
    std::vector<RankView*> again;
    for (std::uint32_t r : {3U, 0U, 1U, 2U}) again.push_back(&cluster.join(r / 2, "g", r, 4));
    cluster.settle();
    for (const RankView* rank : again) CHECK(rank->is_formed());
    for (const RankView* rank : ranks) CHECK(rank->failures == 0);
    CHECK(ranks[0]->exchanges.empty());
    cluster.directory(1).session_gone(ranks[3]->key.session, why);
    cluster.settle();
    check_failed_once({ranks[0], ranks[1], ranks[2]}, 3, "node1");
    CHECK(ranks[0]->exchanges.size() == 1);
    for (const RankView* rank : again) CHECK(rank->failures == 0);
    CHECK(cluster.dropped.empty());
  });
}

TEST_CASE("a rank that leaves in peace is gone for the others, whose group goes on") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    const auto ranks = make_group(cluster, 2, 2);
    cluster.directory(1).leave(ranks[3]->key);
    cluster.settle();
    for (const RankView* rank : {ranks[0], ranks[1], ranks[2]}) {
      CHECK(rank->gone.at(3).ok());
      CHECK(rank->failures == 0);
    }
  });
}

TEST_CASE("a rejected launch goes to all other ranks, and fails the group where one has made it") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    const auto ranks = make_group(cluster, 2, 2);
    cluster.directory(1).reject(ranks[3]->key, 5, {StatusCode::kInvalidArgument, "wrong operand"});
    cluster.settle();
    for (const RankView* rank : {ranks[0], ranks[1], ranks[2]}) {
      CHECK(rank->rejected == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{3, 5}});
      CHECK(rank->failures == 0);
    }
    ranks[0]->state.launches = 6;
    cluster.directory(1).reject(ranks[3]->key, 6, {StatusCode::kInvalidArgument, "wrong operand"});
    cluster.settle();
    check_failed_once({ranks[0], ranks[1], ranks[2], ranks[3]}, 3, "node1");
    CHECK(contains(ranks[1]->failure, "wrong operand"));
  });
}

TEST_CASE("a session that goes fails its groups everywhere, once, with rank, node, pid and cause") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    const auto ranks = make_group(cluster, 2, 2);
    const auto healthy = make_group(cluster, 2, 1, "other");
    cluster.exchange(*ranks[0], 1, 1, milliseconds(5000));
    cluster.directory(1).session_gone(ranks[3]->key.session, {StatusCode::kUnavailable, "client was killed"});
    cluster.settle();
    check_failed_once({ranks[0], ranks[1], ranks[2]}, 3, "node1");
    CHECK(ranks[3]->failures == 0);  // no callback of a session that is gone
    CHECK(contains(ranks[0]->failure, "rank 3 on node node1 (pid 4004"));
    CHECK(contains(ranks[0]->failure, "client was killed"));
    REQUIRE(ranks[0]->exchanges.size() == 1);
    CHECK_FALSE(ranks[0]->exchanges[0].ok());
    for (const RankView* rank : healthy) CHECK(rank->failures == 0);

    // The name is free at once, on the same ranks.
    std::vector<RankView*> again;
    for (std::uint32_t r = 0; r < 4; ++r) again.push_back(&cluster.join(r / 2, "g", r, 4));
    cluster.settle();
    for (const RankView* rank : again) CHECK(rank->is_formed());
  });
}

TEST_CASE("a daemon that dies fails its groups and nobody else's") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(3, seed);
    const auto ranks = make_group(cluster, 3, 1);
    std::vector<RankView*> healthy{&cluster.join(0, "other", 0, 2), &cluster.join(1, "other", 1, 2)};
    cluster.settle();
    cluster.kill(2);
    cluster.settle();
    check_failed_once({ranks[0], ranks[1]}, 2, "node2");
    CHECK(contains(ranks[0]->failure, "rank 2 on node node2"));
    CHECK(contains(ranks[0]->failure, "node2 is dead"));
    for (const RankView* rank : healthy) CHECK(rank->failures == 0);
  });
}

TEST_CASE("a rank that waits for a dead daemon's answer is not held up") {
  DirectoryCluster cluster(3);
  cluster.hold(2, 0);
  RankView& zero = cluster.join(0, "g", 0, 2);
  RankView& one = cluster.join(1, "g", 1, 2);
  cluster.settle();
  CHECK_FALSE(zero.formed);
  cluster.kill(2);
  cluster.settle();
  CHECK(zero.is_formed());
  CHECK(one.is_formed());
}

TEST_CASE("fail() reaches every rank once, whoever else finds out at the same time") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(3, seed);
    const auto ranks = make_group(cluster, 3, 1);
    cluster.directory(0).fail(ranks[0]->key, 1, {StatusCode::kDataLoss, "count went back"});
    cluster.directory(2).fail(ranks[2]->key, 1, {StatusCode::kDataLoss, "count went back"});
    cluster.settle();
    check_failed_once(ranks, 1, "node1");
    CHECK(ranks[1]->failure.code() == StatusCode::kDataLoss);
    CHECK(contains(ranks[1]->failure, "count went back"));
  });
}

// A receiver of protobuf refuses a message with a text that is no UTF-8, and the stream that it came by; said
// again on the next stream, it broke the link between two daemons for as long as they lived.
TEST_CASE("a failure that is told in bytes of no text reaches the other nodes") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    const auto ranks = make_group(cluster, 2, 1);
    cluster.directory(0).fail(ranks[0]->key, 0, {StatusCode::kAborted, "broken \xff\xc3"});
    cluster.settle();
    check_failed_once(ranks, 0, "node0");
    CHECK(contains(ranks[1]->failure, "broken ??"));
    CHECK(cluster.dropped.empty());
  });
}

TEST_CASE("a rank may leave in peace; who needs it later is told its name") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    const auto ranks = make_group(cluster, 2, 1);
    cluster.exchange(*ranks[0], 1, 1, milliseconds(5000));
    cluster.exchange(*ranks[1], 1, 2, milliseconds(5000));
    cluster.directory(1).leave(ranks[1]->key);  // its contribution counts
    cluster.settle();
    REQUIRE(ranks[0]->exchanges.size() == 1);
    CHECK(ranks[0]->exchanges[0].ok());
    CHECK(ranks[0]->failures == 0);
    CHECK(ranks[1]->exchanges.empty());  // no callback after leave()
    for (std::uint64_t round = 2; round <= 3; ++round) {
      cluster.exchange(*ranks[0], round, 1, milliseconds(5000));
      cluster.settle();
      REQUIRE(ranks[0]->exchanges.size() == round);
      CHECK(ranks[0]->exchanges.back().status().code() == StatusCode::kUnavailable);
      CHECK(contains(ranks[0]->exchanges.back().status(), "rank 1 on node node1"));
    }
    cluster.directory(0).leave(ranks[0]->key);
    cluster.settle();
    for (std::size_t node = 0; node < 2; ++node) {
      CHECK(cluster.directory(node).member_count() == 0);
      CHECK(cluster.directory(node).instance_count() == 0);
    }
    make_group(cluster, 2, 1);
  });
}

TEST_CASE("an exchange that is under way fails when a rank it needs leaves") {
  DirectoryCluster cluster(2);
  const auto ranks = make_group(cluster, 2, 1);
  cluster.exchange(*ranks[0], 1, 1, milliseconds(5000));
  cluster.directory(1).leave(ranks[1]->key);
  cluster.settle();
  REQUIRE(ranks[0]->exchanges.size() == 1);
  CHECK(contains(ranks[0]->exchanges[0].status(), "rank 1 on node node1"));
}

TEST_CASE("whatever happens when, nobody waits for ever and nothing is left behind") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    DirectoryCluster cluster(3, seed);
    std::set<const RankView*> gone;
    const auto pick = [&](unsigned below) { return static_cast<unsigned>(cluster.random() % below); };
    for (int action = 0; action < 60; ++action) {
      for (unsigned i = pick(12); i > 0; --i) cluster.step();
      RankView* rank = cluster.ranks.empty() ? nullptr : cluster.ranks[pick(cluster.ranks.size())].get();
      switch (pick(10)) {
        case 0: {
          const std::size_t a = pick(3), b = (a + 1) % 3;
          cluster.disconnect(a, b);
          cluster.connect(a, b);
          break;
        }
        case 1:
          if (rank && gone.insert(rank).second) {
            cluster.directory(rank->node)
                .session_gone(rank->key.session, {StatusCode::kUnavailable, "killed"});
          }
          break;
        case 2:
          if (rank && rank->is_formed() && gone.insert(rank).second)
            cluster.directory(rank->node).leave(rank->key);
          break;
        case 3:
          if (rank) cluster.directory(rank->node).fail(rank->key, -1, {StatusCode::kInternal, "broken"});
          break;
        case 4: cluster.advance(pick(400)); break;
        case 5: cluster.ready_all(); break;
        default: {
          const unsigned r = pick(3);
          cluster.join(pick(8) == 0 ? pick(3) : r, pick(2) ? "g" : "h", r, 3);
        }
      }
    }
    cluster.ready_all();
    cluster.advance(1000);
    cluster.ready_all();
    cluster.advance(1000);
    CHECK(cluster.dropped.empty());
    for (const auto& rank : cluster.ranks) {
      CHECK(rank->failures <= 1);
      if (gone.count(rank.get()) == 0) {
        CHECK(rank->formed);
        CHECK((!rank->is_formed() || rank->is_ready() || rank->failures == 1));
      }
      cluster.directory(rank->node).leave(rank->key);
    }
    cluster.settle();
    for (std::size_t node = 0; node < 3; ++node) {
      CHECK(cluster.directory(node).member_count() == 0);
      CHECK(cluster.directory(node).instance_count() == 0);
    }
    // A clean group works on what is left.
    make_group(cluster, 3, 1, "after");
    for (std::size_t node = 0; node < 3; ++node) CHECK(cluster.directory(node).early_count() == 0);
  }
}

TEST_CASE("a peer that breaks the protocol is dropped with a reason") {
  DirectoryCluster cluster(2);
  const auto ranks = make_group(cluster, 2, 1);
  const transport::PeerId peer = ranks[0]->formed->value().members[1].port.peer;
  GroupDirectory& directory = cluster.directory(0);
  const auto expect = [&](const v1::PeerMessage& message, const std::string& reason) {
    cluster.dropped.clear();
    directory.received(peer, message);
    REQUIRE(cluster.dropped.size() == 1);
    CHECK(cluster.dropped[0].find(reason) != std::string::npos);
  };
  v1::PeerMessage message;
  expect(message, "unknown kind");
  message.mutable_member_joined()->set_group("x");
  expect(message, "world_size = 0");
  message.mutable_member_joined()->set_world_size(2);
  message.mutable_member_joined()->set_rank(2);
  expect(message, "rank = 2");
  message.mutable_member_joined()->set_group("x\x1b[2J");
  expect(message, "printable");
  message.mutable_member_joined()->set_group(std::string(5000, 'x'));
  expect(message, "group name");
  message.mutable_contribution()->set_instance(ranks[0]->formed->value().instance);
  message.mutable_contribution()->set_rank(1);
  message.mutable_contribution()->set_round(1);
  message.mutable_contribution()->set_blob("short");
  expect(message, "5 bytes");
  message.mutable_contribution()->set_blob(std::string(abi::kExchangeBytes, 'x'));
  message.mutable_contribution()->set_round(9);
  expect(message, "exchange 9");
  message.mutable_contribution()->set_round(1);
  message.mutable_contribution()->set_rank(0);  // not the peer's
  expect(message, "for rank 0");
  message.mutable_region_announced()->set_instance(ranks[0]->formed->value().instance);
  message.mutable_region_announced()->set_rank(1);
  message.mutable_region_announced()->set_index(8);
  expect(message, "index 8");
  message.mutable_member_ready()->set_instance(ranks[0]->formed->value().instance);
  message.mutable_member_ready()->set_rank(77);
  expect(message, "rank 77");
  CHECK(ranks[0]->failures == 0);
}

}  // namespace mkernel::cluster
