// Session messages: what client and daemon say to each other over the Unix SOCK_SEQPACKET socket. One packet
// is one message: a Header and the fixed-size body that its type asks for, with fds by SCM_RIGHTS where a
// body says so. The client sends requests; the daemon answers each with the reply of the same `sequence`, in
// any order, and may send an event (sequence 0) at any time. Text fields end with a zero byte. Reserved bytes
// are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "proto/abi/region_map.h"
#include "proto/abi/version.h"

namespace mkernel::abi {

enum class MessageType : std::uint16_t {
  kHello = 1,      ///< first message of a session
  kJoinGroup = 2,  ///< answered when the group is whole, has failed or timed out
  kLeaveGroup = 3,
  kRegisterRegion = 4,  ///< + 1 fd, of kind kIpc none; + the dma-buf of GPU memory, where there is one
  kUnregisterRegion = 5,
  kMapRegion = 6,      ///< asks for the fd of a region of a rank on the same node
  kExchange = 7,       ///< every rank contributes; answered when the board holds every contribution
  kFailGroup = 8,      ///< a rank's operation failed: tell the others who and why
  kSealRegion = 9,     ///< shared host memory: the ranks of this node have mapped it, puts may begin
  kRejectLaunch = 10,  ///< a rank has not made a launch: ranks that do make it end, unless they reject it too
  kHelloReply = 101,   ///< + 1 session segment memfd + ring_count eventfds (one doorbell per ring)
  kJoinGroupReply = 102,  ///< + 1 group segment memfd
  kLeaveGroupReply = 103,
  kRegisterRegionReply = 104,
  kUnregisterRegionReply = 105,
  kMapRegionReply = 106,  ///< + 1 fd, of kind kIpc none
  kExchangeReply = 107,
  kFailGroupReply = 108,
  kSealRegionReply = 109,
  kRejectLaunchReply = 110,
  kSessionEnded = 200,  ///< event; the daemon closes the socket after it
};

/// fds that one packet may carry in either direction; a packet with more ends the session.
inline constexpr std::size_t kMaxFds = 1 + kMaxRings;

struct Header {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint16_t type;      ///< MessageType
  std::uint16_t bytes;     ///< whole message, header included
  std::uint32_t sequence;  ///< chosen by the client, 0 only in events
};
static_assert(sizeof(Header) == 16);

/// Begins every reply. On an error the rest of the reply is zero and no fd comes with it.
struct ReplyStatus {
  std::uint32_t code;  ///< StatusCode
  std::uint32_t reserved;
  char text[kTextBytes];
};
static_assert(sizeof(ReplyStatus) == 456);

/// A PCI address as one number: 0000:1b:00.0 is 0x1b00. No device that anybody uses has 0.
constexpr std::uint64_t pci_address(std::uint32_t domain, std::uint32_t bus, std::uint32_t device,
                                    std::uint32_t function) {
  return std::uint64_t{domain} << 16 | bus << 8 | device << 3 | function;
}

struct Hello {
  Header header;
  char client_name[kNameBytes];  ///< for mkctl: program name or job name
  std::int32_t device;           ///< GPU ordinal, -1 for host only
  std::uint32_t weight;          ///< share of the proxies relative to other sessions, 1..64; 0 = 1
  std::uint64_t pci_address;     ///< of that GPU, for processes count GPUs differently; 0 = not known
};
static_assert(sizeof(Hello) == 96);

struct HelloReply {
  Header header;
  ReplyStatus status;
  std::uint64_t session_id;
  std::uint64_t boot_id;  ///< of the daemon, random per start
  std::uint32_t ring_count;
  std::uint32_t max_lanes;
  std::uint64_t segment_bytes;
  char node_name[kNameBytes];
};
static_assert(sizeof(HelloReply) == 568);

struct JoinGroup {
  Header header;
  char name[kNameBytes];
  std::uint32_t world_size;
  std::uint32_t rank;
  std::uint32_t lanes;            ///< channels per ordered pair; the same on every rank
  std::uint32_t region_capacity;  ///< region indices; the same on every rank
  std::uint32_t timeout_ms;       ///< 0 = the daemon's default
  std::uint8_t reserved[12];
  /// The same on every rank, or zeros: none. Ranks of several nodes that share one may belong to users with
  /// different numbers.
  std::uint8_t secret[kSecretBytes];
};
static_assert(sizeof(JoinGroup) == 144);

struct JoinGroupReply {
  Header header;
  ReplyStatus status;
  std::uint32_t group;  ///< handle within the session
  std::uint32_t reserved;
  std::uint64_t segment_bytes;
};
static_assert(sizeof(JoinGroupReply) == 488);

/// Also the answer to LeaveGroup, RegisterRegion, UnregisterRegion, Exchange, FailGroup, SealRegion,
/// RejectLaunch.
struct PlainReply {
  Header header;
  ReplyStatus status;
};
static_assert(sizeof(PlainReply) == 472);

struct LeaveGroup {
  Header header;
  std::uint32_t group;
  std::uint8_t reserved[12];
};
static_assert(sizeof(LeaveGroup) == 32);

struct RegisterRegion {
  Header header;
  std::uint32_t group;
  std::uint32_t index;   ///< free index below region_capacity
  std::uint32_t kind;    ///< RegionKind
  std::uint32_t shared;  ///< 1: ranks of the group on this node may map it
  std::uint64_t offset;  ///< within the fd, page-aligned; kIpc: within the allocation that the handle names
  std::uint64_t bytes;
  IpcMemory ipc;  ///< of kind kIpc alone; zero otherwise
  // Of GPU memory alone; zero otherwise.
  std::uint64_t dma_buf_offset;  ///< of the region within the dma-buf, which begins at a page
  std::uint32_t keep;  ///< 1: host memory whose memfd may be registered again until the session ends
  std::uint8_t reserved[4];
  char no_dma_buf[kTextBytes];  ///< why the driver gave none; empty with one
};
static_assert(sizeof(RegisterRegion) == 592);

struct UnregisterRegion {
  Header header;
  std::uint32_t group;
  std::uint32_t index;
  std::uint8_t reserved[8];
};
static_assert(sizeof(UnregisterRegion) == 32);

/// The daemon seals host memory against new writable mappings and against holes before it reads or writes
/// there: at once when it is not shared, else when its owner says that the neighbours have mapped it.
struct SealRegion {
  Header header;
  std::uint32_t group;
  std::uint32_t index;
  std::uint8_t reserved[8];
};
static_assert(sizeof(SealRegion) == 32);

struct MapRegion {
  Header header;
  std::uint32_t group;
  std::uint32_t rank;
  std::uint32_t index;
  std::uint32_t reserved;
};
static_assert(sizeof(MapRegion) == 32);

struct MapRegionReply {
  Header header;
  ReplyStatus status;
  std::uint32_t kind;
  std::uint32_t reserved;
  std::uint64_t offset;
  std::uint64_t bytes;
  IpcMemory ipc;  ///< of kind kIpc alone
};
static_assert(sizeof(MapRegionReply) == 576);

/// `round` counts the exchanges of this group on this rank: 1, 2, 3, ... The contribution of every rank is on
/// the board when the reply comes and stays there until this rank starts its next exchange.
struct Exchange {
  Header header;
  std::uint32_t group;
  std::uint32_t timeout_ms;  ///< 0 = the daemon's default
  std::uint64_t round;
  std::uint8_t payload[kExchangeBytes];
};
static_assert(sizeof(Exchange) == 544);

struct FailGroup {
  Header header;
  std::uint32_t group;
  std::uint32_t code;  ///< StatusCode, not OK
  std::uint8_t reserved[8];
  char text[kTextBytes];
};
static_assert(sizeof(FailGroup) == 480);

struct RejectLaunch {
  Header header;
  std::uint32_t group;
  std::uint32_t code;    ///< StatusCode, not OK
  std::uint64_t launch;  ///< RankState::launches, this one counted
  char text[kTextBytes];
};
static_assert(sizeof(RejectLaunch) == 480);

struct SessionEnded {
  Header header;
  ReplyStatus status;
};
static_assert(sizeof(SessionEnded) == 472);

/// Bytes of the largest message: receive buffers of this size never truncate a valid packet.
inline constexpr std::size_t kMaxMessageBytes = 1024;

}  // namespace mkernel::abi
