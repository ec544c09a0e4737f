// Groups belong to users: who may be in one, and what peers that are in none may not say about it.
#include <doctest/doctest.h>

#include "tests/unit/daemon/cluster/group_cases.h"

namespace mkernel::cluster {
namespace {

using Change = std::function<void(session::JoinRequest&)>;

Change as(std::uint32_t uid, const std::string& secret_hash = "") {
  return [uid, secret_hash](session::JoinRequest& request) {
    request.uid = uid;
    request.secret_hash = secret_hash;
  };
}

const std::string kSecret(32, 's'), kOther(32, 'o');

/// A member of `group` as its node tells of it.
v1::PeerMessage joined(const std::string& group, std::uint32_t rank) {
  v1::PeerMessage message;
  v1::MemberJoined& member = *message.mutable_member_joined();
  member.set_session(77);
  member.set_handle(1);
  member.set_group(group);
  member.set_world_size(2);
  member.set_rank(rank);
  member.set_lanes(2);
  member.set_region_capacity(8);
  member.set_client_name("peer");
  return message;
}

}  // namespace

TEST_CASE("groups of two users with one name are two groups, and both form") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& first = cluster.join(0, "train", 0, 2, as(1000));
    cluster.settle();
    // The same rank, another world size, and no rank of the first group: none of this concerns user 1000.
    RankView& stranger = cluster.join(1, "train", 0, 3, as(65534));
    RankView& other = cluster.join(0, "train", 0, 2, as(1001));
    cluster.settle();
    CHECK_FALSE(stranger.formed);
    RankView& second = cluster.join(1, "train", 1, 2, as(1000));
    RankView& other_second = cluster.join(1, "train", 1, 2, as(1001));
    cluster.settle();
    REQUIRE(first.is_formed());
    REQUIRE(second.is_formed());
    REQUIRE(other.is_formed());
    REQUIRE(other_second.is_formed());
    CHECK(first.formed->value().instance == second.formed->value().instance);
    CHECK(first.formed->value().instance != other.formed->value().instance);
    CHECK(first.formed->value().members[1].port.peer != 0);
    CHECK_FALSE(stranger.formed);
    // The end of one group is nothing to the other.
    cluster.directory(0).session_gone(first.key.session, {StatusCode::kUnavailable, "gone"});
    cluster.settle();
    CHECK(second.failures == 1);
    CHECK(other.failures + other_second.failures == 0);
    CHECK(cluster.dropped.empty());
  });
}

TEST_CASE("a user who waits under thousands of names keeps nobody else from a group of such a name") {
  DirectoryCluster cluster(2);
  for (int i = 0; i < 2000; ++i) cluster.join(0, "job-" + std::to_string(i), 0, 2, as(65534));
  cluster.settle();
  RankView& zero = cluster.join(0, "job-7", 0, 2, as(1000));
  RankView& one = cluster.join(1, "job-7", 1, 2, as(1000));
  cluster.settle();
  CHECK(zero.is_formed());
  CHECK(one.is_formed());
}

TEST_CASE(
    "of two users whose claims cross on the way neither hears of the other before the time-out, and then no "
    "name") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& zero = cluster.join(0, "train", 0, 2, as(4711));
    RankView& one = cluster.join(1, "train", 1, 2, as(4712, kSecret));
    cluster.settle();
    CHECK_FALSE(zero.formed);
    CHECK_FALSE(one.formed);
    cluster.advance(60000);
    for (const RankView* view : {&zero, &one}) {
      const Status& status = view->join_status();
      CHECK(status.code() == StatusCode::kDeadlineExceeded);
      CHECK(contains(status, "of 2 missing"));
      CHECK(contains(status, "ranks of another owner waited under the same name"));
    }
    CHECK_FALSE(contains(zero.join_status(), one.join_status().text()));
    for (const char* secret : {"4712", "pid 4002", "client2"})
      CHECK_FALSE(contains(zero.join_status(), secret));
    for (const char* secret : {"4711", "pid 4001", "client1"})
      CHECK_FALSE(contains(one.join_status(), secret));
  });
}

TEST_CASE("a rank that times out alone under its name is told of no other owner") {
  DirectoryCluster cluster(2);
  RankView& other = cluster.join(1, "train", 0, 1, as(1001));  // whole at once: it waits for nobody
  cluster.settle();
  REQUIRE(other.is_formed());
  RankView& zero = cluster.join(0, "train", 0, 2, as(1000));
  cluster.settle();
  cluster.advance(60000);
  CHECK(zero.join_status().code() == StatusCode::kDeadlineExceeded);
  CHECK_FALSE(contains(zero.join_status(), "another owner"));
}

TEST_CASE("a secret lets ranks of different nodes run under different users, but not those of one node") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& zero = cluster.join(0, "train", 0, 4, as(1000, kSecret));
    RankView& one = cluster.join(0, "train", 1, 4, as(1000, kSecret));
    cluster.settle();
    RankView& neighbour = cluster.join(0, "train", 2, 4, as(1001, kSecret));
    // The same user: without the secret, or with another, his rank belongs to another group.
    RankView& without = cluster.join(1, "train", 2, 4, as(1000));
    RankView& wrong = cluster.join(1, "train", 2, 4, as(1000, kOther));
    cluster.settle();
    CHECK(neighbour.join_status().code() == StatusCode::kPermissionDenied);
    CHECK(contains(neighbour.join_status(),
                   "rank 2 belongs to user 1001 and rank 0 to user 1000, both on node node0"));
    CHECK_FALSE(without.formed);
    CHECK_FALSE(wrong.formed);
    RankView& two = cluster.join(1, "train", 2, 4, as(2000, kSecret));
    RankView& three = cluster.join(1, "train", 3, 4, as(2000, kSecret));
    cluster.settle();
    for (const RankView* view : {&zero, &one, &two, &three}) CHECK(view->is_formed());
    cluster.advance(60000);
    for (const RankView* view : {&without, &wrong}) {
      CHECK(contains(view->join_status(), "ranks of another owner waited under the same name"));
    }
  });
}

