// Forming groups, and every reason not to. Most cases run over several random interleavings.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/daemon/cluster/group_cases.h"

namespace mkernel::cluster {

TEST_CASE("a group forms on one node alone") {
  DirectoryCluster cluster(1);
  RankView& zero = cluster.join(0, "g", 0, 2);
  cluster.settle();
  CHECK_FALSE(zero.formed);
  RankView& one = cluster.join(0, "g", 1, 2);
  cluster.settle();
  REQUIRE(zero.is_formed());
  REQUIRE(one.is_formed());
  CHECK(zero.formed->value().instance == one.formed->value().instance);
  CHECK(zero.formed->value().members[1].port.local);
  CHECK(zero.formed->value().members[1].port.local_key == one.key);
  cluster.ready_all();
  cluster.settle();
  CHECK(zero.is_ready());
  CHECK(one.is_ready());
}

TEST_CASE("a group forms over nodes, the same on every one") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(4, seed);
    std::vector<std::uint32_t> order{0, 1, 2, 3, 4, 5, 6, 7};
    std::shuffle(order.begin(), order.end(), cluster.random);
    std::map<std::uint32_t, RankView*> ranks;
    for (const std::uint32_t r : order) {
      ranks[r] = &cluster.join(r % 4, "g", r, 8);
      for (int i = 0; i < 3; ++i) cluster.step();
    }
    cluster.settle();
    for (const auto& [r, view] : ranks) {
      REQUIRE(view->is_formed());
      const session::FormedGroup& group = view->formed->value();
      CHECK(group.instance == ranks[0]->formed->value().instance);
      for (std::uint32_t other = 0; other < 8; ++other) {
        CHECK(group.members[other].node_name == "node" + std::to_string(other % 4));
        CHECK(group.members[other].port.local == (other % 4 == r % 4));
        if (other % 4 == r % 4) CHECK(group.members[other].port.local_key == ranks[other]->key);
      }
      CHECK_FALSE(view->ready);
    }
    cluster.ready_all();
    cluster.settle();
    for (const auto& [r, view] : ranks) CHECK(view->is_ready());
    CHECK(cluster.dropped.empty());
  });
}

TEST_CASE("every node knows over which rails every rank goes") {
  DirectoryCluster cluster(2);
  RankView& zero = cluster.join(0, "g", 0, 2, [](session::JoinRequest& join) { join.rails = 0b1010; });
  RankView& one = cluster.join(1, "g", 1, 2);  // not near any
  cluster.settle();
  for (const RankView* view : {&zero, &one}) {
    REQUIRE(view->is_formed());
    CHECK(view->formed->value().members[0].port.rails == 0b1010);
    CHECK(view->formed->value().members[1].port.rails == 0);
  }
}

TEST_CASE("ready waits for the last rank") {
  DirectoryCluster cluster(2);
  RankView& zero = cluster.join(0, "g", 0, 2);
  cluster.join(1, "g", 1, 2);
  cluster.settle();
  cluster.directory(0).ready(zero.key, [&](const Status& status) { zero.ready = status; });
  cluster.settle();
  CHECK_FALSE(zero.ready);
  cluster.ready_all();
  cluster.settle();
  CHECK(zero.is_ready());
}

TEST_CASE("a second claim of a rank is refused and names the holder") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& first = cluster.join(0, "g", 0, 2);
    cluster.settle();
    RankView& second = cluster.join(1, "g", 0, 2);
    cluster.settle();
    CHECK(second.join_status().code() == StatusCode::kAlreadyExists);
    CHECK(contains(second.join_status(), "node0"));
    CHECK(contains(second.join_status(), "pid 4001"));
    CHECK(contains(second.join_status(), "client1"));
    CHECK_FALSE(first.formed);
    RankView& other = cluster.join(1, "g", 1, 2);
    cluster.settle();
    CHECK(first.is_formed());
    CHECK(other.is_formed());
    RankView& late = cluster.join(1, "g", 0, 2);  // against the formed group
    cluster.settle();
    CHECK(late.join_status().code() == StatusCode::kAlreadyExists);
  });
}

TEST_CASE("of claims that cross on the way exactly the oldest stays, and the group forms with it") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(4, seed);
    for (std::size_t node = 0; node < 4; ++node) {
      cluster.executor(node).skew_ms = static_cast<std::int64_t>(cluster.random() % 3);
    }
    std::vector<RankView*> claims;
    for (std::size_t node = 0; node < 4; ++node) claims.push_back(&cluster.join(node, "g", 0, 2));
    // Rank 1 is claimed by two at the same time as well.
    std::vector<RankView*> others{&cluster.join(1, "g", 1, 2), &cluster.join(3, "g", 1, 2)};
    cluster.settle();
    const auto formed = [](const std::vector<RankView*>& views) {
      return std::count_if(views.begin(), views.end(), [](const RankView* v) { return v->is_formed(); });
    };
    // Both winners on one node would be unequal to nothing: one node with two ranks forms as well.
    CHECK(formed(claims) == 1);
    CHECK(formed(others) == 1);
    std::set<std::uint64_t> instances;
    for (const auto& rank : cluster.ranks) {
      if (rank->is_formed()) {
        instances.insert(rank->formed->value().instance);
      } else {
        CHECK(rank->join_status().code() == StatusCode::kAlreadyExists);
      }
    }
    CHECK(instances.size() == 1);
    cluster.ready_all();
    cluster.settle();
    for (const auto& rank : cluster.ranks) CHECK(rank->is_ready() == rank->is_formed());
  });
}

