// A node on which the doctor finds nothing.
#pragma once

#include "tools/mkctl/doctor/facts.h"

namespace mkernel::mkctl::doctor {

/// RoCE, GPUs with the open driver, one peer.
inline Facts healthy_node() {
  Facts facts;
  facts.mkctl_version = "1.2.3";
  facts.daemon = {.socket = "/run/mkernel/control.sock",
                  .node = "node0",
                  .version = "1.2.3",
                  .pid = 4711,
                  .transport = "verbs"};
  facts.limits = Limits{kUnlimited, 1048576, false};
  facts.ids = MappedIds{{base::IdKind::kUser, "0 0 4294967295", "65534"},
                        {base::IdKind::kGroup, "0 0 4294967295", "65534"}};
  facts.rails = "2 x verbs";
  facts.rail_ports = {{0, "mlx5_0:1", "ACTIVE", "Ethernet", "RoCE v2", 4096, 400, "::ffff:10.0.0.1"},
                      {1, "mlx5_1:1", "ACTIVE", "Ethernet", "RoCE v2", 4096, 400, "::ffff:10.0.1.1"}};
  facts.peers = {{"node1", "1.2.3", "alive", "", facts.rails, facts.rail_ports, {}, ClockOffset{-0.4, 0.9}}};
  facts.daemons = {"pid 4711: mkerneld"};
  facts.ports = {{"mlx5_0:1", "mlx5_core", "Ethernet", "::ffff:10.0.0.1", "RoCE v2", "", 4096, "yes"},
                 {"mlx5_1:1", "mlx5_core", "Ethernet", "::ffff:10.0.1.1", "RoCE v2", "", 4096, "yes"}};
  facts.infiniband_folder = true;
  facts.gpus = 2;
  facts.gpu_driver = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build";
  facts.kernel = "6.1.0-18-amd64";
  facts.bridges = {{"0000:16:00.0", false}};
  facts.huge_pages = HugePages{0, 0};
  facts.clock_synchronised = true;
  return facts;
}

}  // namespace mkernel::mkctl::doctor
