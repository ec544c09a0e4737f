// EFA transports over fake NICs, some devices each. SRD loses and doubles nothing by itself, and orders
// nothing: what can be injected is delay, order, and paths or ports that go down for a while.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "daemon/transport/efa/efa.h"
#include "tests/support/fake_nic/fabric.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {

class EfaWire : public Wire {
 public:
  explicit EfaWire(int devices = 1) : device_count_(devices) {
    fabric_.every_path({.latency = kLatency, .jitter = kJitter});
  }
  ~EfaWire() override {
    for (const std::string& complaint : fabric_.complaints()) FAIL_CHECK(complaint);
  }

  std::string name() const override { return "efa"; }

  Result<std::unique_ptr<Transport>> make(const TransportOptions& options) override {
    const std::string& host = options.identity.node;
    nic::EfaSettings efa;
    // One end can do without posted receives, the other cannot.
    if (!hosts_.empty()) efa.capabilities &= ~std::uint32_t{transport::rdma::kEfaUnsolicitedWriteRecv};
    efa.patience = kPatience;
    transport::EfaOptions made;
    made.base = options;
    for (int i = 0; i < device_count_; ++i) {
      fabric_.add_device(host, {.name = device(host, i), .max_send_wr = 256, .efa = efa});
      made.devices.push_back(device(host, i));
    }
    made.verbs = fabric_.verbs(host);
    made.efa = fabric_.efa();
    auto transport = transport::make_efa(made);
    if (transport.ok()) hosts_[transport->get()] = host;
    return transport;
  }

  bool can(Fault fault) const override {
    return fault == Fault::kDelay || fault == Fault::kReorder || fault == Fault::kCut;
  }

  bool announces_puts() const override { return false; }

  Status shape(Node& node, const LinkShape& shape) override {
    const std::lock_guard lock(mutex_);
    nic::Path& path = shapes_[host(node)];
    path = {.latency = std::max(shape.latency, kLatency), .jitter = kJitter};
    if (shape.reorder > 0) path.jitter = std::chrono::microseconds(500);
    set_paths(Down::kNone);
    return {};
  }

  /// In turn: nothing gets through; the first devices lose everything, which nobody is told; the port of the
  /// node's first device goes down, which its host hears of. With one device, each is the end of all traffic.
  void cut(Node& node) override {
    const std::lock_guard lock(mutex_);
    Cut& cut = cuts_[host(node)];
    cut.since = std::chrono::steady_clock::now();
    cut.kind = cut.next;
    cut.next = static_cast<Down>(static_cast<int>(cut.kind) % 3 + 1);
    if (cut.kind == Down::kPort) return fabric_.set_port(device(host(node), 0), 1, IBV_PORT_DOWN);
    set_paths(cut.kind);
  }

  void heal(Node& node) override {
    const std::lock_guard lock(mutex_);
    const Cut& cut = cuts_[host(node)];
    // Shorter than that, the device repeats what was lost, and nothing has happened.
    const bool noticed = std::chrono::steady_clock::now() - cut.since > 2 * kPatience;
    if (cut.kind == Down::kPort || noticed) ++count_;
    if (cut.kind == Down::kPort) return fabric_.set_port(device(host(node), 0), 1, IBV_PORT_ACTIVE);
    set_paths(Down::kNone);
  }

  std::uint64_t injected(Node&, Fault fault) override {
    const std::lock_guard lock(mutex_);
    return fault == Fault::kCut ? count_ : 1;  // without order there is always some of the others
  }

  nic::Fabric& fabric() { return fabric_; }
  static std::string device(const std::string& host, int i) {
    return "efa-" + host + "-" + std::to_string(i);
  }

 private:
  static constexpr std::chrono::microseconds kLatency{10}, kJitter{60};
  static constexpr std::chrono::milliseconds kPatience{1};
  enum class Down { kNone, kEverything, kFirst, kPort };
  struct Cut {
    Down next = Down::kEverything, kind = Down::kNone;
    std::chrono::steady_clock::time_point since{};
  };

  const std::string& host(Node& node) const { return hosts_.at(&node.transport()); }
  void set_paths(Down down) {
    for (const auto& [one, from] : hosts_) {
      for (const auto& [other, to] : hosts_) {
        if (from != to) set_paths(from, to, down);
      }
    }
  }
  void set_paths(const std::string& from, const std::string& to, Down down) {
    const auto known = shapes_.find(from);
    nic::Path path =
        known != shapes_.end() ? known->second : nic::Path{.latency = kLatency, .jitter = kJitter};
    for (int i = 0; i < device_count_; ++i) {
      for (int k = 0; k < device_count_; ++k) {
        path.down = down == Down::kEverything || (down == Down::kFirst && (i == 0 || k == 0));
        fabric_.set_path(device(from, i), device(to, k), path);
      }
    }
  }

  const int device_count_;
  nic::Fabric fabric_;
  std::mutex mutex_;
  std::map<const Transport*, std::string> hosts_;
  std::map<std::string, nic::Path> shapes_;  ///< of the paths out of a host
  std::map<std::string, Cut> cuts_;
  std::uint64_t count_ = 0;  ///< cuts that were noticed; each is in both directions
};

}  // namespace mkernel::test
