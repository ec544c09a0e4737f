#include "tools/mkctl/topo.h"

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tools/mkctl/table.h"

namespace mkernel::mkctl {
namespace {

using Json = nlohmann::ordered_json;

struct Branch {
  std::map<std::string, Branch> bridges;
  std::vector<std::string> devices;
};

std::string number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string words_of_gpu(const Json& gpu) {
  std::string text = "GPU " + gpu["index"].dump() + "  " + gpu["pci_address"].get<std::string>();
  if (const auto model = gpu["model"].get<std::string>(); !model.empty()) text += "  " + model;
  return text;
}

std::string words_of_port(const Json& port) {
  std::string text = port["name"].get<std::string>();
  if (const auto address = port["pci_address"].get<std::string>(); !address.empty()) text += "  " + address;
  const auto state = port["state"].get<std::string>();
  text +=
      "  " + (state.empty() ? "state unknown" : state) + ", " + number(port["gbps"].get<double>()) + " Gb/s";
  const int rail = port["rail"].get<int>();
  return text + (rail < 0 ? ", no rail" : ", rail " + std::to_string(rail));
}

void hang(Branch& root, const Json& bridges, std::string words) {
  Branch* at = &root;
  for (const Json& bridge : bridges) at = &at->bridges[bridge.get<std::string>()];
  at->devices.push_back(std::move(words));
}

/// A line per device and per bridge that branches; bridges in a row share a line.
void draw(std::ostream& out, const Branch& branch, const std::string& indent) {
  for (const std::string& device : branch.devices) out << indent << device << "\n";
  for (const auto& [name, below] : branch.bridges) {
    std::string line = name;
    const Branch* at = &below;
    while (at->devices.empty() && at->bridges.size() == 1) {
      line += " - " + at->bridges.begin()->first;
      at = &at->bridges.begin()->second;
    }
    if (at->bridges.empty() && at->devices.size() == 1) {
      out << indent << line << ":  " << at->devices.front() << "\n";
    } else {
      out << indent << line << "\n";
      draw(out, *at, indent + "  ");
    }
  }
}

void draw_tree(std::ostream& out, const Json& topology) {
  std::map<int, Branch> by_node;
  for (const Json& gpu : topology["gpus"])
    hang(by_node[gpu["numa_node"].get<int>()], gpu["bridges"], words_of_gpu(gpu));
  for (const Json& port : topology["ports"])
    hang(by_node[port["numa_node"].get<int>()], port["bridges"], words_of_port(port));
  for (const Json& node : topology["numa_nodes"]) {
    const int index = node["index"].get<int>(), package = node["package"].get<int>();
    out << "NUMA node " << index << (package < 0 ? "" : ", package " + std::to_string(package)) << ", CPUs "
        << node["cpus"].get<std::string>() << "\n";
    draw(out, by_node[index], "  ");
    by_node.erase(index);
  }
  for (const auto& [index, branch] : by_node) {
    out << (index < 0 ? "NUMA node unknown" : "NUMA node " + std::to_string(index) + ", not allowed here")
        << "\n";
    draw(out, branch, "  ");
  }
}

/// A row per port, a column per GPU.
void print_distances(std::ostream& out, const Json& topology) {
  Json rows = Json::array();
  for (std::size_t port = 0; port < topology["ports"].size(); ++port) {
    Json row = {{"distance", topology["ports"][port]["name"]}};
    for (const Json& gpu : topology["gpus"]) row["GPU" + gpu["index"].dump()] = gpu["distances"][port];
    rows.push_back(std::move(row));
  }
  print_rows(out, rows, Json::array(), 0);
  out << "PIX one PCIe switch, PXB several, PHB the host bridge, NODE the NUMA node, SYS between NUMA "
         "nodes\n";
}

std::string list(const Json& numbers) {
  std::string text;
  for (const Json& item : numbers) text += (text.empty() ? "" : ",") + item.dump();
  return text;
}

void print_placement(std::ostream& out, const Json& topology) {
  Json gpus = Json::array(), rails = Json::array(), spare = Json::array();
  for (const Json& gpu : topology["gpus"])
    gpus.push_back({{"gpu", gpu["index"]},
                    {"rails", list(gpu["rails"])},
                    {"distance", gpu["distance"]},
                    {"why", gpu["why"]}});
  std::map<int, const Json*> by_rail;
  for (const Json& port : topology["ports"]) {
    if (port["rail"].get<int>() >= 0) {
      by_rail[port["rail"].get<int>()] = &port;
    } else {
      spare.push_back({{"no rail", port["name"]}, {"why", port["not_used"]}});
    }
  }
  for (const auto& [rail, port] : by_rail)
    rails.push_back({{"rail", rail},
                     {"port", (*port)["name"]},
                     {"numa_node", (*port)["numa_node"]},
                     {"proxy_cpus", (*port)["proxy_cpus"]}});
  for (const Json* rows : {&gpus, &rails, &spare}) {
    if (rows->empty()) continue;
    out << "\n";
    print_rows(out, *rows, Json::array(), 0);
  }
}

/// What the placement gives and the daemon, which runs fewer rails, does not use.
void print_idle(std::ostream& out, const Json& topology) {
  const int rails = topology["rails"].get<int>();
  if (rails == 0) return;
  std::string idle;
  for (const Json& port : topology["ports"])
    if (port["rail"].get<int>() >= rails)
      idle += (idle.empty() ? "" : ", ") + port["name"].get<std::string>();
  if (!idle.empty()) out << "\nproxy.threads = " << rails << ": no rail that runs uses " << idle << "\n";
}

}  // namespace

void print_topology(std::ostream& out, const Json& topology) {
  draw_tree(out, topology);
  if (topology["gpus"].empty()) out << "\nno NVIDIA GPU\n";
  if (topology["ports"].empty()) out << "\nno RDMA device\n";
  if (!topology["gpus"].empty() && !topology["ports"].empty()) {
    out << "\n";
    print_distances(out, topology);
  }
  print_placement(out, topology);
  print_idle(out, topology);
  for (const Json& name : topology["absent"])
    out << "\ntopology.nics names " << name.get<std::string>() << ", which this node does not have\n";
}

}  // namespace mkernel::mkctl
