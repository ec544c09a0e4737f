// Failure records of shared segments: how the client writes one when the daemon is gone, and how it reads
// one.
#pragma once

#include <string>

#include "proto/abi/region_map.h"
#include "proto/abi/status.h"

namespace mkernel::client {

/// Records `why` (not OK) and raises `abort` beside it, unless it is up already: the first failure is the
/// cause. `culprit` is a rank or -1. One caller at a time per segment.
void raise_failure(abi::FailureRecord& record, std::uint32_t& abort, std::int32_t culprit,
                   const std::string& node, const Status& why);

/// OK while `abort` is 0, else what the record says: "rank 3 on node b: ...".
Status read_failure(const abi::FailureRecord& record, const std::uint32_t& abort);

/// The same for a group: launches under way end.
void raise_failure(abi::GroupSegment& group, const std::string& node, const Status& why);
/// Why a group takes no new work.
Status read_failure(const abi::GroupSegment& group);

}  // namespace mkernel::client
