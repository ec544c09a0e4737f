// The C++ API of mkernel: connect to the daemon of this node, join a group of ranks, share buffers, put, and
// run the five fused operations. Declarations and contracts only; no third-party type.
//
// Ownership: every class below is a handle. A handle keeps alive what it was made from, so handles may be
// destroyed in any order: a group is left when the Group and everything made from it are gone, the session
// ends when the Session and all its groups are gone. Errors: every fallible call returns a Status or a Result
// that says who, what, which peer. No call throws: memory and threads that cannot be had are
// kResourceExhausted. Nothing waits for ever: a daemon or rank that dies turns into an error of every call
// that needs it. fork(): handles belong to the process that made them. In a child their calls answer
// kFailedPrecondition, and destroying them does nothing; it connects a session of its own. Threads: Session
// and Group may be used from any thread. Calls marked **collective** are made by every rank in the same
// order, one at a time per group; ranks that make different calls are told so, by name. Buffers and
// operations: one thread at a time per object.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mkernel/device_endpoint.h"
#include "mkernel/export.h"
#include "mkernel/operation.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"

namespace mkernel {
namespace client {
class SessionCore;
class GroupCore;
struct BufferState;
class DeviceEndpointState;
}  // namespace client

class Group;
class SymmetricBuffer;
class HostBuffer;
class Activity;
class DeviceEndpoint;

/// "0.1.0": the version of this library.
MK_API const char* version();

inline constexpr std::size_t kMaxExchangeBytes = 448;  ///< that one rank contributes to Group::exchange()
inline constexpr std::uint64_t kMaxRegionBytes = std::uint64_t{1} << 48;  ///< offsets have 48 bits
inline constexpr std::size_t kSecretBytes = 32;                           ///< in GroupOptions::secret

struct SessionOptions {
  std::string socket = "/run/mkernel/mkerneld.sock";  ///< the session socket of this node's daemon
  std::string name;          ///< shown by mkctl, below 64 bytes; empty = the program's name
  int device = -1;           ///< CUDA's ordinal of the GPU, near whose NICs puts go; -1 = none
  std::uint32_t weight = 1;  ///< share among the sessions of the same user, 1..64
  std::chrono::milliseconds timeout{10000};  ///< of connecting and of every small request of the session
};

struct GroupOptions {
  std::string name;                    ///< the same on every rank, below 64 bytes
  std::uint32_t world_size = 0;        ///< the same on every rank, 1..1024
  std::uint32_t rank = 0;              ///< below world_size; every rank is taken by one session
  std::uint32_t lanes = 16;            ///< channels per ordered pair of ranks, the same on every rank, 1..64
  std::uint32_t region_capacity = 64;  ///< buffers per rank, the same on every rank, 1..256
  std::chrono::milliseconds timeout{60000};  ///< for joining, for each collective call and for room for a put
  /// The same on every rank: 32 random bytes that nobody outside the job knows; zeros: none. A group is known
  /// by its name and its owner: the secret, or without one the uid. Ranks with another secret or uid belong
  /// to another group of the same name. With a secret, ranks of different nodes may run under different uids
  /// (those of one node run under one), and no other process takes a rank.
  std::array<std::byte, kSecretBytes> secret{};
};

struct DeviceEndpointOptions {
  std::uint32_t lanes = 1;                    ///< channels per ordered pair of ranks, the same on every rank
  std::chrono::milliseconds deadline{30000};  ///< of every single wait in a kernel; 1 ms to 30 minutes
  /// Of the device structs that this program was compiled with. Leave it: a library with others refuses it.
  std::uint32_t version = device::kVersion;
};

/// A connection to this node's daemon. Its life is that of everything the daemon holds for this process.
class MK_API Session {
 public:
  /// Errors: kUnavailable (nobody listens), kPermissionDenied, kFailedPrecondition (the daemon speaks another
  /// version), kInvalidArgument (an option; named with value and limit), kDeadlineExceeded.
  static Result<Session> connect(const SessionOptions& options);

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// **Collective**: returns when every rank of the group has joined. Errors: kAlreadyExists (who holds the
  /// rank), kPermissionDenied (ranks of one node that share a secret run under two uids), kInvalidArgument
  /// (an option, or one that differs between ranks, naming both), kDeadlineExceeded (the missing ranks, and
  /// whether ranks with another secret or uid waited under the same name), kResourceExhausted (a limit that
  /// the operator has set, by key).
  Result<Group> join(const GroupOptions& options);

  std::uint64_t id() const;              ///< as mkctl shows it
  const std::string& node_name() const;  ///< of the daemon
  /// OK while the daemon is there, else why it is not. Once lost a session stays lost: connect a new one.
  Status status() const;
  /// Counts a call that a framework made in its own way instead, for mkctl. Errors: that of a forked child.
  Status count_fallback();

