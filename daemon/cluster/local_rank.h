// What the GroupDirectory keeps for a rank of this node, from its join until it leaves. Private to the
// directory.
#pragma once

#include <functional>
#include <set>

#include "daemon/cluster/group_directory.h"

namespace mkernel::cluster {

struct GroupDirectory::Local {
  session::JoinRequest request;
  Formed formed;                      ///< until the group is whole or refused
  std::set<transport::PeerId> asked;  ///< peers that have not yet accepted the claim
  std::set<std::uint32_t> gave_up;    ///< ranks that waited beside this one and do so no longer
  Executor::Timer timer;              ///< until the group is ready
  std::uint64_t instance = 0;         ///< 0 while it waits
  bool opened = false;                ///< has called ready(): wants to hear of regions
  std::function<void(Status)> all_ready;

  std::uint64_t round = 0;
  Exchanged exchanged;
  Executor::Timer exchange_timer;

  const dataplane::GroupKey& key() const { return request.key; }
  bool waiting() const { return instance == 0 && formed != nullptr; }
};

}  // namespace mkernel::cluster
