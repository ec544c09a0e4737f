// Writes machines as lstopo exports them: packages with a NUMA node each, PCI trees.
#pragma once

#include <hwloc.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace mkernel::topology {

class MachineXml {
 public:
  /// A device or a bridge: its address, and for bridges the buses behind it, "18-1b".
  struct Pci {
    std::string address;
    std::string type;   ///< "0302 [10de:2335]"
    std::string buses;  ///< empty: a device
    std::vector<Pci> below;
    std::string model;
  };
  struct HostBridge {
    std::string buses;  ///< "15-1b"
    std::vector<Pci> below;
  };
  struct Package {
    std::vector<std::pair<int, int>> cpus;  ///< first to last
    std::vector<HostBridge> bridges;
  };

  /// `lost`: host bridges that no package claims.
  static std::string write(const std::vector<Package>& packages, const std::vector<HostBridge>& lost = {}) {
    MachineXml xml;
    std::vector<std::pair<int, int>> all;
    for (const Package& package : packages) all.insert(all.end(), package.cpus.begin(), package.cpus.end());
    const std::string nodes = set({{0, static_cast<int>(packages.size()) - 1}});
    xml.text_ =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
        "<topology version=\"2.0\">\n";
    xml.open("Machine", 0, set(all), nodes,
             " allowed_cpuset=\"" + set(all) + "\" allowed_nodeset=\"" + nodes + "\"");
    for (std::size_t i = 0; i < packages.size(); ++i) xml.add(packages[i], static_cast<int>(i));
    for (const HostBridge& bridge : lost) xml.add(bridge);
    xml.text_ += "</object>\n</topology>\n";
    return xml.text_;
  }

 private:
  static std::string set(const std::vector<std::pair<int, int>>& ranges) {
    hwloc_bitmap_t bits = hwloc_bitmap_alloc();
    for (const auto& [first, last] : ranges) hwloc_bitmap_set_range(bits, static_cast<unsigned>(first), last);
    char* text = nullptr;
    hwloc_bitmap_asprintf(&text, bits);
    std::string result = text;
    std::free(text);
    hwloc_bitmap_free(bits);
    return result;
  }

  std::string next() { return " gp_index=\"" + std::to_string(++index_) + "\""; }

  void open(const std::string& type, int index, const std::string& cpus, const std::string& nodes,
            const std::string& more = {}) {
    text_ += "<object type=\"" + type + "\" os_index=\"" + std::to_string(index) + "\" cpuset=\"" + cpus +
             "\" complete_cpuset=\"" + cpus + "\" nodeset=\"" + nodes + "\" complete_nodeset=\"" + nodes +
             "\"" + more + next() + ">\n";
  }

  void add(const Package& package, int index) {
    const std::string cpus = set(package.cpus), node = set({{index, index}});
    open("Package", index, cpus, node);
    open("NUMANode", index, cpus, node, " local_memory=\"1073741824\"");
    text_ += "</object>\n";
    for (const auto& [first, last] : package.cpus) {
      for (int cpu = first; cpu <= last; ++cpu) {
        open("PU", cpu, set({{cpu, cpu}}), node);
        text_ += "</object>\n";
      }
    }
    for (const HostBridge& bridge : package.bridges) add(bridge);
    text_ += "</object>\n";
  }

  void add(const HostBridge& bridge) {
    text_ += "<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" + bridge.buses +
             "]\"" + next() + ">\n";
    for (const Pci& pci : bridge.below) add(pci, 1);
    text_ += "</object>\n";
  }

  void add(const Pci& pci, int depth) {
    const bool bridge = !pci.buses.empty();
    text_ += std::string("<object type=\"") + (bridge ? "Bridge" : "PCIDev") + "\"" + next();
    if (bridge)
      text_ += " bridge_type=\"1-1\" depth=\"" + std::to_string(depth) + "\" bridge_pci=\"0000:[" +
               pci.buses + "]\"";
    text_ += " pci_busid=\"" + pci.address + "\" pci_type=\"" + pci.type +
             " [0000:0000] 00\" pci_link_speed=\"31.5\">\n";
    if (!pci.model.empty()) text_ += "<info name=\"PCIDevice\" value=\"" + pci.model + "\"/>\n";
    for (const Pci& below : pci.below) add(below, depth + 1);
    text_ += "</object>\n";
  }

  std::string text_;
  int index_ = 0;
};

}  // namespace mkernel::topology