 private:
  explicit Session(std::shared_ptr<client::SessionCore> core);
  std::shared_ptr<client::SessionCore> core_;
};

/// Where a rank of a group lives; of a rank that the group does not have both numbers are kNowhere.
struct RankInfo {
  static constexpr std::uint32_t kNowhere = ~0U;
  std::uint32_t node = 0;        ///< dense index of its node
  std::uint32_t local_rank = 0;  ///< dense index among the ranks of that node
  std::string node_name;
};

/// One rank's membership of a group, which fails for all when a rank is lost or an operation fails.
class MK_API Group {
 public:
  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  std::uint32_t rank() const;
  std::uint32_t world_size() const;
  std::uint32_t node_count() const;
  std::uint32_t lanes() const;
  const std::string& name() const;
  RankInfo rank_info(std::uint32_t rank) const;
  /// OK, or why the group failed: which rank, on which node, what happened.
  Status status() const;
  /// Tells every rank that this one cannot go on; `why` is not OK. The group is over for all of them.
  Status fail(const Status& why);
  /// This rank does not make the launch that comes next in the group, because of `why` (not OK): an operand
  /// that is refused before there is anything to launch. A rank that makes this launch gets an error that
  /// says so, and the group fails. Ranks that all reject it go on with the next one. Errors: why the group
  /// has failed.
  Status reject_launch(const Status& why);
  /// Leaves the group now, though handles of it may be in use, as at the end of a program with other threads:
  /// every later call of them is refused. Puts that were made are delivered. Errors: kFailedPrecondition (a
  /// launch or a collective call is under way, or a launch was queued on a stream).
  Status leave();

  /// **Collective**. Returns when every rank is here.
  Status barrier();
  /// **Collective**. `mine`: up to kMaxExchangeBytes. Returns the contributions of all ranks, by rank.
  Result<std::vector<std::vector<std::byte>>> exchange(std::span<const std::byte> mine);

  /// **Collective**. The same `bytes` (> 0) on every rank: zeroed memory, registered under the same region
  /// number everywhere, mapped by the ranks of this node. Errors: kInvalidArgument when sizes differ (names
  /// both ranks), kResourceExhausted (memory, region capacity).
  Result<SymmetricBuffer> symmetric(std::uint64_t bytes);
  /// **Collective**. The same in the memory of each rank's GPU (SessionOptions::device): data() and peer()
  /// are device addresses, for kernels of that GPU and for copies; stores through peer() go over NVLink.
  /// Takes whole allocation units of the device (2 MiB on Hopper). Errors, on every rank and naming the rank
  /// they come from: kInvalidArgument (sizes that differ, 0, more than kMaxRegionBytes),
  /// kUnimplemented (libmkernel was built without CUDA), kFailedPrecondition (no driver, no such device, one
  /// that cannot share memory or reach a neighbour's), kResourceExhausted (memory, saying how much is free;
  /// region capacity; limits of the daemon). Puts from and into it need a transport that moves GPU memory;
  /// without one a put from it ends the session and one into it fails the group, by name.
  Result<SymmetricBuffer> symmetric_gpu(std::uint64_t bytes);
  /// **Collective**. The same over memory that the caller has allocated on its GPU, as it is: [data, data +
  /// bytes), the same `bytes` (> 0) on every rank, at any alignment, within one allocation of cudaMalloc or
  /// of PyTorch's caching allocator. data() is the caller's pointer, peer() the neighbour's as CUDA IPC opens
  /// it here; region(), puts and DeviceEndpoint::peers() are those of any SymmetricBuffer. Where the driver
  /// gives a dma-buf the daemon keeps it for NICs to register; where it gives none, `mkctl regions` says why.
  ///
  /// The memory stays the caller's. It must not be freed (nor the tensor die) before the group's next
  /// collective call after the destruction of this buffer has returned: until then peers may store into it.
  /// Freed too early, PyTorch hands the same bytes to the next tensor, and cudaFree keeps them allocated,
  /// because the daemon and the peers hold them. A process that dies leaves nothing behind once its session
  /// is reaped and its neighbours' buffers are gone. Processes share whole allocations: a neighbour could
  /// reach what lies beside a tensor in the same cudaMalloc. Both ends of its life may wait for the GPU.
  /// Errors, on every rank and naming the rank they come from: kInvalidArgument (no device memory, managed
  /// memory, memory of another GPU than the session's, sizes that differ, 0), kOutOfRange (the allocation
  /// ends earlier, and where), kFailedPrecondition (memory that CUDA IPC cannot share: PyTorch's expandable
  /// segments, cudaMallocAsync, cuMemCreate: what to do instead; a neighbour's GPU that this process does not
  /// see or reach), those of symmetric_gpu().
  Result<SymmetricBuffer> register_gpu(void* data, std::uint64_t bytes);
  /// Zeroed memory that puts may read from and peers may put into; this rank alone. Peers need its region().
  Result<HostBuffer> allocate(std::uint64_t bytes);
  /// The same over the caller's memfd, sealed against shrinking; [offset, offset + bytes), `offset`
  /// page-aligned. The fd stays the caller's and may be closed at once. Pages that are missing are made, and
  /// charged to this process. The daemon seals the memfd when it registers it (F_SEAL_FUTURE_WRITE): mappings
  /// that are there go on, but write(), holes and new mappings for writing are refused from then on, so map
  /// it before. It may be registered again, in part or as a whole, until the session ends; its memory stays
  /// until then.
  Result<HostBuffer> register_memory(int memfd, std::uint64_t offset, std::uint64_t bytes);

