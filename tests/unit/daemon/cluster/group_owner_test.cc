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

TEST_CASE("another user takes no rank of a group, on this node or on another, and is told whose it is") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& first = cluster.join(0, "train", 0, 2, as(1000));
    cluster.settle();
    for (const std::size_t node : {0, 1}) {
      RankView& intruder = cluster.join(node, "train", 1, 2, as(65534));
      cluster.settle();
      CHECK(intruder.join_status().code() == StatusCode::kPermissionDenied);
      CHECK(contains(intruder.join_status(), "group \"train\" is held by user 1000 (rank 0 on node node0"));
      CHECK(contains(intruder.join_status(), "belongs to user 65534"));
    }
    CHECK_FALSE(first.formed);
    RankView& second = cluster.join(1, "train", 1, 2, as(1000));
    cluster.settle();
    CHECK(first.is_formed());
    CHECK(second.is_formed());
    // Nor of a name whose group is formed.
    RankView& late = cluster.join(1, "train", 1, 3, as(65534));
    cluster.settle();
    CHECK(late.join_status().code() == StatusCode::kPermissionDenied);
  });
}

TEST_CASE("of two users whose claims cross on the way one has the name, and no group is of both") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& zero = cluster.join(0, "train", 0, 2, as(1000));
    RankView& one = cluster.join(1, "train", 1, 2, as(1001));
    cluster.settle();
    CHECK_FALSE(zero.is_formed());
    CHECK_FALSE(one.is_formed());
    const bool zero_refused = zero.join_status().code() == StatusCode::kPermissionDenied;
    const bool one_refused = one.join_status().code() == StatusCode::kPermissionDenied;
    CHECK(zero_refused != one_refused);
  });
}

TEST_CASE("a secret lets ranks of different nodes run under different users, but not those of one node") {
  run_seeds([](unsigned seed) {
    DirectoryCluster cluster(2, seed);
    RankView& zero = cluster.join(0, "train", 0, 4, as(1000, kSecret));
    RankView& one = cluster.join(0, "train", 1, 4, as(1000, kSecret));
    cluster.settle();
    RankView& neighbour = cluster.join(0, "train", 2, 4, as(1001, kSecret));
    RankView& without = cluster.join(1, "train", 2, 4, as(1000));
    RankView& wrong = cluster.join(1, "train", 2, 4, as(1000, kOther));
    cluster.settle();
    CHECK(contains(neighbour.join_status(), "is held by user 1000"));
    for (const RankView* view : {&without, &wrong}) {
      CHECK(view->join_status().code() == StatusCode::kPermissionDenied);
      CHECK(contains(view->join_status(), "is held with another join secret"));
    }
    RankView& two = cluster.join(1, "train", 2, 4, as(2000, kSecret));
    RankView& three = cluster.join(1, "train", 3, 4, as(2000, kSecret));
    cluster.settle();
    for (const RankView* view : {&zero, &one, &two, &three}) CHECK(view->is_formed());
  });
}

TEST_CASE("members that peers confirm do not form a group of two users") {
  DirectoryCluster cluster(2);
  RankView& zero = cluster.join(0, "g", 0, 2, as(1000));
  cluster.settle();
  // What no honest daemon confirms: node 0 has refused it.
  v1::PeerMessage message = joined("g", 1);
  message.mutable_member_joined()->set_uid(1001);
  message.mutable_member_joined()->set_confirmed(true);
  cluster.say(1, 0, message);
  cluster.settle();
  CHECK_FALSE(zero.is_formed());
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
