// Both transports on one port of a real RDMA device, through the real libibverbs. What can be injected is
// that its interface goes down, and only with soft-RoCE: nobody takes a machine's network away for a test.
#pragma once

#include <doctest/doctest.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "daemon/topology/rdma_sysfs.h"
#include "daemon/transport/verbs/verbs.h"
#include "proto/ipc/fd.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {

class VerbsDeviceWire : public Wire {
 public:
  explicit VerbsDeviceWire(const std::string& device) {
    port_.device = device;
    const auto found = look();
    REQUIRE_MESSAGE(found, "no port of it can be used: " << port_.device);
    port_ = *found;
  }
  ~VerbsDeviceWire() override { set_interface(true); }

  std::string name() const override { return "verbs"; }

  Result<std::unique_ptr<Transport>> make(const TransportOptions& options) override {
    auto library = transport::rdma::open_verbs_library();
    if (!library.ok()) return library.status();
    transport::VerbsOptions verbs;
    verbs.base = options;
    verbs.verbs = *library;
    verbs.ports = {port_};
    verbs.choose_again = [this](const transport::VerbsPort&) { return look(); };
    verbs.chunk_bytes = 1U << 20;  // the larger regions have several
    return transport::make_verbs(verbs);
  }

  bool can(Fault fault) const override { return fault == Fault::kCut && soft_; }
  bool announces_puts() const override { return false; }
  int patience() const override { return soft_ ? 10 : 1; }
  Status shape(Node&, const LinkShape&) override { return {StatusCode::kUnimplemented, "a real wire"}; }

  bool may_cut() override {
    const std::lock_guard lock(mutex_);
    return !down_ && Clock::now() >= next_cut_;
  }
  void cut(Node&) override {
    const std::lock_guard lock(mutex_);
    if (down_) return;  // by the other node, just now
    set_interface(false);
    down_ = true;
  }
  void heal(Node&) override {
    const std::lock_guard lock(mutex_);
    if (!down_) return;
    set_interface(true);
    down_ = false;
    // Longer with every few: however slow the machine is, in the end the traffic gets through.
    next_cut_ = Clock::now() + kBetweenCuts * (1 + cuts_++ / 8);
  }
  std::uint64_t injected(Node&, Fault) override { return cuts_; }

 private:
  using Clock = std::chrono::steady_clock;
  /// A queue pair gives up after a second and a half of silence, a new one needs both ends.
  static constexpr std::chrono::seconds kBetweenCuts{4};

  /// The port as it is now; nothing when it is down.
  std::optional<transport::VerbsPort> look() {
    const auto device = topology::rdma_device(port_.device);
    if (!device || device->ports.empty()) return std::nullopt;
    const topology::RdmaPort& port = device->ports.front();
    const topology::Gid* const gid = topology::choose_gid(port, topology::AddressFamily::kIpv4);
    if (gid == nullptr || !topology::not_usable(*device, port).empty()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    soft_ = device->driver == "rxe";
    interface_ = gid->interface;
    return transport::VerbsPort{device->name, static_cast<std::uint8_t>(port.number), gid->index, gid->bytes};
  }

  /// Both nodes have the same port: it is down as long as one of them has cut it.
  void set_interface(bool up) {
    if (!soft_) return;
    const ipc::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM, 0));
    ifreq request{};
    interface_.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
    REQUIRE(::ioctl(socket.get(), SIOCGIFFLAGS, &request) == 0);
    request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    REQUIRE(::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0);
  }

  transport::VerbsPort port_;
  std::atomic<bool> soft_ = false;  ///< soft-RoCE
  std::mutex mutex_;                ///< of what follows
  std::string interface_;
  bool down_ = false;
  Clock::time_point next_cut_;
  std::atomic<std::uint64_t> cuts_ = 0;
};

}  // namespace mkernel::test
