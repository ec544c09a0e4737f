// What the doctor says of the other end, with peers that are made up.
#include <doctest/doctest.h>

#include "tests/unit/tools/mkctl/findings.h"

namespace mkernel::mkctl::doctor {
namespace {

using enum Severity;

TEST_CASE("rails: their number and kind, of peers that were refused for it too") {
  const auto other = [](Facts& f) { f.peers[0].transport = "1 x verbs"; };
  one(after(check_rails, other), kError, "peer node1 has rails 1 x verbs, this node 2 x verbs");
  one(after(check_rails, [](Facts& f) { f.peers[0].transport = "2 x tcp", f.peers[0].rail_ports.clear(); }),
      kError, "2 x tcp");
  CHECK(after(check_rails, [](Facts& f) { f.peers[0].transport.clear(); }).empty());  // has not said so yet
}

TEST_CASE("rails: what the ports of both ends must share, one finding for all rails that differ") {
  const auto there = [](auto change) {
    return [change](Facts& f) {
      for (RailPort& port : f.peers[0].rail_ports) change(port);
    };
  };
  one(after(check_rails, there([](RailPort& p) { p.mtu = 1024; })), kWarning,
      "MTU of rail 0, 1 differs at peer node1: mlx5_0:1 here has 4096 bytes, mlx5_0:1 there 1024 bytes");
  one(after(check_rails, [](Facts& f) { f.peers[0].rail_ports[1].mtu = 1024; }), kWarning, "MTU of rail 1 ");
  one(after(check_rails, there([](RailPort& p) { p.gid_type = "RoCE v1"; })), kError,
      "mlx5_0:1 here has RoCE v2, mlx5_0:1 there RoCE v1");
  one(after(check_rails, there([](RailPort& p) { p.gid = "fd00::1"; })), kError,
      "family of the address of rail 0, 1 differs at peer node1: mlx5_0:1 here has IPv4, mlx5_0:1 there "
      "IPv6");
  CHECK(after(check_rails, there([](RailPort& p) { p.gid.clear(); })).empty());
  one(after(check_rails, there([](RailPort& p) { p.gbps = 100; })), kWarning, "there 100.0 Gbit/s");
  const Findings layers =
      after(check_rails, there([](RailPort& p) { p.link_layer = p.gid_type = "InfiniBand"; }));
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].severity == kError);
  CHECK(layers[0].what.find("here has Ethernet, mlx5_0:1 there InfiniBand") != std::string::npos);
  CHECK(after(check_rails, there([](RailPort& p) { p.mtu = 0, p.gbps = 0, p.gid_type.clear(); })).empty());
  CHECK(after(check_rails, [](Facts& f) { f.peers[0].rail_ports.clear(); }).empty());  // an older daemon
}

TEST_CASE("rails: a port that is down at the peer") {
  one(after(check_rails, [](Facts& f) { f.peers[0].rail_ports[1].state = "DOWN"; }), kWarning,
      "port mlx5_1:1 of peer node1, its rail 1, is DOWN");
}

TEST_CASE("rails: a peer that is heard over gRPC and not over the data's way, once it has had its time") {
  const auto waits = [](double seconds) {
    return [seconds](Facts& f) { f.peers[0].unanswered = {{0, seconds}, {1, seconds}}; };
  };
  one(after(check_rails, waits(7.5)), kError,
      "peer node1 is alive, but its verbs transport has not been reached over rail 0, 1 for 7.5 s");
  CHECK(after(check_rails, waits(1)).empty());
  CHECK(after(check_rails, [&](Facts& f) { waits(60)(f), f.peers[0].state = "connecting"; }).empty());
}

TEST_CASE("clock: of this node") {
  one(after(check_clock, [](Facts& f) { f.clock_synchronised = false; }), kWarning, "not synchronised");
  one(after(check_clock, [](Facts& f) { f.clock_synchronised.reset(); }), kInfo, "clock");
}

TEST_CASE("clock: peers that are apart by more than the round trip and the limit explain, in one finding") {
  const auto apart = [](double offset, double round_trip) {
    return [=](Facts& f) { f.peers[0].clock = ClockOffset{offset, round_trip}; };
  };
  one(after(check_clock, apart(1204.3, 0.6)), kWarning,
      "more than 10.0 ms: node1 is 1204.3 ms ahead (within 0.3 ms, half the round trip)");
  one(after(check_clock, apart(-80, 100)), kWarning, "node1 is 80.0 ms behind");
  CHECK(after(check_clock, apart(-59, 100)).empty());
  CHECK(after(check_clock, apart(9.9, 0)).empty());
  CHECK(after(check_clock, [](Facts& f) { f.peers[0].clock.reset(); }).empty());
  one(after(check_clock,
            [](Facts& f) {
              f.peers.push_back(f.peers[0]);
              f.peers[1].name = "node2";
              for (Peer& peer : f.peers) peer.clock = ClockOffset{60000, 1};
            }),
      kWarning, "; node2 is 60000.0 ms ahead");
}

TEST_CASE("security_group: a peer that is not alive where EFA is") {
  const auto efa = [](Facts& f) {
    f.ports[0].driver = "efa", f.huge_pages = HugePages{1024, 1024};
    f.peers[0].state = "connecting", f.peers[0].reason = "timed out";
  };
  one(after(check_security_group, efa), kWarning, "peer node1 is connecting on a node with EFA: timed out");
  CHECK(after(check_security_group, [](Facts& f) { f.peers[0].state = "dead"; }).empty());  // no EFA
  CHECK(after(check_security_group, [&](Facts& f) { efa(f), f.peers[0].state = "alive"; }).empty());
}

TEST_CASE("security_group: a peer that is alive, and that no EFA write reaches") {
  const auto closed = [](double seconds) {
    return [seconds](Facts& f) {
      f.daemon.transport = "efa", f.huge_pages = HugePages{1024, 1024};
      f.peers[0].unanswered = {{1, seconds}};
    };
  };
  one(after(check_security_group, closed(4)), kError,
      "no EFA write to it has got through on rail 1 for 4.0 s: its security group is closed");
  CHECK(after(check_security_group, closed(0.5)).empty());
}

}  // namespace
}  // namespace mkernel::mkctl::doctor
