// EFA transports over fake NICs. SRD loses and doubles nothing by itself, and orders nothing: what can be
// injected is delay, order, and paths that go down for a while.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "daemon/transport/efa/efa.h"
#include "tests/support/fake_nic/fabric.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {

class EfaWire : public Wire {
 public:
  EfaWire() { fabric_.every_path({.latency = kLatency, .jitter = kJitter}); }
  ~EfaWire() override {
    for (const std::string& complaint : fabric_.complaints()) FAIL_CHECK(complaint);
  }

  std::string name() const override { return "efa"; }

  Result<std::unique_ptr<Transport>> make(const TransportOptions& options) override {
    const std::string& host = options.identity.node;
    nic::EfaSettings efa;
    // One end can do without posted receives, the other cannot.
    if (!devices_.empty()) efa.capabilities &= ~std::uint32_t{transport::rdma::kEfaUnsolicitedWriteRecv};
    efa.patience = kPatience;
    fabric_.add_device(host, {.name = "efa-" + host, .max_send_wr = 256, .efa = efa});
    transport::EfaOptions made;
    made.base = options;
    made.verbs = fabric_.verbs(host);
    made.efa = fabric_.efa();
    auto transport = transport::make_efa(made);
    if (transport.ok()) devices_[transport->get()] = "efa-" + host;
    return transport;
  }

  bool can(Fault fault) const override {
    return fault == Fault::kDelay || fault == Fault::kReorder || fault == Fault::kCut;
  }

  bool announces_puts() const override { return false; }

  Status shape(Node& node, const LinkShape& shape) override {
    const std::lock_guard lock(mutex_);
    nic::Path path{.latency = std::max(shape.latency, kLatency), .jitter = kJitter};
    if (shape.reorder > 0) path.jitter = std::chrono::microseconds(500);
    for (const auto& [transport, to] : devices_) {
      if (to != device(node)) set(device(node), to, path);
    }
    return {};
  }

  void cut(Node& node) override {
    const std::lock_guard lock(mutex_);
    cut_at_[device(node)] = std::chrono::steady_clock::now();
    set_paths(true);
  }

  void heal(Node& node) override {
    const std::lock_guard lock(mutex_);
    // Shorter than that, the device repeats what was lost, and nothing has happened.
    if (std::chrono::steady_clock::now() - cut_at_[device(node)] > 2 * kPatience) ++cuts_;
    set_paths(false);
  }

  std::uint64_t injected(Node&, Fault fault) override {
    const std::lock_guard lock(mutex_);
    return fault == Fault::kCut ? cuts_ : 1;  // without order there is always some of the others
  }

 public:
  nic::Fabric& fabric() { return fabric_; }

 private:
  static constexpr std::chrono::microseconds kLatency{10}, kJitter{60};
  static constexpr std::chrono::milliseconds kPatience{1};

  const std::string& device(Node& node) const { return devices_.at(&node.transport()); }
  void set(const std::string& from, const std::string& to, const nic::Path& path) {
    paths_[{from, to}] = path;
    fabric_.set_path(from, to, path);
  }
  void set_paths(bool down) {
    for (const auto& [one, from] : devices_) {
      for (const auto& [other, to] : devices_) {
        if (from == to) continue;
        const auto known = paths_.find({from, to});
        nic::Path path =
            known != paths_.end() ? known->second : nic::Path{.latency = kLatency, .jitter = kJitter};
        path.down = down;
        set(from, to, path);
      }
    }
  }

  nic::Fabric fabric_;
  std::mutex mutex_;
  std::map<const Transport*, std::string> devices_;
  std::map<std::pair<std::string, std::string>, nic::Path> paths_;
  std::map<std::string, std::chrono::steady_clock::time_point> cut_at_;
  std::uint64_t cuts_ = 0;
};

}  // namespace mkernel::test
