// An operation's end of its channels: puts, signals and the waits that belong to them; below it the writing
// side of a work ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cpu/sync/wait.h"
#include "proto/abi/status.h"
#include "proto/abi/work_request.h"

namespace mkernel::kernels {

/// Claims positions and writes slots. Any number of threads may push; their slots are consumed in the order
/// in which they claimed. Several producers over the same RingView see each other through its head.
///
/// Positions are claimed only when the ring has room for all of them (compare-and-swap rather than
/// fetch-and-add): a wait for room that fails leaves no hole behind on which the proxy would stall for ever.
class RingProducer {
 public:
  explicit RingProducer(const RingView& ring) : ring_(ring) {}

  std::uint64_t slots() const { return std::uint64_t{1} << ring_.log2_slots; }

  /// Claims the next `count` positions, at most slots(), all at once or none: the first is written to
  /// `position`. write() must follow for each. Blocks while the ring has less room; errors as of the bounded
  /// wait.
  Status claim(std::uint64_t count, std::uint64_t& position, const WaitSite& site, const WaitScope& scope);
  /// Writes the slot of a claimed position. What the request refers to must have been written by this thread,
  /// or acquired by it.
  void write(std::uint64_t position, const abi::WorkRequest& request);
  /// Both, of one slot.
  Status push(const abi::WorkRequest& request, const WaitSite& site, const WaitScope& scope);

 private:
  /// `count` when it has claimed them, else how many slots are free.
  std::uint64_t try_claim(std::uint64_t count, std::uint64_t& position);

  RingView ring_;
  std::atomic<std::uint64_t> cached_tail_{0};  ///< refreshed only when the ring looks full
};

/// A place in a registered region.
struct Place {
  std::uint32_t region = 0;  ///< index in the group's region map
  std::uint64_t offset = 0;  ///< bytes
};

/// The lanes [first_lane, first_lane + lanes) of every channel of a group, owned by one operation. Lanes are
/// named from 0 here. All counts are of this operation: they start at 0 when the endpoint is made and only
/// grow, over all launches.
///
/// The counts of the group's segment run on from whoever owned the lanes before, so an endpoint remembers
/// them when it is made. Every rank of the group must have made its endpoint before any rank puts:
/// Operation::bind() is followed by an exchange of the whole group, and only then by the first launch.
///
/// Thread-safe. Puts of one channel by several threads are ordered as they enter the ring.
class Endpoint {
 public:
  /// `group` must outlive the endpoint.
  Endpoint(const GroupView& group, std::uint32_t first_lane, std::uint32_t lanes);

  /// Puts `bytes` from `local` of this rank to `remote` of `target`; more than abi::kMaxPutBytes become
  /// several puts. The bytes must not change before wait_completed(). Blocks while the ring has no room for
  /// all of them: when that wait fails nothing is put, unless they are more than the ring has slots.
  Status put(std::uint32_t target, std::uint32_t lane, Place local, Place remote, std::uint64_t bytes,
             const char* role, const WaitScope& scope);

  /// A put without payload.
  Status signal(std::uint32_t target, std::uint32_t lane, const char* role, const WaitScope& scope);

  /// Puts of channel (source -> me, lane) that have arrived; acquire.
  std::uint64_t arrived(std::uint32_t source, std::uint32_t lane) const;

  /// Waits until the first `count` puts of channel (source -> me, lane) are visible here.
  Status wait_arrival(std::uint32_t source, std::uint32_t lane, std::uint64_t count, const char* role,
                      const WaitScope& scope) const;

  /// Puts given out so far on channel (me -> target, lane).
  std::uint64_t issued(std::uint32_t target, std::uint32_t lane) const;

  /// Waits until the sources of the first `count` puts of channel (me -> target, lane) may be overwritten.
  Status wait_completed(std::uint32_t target, std::uint32_t lane, std::uint64_t count, const char* role,
                        const WaitScope& scope) const;

  /// Waits until nothing of this endpoint is under way: every put given out so far is completed.
  Status wait_all_completed(const char* role, const WaitScope& scope) const;

  /// Payload bytes put so far.
  std::uint64_t bytes_put() const { return bytes_put_.load(std::memory_order_relaxed); }

 private:
  std::size_t index(std::uint32_t peer, std::uint32_t lane) const { return peer * lanes_ + lane; }

  const GroupView& group_;
  const std::uint32_t first_lane_;
  const std::uint32_t lanes_;
  const abi::RingShare ring_share_;
  std::vector<std::unique_ptr<RingProducer>> rings_;
  std::vector<std::uint64_t> arrival_base_;
  std::vector<std::uint64_t> completed_base_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> issued_;
  std::atomic<std::uint64_t> bytes_put_{0};
};

}  // namespace mkernel::kernels
