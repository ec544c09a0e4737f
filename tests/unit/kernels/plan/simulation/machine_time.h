// What takes time: servers, memory, and what the L2 holds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

namespace mkernel::test {

/// What takes time one after the other.
struct Server {
  double free = 0;
  double serve(double from, double seconds) { return free = std::max(free, from) + seconds; }
};

/// Memory that many read from at a time, each from a moment of its own: what it gives in every microsecond.
class MemoryTime {
 public:
  explicit MemoryTime(double rate) : bin_bytes_(rate * kBin) {}
  /// When `bytes` that somebody wants from `from` on have come.
  double read(double from, double bytes) {
    for (auto bin = static_cast<std::size_t>(from / kBin);; ++bin) {
      if (given_.size() <= bin) given_.resize(2 * bin + 1, 0.0);
      const double here = std::min(bytes, bin_bytes_ - given_[bin]);
      given_[bin] += here;
      bytes -= here;
      if (bytes <= 0) return std::max(from, static_cast<double>(bin) * kBin);
    }
  }

 private:
  static constexpr double kBin = 1e-6;
  const double bin_bytes_;
  std::vector<double> given_;
};

/// What the L2 holds of the panels that tiles load: whole panels, the one that was used longest ago goes
/// first.
class PanelCache {
 public:
  using Panel = std::array<std::uint64_t, 3>;

  explicit PanelCache(double bytes) : room_(bytes) {}

  /// Bytes of them that came from memory: all or none.
  double load(const Panel& panel, double bytes) {
    if (const auto found = places_.find(panel); found != places_.end()) {
      used_.splice(used_.begin(), used_, found->second);
      return 0;
    }
    used_.push_front({panel, bytes});
    places_[panel] = used_.begin();
    missed_ += bytes;
    for (room_ -= bytes; room_ < 0 && used_.size() > 1; used_.pop_back()) {
      room_ += used_.back().bytes;
      places_.erase(used_.back().panel);
    }
    return bytes;
  }
  double missed() const { return missed_; }

 private:
  struct Held {
    Panel panel;
    double bytes;
  };

  double room_, missed_ = 0;
  std::list<Held> used_;  ///< the last one first
  std::map<Panel, std::list<Held>::iterator> places_;
};

}  // namespace mkernel::test
