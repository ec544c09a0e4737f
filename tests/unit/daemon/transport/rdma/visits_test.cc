// Who is visited by a poll, and who is left asleep.
#include "daemon/transport/rdma/visits.h"

#include <doctest/doctest.h>

namespace mkernel::transport::rdma {
namespace {

struct Peer : Visited {
  bool idle = true;
  bool armed = false;
  Time deadline = kNever;
};

struct Table {
  std::vector<Peer*> busy() {
    std::vector<Peer*> found;
    visits.for_each_busy([&](Peer& peer) { found.push_back(&peer); });
    return found;
  }
  /// A poll without events: peers that have not been armed are visited again.
  void settle() {
    const auto due = [](Peer& peer) { return peer.deadline; };
    do {
      visits.for_each_busy([](Peer& peer) { peer.rests = peer.idle; });
      visits.rest(due);
    } while (!visits.settle([](Peer& peer) { return std::exchange(peer.armed, true); }, due));
  }

  Table() {
    for (Peer& peer : peers) visits.add(peer);
  }
  Peer peers[3];
  Visits<Peer> visits;
};

using List = std::vector<Peer*>;

TEST_CASE("a peer is visited from when it is woken until it has settled") {
  Table table;
  Peer* const peers = table.peers;
  CHECK(table.busy() == List{&peers[0], &peers[1], &peers[2]});  // new ones have to be looked at
  table.settle();
  CHECK(table.busy().empty());
  table.visits.wake(peers[1]);
  table.visits.wake(peers[1]);
  CHECK(table.busy() == List{&peers[1]});
  peers[1].idle = false;
  table.settle();
  CHECK(table.busy() == List{&peers[1]});
  table.visits.wake_all();
  CHECK(table.busy().size() == 3);
}

TEST_CASE("a peer that sleeps is woken when its time has come, and nobody else") {
  Table table;
  Peer* const peers = table.peers;
  const Time start = Clock::now();
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  peers[0].deadline = at(10);
  peers[1].deadline = at(20);
  table.settle();
  CHECK(table.visits.due() == at(10));
  table.visits.wake_due(at(9));
  CHECK(table.busy().empty());
  table.visits.wake_due(at(10));
  CHECK(table.busy() == List{&peers[0]});
  CHECK(table.visits.due() == at(20));
  peers[0].deadline = at(15);
  table.settle();
  CHECK(table.visits.due() == at(15));
  table.visits.wake_due(at(30));
  CHECK(table.busy() == List{&peers[0], &peers[1]});
  CHECK(table.visits.due() == kNever);
}

TEST_CASE("a time that was put off wakes nobody, and is not kept") {
  Table table;
  Peer* const peers = table.peers;
  const Time start = Clock::now();
  peers[0].deadline = start;
  table.settle();
  table.visits.wake(peers[0]);
  peers[0].deadline = start + std::chrono::seconds(1);
  table.settle();
  CHECK(table.visits.due() == start);  // early, which costs one look
  table.visits.wake_due(start);
  CHECK(table.busy().empty());
  CHECK(table.visits.due() == start + std::chrono::seconds(1));
}

TEST_CASE("a peer that rests is armed before the owner sleeps, and visited once more after that") {
  Table table;
  Peer& peer = table.peers[0];
  table.settle();
  const auto due = [](Peer& each) { return each.deadline; };
  std::size_t asked = 0;
  const auto arm = [&](Peer& each) {
    ++asked;
    return std::exchange(each.armed, true);
  };
  CHECK(table.visits.settle(arm, due));
  CHECK(asked == 0);  // nobody was awake

  table.visits.wake(peer);
  peer.armed = false;  // something has come
  peer.rests = true;
  table.visits.rest(due);
  CHECK(table.busy().empty());
  CHECK_FALSE(table.visits.settle(arm, due));
  CHECK(table.busy() == List{&peer});
  peer.rests = true;
  table.visits.rest(due);
  CHECK(table.visits.settle(arm, due));
  CHECK(asked == 2);
}

TEST_CASE("who is woken after its visit does not rest") {
  Table table;
  table.settle();
  Peer& peer = table.peers[0];
  table.visits.wake(peer);
  peer.rests = true;
  table.visits.wake(peer);
  table.visits.rest([](Peer&) { return kNever; });
  CHECK(table.busy() == List{&peer});
}

TEST_CASE("idle peers have their turn, each once before any has it again") {
  Table table;
  table.settle();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) table.visits.wake_next();
    CHECK(table.busy().size() == 3);
    table.settle();
  }
  table.visits.remove(table.peers[0]);
  table.visits.remove(table.peers[1]);
  table.visits.remove(table.peers[2]);
  table.visits.wake_next();
  CHECK(table.busy().empty());
}

TEST_CASE("peers may be woken and removed in the middle of the visits") {
  Table table;
  Peer* const peers = table.peers;
  table.settle();
  table.visits.wake(peers[0]);
  List seen;
  table.visits.for_each_busy([&](Peer& peer) {
    seen.push_back(&peer);
    if (&peer == &peers[0]) table.visits.wake(peers[2]);
    if (&peer == &peers[2]) table.visits.remove(peers[2]);
  });
  CHECK(seen == List{&peers[0], &peers[2]});
  CHECK(table.visits.all() == List{&peers[0], &peers[1]});
}

}  // namespace
}  // namespace mkernel::transport::rdma
