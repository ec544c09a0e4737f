// The emulated fabric brings its own faults: all of them are injected through set_link().
#pragma once

#include <map>
#include <memory>
#include <string>

#include "daemon/transport/emulated/emulated.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {

class EmulatedWire : public Wire {
 public:
  /// `rails`: wires that the link may take.
  explicit EmulatedWire(std::uint32_t rails = 1) : rails_(rails) {}

  std::string name() const override { return "emulated"; }

  Result<std::unique_ptr<Transport>> make(const TransportOptions& options) override {
    transport::EmulatedOptions emulated;
    emulated.base = options;
    emulated.rails = rails_;
    emulated.seed = 42;
    emulated.retransmit_timeout = std::chrono::milliseconds(10);
    emulated.engines = make_engines();
    return transport::make_emulated(emulated);
  }

  bool can(Fault) const override { return true; }

  Status shape(Node& node, const LinkShape& shape) override {
    shapes_[node.peer()] = shape;
    return node.transport().set_link(node.peer(), shape);
  }

  void cut(Node& node) override { set_down(node, true); }
  void heal(Node& node) override { set_down(node, false); }
  /// The wires of these rails (a bit each) are pulled on the side of `node`, all others are plugged in.
  void pull(Node& node, std::uint64_t rails) {
    LinkShape& shape = shapes_[node.peer()];
    shape.rails_down = rails;
    static_cast<void>(node.transport().set_link(node.peer(), shape));
  }

  std::uint64_t injected(Node& node, Fault fault) override {
    const auto& faults = dynamic_cast<transport::EmulatedTransport&>(node.transport()).faults();
    switch (fault) {
      case Fault::kDrop: return faults.dropped;
      case Fault::kDuplicate: return faults.duplicated;
      case Fault::kReorder: return faults.reordered;
      case Fault::kCut: return faults.connections - 1;
      case Fault::kDelay: return 1;
    }
    return 0;
  }

 protected:
  virtual std::shared_ptr<memory::CopyEngines> make_engines() { return nullptr; }

 private:
  void set_down(Node& node, bool down) {
    LinkShape& shape = shapes_[node.peer()];
    shape.down = down;
    static_cast<void>(node.transport().set_link(node.peer(), shape));
  }

  const std::uint32_t rails_;
  // Both entries exist from the start: the two nodes may live on two threads.
  std::map<PeerId, LinkShape> shapes_{{7, {}}, {3, {}}};
};

}  // namespace mkernel::test
