// Two published machines with eight H200 GPUs, and one as virtual machines are.
#pragma once

#include <string>
#include <vector>

#include "daemon/topology/node.h"
#include "tests/unit/daemon/topology/machine_xml.h"
#include "tests/unit/daemon/topology/sysfs_tree.h"

namespace mkernel::topology {

/// An active port with an address, as rdma_devices() finds it in a sysfs tree.
inline void add_nic(SysfsTree& tree, const std::string& name, const std::string& pci_address,
                    const std::string& driver, const std::string& layer, int numa_node) {
  static int next = 0;
  const std::string file = "uverbs" + std::to_string(next++);
  const fs::path device = tree.device(name, file);
  tree.pci(device, pci_address, driver, numa_node);
  tree.write("dev/infiniband/" + file, "");
  const fs::path port = tree.port(device, layer, "4: ACTIVE", "400 Gb/sec (4X NDR)");
  tree.gid(port, 0, "fe80:0000:0000:0000:a088:c203:0046:1a30", "IB/RoCE v1", "");
}

inline std::string hex_bus(int number) {
  char text[16];
  std::snprintf(text, sizeof(text), "%02x", static_cast<unsigned>(number));
  return text;
}

/// DGX H100/H200: each GPU shares a switch with a ConnectX-7, behind a second switch of its own, and two
/// dual-port ConnectX-7 for storage hang directly from the CPUs. Addresses, and which NIC is which GPU's, as
/// its user guide lists them (Network Modules); PXB between the two as `nvidia-smi topo -m` shows there.
struct Dgx {
  struct Pair {
    const char *gpu, *nic, *host, *device;
  };
  static constexpr Pair kPairs[8] = {{"1b", "18", "15", "mlx5_0"},  {"43", "40", "3d", "mlx5_3"},
                                     {"52", "4f", "4c", "mlx5_4"},  {"61", "5e", "5b", "mlx5_5"},
                                     {"9d", "9a", "97", "mlx5_6"},  {"c3", "c0", "bd", "mlx5_9"},
                                     {"d1", "ce", "cb", "mlx5_10"}, {"df", "dc", "d9", "mlx5_11"}};

  static std::string bus(const char* other, int above) {
    return hex_bus(static_cast<int>(std::strtol(other, nullptr, 16)) + above);
  }
  static MachineXml::HostBridge pair(const Pair& p) {
    const std::string last = p.gpu, root = p.host, up = bus(p.host, 1), down = bus(p.host, 2);
    const auto bridge = [&](const std::string& address, const std::string& buses,
                            std::vector<MachineXml::Pci> below) {
      return MachineXml::Pci{"0000:" + address, "0604 [1000:c030]", buses, std::move(below), ""};
    };
    const std::string second = bus(p.gpu, -2), inner = bus(p.gpu, -1);
    return {
        root + "-" + last,
        {bridge(
            root + ":01.0", up + "-" + last,
            {bridge(
                up + ":00.0", down + "-" + last,
                {bridge(down + ":00.0", std::string(p.nic) + "-" + p.nic,
                        {{"0000:" + std::string(p.nic) + ":00.0", "0207 [15b3:1021]", "", {}, "ConnectX-7"}}),
                 bridge(
                     down + ":01.0", second + "-" + last,
                     {bridge(
                         second + ":00.0", inner + "-" + last,
                         {bridge(inner + ":00.0", last + "-" + last,
                                 {{"0000:" + last + ":00.0", "0302 [10de:2335]", "", {}, "H200"}})})})})})}};
  }
  static MachineXml::HostBridge storage(const std::string& root, const std::string& nic) {
    return {root + "-" + nic,
            {{"0000:" + root + ":01.0",
              "0604 [8086:352a]",
              nic + "-" + nic,
              {{"0000:" + nic + ":00.0", "0207 [15b3:1021]", "", {}, "ConnectX-7"},
               {"0000:" + nic + ":00.1", "0207 [15b3:1021]", "", {}, "ConnectX-7"}},
              ""}}};
  }
  static std::string xml() {
    MachineXml::Package first{{{0, 55}, {112, 167}}, {storage("26", "29")}};
    MachineXml::Package second{{{56, 111}, {168, 223}}, {storage("a7", "aa")}};
    for (int i = 0; i < 4; ++i) first.bridges.push_back(pair(kPairs[i]));
    for (int i = 4; i < 8; ++i) second.bridges.push_back(pair(kPairs[i]));
    return MachineXml::write({first, second});
  }
  static void devices(SysfsTree& tree) {
    for (int i = 0; i < 8; ++i)
      add_nic(tree, kPairs[i].device, "0000:" + std::string(kPairs[i].nic) + ":00.0", "mlx5_core",
              "InfiniBand", i / 4);
    add_nic(tree, "mlx5_1", "0000:29:00.0", "mlx5_core", "InfiniBand", 0);
    add_nic(tree, "mlx5_2", "0000:29:00.1", "mlx5_core", "InfiniBand", 0);
    add_nic(tree, "mlx5_7", "0000:aa:00.0", "mlx5_core", "InfiniBand", 1);
    add_nic(tree, "mlx5_8", "0000:aa:00.1", "mlx5_core", "InfiniBand", 1);
  }
};

/// p5en.48xlarge: four PCIe trees of two GPUs and four EFA devices behind one switch each; buses as published
/// lstopo exports of that instance show them.
struct P5en {
  static constexpr int kRoots[4] = {0x44, 0x5d, 0x76, 0x8f};