  /// **Collective**. Takes `count` lanes for own puts, for the life of this group, and returns the first; the
  /// same on every rank. Their counts start at 0. Errors: kResourceExhausted: how many are left, what to do.
  Result<std::uint32_t> reserve_lanes(std::uint32_t count);
  /// Puts `bytes` from `source` to region `remote_region` of rank `target`, asynchronously, on a reserved
  /// lane; more than 1 GiB becomes several puts. Returns the number n of the (last) put on its channel
  /// (target, lane), from 1: the source may be overwritten once wait_completed(target, lane, n) returns. One
  /// thread at a time per lane. Waits while the work ring has no room for all of it, at most `limit` (0:
  /// GroupOptions::timeout). Errors: kDeadlineExceeded (no room came: nothing was put, the group goes on),
  /// kInvalidArgument, kOutOfRange (bounds; the daemon checks them again), why the group failed.
  Result<std::uint64_t> put(std::uint32_t target, std::uint32_t lane, const SymmetricBuffer& source,
                            std::uint64_t offset, std::uint32_t remote_region, std::uint64_t remote_offset,
                            std::uint64_t bytes, std::chrono::milliseconds limit = {});
  Result<std::uint64_t> put(std::uint32_t target, std::uint32_t lane, const HostBuffer& source,
                            std::uint64_t offset, std::uint32_t remote_region, std::uint64_t remote_offset,
                            std::uint64_t bytes, std::chrono::milliseconds limit = {});
  /// A put of nothing: raises the arrival count alone.
  Result<std::uint64_t> signal(std::uint32_t target, std::uint32_t lane,
                               std::chrono::milliseconds limit = {});
  /// How many puts of channel (this rank -> target, lane) were made; 0 on a lane that is not reserved.
  std::uint64_t puts(std::uint32_t target, std::uint32_t lane) const;
  /// Returns once the first `count` puts of channel (source -> this rank, lane) are visible here, or with
  /// kDeadlineExceeded (count expected and seen), or why the group failed.
  Status wait_arrival(std::uint32_t source, std::uint32_t lane, std::uint64_t count,
                      std::chrono::milliseconds deadline);
  /// Returns once the first `count` puts of channel (this rank -> target, lane) have left their sources.
  Status wait_completed(std::uint32_t target, std::uint32_t lane, std::uint64_t count,
                        std::chrono::milliseconds deadline);
  /// How many puts of channel (source -> this rank, lane) have arrived; 0 on a lane that is not reserved.
  std::uint64_t arrivals(std::uint32_t source, std::uint32_t lane) const;
  /// While it lives the daemon's proxies poll this session's rings instead of sleeping: for latency, at the
  /// price of cores. Kernels that put need one, made before the launch and kept until its stream is done:
  /// they cannot wake a sleeping proxy. After minutes without a put it wakes nobody: make one per series.
  Activity keep_active();

  /// **Collective**. Lanes of this group for kernels of the session's GPU (SessionOptions::device), with
  /// counts that start at 0; see mkernel/device.cuh. Threads put on other lanes. Errors, on every rank,
  /// naming whose: kInvalidArgument, kFailedPrecondition (another device.cuh), and those of symmetric_gpu().
  Result<DeviceEndpoint> device_endpoint(const DeviceEndpointOptions& options = {});

