// NICs, and the way between them and the GPUs.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "tools/mkctl/doctor/checks.h"
#include "tools/mkctl/doctor/joined.h"

namespace mkernel::mkctl::doctor {
namespace {

bool usable(const Port& port) {
  return port.not_usable.empty();
}

/// Linux 5.12 brought registration of dma-bufs to RDMA devices.
bool kernel_registers_dma_buf(const std::string& release) {
  char* end = nullptr;
  const long major = std::strtol(release.c_str(), &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return major > 5 || (major == 5 && minor >= 12);
}

template <typename Value>
std::set<Value> values(const std::vector<Port>& ports, Value Port::*member) {
  std::set<Value> all;
  for (const Port& port : ports)
    if (usable(port) && port.*member != Value{}) all.insert(port.*member);
  return all;
}

}  // namespace

Findings check_devices(const Facts& facts) {
  Findings findings;
  const bool wanted = facts.daemon.rdma();
  for (const std::string& name : facts.daemon.absent_nics)
    findings.push_back(
        {Severity::kError, "topology.nics names " + name + ", which this node does not have",
         "its rail is missing, and peers number their rails otherwise",
         "mkctl devices lists what is there; correct the configuration and restart the daemon"});
  if (!facts.daemon.idle_ports.empty()) {
    const std::uint32_t rails = facts.daemon.nic_rails;
    findings.push_back(
        {Severity::kWarning,
         "proxy.threads = " + std::to_string(rails) +
             " leaves ports without a rail: " + joined(facts.daemon.idle_ports),
         "they stand in for others that fail, and otherwise carry nothing for the GPUs near to them",
         "set proxy.threads = " + std::to_string(rails + facts.daemon.idle_ports.size()) +
             " on every node and restart the daemons, or choose the ports with topology.nics"});
  }
  if (facts.ports.empty()) {
    if (wanted)
      findings.push_back({Severity::kError,
                          "no RDMA device, but transport.kind = \"" + facts.daemon.transport + "\"",
                          "this node reaches no other",
                          "load the NIC's driver (mlx5_ib, efa, rdma_rxe); give a container its devices"});
    return findings;
  }
  if (!facts.infiniband_folder)
    findings.push_back({wanted ? Severity::kError : Severity::kWarning,
                        "the kernel has RDMA devices, but there is no /dev/infiniband",
                        "programs open devices through it",
                        "modprobe ib_uverbs; in a container mount /dev/infiniband and allow its devices"});
  const bool none = std::none_of(facts.ports.begin(), facts.ports.end(), usable);
  for (const Port& port : facts.ports) {
    if (usable(port)) continue;
    findings.push_back(
        {none && wanted ? Severity::kError : Severity::kWarning,
         port.name + " cannot be used: " + port.not_usable,
         none ? "no port of this node can carry data" : "a rail less for the GPUs that are near to it",
         "mend it, or leave it out with topology.nics"});
  }
  return findings;
}

Findings check_gids(const Facts& facts) {
  std::set<std::string> types;
  std::vector<std::string> routed_v1;
  for (const Port& port : facts.ports) {
    if (!usable(port) || port.link_layer != "Ethernet") continue;
    types.insert(port.gid_type);
    if (port.gid_type == "RoCE v1") routed_v1.push_back(port.name);
  }
  if (types.size() > 1)
    return {{Severity::kWarning,
             "the ports would use addresses of different types (" + joined(types) + "); RoCE v1 on " +
                 joined(routed_v1),
             "both ends of a connection need the same type: one rail would work and the other not",
             "give every RoCE interface an IP address; RoCE v2 addresses follow from it"}};
  if (!routed_v1.empty())
    return {{Severity::kWarning, "only RoCE v1 addresses on " + joined(routed_v1),
             "no router forwards them, and a peer that uses RoCE v2 is not reached",
             "give the interface an IP address; cma_roce_mode shows what the device can do"}};
  return {};
}

Findings check_mtu(const Facts& facts) {
  const std::set<std::uint32_t> mtus = values(facts.ports, &Port::mtu);
  if (mtus.size() > 1)
    return {{Severity::kWarning, "the ports have different MTUs: " + joined(mtus) + " bytes",
             "a connection uses the smaller of both ends: some rails are slower than others",
             "set the same MTU on every interface (ip link set IFACE mtu 9000 gives RoCE 4096)"}};
  constexpr std::uint32_t kSmall = 2048;
  if (!mtus.empty() && *mtus.begin() < kSmall)
    return {{Severity::kWarning, "the ports have an MTU of " + joined(mtus) + " bytes",
             "small packets cost a fast NIC bandwidth; RoCE takes what fits into the interface's MTU",
             "ip link set IFACE mtu 9000 on both ends, if the switches between carry it"}};
  return {};
}

Findings check_other_end(const Facts& facts) {
  Findings findings;
  const auto compare = [&](const char* what, const std::string& here, const std::string& there,
                           const char* why, const char* todo) {
    if (here == there || here.empty() || there.empty()) return;
    findings.push_back({Severity::kWarning,
                        std::string(what) + " differ: here " + here + ", on the other node " + there, why,
                        todo});
  };
  compare("link layers", joined(values(facts.ports, &Port::link_layer)),
          joined(values(facts.other_ports, &Port::link_layer)), "no connection joins InfiniBand and Ethernet",
          "choose ports of one network on both with topology.nics");
  compare("types of addresses", joined(values(facts.ports, &Port::gid_type)),
          joined(values(facts.other_ports, &Port::gid_type)), "both ends of a connection need the same type",
          "give every RoCE interface an IP address: RoCE v2 then is on both");
  compare("MTUs", joined(values(facts.ports, &Port::mtu)), joined(values(facts.other_ports, &Port::mtu)),
          "a connection uses the smaller one", "set the same MTU on both nodes and on the switches between");
  return findings;
}

Findings check_gpu_rdma(const Facts& facts) {
  if (facts.gpus == 0 || facts.ports.empty()) return {};
  if (facts.gpu_driver.empty())
    return {{Severity::kWarning, std::to_string(facts.gpus) + " NVIDIA GPUs, but their driver is not loaded",
             "no GPU memory can be used", "nvidia-smi says why; install or load the driver"}};
  const bool open = facts.gpu_driver.find("Open Kernel Module") != std::string::npos;
  const bool kernel = kernel_registers_dma_buf(facts.kernel);
  std::vector<std::string> refusing;
  for (const Port& port : facts.ports)
    if (port.dma_buf == "no") refusing.push_back(port.name);
  if (open && kernel && (refusing.empty() || facts.peermem)) return {};
  if (open && kernel)
    return {
        {facts.daemon.rdma() ? Severity::kError : Severity::kWarning,
         joined(refusing) + ": the NIC's driver registers no dma-bufs, and nvidia_peermem is not loaded",
         "these ports cannot read or write GPU memory",
         "use a driver that does (mlx5, efa of a newer kernel), or leave the ports out with topology.nics"}};
  const std::string missing =
      open ? "Linux " + facts.kernel + " does not register dma-bufs with NICs (5.12 does)"
           : "the NVIDIA driver is of the closed flavour, which exports no dma-bufs";
  const std::string todo =
      open ? "use a newer kernel" : "install the open flavour of the driver (nvidia-open)";
  if (facts.peermem)
    return {{Severity::kWarning, missing + "; nvidia_peermem is loaded",
             "plain GPU memory (cudaMalloc) can be registered, symmetric GPU memory cannot", todo}};
  return {{facts.daemon.rdma() ? Severity::kError : Severity::kWarning,
           missing + ", and nvidia_peermem is not loaded", "no NIC can read or write GPU memory",
           todo + ", or modprobe nvidia_peermem for plain GPU memory"}};
}

Findings check_acs(const Facts& facts) {
  if (facts.gpus == 0 || facts.ports.empty()) return {};
  std::vector<std::string> redirecting;
  bool unknown = false;
  for (const Bridge& bridge : facts.bridges) {
    unknown = unknown || !bridge.redirects.has_value();
    if (bridge.redirects.value_or(false)) redirecting.push_back(bridge.address);
  }
  if (!redirecting.empty())
    return {{Severity::kWarning, "PCIe ACS redirects traffic between devices at " + joined(redirecting),
             "data between a GPU and its NIC goes up to the CPU and back: a fraction of the bandwidth",
             "disable ACS in the firmware, or with setpci -s ADDRESS ECAP_ACS+6.w=0 after every boot; "
             "virtual machines need it"}};
  if (unknown)
    return {{Severity::kInfo, "PCIe ACS was not looked at: its registers are shown to root alone",
             "ACS can send data between a GPU and its NIC up to the CPU and back",
             "run mkctl doctor as root"}};
  return {};
}

Findings check_huge_pages(const Facts& facts) {
  if (!facts.efa() || !facts.huge_pages || facts.huge_pages->total > 0) return {};
  return {{Severity::kWarning, "no huge pages of 2 MiB are set aside",
           "an EFA device registers about 95 GB of host memory in pages of 4 KiB, and no more",
           "sysctl vm.nr_hugepages, before the daemon starts"}};
}

Findings check_payload(const Facts& facts) {
  if (!facts.daemon.rdma()) return {};
  const std::string todo =
      facts.daemon.transport == "efa"
          ? "keep it so: a security group that admits its own members alone, and whose members are these "
            "nodes alone"
          : "keep it so: a partition (P_Key) or a VLAN of its own, switch ports that drop forged source "
            "addresses, and no job with CAP_NET_RAW on these nodes";
  return {
      {Severity::kInfo,
       "transport " + facts.daemon.transport +
           ": payload is neither encrypted nor authenticated; the network of its NICs must be one that only "
           "these nodes can send on and listen on",
       "a host that sees the packets reads tensors, and one that forges them writes into the memory of "
       "ranks: "
       "the queue pair numbers and keys that it needs are in every packet. TLS of the peer links does not "
       "change this",
       todo}};
}

}  // namespace mkernel::mkctl::doctor
