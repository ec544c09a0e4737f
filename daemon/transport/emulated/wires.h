// Which wires a link between two nodes may take. There is one per rail; a rail prefers its own, and takes
// those of the next ones when it is pulled.
#pragma once

#include <cstdint>

#include "daemon/transport/transport.h"

namespace mkernel::transport::emulated {

/// One thread.
class Wires {
 public:
  /// `rail` < `count` <= 64.
  Wires(std::uint32_t rail, std::uint32_t count) : rail_(rail), count_(count) {}

  void set(const LinkShape& shape) { pulled_ = shape.down ? ~std::uint64_t{0} : shape.rails_down; }
  std::uint32_t count() const { return count_; }
  bool carries(std::uint32_t wire) const { return wire < count_ && ((pulled_ >> wire) & 1) == 0; }
  /// Wires that carry something.
  std::uint32_t usable() const {
    std::uint32_t wires = 0;
    for (std::uint32_t wire = 0; wire < count_; ++wire) wires += carries(wire) ? 1 : 0;
    return wires;
  }
  /// The n-th usable wire, the preferred one first; the rail's own where there is none.
  std::uint32_t at(std::uint32_t n) const {
    for (std::uint32_t i = 0; i < count_; ++i) {
      const std::uint32_t wire = (rail_ + i) % count_;
      if (carries(wire) && n-- == 0) return wire;
    }
    return rail_;
  }

 private:
  std::uint32_t rail_;
  std::uint32_t count_;
  std::uint64_t pulled_ = 0;  ///< bit per wire
};

}  // namespace mkernel::transport::emulated
