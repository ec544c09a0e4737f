#include "daemon/topology/placement.h"

#include <algorithm>
#include <map>
#include <utility>

namespace mkernel::topology {
namespace {

using Ports = std::vector<std::size_t>;

/// GPUs to which the same ports are nearest.
struct Circle {
  Distance distance = Distance::kSys;
  Ports ports;
  friend bool operator<(const Circle& a, const Circle& b) {
    return std::pair(a.distance, a.ports) < std::pair(b.distance, b.ports);
  }
};

Ports usable_ports(const Node& node) {
  Ports usable;
  for (std::size_t port = 0; port < node.ports.size(); ++port)
    if (node.ports[port].not_usable.empty()) usable.push_back(port);
  return usable;
}

Circle nearest(const Gpu& gpu, const Node& node, const Ports& usable) {
  Circle circle;
  for (const std::size_t port : usable) {
    const Distance far = distance(gpu.place, node.ports[port].place);
    if (far < circle.distance) circle = {far, {}};
    if (far == circle.distance) circle.ports.push_back(port);
  }
  return circle;
}

/// Deals a circle's ports to its GPUs. `users`: how many GPUs use each port so far.
void deal(const Circle& circle, const std::vector<std::uint32_t>& gpus, std::vector<std::uint32_t>& users,
          std::vector<Ports>& ports_of) {
  Ports free;
  for (const std::size_t port : circle.ports)
    if (users[port] == 0) free.push_back(port);
  const std::size_t share = free.size() / gpus.size();
  for (std::size_t i = 0; i < share * gpus.size(); ++i) {
    ports_of[gpus[i % gpus.size()]].push_back(free[i]);
    ++users[free[i]];
  }
  if (share > 0) return;
  for (const std::uint32_t gpu : gpus) {
    const auto least = std::min_element(circle.ports.begin(), circle.ports.end(),
                                        [&](std::size_t a, std::size_t b) { return users[a] < users[b]; });
    ports_of[gpu].push_back(*least);
    ++users[*least];
  }
}

/// Every GPU's first port, then every second one, and so on; each port once.
Ports in_rounds(const std::vector<Ports>& ports_of) {
  Ports order;
  std::size_t rounds = 0;
  for (const Ports& ports : ports_of) rounds = std::max(rounds, ports.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const Ports& ports : ports_of) {
      if (round >= ports.size()) continue;
      if (std::find(order.begin(), order.end(), ports[round]) == order.end()) order.push_back(ports[round]);
    }
  }
  return order;
}

std::vector<std::uint32_t> cpus_near(const Node& node, int numa_node) {
  for (const NumaNode& numa : node.numa_nodes)
    if (numa.index == numa_node) return numa.cpus;
  return {};
}

std::string why(const Circle& circle, const Node& node, const Ports& ports,
                const std::vector<std::uint32_t>& users) {
  if (ports.empty()) return "no RDMA port of this node can be used";
  std::string text = words_of(circle.distance);
  if (circle.distance == Distance::kSys && node.ports[ports.front()].place.numa_node < 0)
    text = "where the port lies is not known";
  if (users[ports.front()] > 1)
    text += ", shared by " + std::to_string(users[ports.front()]) + " GPUs: there are fewer ports";
  return text;
}

}  // namespace

Placement place(const Node& node) {
  const Ports usable = usable_ports(node);
  std::map<Circle, std::vector<std::uint32_t>> circles;  // the nearest come first
  for (const Gpu& gpu : node.gpus) circles[nearest(gpu, node, usable)].push_back(gpu.index);

  Placement placement;
  std::vector<Ports> ports_of(node.gpus.size());
  std::vector<std::uint32_t> users(node.ports.size(), 0);
  placement.gpus.resize(node.gpus.size());
  if (!usable.empty())
    for (const auto& [circle, gpus] : circles) deal(circle, gpus, users, ports_of);

  const Ports order = node.gpus.empty() ? usable : in_rounds(ports_of);
  for (const std::size_t port : order)
    placement.rails.push_back({port, cpus_near(node, node.ports[port].place.numa_node)});
  for (const auto& [circle, gpus] : circles) {
    for (const std::uint32_t gpu : gpus) {
      GpuRails& rails = placement.gpus[gpu];
      rails = {gpu, {}, circle.distance, why(circle, node, ports_of[gpu], users)};
      for (const std::size_t port : ports_of[gpu])
        rails.rails.push_back(
            static_cast<std::size_t>(std::find(order.begin(), order.end(), port) - order.begin()));
    }
  }
  for (std::size_t port = 0; port < node.ports.size(); ++port) {
    if (std::find(order.begin(), order.end(), port) != order.end()) continue;
    const std::string& unusable = node.ports[port].not_usable;
    placement.spare.push_back(
        {port, unusable.empty() ? "every GPU has nearer ports, or as many as the others" : unusable});
  }
  return placement;
}

}  // namespace mkernel::topology
