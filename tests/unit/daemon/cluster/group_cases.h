// What the cases of the group directory share.
#pragma once

#include <doctest/doctest.h>

#include "tests/unit/daemon/cluster/directory_cluster.h"

namespace mkernel::cluster {

inline bool contains(const Status& status, const std::string& part) {
  return status.text().find(part) != std::string::npos;
}

inline void run_seeds(const std::function<void(unsigned)>& test) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    test(seed);
  }
}

/// A ready group: rank r on node r / per_node.
inline std::vector<RankView*> make_group(DirectoryCluster& cluster, std::uint32_t nodes,
                                         std::uint32_t per_node, const std::string& name = "g") {
  std::vector<RankView*> ranks;
  for (std::uint32_t r = 0; r < nodes * per_node; ++r) {
    ranks.push_back(&cluster.join(r / per_node, name, r, nodes * per_node));
  }
  cluster.settle();
  cluster.ready_all();
  cluster.settle();
  for (const RankView* rank : ranks) REQUIRE(rank->is_ready());
  return ranks;
}

inline void check_failed_once(const std::vector<RankView*>& ranks, std::int32_t culprit,
                              const std::string& node) {
  for (const RankView* rank : ranks) {
    CHECK(rank->failures == 1);
    CHECK(rank->culprit == culprit);
    CHECK(rank->failed_on == node);
  }
}

}  // namespace mkernel::cluster
