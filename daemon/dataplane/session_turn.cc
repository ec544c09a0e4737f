#include "daemon/dataplane/session_turn.h"

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/memory/touching.h"

namespace mkernel::dataplane {
namespace {

void show(std::atomic<std::uint64_t>& gauge, std::uint64_t value) {
  if (gauge.load(std::memory_order_relaxed) != value) gauge.store(value, std::memory_order_relaxed);
}

}  // namespace

void RingServer::look_at_depth(Session& session) {
  const memory::Touching touching(session.port->id);
  show(session.counters->ring_depth, session.depth());
}

Turn RingServer::serve(Session& session) {
  constexpr std::uint32_t kDepthEvery = 64;  // looking is a dozen cache misses
  const memory::Touching touching(session.port->id);
  for (;;) {
    if (!flush(session)) return Turn::kRefused;
    copy_locally(session);
    if (session.copy.running()) return Turn::kUsedUp;
    if (!session.reading) return Turn::kIdle;
    if (!session.allowance.left()) {
      if (++used_up_turns_ % kDepthEvery == 0) look_at_depth(session);
      if (session.has_slots()) return Turn::kUsedUp;
      show(session.counters->ring_depth, 0);
      return Turn::kIdle;
    }
    if (take_batch(session) == 0) {
      show(session.counters->ring_depth, 0);
      return Turn::kIdle;
    }
    const auto in_doubt = [](const SessionRing& ring) { return ring.in_doubt; };
    if (std::any_of(session.rings.begin(), session.rings.end(), in_doubt))
      return flush(session) ? Turn::kUsedUp : Turn::kRefused;
  }
}

// A ring that is never empty must not keep the other one waiting: they begin in turns.
std::uint32_t RingServer::take_batch(Session& session) {
  batch_bytes_ = 0;
  const std::uint32_t begin = session.turns++;
  std::uint32_t taken = 0;
  for (std::uint32_t r = 0; r < abi::kRingWriters; ++r)
    taken += take_slots(session, session.rings[(begin + r) % abi::kRingWriters], kBatch - taken);
  if (taken == 0) return 0;
  session.wrote = true;
  progress_ += taken;
  bump(session.counters->requests_total, taken);
  bump(session.counters->bytes_total, batch_bytes_);
  return taken;
}

// This and accept() run for every put and have no array that could be overrun: a canary for each of them cost
// 7 % of all requests.
[[gnu::no_stack_protector]] std::uint32_t RingServer::take_slots(Session& session, SessionRing& ring,
                                                                 std::uint32_t most) {
  std::uint32_t taken = 0;
  abi::WorkSlot slot;
  while (taken < most && session.count < session.puts.size() && session.allowance.left() &&
         !session.copy.running() && ring.reader.next(slot)) {
    if (!accept(session, ring, slot)) break;
    ++taken;
  }
  if (taken > 0) ring.reader.publish();
  return taken;
}

[[gnu::no_stack_protector]] bool RingServer::accept(Session& session, SessionRing& ring,
                                                    const abi::WorkSlot& slot) {
  const abi::WorkRequest request = abi::decode(slot);
  const SlotFault fault = check_slot(slot, request, session.channels);
  if (fault != SlotFault::kNone) {
    ring.reader.unread();
    ++progress_;  // no sleep before it is looked at again
    if (ring.in_doubt) refuse(session, ring, slot, request, fault);
    ring.in_doubt = !ring.in_doubt;
    return false;
  }
  ring.in_doubt = false;
  Outbound& channel = *session.channels[request.channel];
  Group& group = *channel.group;
  if (group.failed) {  // its clients read the abort word; what they still write goes nowhere
    session.allowance.charge(0);
    bump(channel.counters->errors_total, 1);
    return true;
  }
  ++channel.submitted;
  ++group.in_flight;
  batch_bytes_ += request.length;
  bump(channel.counters->requests_total, 1);
  bump(channel.counters->bytes_total, request.length);
  if (channel.local) {
    session.allowance.charge(0);  // its bytes are charged piece by piece
    session.copy = {.channel = &channel,
                    .source_offset = request.local_offset,
                    .target_offset = request.remote_offset,
                    .length = request.length,
                    .source_region = request.local_region,
                    .target_region = request.remote_region};
    copy_locally(session);
    return true;
  }
  session.allowance.charge(request.length);
  const bool signal = request.length == 0;
  session.puts[session.count++] = {channel.id,
                                   channel.submitted,
                                   signal ? nullptr : group.regions[request.local_region].get(),
                                   signal ? 0 : request.local_offset,
                                   signal ? 0 : request.remote_offset,
                                   request.length,
                                   signal ? std::uint16_t{0} : request.remote_region};
  return true;
}

void RingServer::copy_locally(Session& session) {
  // The first piece goes even without an allowance left: its request has been charged.
  while (session.copy.running()) {
    if (session.copy.copied > 0 && session.allowance.bytes <= 0) return;
    session.allowance.bytes -= static_cast<std::int64_t>(local_.advance(session.copy));
    ++progress_;
  }
}

// After a flush that returns true the whole array is free: take_batch() fills it from the front.
bool RingServer::flush(Session& session) {
  if (session.first != session.count) {
    const std::size_t taken =
        transport_.submit(std::span(session.puts).subspan(session.first, session.count - session.first));
    session.first += static_cast<std::uint32_t>(taken);
    progress_ += taken;
    if (session.first != session.count) {
      note_stall(session);
      return false;
    }
  }
  session.first = session.count = 0;
  if (session.stalled) note_stall_end(session);
  return true;
}

void RingServer::note_stall(Session& session) {
  if (session.stalled) return;
  session.stalled = true;
  session.stalled_since = base::Clock::now();
  bump(session.counters->stalls_total, 1);
}

void RingServer::note_stall_end(Session& session) {
  const auto waited = base::Clock::now() - session.stalled_since;
  bump(session.counters->stall_nanoseconds_total,
       static_cast<std::uint64_t>(std::chrono::nanoseconds(waited).count()));
  session.stalled = false;
}

void RingServer::refuse(Session& session, const SessionRing& ring, const abi::WorkSlot& slot,
                        const abi::WorkRequest& request, SlotFault fault) {
  session.reading = false;
  bump(session.counters->errors_total, 1);
  const SlotOrigin origin{session.port->id, session.port->name, ring_, ring.reader.position(), ring.writer};
  sink_.session_failed(session.port->id, explain(fault, origin, slot, request, session.channels));
}

}  // namespace mkernel::dataplane
