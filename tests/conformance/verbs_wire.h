// Verbs transports over fake NICs, some devices each. A reliable connection loses and doubles nothing by
// itself: what can be injected is delay, and paths or ports that go down for a while.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "daemon/transport/verbs/verbs.h"
#include "tests/support/fake_nic/fabric.h"
#include "tests/support/transport_pair.h"
#include "tests/support/verbs_port.h"

namespace mkernel::test {

class VerbsWire : public Wire {
 public:
  explicit VerbsWire(int devices = 1) : device_count_(devices) {}
  ~VerbsWire() override {
    for (const std::string& complaint : fabric_.complaints()) FAIL_CHECK(complaint);
  }

  std::string name() const override { return "verbs"; }

  Result<std::unique_ptr<Transport>> make(const TransportOptions& options) override {
    const std::string& host = options.identity.node;
    transport::VerbsOptions verbs;
    verbs.base = options;
    for (int i = 0; i < device_count_; ++i) {
      fabric_.add_device(host, {.name = device(host, i)});
      verbs.verbs = fabric_.verbs(host);
      verbs.ports.push_back(roce_port(device(host, i), verbs.verbs));
    }
    verbs.timeout = kTimeout;
    verbs.retry_count = kRetries;
    verbs.chunk_bytes = 1U << 20;  // the larger regions have several
    auto made = transport::make_verbs(verbs);
    if (made.ok()) hosts_[made->get()] = host;
    return made;
  }

  bool can(Fault fault) const override { return fault == Fault::kDelay || fault == Fault::kCut; }

  bool announces_puts() const override { return false; }

  Status shape(Node& node, const LinkShape& shape) override {
    const std::lock_guard lock(mutex_);
    latency_[host(node)] = shape.latency;
    set_paths(false);
    return {};
  }

  /// In turn: the port goes down, which both ends hear of, or the path carries nothing, which nobody is told.
  void cut(Node& node) override {
    const std::lock_guard lock(mutex_);
    Cut& cut = cuts_[host(node)];
    cut.by_port = !cut.by_port;
    cut.since = std::chrono::steady_clock::now();
    if (!cut.by_port) return set_paths(true);
    set_ports(node, IBV_PORT_DOWN);
  }

  void heal(Node& node) override {
    const std::lock_guard lock(mutex_);
    Cut& cut = cuts_[host(node)];
    // Shorter than that, the device repeats what was lost, and nothing has happened.
    const auto noticed = std::chrono::microseconds((4096 << kTimeout) / 1000 * (kRetries + 1) * 2);
    if (cut.by_port || std::chrono::steady_clock::now() - cut.since > noticed) ++count_;
    if (!cut.by_port) return set_paths(false);
    set_ports(node, IBV_PORT_ACTIVE);
  }

  std::uint64_t injected(Node&, Fault fault) override {
    const std::lock_guard lock(mutex_);
    return fault == Fault::kCut ? count_ : latency_.size();
  }

  nic::Fabric& fabric() { return fabric_; }
  static std::string device(const std::string& host, int i) {
    return "nic-" + host + "-" + std::to_string(i);
  }

 private:
  static constexpr std::uint8_t kTimeout = 5, kRetries = 2;
  struct Cut {
    bool by_port = false;
    std::chrono::steady_clock::time_point since{};
  };

  const std::string& host(Node& node) const { return hosts_.at(&node.transport()); }
  void set_ports(Node& node, ibv_port_state state) {
    for (int i = 0; i < device_count_; ++i) fabric_.set_port(device(host(node), i), 1, state);
  }
  void set_paths(bool down) {
    for (const auto& [one, from] : hosts_) {
      const std::chrono::microseconds latency = latency_[from];
      for (const auto& [other, to] : hosts_) {
        if (from == to) continue;
        for (int i = 0; i < device_count_; ++i) {
          fabric_.set_path(device(from, i), device(to, i), {latency, latency / 4, down});
        }
      }
    }
  }

  const int device_count_;
  nic::Fabric fabric_;
  std::mutex mutex_;
  std::map<const Transport*, std::string> hosts_;
  std::map<std::string, std::chrono::microseconds> latency_;  ///< on the way out of a host
  std::map<std::string, Cut> cuts_;
  std::uint64_t count_ = 0;  ///< cuts that were noticed; each is in both directions
};

}  // namespace mkernel::test
