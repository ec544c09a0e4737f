// How each rail reaches each peer, as the transports tell it: into the log, and kept for mkctl.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/cluster/peer_snapshot.h"
#include "proto/abi/status.h"

namespace mkernel::app {

/// Control thread only. Counts belong to a node's name: they go on when its daemon is started anew.
class PathBook {
 public:
  explicit PathBook(std::uint32_t rails) : rails_(rails) {}

  /// A life of the node's daemon begins, or ends: nothing is connected, and what was lost has no end any
  /// more.
  void up(const std::string& node, base::TimePoint now = base::Clock::now());
  void down(const std::string& node);
  /// See transport::TransportSink::peer_connected().
  void connected(const std::string& node, std::uint32_t rail);
  /// See transport::TransportSink::path_changed(). A loss is a warning in the log, an end of it an info.
  void changed(const std::string& node, std::uint32_t rail, const std::string& path, const Status& lost);

  /// One for each rail, by its number.
  std::vector<cluster::RailSnapshot> rails(const std::string& node,
                                           base::TimePoint now = base::Clock::now()) const;
  /// Which rails have no path to the node now, and why; empty when all have.
  std::string problem(const std::string& node) const;

 private:
  struct Known {
    std::vector<cluster::RailSnapshot> rails;
    std::optional<base::TimePoint> up_since;
  };

  Known& known(const std::string& node);

  const std::uint32_t rails_;
  std::map<std::string, Known> nodes_;
};

}  // namespace mkernel::app
