// What the group directory keeps for a rank of this node, from its join until it leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "daemon/cluster/executor.h"
#include "daemon/cluster/member.h"
#include "daemon/session/group_coordinator.h"
#include "daemon/transport/transport.h"
#include "proto/abi/status.h"

namespace mkernel::cluster {

/// A rank of a session on this node, and the answers that the session layer waits for. Control thread only.
struct LocalRank {
  session::JoinRequest request;
  GroupId group;
  session::GroupCoordinator::Formed formed;  ///< until the group is whole or refused
  std::set<transport::PeerId> asked;         ///< peers that have not yet accepted the rank
  std::set<std::uint32_t> gave_up;           ///< ranks that waited beside this one and do so no longer
  bool others_waited = false;  ///< while this rank waited, ranks of another owner waited under the same name
  Executor::Timer timer;       ///< until the group is ready
  std::uint64_t instance = 0;  ///< 0 while it waits
  bool opened = false;         ///< has called ready(): wants to hear of regions
  std::function<void(Status)> all_ready;

  std::uint64_t round = 0;
  session::GroupCoordinator::Exchanged exchanged;
  Executor::Timer exchange_timer;

  const dataplane::GroupKey& key() const { return request.key; }
  bool waiting() const { return instance == 0 && formed != nullptr; }
};

}  // namespace mkernel::cluster