TEST_CASE("members that peers confirm do not form a group of two users") {
  DirectoryCluster cluster(3);
  RankView& zero = cluster.join(0, "g", 0, 2, as(1000));
  cluster.settle();
  v1::PeerMessage message = joined("g", 1);
  message.mutable_member_joined()->set_uid(1001);
  message.mutable_member_joined()->set_confirmed(true);
  cluster.say(1, 0, message);
  cluster.settle();
  CHECK_FALSE(zero.formed);
  // Nor two of one node by a common secret, which no honest daemon confirms.
  for (const std::uint32_t rank : {0U, 1U}) {
    v1::PeerMessage claim = joined("h", rank);
    claim.mutable_member_joined()->set_session(100 + rank);
    claim.mutable_member_joined()->set_world_size(3);
    claim.mutable_member_joined()->set_uid(1000 + rank);
    claim.mutable_member_joined()->set_secret_hash(kSecret);
    claim.mutable_member_joined()->set_confirmed(true);
    cluster.say(1, 0, claim);
  }
  RankView& two = cluster.join(0, "h", 2, 3, as(1000, kSecret));
  cluster.settle();
  CHECK_FALSE(two.is_formed());
}

TEST_CASE("a peer that has no rank in a group may not fail it") {
  DirectoryCluster cluster(3);
  const auto ranks = make_group(cluster, 2, 1);
  v1::PeerMessage message;
  message.mutable_group_failed()->set_instance(ranks[0]->formed->value().instance);
  message.mutable_group_failed()->set_code(14);
  message.mutable_group_failed()->set_text("so I say");
  cluster.say(2, 0, message);
  cluster.settle();
  CHECK(ranks[0]->failures == 0);
  REQUIRE(cluster.dropped.size() == 1);
  CHECK(cluster.dropped[0] == "protocol violation: group_failed for group \"g\", in which it has no rank");
}

TEST_CASE("a peer that has no rank of a name may neither refuse a claim nor fail it before it is formed") {
  DirectoryCluster cluster(2);
  RankView& zero = cluster.join(0, "g", 0, 2);
  cluster.settle();
  v1::PeerMessage failed;
  failed.mutable_group_failed()->set_instance(99);
  failed.mutable_group_failed()->set_code(14);
  failed.mutable_group_failed()->add_members()->set_session(zero.key.session);
  failed.mutable_group_failed()->mutable_members(0)->set_handle(zero.key.handle);
  cluster.say(1, 0, failed);
  cluster.settle();
  CHECK_FALSE(zero.formed);
  v1::PeerMessage refused;
  refused.mutable_member_refused()->set_session(zero.key.session);
  refused.mutable_member_refused()->set_handle(zero.key.handle);
  refused.mutable_member_refused()->set_code(6);
  refused.mutable_member_refused()->set_text("so I say");
  cluster.say(1, 0, refused);
  cluster.settle();
  CHECK_FALSE(zero.formed);
  REQUIRE(cluster.dropped.size() == 1);
  CHECK(cluster.dropped[0] == "protocol violation: member_refused for group \"g\", in which it has no rank");
}

TEST_CASE("what a peer calls groups and clients is printable, and its texts are one line") {
  const auto dropped = [](const v1::PeerMessage& message) {
    DirectoryCluster cluster(2);
    cluster.say(1, 0, message);
    cluster.settle();
    REQUIRE(cluster.dropped.size() == 1);
    return cluster.dropped[0];
  };
  CHECK(dropped(joined("a\x1b[2J", 0)) ==
        "protocol violation: member_joined: group name holds byte 27 at position 1, allowed is printable "
        "ASCII");
  v1::PeerMessage named = joined("g", 0);
  named.mutable_member_joined()->set_client_name("a\nb");
  CHECK(contains(Status(StatusCode::kUnknown, dropped(named)), "client name holds byte 10 at position 1"));
  v1::PeerMessage hash = joined("g", 0);
  hash.mutable_member_joined()->set_secret_hash("short");
  CHECK(contains(Status(StatusCode::kUnknown, dropped(hash)), "bytes of the secret's hash = 5"));

  DirectoryCluster cluster(2);
  const auto ranks = make_group(cluster, 2, 1);
  v1::PeerMessage failed;
  failed.mutable_group_failed()->set_instance(ranks[0]->formed->value().instance);
  failed.mutable_group_failed()->set_code(14);
  failed.mutable_group_failed()->set_text("one\ntwo");
  failed.mutable_group_failed()->set_node("no\nde");
  cluster.say(1, 0, failed);
  cluster.settle();
  CHECK(ranks[0]->failure.text() == "one two");
  CHECK(ranks[0]->failed_on == "no de");
}

}  // namespace mkernel::cluster
