#include "tools/mkctl/doctor/checks.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/tools/mkctl/findings.h"

namespace mkernel::mkctl::doctor {
namespace {

using enum Severity;

TEST_CASE("a healthy node has no findings") {
  for (const Check& check : checks_of_health()) {
    CAPTURE(check.name);
    CHECK(check.run(healthy_node()).empty());
  }
}

TEST_CASE("neither has one over TCP without any of the hardware") {
  Facts facts = healthy_node();
  facts.daemon.transport = "tcp";
  facts.ports.clear(), facts.bridges.clear(), facts.infiniband_folder = false;
  facts.gpus = 0, facts.gpu_driver.clear();
  facts.limits->locked_bytes = 65536;
  for (const Check& check : checks()) {
    CAPTURE(check.name);
    CHECK(check.run(facts).empty());
  }
}

TEST_CASE("payload: over RDMA it is said what the network must guarantee, and that TLS does not help") {
  const auto found = [](const char* transport) {
    Facts facts = healthy_node();
    facts.daemon.transport = transport;
    return check_payload(facts);
  };
  for (const char* transport : {"verbs", "efa"}) {
    const Findings findings = found(transport);
    one(findings, kInfo, std::string("transport ") + transport + ": payload is neither encrypted");
    CHECK(findings[0].why.find("TLS of the peer links does not") != std::string::npos);
  }
  CHECK(found("verbs")[0].todo.find("P_Key") != std::string::npos);
  CHECK(found("efa")[0].todo.find("security group") != std::string::npos);
  CHECK(found("tcp").empty());
  CHECK(found("emulated").empty());
  const auto& all = checks();
  CHECK(std::any_of(all.begin(), all.end(), [](const Check& check) { return check.run == check_payload; }));
}

TEST_CASE("daemon: not reached, not healthy") {
  one(after(check_daemon,
            [](Facts& f) { f.daemon.unreachable = "no daemon reachable at /x.sock: no such socket"; }),
      kError, "/x.sock");
  const Findings sick = after(check_daemon, [](Facts& f) {
    f.daemon.reasons = {"peer node1 is dead: silent", "stopping"};
  });
  REQUIRE(sick.size() == 2);
  CHECK(sick[0].what.find("node1 is dead") != std::string::npos);
}

TEST_CASE("daemons: two on a node, and which one answered") {
  one(after(check_daemons, [](Facts& f) { f.daemons.push_back("pid 12: mkerneld --config old.toml"); }),
      kWarning, "pid 4711 answered");
  one(after(check_daemons,
            [](Facts& f) {
              f.daemons.push_back("pid 12: mkerneld --config old.toml");
              f.daemon.unreachable = "nobody";
            },
            {"daemon"}),
      kWarning, "none answered here");
  CHECK(after(check_daemons, [](Facts& f) { f.daemons.clear(); }).empty());  // in another PID namespace
}

TEST_CASE("version: of mkctl and of peers") {
  one(after(check_version, [](Facts& f) { f.mkctl_version = "1.2.0"; }), kWarning, "mkctl is version 1.2.0");
  one(after(check_version, [](Facts& f) { f.peers[0].version = "1.1.9"; }), kWarning,
      "peer node1 is version 1.1.9");
  CHECK(
      after(check_version, [](Facts& f) { f.peers[0].version.clear(); }).empty());  // has not said hello yet
}

TEST_CASE("memlock: too little for registered memory") {
  const auto low = [](Facts& f) { f.limits->locked_bytes = 8 << 20; };
  one(after(check_memlock, low), kError, "8192 KiB");
  one(after(check_memlock, [&](Facts& f) { low(f), f.daemon.transport = "tcp"; }), kWarning, "8192 KiB");
  CHECK(after(check_memlock, [&](Facts& f) { low(f), f.limits->may_lock_anyway = true; }).empty());
  one(after(check_memlock, [](Facts& f) { f.limits.reset(); }), kInfo, "pid 4711");
  const auto gone = [](Facts& f) { f.daemon.unreachable = "nobody", f.limits.reset(); };
  one(after(check_memlock, gone, {"daemon"}), kInfo, "how much memory the daemon may lock is not seen");
}

TEST_CASE("open files") {
  one(after(check_open_files, [](Facts& f) { f.limits->open_files = 1024; }), kWarning, "1024 files");
  CHECK(after(check_open_files, [](Facts& f) { f.limits->open_files = kUnlimited; }).empty());
  const auto budget = [](std::uint64_t user_fds, std::uint64_t user_regions) {
    return [=](Facts& f) { f.budget = SessionBudget{900, 49000, user_fds, user_regions}; };
  };
  one(after(check_user_limits, budget(901, 5)), kWarning,
      "users.default.max_fds = 901 is above the 900 fds that all sessions have together");
  one(after(check_user_limits, budget(900, 49001)), kWarning, "users.default.max_regions = 49001");
  CHECK(after(check_user_limits, budget(900, 49000)).empty());
}

TEST_CASE("user_namespace: users whom the daemon cannot tell apart") {
  const auto maps = [](const std::string& users, const std::string& groups) {
    return [=](Facts& f) {
      f.ids = MappedIds{{base::IdKind::kUser, users, "65534"}, {base::IdKind::kGroup, groups, "60000"}};
    };
  };
  const std::string all = "0 0 4294967295", one_alone = "0 1000 1";
  const Findings users = after(check_user_namespace, maps(one_alone, all));
  one(users, kWarning, "a user namespace that maps 1 user ids of 4294967295");
  CHECK(users[0].why.find("sees all others as 65534") != std::string::npos);
  CHECK(users[0].todo.find("hostUsers: true") != std::string::npos);
  const Findings groups = after(check_user_namespace, maps(all, "0 1000 1\n1 100000 65536"));
  one(groups, Severity::kInfo, "a user namespace that maps 65537 group ids of 4294967295");
  CHECK(groups[0].why.find("sees all others as 60000") != std::string::npos);
  CHECK(after(check_user_namespace, [](Facts& f) { f.ids.reset(); }).empty());  // not seen from here
}

TEST_CASE("devices: none, not permitted, ports down, names that are not there") {
  one(after(check_devices, [](Facts& f) { f.ports.clear(); }), kError, "no RDMA device");
  CHECK(after(check_devices, [](Facts& f) { f.ports.clear(), f.daemon.transport = "emulated"; }).empty());
  one(after(check_devices, [](Facts& f) { f.infiniband_folder = false; }), kError, "/dev/infiniband");
  one(after(check_devices, [](Facts& f) { f.ports[1].not_usable = "port is DOWN (Disabled)"; }), kWarning,
      "mlx5_1:1 cannot be used: port is DOWN");
  const Findings none = after(check_devices, [](Facts& f) {
    for (Port& port : f.ports) port.not_usable = "/dev/infiniband/uverbs0 may not be opened";
  });
  REQUIRE(none.size() == 2);
  CHECK(none[0].severity == kError);
  CHECK(none[0].why.find("no port of this node") != std::string::npos);
  one(after(check_devices, [](Facts& f) { f.daemon.absent_nics = {"mlx5_9"}; }), kError, "mlx5_9");
  const Findings idle = after(check_devices, [](Facts& f) {
    f.daemon.nic_rails = 1, f.daemon.idle_ports = {"mlx5_1:1", "mlx5_2:1"};
  });
  one(idle, kWarning, "proxy.threads = 1 leaves ports without a rail: mlx5_1:1, mlx5_2:1");
  CHECK(idle[0].todo.find("proxy.threads = 3") != std::string::npos);
}

TEST_CASE("gids: RoCE v1 alone, or mixed with v2") {
  one(after(check_gids, [](Facts& f) { f.ports[1].gid_type = "RoCE v1"; }), kWarning, "RoCE v1 on mlx5_1:1");
  one(after(check_gids, [](Facts& f) { f.ports[0].gid_type = f.ports[1].gid_type = "RoCE v1"; }), kWarning,
      "mlx5_0:1, mlx5_1:1");
  CHECK(after(check_gids,
              [](Facts& f) { f.ports[1].gid_type = "RoCE v1", f.ports[1].not_usable = "port is DOWN"; },
              {"devices"})
            .empty());
  CHECK(after(check_gids, [](Facts& f) {
          f.ports[1].link_layer = "InfiniBand", f.ports[1].gid_type = "InfiniBand";
        }).empty());
}

TEST_CASE("gpu_rdma: driver, its flavour, the kernel, nvidia_peermem") {
  const auto closed = [](Facts& f) {
    f.gpu_driver = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104";
  };
  one(after(check_gpu_rdma, [](Facts& f) { f.gpu_driver.clear(); }), kWarning, "2 NVIDIA GPUs");
  one(after(check_gpu_rdma, closed), kError, "closed flavour");
  one(after(check_gpu_rdma, [&](Facts& f) { closed(f), f.daemon.transport = "tcp"; }), kWarning,
      "closed flavour");
  one(after(check_gpu_rdma, [&](Facts& f) { closed(f), f.peermem = true; }), kWarning,
      "nvidia_peermem is loaded");
  one(after(check_gpu_rdma, [](Facts& f) { f.kernel = "5.11.22"; }), kError, "Linux 5.11.22");
  CHECK(after(check_gpu_rdma, [](Facts& f) { f.kernel = "5.12"; }).empty());
  CHECK(after(check_gpu_rdma, [&](Facts& f) { closed(f), f.gpus = 0; }).empty());
}

TEST_CASE("gpu_rdma: a NIC that registers no dma-bufs") {
  const auto refuses = [](Facts& f) { f.ports[1].dma_buf = "no"; };
  one(after(check_gpu_rdma, refuses), kError, "mlx5_1:1");
  CHECK(after(check_gpu_rdma, [&](Facts& f) { refuses(f), f.peermem = true; }).empty());
  CHECK(after(check_gpu_rdma, [](Facts& f) { f.ports[1].dma_buf = "unknown: not opened"; }).empty());
}

TEST_CASE("mtu: different, or small") {
  one(after(check_mtu, [](Facts& f) { f.ports[1].mtu = 1024; }), kWarning, "1024, 4096 bytes");
  one(after(check_mtu, [](Facts& f) { f.ports[0].mtu = f.ports[1].mtu = 1024; }), kWarning,
      "MTU of 1024 bytes");
  CHECK(after(check_mtu, [](Facts& f) { f.ports[1].mtu = 0; }).empty());  // unknown
}

TEST_CASE("other_end: link layer, type of address, MTU") {
  const auto other = [](auto change) {
    return [change](Facts& f) {
      f.other_ports = f.ports;
      for (Port& port : f.other_ports) change(port);
    };
  };
  CHECK(after(check_other_end, other([](Port&) {})).empty());
  one(after(check_other_end, other([](Port& p) { p.link_layer = "InfiniBand"; })), kWarning,
      "here Ethernet, on the other node InfiniBand");
  one(after(check_other_end, other([](Port& p) { p.gid_type = "RoCE v1"; })), kWarning, "RoCE v1");
  one(after(check_other_end, other([](Port& p) { p.mtu = 1024; })), kWarning,
      "here 4096, on the other node 1024");
  CHECK(after(check_other_end, other([](Port& p) { p.mtu = 0; })).empty());  // unknown there
}

TEST_CASE("acs") {
  one(after(check_acs,
            [](Facts& f) {
              f.bridges.push_back({"0000:17:00.0", true});
            }),
      kWarning, "0000:17:00.0");
  one(after(check_acs, [](Facts& f) { f.bridges.push_back({"0000:17:00.0", std::nullopt}); }), kInfo, "root");
  CHECK(after(check_acs, [](Facts& f) { f.bridges = {{"0000:17:00.0", true}}, f.gpus = 0; }).empty());
}

TEST_CASE("huge_pages: for EFA") {
  const auto efa = [](Facts& f) {
    for (Port& port : f.ports) port.driver = "efa", port.link_layer = "other", port.gid_type = "other";
  };
  one(after(check_huge_pages, efa), kWarning, "2 MiB");
  CHECK(after(check_huge_pages, [&](Facts& f) { efa(f), f.huge_pages = HugePages{1024, 512}; }).empty());
  CHECK(after(check_huge_pages, [&](Facts& f) { efa(f), f.huge_pages.reset(); }).empty());
}

}  // namespace
}  // namespace mkernel::mkctl::doctor
