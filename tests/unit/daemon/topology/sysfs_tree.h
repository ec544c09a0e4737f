// Folders and files as the kernel shows RDMA devices in sysfs.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace mkernel::topology {

namespace fs = std::filesystem;

/// A made-up root folder with RDMA devices in its sysfs; removed with this.
struct SysfsTree {
  SysfsTree() {
    char name[] = "/tmp/mkernel-sysfs-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~SysfsTree() { fs::remove_all(path); }

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((path / file).parent_path());
    std::ofstream(path / file) << text << "\n";
  }
  fs::path device(const std::string& name, const std::string& file) {
    const fs::path folder = "sys/class/infiniband/" + name;
    write(folder / "fw_ver", "28.39.1002");
    write("sys/class/infiniband_verbs/" + file + "/ibdev", name);
    return folder;
  }
  /// The PCI device behind it.
  void pci(const fs::path& device, const std::string& address, const std::string& driver, int numa_node) {
    const fs::path folder = "sys/devices/pci0000:15/" + address;
    write(folder / "numa_node", std::to_string(numa_node));
    fs::create_directory_symlink("../../../bus/pci/drivers/" + driver, path / folder / "driver");
    fs::create_directory_symlink(path / folder, path / device / "device");
  }
  fs::path port(const fs::path& device, const std::string& layer, const std::string& state,
                const std::string& rate) {
    const fs::path folder = device / "ports/1";
    write(folder / "link_layer", layer);
    write(folder / "state", state);
    write(folder / "phys_state", state == "4: ACTIVE" ? "5: LinkUp" : "3: Disabled");
    write(folder / "rate", rate);
    write(folder / "lid", "0x1f");
    return folder;
  }
  void gid(const fs::path& port, int index, const std::string& gid, const std::string& type,
           const std::string& interface) {
    const std::string name = std::to_string(index);
    write(port / "gids" / name, gid);
    if (!type.empty()) write(port / "gid_attrs/types" / name, type);
    if (!interface.empty()) write(port / "gid_attrs/ndevs" / name, interface);
  }

  fs::path path;
};

}  // namespace mkernel::topology