  static MachineXml::HostBridge tree(int root) {
    const std::string last = hex_bus(root + 0x18);
    MachineXml::Pci up{
        "0000:" + hex_bus(root + 1) + ":00.0", "0604 [1d0f:0200]", hex_bus(root + 2) + "-" + last, {}, ""};
    for (int i = 0; i < 6; ++i) {
      const int port = 14 + i;  // functions of the switch: 01.6 to 02.3
      const std::string bus = hex_bus(root + 0x11 + i);
      const std::string down =
          "0000:" + hex_bus(root + 2) + ":" + hex_bus(port / 8) + "." + std::to_string(port % 8);
      const bool gpu = i >= 4;
      up.below.push_back({down,
                          "0604 [1d0f:0200]",
                          bus + "-" + bus,
                          {{"0000:" + bus + ":00.0",
                            gpu ? "0302 [10de:2335]" : "0200 [1d0f:efa2]",
                            "",
                            {},
                            gpu ? "GH100 [H200 SXM 141GB]" : "Elastic Fabric Adapter (EFA)"}},
                          ""});
    }
    return {
        hex_bus(root) + "-" + last,
        {{"0000:" + hex_bus(root) + ":00.0", "0604 [1d0f:0200]", hex_bus(root + 1) + "-" + last, {up}, ""}}};
  }
  static std::string xml() {
    return MachineXml::write({{{{0, 47}, {96, 143}}, {tree(kRoots[0]), tree(kRoots[1])}},
                              {{{48, 95}, {144, 191}}, {tree(kRoots[2]), tree(kRoots[3])}}});
  }
  static std::string name(int tree, int nic) {
    return "rdmap" + std::to_string(kRoots[tree] + 0x11 + nic) + "s0";
  }
  static void devices(SysfsTree& sysfs) {
    for (int tree = 0; tree < 4; ++tree)
      for (int nic = 0; nic < 4; ++nic)
        add_nic(sysfs, name(tree, nic), "0000:" + hex_bus(kRoots[tree] + 0x11 + nic) + ":00.0", "efa",
                "Unspecified", tree / 2);
  }
};

/// One NUMA node and one host bridge for everything, as hypervisors like it: `gpus` at 00:10.0 and on, NICs
/// at 00:01.0 and on.
inline std::string flat_xml(int gpus, int nics) {
  MachineXml::HostBridge bridge{"00-00", {}};
  for (int i = 0; i < nics; ++i)
    bridge.below.push_back({"0000:00:" + hex_bus(1 + i) + ".0", "0200 [15b3:1021]", "", {}, ""});
  for (int i = 0; i < gpus; ++i)
    bridge.below.push_back({"0000:00:" + hex_bus(16 + i) + ".0", "0302 [10de:2335]", "", {}, ""});
  return MachineXml::write({{{{0, 3}}, {bridge}}});
}

}  // namespace mkernel::topology
