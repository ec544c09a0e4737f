// The shared memory that the daemon makes for a client: one session segment, one segment per group. Layouts
// in proto/abi/region_map.h. Written on the control thread (counts and ring tails by the proxies).
//
// NOTES: the client maps these pages too and may overwrite anything in them. The daemon therefore writes
// through offsets that it keeps itself and never reads a layout field back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/session/group_coordinator.h"
#include "proto/abi/region_map.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::session {

/// A segment as created: the fd for the client, the mapping for the daemon.
struct Segment {
  ipc::UniqueFd fd;
  ipc::Mapping mapping;
};

Result<Segment> create_session_segment(std::uint64_t session_id, std::uint32_t ring_count,
                                       std::uint32_t log2_slots);

/// What a group segment is made from.
struct GroupShape {
  std::string name;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  std::uint32_t lanes = 0;
  std::uint32_t region_capacity = 0;
  std::uint32_t first_channel = 0;

  /// The layout, offsets included.
  abi::GroupSegment layout() const;
};

/// Node and local rank of every member: nodes numbered in the order of their lowest rank.
std::vector<abi::Member> number_members(const std::vector<FormedMember>& members);

Result<Segment> create_group_segment(const GroupShape& shape, const FormedGroup& group);

/// Writes one entry of the region map; `bytes` last, with release, so that a reader who sees it sees the
/// kind.
void write_region_entry(const ipc::Mapping& segment, const GroupShape& shape, std::uint32_t rank,
                        std::uint32_t index, const abi::RegionEntry& entry);

/// Writes the contributions of all ranks to the exchange board.
void write_board(const ipc::Mapping& segment, const GroupShape& shape, std::span<const Blob> blobs);

/// Failure record, then the abort word with release. Once per segment.
void write_session_failure(const ipc::Mapping& segment, const std::string& node, const Status& why);
void write_group_failure(const ipc::Mapping& segment, std::int32_t culprit, const std::string& node,
                         const Status& why);

/// The group ends because a rank was lost: the record alone; then the word that refuses new work; then the
/// word that also ends what is under way.
void write_group_record(const ipc::Mapping& segment, std::int32_t culprit, const std::string& node,
                        const Status& why);
void end_group(const ipc::Mapping& segment, const Status& why);
void abort_group(const ipc::Mapping& segment, const Status& why);

/// Writes, with release, whether `rank` is still there.
void write_presence(const ipc::Mapping& segment, const GroupShape& shape, std::uint32_t rank,
                    abi::Presence presence);
/// What `rank` was seen to do; its presence stays.
void write_state(const ipc::Mapping& segment, const GroupShape& shape, const RankReport& report);
/// `rank` does not make launch `launch`: its state, then the word that sends the client there.
void write_rejection(const ipc::Mapping& segment, const GroupShape& shape, std::uint32_t rank,
                     std::uint64_t launch, const Status& why);
/// What the client says that its own rank does: a text with its end, a phase that there is.
abi::RankState read_own_state(const ipc::Mapping& segment, const GroupShape& shape);

}  // namespace mkernel::session