  /// **Collective**. Plan an operation on all ranks and make its workspace. First the signatures (operation,
  /// shape, machine) are compared. Errors: kInvalidArgument (a field of the shape, or two ranks whose
  /// signatures differ, naming both), kResourceExhausted (lanes or regions: what is left), kUnimplemented.
  Result<Gemm> ag_gemm(const GemmShape& shape, Executor executor = Executor::kCpu,
                       const GemmPlanOptions& plan = {});
  Result<Gemm> gemm_rs(const GemmShape& shape, Executor executor = Executor::kCpu,
                       const GemmPlanOptions& plan = {});
  Result<Gemm> gemm_ar(const GemmShape& shape, Executor executor = Executor::kCpu,
                       const GemmPlanOptions& plan = {});
  Result<Moe> moe(const MoeShape& shape, Executor executor = Executor::kCpu,
                  const GemmPlanOptions& plan = {});
  Result<RingAttention> ring_attention(const AttentionShape& shape, Executor executor = Executor::kCpu,
                                       const GemmPlanOptions& plan = {});
  Result<Attention> attention(const AttentionShape& shape, Executor executor = Executor::kCpu,
                              const GemmPlanOptions& plan = {});
  Result<AttentionBackward> attention_backward(const AttentionShape& shape,
                                               Executor executor = Executor::kCpu,
                                               const GemmPlanOptions& plan = {});
  Result<RingAttentionBackward> ring_attention_backward(const AttentionShape& shape,
                                                        Executor executor = Executor::kCpu,
                                                        const GemmPlanOptions& plan = {});
  Result<GroupedGemm> grouped_gemm(const GroupedGemmShape& shape, Executor executor = Executor::kCpu,
                                   const GemmPlanOptions& plan = {});

 private:
  friend class Session;
  Result<Gemm> gemm(OpKind kind, const GemmShape& shape, Executor executor, const GemmPlanOptions& plan);
  explicit Group(std::shared_ptr<client::GroupCore> core);
  std::shared_ptr<client::GroupCore> core_;
};

/// The same bytes on every rank. Destroying it gives up the region at the group's next collective call, when
/// every rank is known to have come so far; destroy on every rank in the same order with collective calls.
/// Kernels that use it must be over before.
class MK_API SymmetricBuffer {
 public:
  SymmetricBuffer(SymmetricBuffer&&) noexcept;
  SymmetricBuffer& operator=(SymmetricBuffer&&) noexcept;
  ~SymmetricBuffer();

  std::byte* data() const;
  std::uint64_t bytes() const;
  std::uint32_t region() const;  ///< the same on every rank
  /// The buffer of `rank` as mapped here; null when it lives on another node or is not in the group.
  std::byte* peer(std::uint32_t rank) const;

 private:
  friend class Group;
  friend class DeviceEndpoint;
  explicit SymmetricBuffer(std::unique_ptr<client::BufferState> state);
  std::unique_ptr<client::BufferState> state_;
};

/// Registered memory of this rank alone. Destroying it waits for puts in flight on it, and unregisters it.
class MK_API HostBuffer {
 public:
  HostBuffer(HostBuffer&&) noexcept;
  HostBuffer& operator=(HostBuffer&&) noexcept;
  ~HostBuffer();

  std::byte* data() const;
  std::uint64_t bytes() const;
  std::uint32_t region() const;  ///< what peers pass to put() as remote_region

 private:
  friend class Group;
  explicit HostBuffer(std::unique_ptr<client::BufferState> state);
  std::unique_ptr<client::BufferState> state_;
};

/// See Group::keep_active().
class MK_API Activity {
 public:
  Activity(Activity&&) noexcept;
  Activity& operator=(Activity&&) noexcept;
  ~Activity();

 private:
  friend class Group;
  explicit Activity(std::shared_ptr<client::SessionCore> core);
  std::shared_ptr<client::SessionCore> core_;
};

/// What kernels of the session's GPU put, signal and wait with. Kernels that use it must be over before it is
/// destroyed, on every rank in the same order with collective calls.
class MK_API DeviceEndpoint {
 public:
  DeviceEndpoint(DeviceEndpoint&&) noexcept;
  DeviceEndpoint& operator=(DeviceEndpoint&&) noexcept;
  ~DeviceEndpoint();

  /// The argument of a kernel; valid as long as this lives.
  const device::Endpoint& view() const;
  /// The addresses of `buffer` (GPU memory of this group) on this node, for kernels; valid as long as both
  /// live. Errors: CUDA's.
  Result<device::Peers> peers(const SymmetricBuffer& buffer);
  /// Once the stream is done: OK, or why a launch gave up: who waited for what, or why the group or the
  /// session failed. Then the group is over for all ranks: their counts disagree.
  Status status();

 private:
  friend class Group;
  explicit DeviceEndpoint(std::unique_ptr<client::DeviceEndpointState> state);
  std::unique_ptr<client::DeviceEndpointState> state_;
};

}  // namespace mkernel
