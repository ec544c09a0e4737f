// TCP itself neither drops nor reorders: what can be injected is a relay that is slow, or that resets
// connections.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "daemon/transport/tcp/tcp.h"
#include "tests/support/tcp_relay.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {

class TcpWire : public Wire {
 public:
  std::string name() const override { return "tcp"; }

  Result<std::unique_ptr<Transport>> make(const TransportOptions& options) override {
    transport::TcpOptions tcp;
    tcp.base = options;
    tcp.engines = make_engines();
    return transport::make_tcp(tcp);
  }

  /// A relay before each end: which of the two is dialled is the transports' business.
  std::string endpoint(const Transport& target) override {
    const std::string endpoint = target.local_endpoint();
    const auto port = static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
    auto& relay = relays_[&target];
    if (!relay) relay = std::make_unique<TcpRelay>(port);
    return relay->endpoint();
  }

  bool can(Fault fault) const override { return fault == Fault::kDelay || fault == Fault::kCut; }

  Status shape(Node& node, const LinkShape& shape) override {
    for (auto& [target, relay] : relays_) {
      const auto out = target == &node.transport() ? TcpRelay::kFromTarget : TcpRelay::kToTarget;
      relay->shape(out, shape.latency, shape.bandwidth_gbytes);
    }
    return {};
  }

  void cut(Node&) override {
    for (auto& [target, relay] : relays_) relay->cut();
  }

  void heal(Node&) override {
    for (auto& [target, relay] : relays_) relay->heal();
  }

  std::uint64_t injected(Node&, Fault fault) override {
    std::uint64_t resets = 0;
    for (auto& [target, relay] : relays_) resets += relay->resets();
    return fault == Fault::kCut ? resets : 1;
  }

 protected:
  virtual std::shared_ptr<memory::CopyEngines> make_engines() { return nullptr; }

 private:
  std::map<const Transport*, std::unique_ptr<TcpRelay>> relays_;
};

}  // namespace mkernel::test