TEST_CASE("sizes that differ are refused, both named") {
  DirectoryCluster cluster(2);
  RankView& first = cluster.join(0, "g", 0, 2);
  cluster.settle();
  RankView& world = cluster.join(1, "g", 1, 3);
  RankView& lanes = cluster.join(1, "g", 1, 2, [](auto& request) { request.lanes = 5; });
  RankView& regions = cluster.join(1, "g", 1, 2, [](auto& request) { request.region_capacity = 9; });
  cluster.settle();
  for (const auto& [view, what] : {std::pair{&world, "world size 3"}, std::pair{&lanes, "lanes 5"},
                                   std::pair{&regions, "region capacity 9"}}) {
    CHECK(view->join_status().code() == StatusCode::kInvalidArgument);
    CHECK(contains(view->join_status(), what));
    CHECK(contains(view->join_status(), "rank 1 on node node1"));
    CHECK(contains(view->join_status(), "rank 0 on node node0"));
  }
  CHECK(contains(world.join_status(), "world size 2"));
  cluster.join(1, "g", 1, 2);
  cluster.settle();
  CHECK(first.is_formed());
}

TEST_CASE("sizes that differ and cross on the way: one stays") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& a = cluster.join(0, "g", 0, 2);
    RankView& b = cluster.join(1, "g", 1, 3);
    cluster.settle();
    CHECK(a.formed.has_value() != b.formed.has_value());
    CHECK((a.formed ? a : b).join_status().code() == StatusCode::kInvalidArgument);
  });
}

TEST_CASE("a time-out names who is missing, who is there and who is not reachable") {
  DirectoryCluster cluster(2);
  RankView& zero = cluster.join(0, "g", 0, 6);
  RankView& four = cluster.join(1, "g", 4, 6);
  cluster.settle();
  cluster.unreachable = {"10.0.0.7:7600 (connection refused)"};
  cluster.advance(999);
  CHECK_FALSE(zero.formed);
  cluster.advance(1);
  CHECK(zero.join_status().code() == StatusCode::kDeadlineExceeded);
  CHECK(contains(zero.join_status(), "ranks 1-3, 5 of 6 missing"));
  CHECK(contains(zero.join_status(), "node node1 has rank 4"));
  CHECK(contains(zero.join_status(), "10.0.0.7:7600 (connection refused)"));
  CHECK(four.join_status().code() == StatusCode::kDeadlineExceeded);
  CHECK(cluster.directory(0).member_count() == 0);
  CHECK(cluster.directory(1).member_count() == 0);
}

TEST_CASE("a time-out does not blame ranks that waited too and gave up a moment earlier") {
  DirectoryCluster cluster(2);
  RankView& zero = cluster.join(0, "g", 0, 4);
  RankView& one = cluster.join(0, "g", 1, 4);
  cluster.settle();
  cluster.advance(500);
  RankView& two = cluster.join(1, "g", 2, 4);
  cluster.settle();
  cluster.advance(500);
  CHECK(contains(zero.join_status(), "rank 3 of 4 missing; node node0 has rank"));
  CHECK(contains(one.join_status(), "rank 3 of 4 missing"));
  cluster.join(0, "g", 1, 4);  // tries again
  cluster.settle();
  cluster.advance(500);
  CHECK(contains(two.join_status(), "rank 3 of 4 missing; node node0 has rank 1, node node1 has rank 2"));
  CHECK(contains(two.join_status(), "came and went: rank 0"));
}

TEST_CASE("a time-out names the peer that did not answer") {
  DirectoryCluster cluster(2);
  cluster.hold(1, 0);
  RankView& zero = cluster.join(0, "g", 0, 1);
  cluster.settle();
  cluster.advance(1000);
  CHECK(contains(zero.join_status(), "no answer from: node1"));
}

TEST_CASE("ranks that never become ready are named") {
  DirectoryCluster cluster(2);
  RankView& zero = cluster.join(0, "g", 0, 2);
  RankView& one = cluster.join(1, "g", 1, 2);
  cluster.settle();
  cluster.directory(0).ready(zero.key, [&](const Status& status) { zero.ready = status; });
  cluster.settle();
  cluster.advance(1000);
  REQUIRE(zero.ready);
  CHECK(zero.ready->code() == StatusCode::kDeadlineExceeded);
  CHECK(contains(*zero.ready, "rank 1"));
  check_failed_once({&zero, &one}, 1, "node1");
}

TEST_CASE("unequal ranks per node are refused by name") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    cluster.join(0, "g", 0, 3);
    cluster.join(0, "g", 1, 3);
    cluster.join(1, "g", 2, 3);
    cluster.settle();
    for (const auto& rank : cluster.ranks) {
      CHECK(rank->join_status().code() == StatusCode::kInvalidArgument);
      CHECK(contains(rank->join_status(), "node node0 has ranks 0, 1"));
      CHECK(contains(rank->join_status(), "node node1 has rank 2"));
    }
    CHECK(cluster.directory(0).member_count() == 0);
    CHECK(cluster.directory(1).member_count() == 0);
  });
}

}  // namespace mkernel::cluster
