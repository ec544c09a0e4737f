// Puts between ranks of one node: the proxy of the lane copies and publishes both counts. Same contract as a
// transport's: payload first, then the arrival count (release), then the completed count.
#pragma once

#include <cstdint>

#include "daemon/dataplane/groups.h"
#include "daemon/dataplane/session_table.h"

namespace mkernel::dataplane {

/// Proxy thread only.
class LocalDelivery {
 public:
  LocalDelivery(GroupTable& groups, FailureLog& failures) : groups_(groups), failures_(failures) {}

  /// Copies up to one piece and, with the last one, publishes. Returns the bytes copied. Everything is looked
  /// up anew for each piece: a region or a rank may go away between two. Then the sender's group fails and
  /// the copy ends.
  std::uint64_t advance(LocalCopy& copy);

 private:
  Group* neighbour_of(Outbound& channel);
  void publish(Outbound& channel, Group& neighbour, std::uint32_t length);

  GroupTable& groups_;
  FailureLog& failures_;
};

}  // namespace mkernel::dataplane
