#include "client/src/group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "client/src/failure.h"
#include "client/src/guard.h"
#include "proto/base/printable.h"

namespace mkernel::client {
namespace {

Status out_of_range(const std::string& field, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  return {StatusCode::kInvalidArgument, "group option " + field + " = " + std::to_string(value) + " is not " +
                                            std::to_string(low) + ".." + std::to_string(high)};
}

Status check_options(const GroupOptions& options, std::uint32_t max_lanes) {
  // First, as every later error shows the name.
  if (const auto odd = base::first_unprintable(options.name)) {
    return {StatusCode::kInvalidArgument,
            "group name holds byte " + std::to_string(static_cast<unsigned char>(options.name[*odd])) +
                " at position " + std::to_string(*odd) + ", allowed is printable ASCII"};
  }
  if (options.name.empty() || options.name.size() >= abi::kNameBytes) {
    return {StatusCode::kInvalidArgument,
            "group name '" + options.name + "' has " + std::to_string(options.name.size()) +
                " bytes, allowed are 1 to " + std::to_string(abi::kNameBytes - 1)};
  }
  if (options.world_size < 1 || options.world_size > abi::kMaxWorldSize) {
    return out_of_range("world_size", options.world_size, 1, abi::kMaxWorldSize);
  }
  if (options.rank >= options.world_size)
    return out_of_range("rank", options.rank, 0, options.world_size - 1);
  if (options.lanes < 1 || options.lanes > max_lanes)
    return out_of_range("lanes", options.lanes, 1, max_lanes);
  if (options.region_capacity < 1 || options.region_capacity > abi::kMaxRegions) {
    return out_of_range("region_capacity", options.region_capacity, 1, abi::kMaxRegions);
  }
  if (options.timeout.count() <= 0 || options.timeout > std::chrono::hours(24)) {
    return out_of_range("timeout in ms", static_cast<std::uint64_t>(options.timeout.count()), 1, 86400000);
  }
  return {};
}

std::uint32_t milliseconds(std::chrono::milliseconds time) {
  return static_cast<std::uint32_t>(time.count());
}

}  // namespace

GroupCore::GroupCore(std::shared_ptr<SessionCore> session, const GroupOptions& options)
    : session_(std::move(session)),
      options_(options),
      regions_(options.region_capacity),
      lanes_(options.lanes),
      reserved_(options.lanes) {}

Result<std::shared_ptr<GroupCore>> GroupCore::join(std::shared_ptr<SessionCore> session,
                                                   const GroupOptions& options) {
  MK_RETURN_IF_ERROR(check_options(options, std::min(session->max_lanes(), abi::kMaxLanes)));
  std::shared_ptr<GroupCore> core = shared_at_home(new GroupCore(std::move(session), options));
  MK_RETURN_IF_ERROR(core->enter());
  return core;
}

Status GroupCore::enter() {
  abi::JoinGroup message{};
  ipc::copy_text(message.name, options_.name);
  message.world_size = options_.world_size;
  message.rank = options_.rank;
  message.lanes = options_.lanes;
  message.region_capacity = options_.region_capacity;
  message.timeout_ms = milliseconds(options_.timeout);
  static_assert(sizeof(message.secret) == kSecretBytes && kSecretBytes == abi::kSecretBytes);
  std::memcpy(message.secret, options_.secret.data(), options_.secret.size());
  abi::JoinGroupReply reply;
  std::vector<ipc::UniqueFd> fds;
  MK_RETURN_IF_ERROR(
      session_->connection()
          .request(abi::MessageType::kJoinGroup, message, reply, collective_deadline(), {}, &fds)
          .with_context("join of group '" + options_.name + "' as rank " + std::to_string(options_.rank)));
  handle_ = reply.group;
  joined_ = true;
  return adopt_segment(reply, std::move(fds)).with_context("segment of group '" + options_.name + "'");
}

Status GroupCore::adopt_segment(const abi::JoinGroupReply& reply, std::vector<ipc::UniqueFd> fds) {
  abi::GroupSegment wanted{};
  abi::layout_group(wanted, options_.world_size, options_.rank, options_.lanes, options_.region_capacity);
  if (fds.size() != 1 || reply.segment_bytes < wanted.bytes) {
    return {StatusCode::kInternal, std::to_string(fds.size()) + " fds and " +
                                       std::to_string(reply.segment_bytes) + " bytes received, 1 and " +
                                       std::to_string(wanted.bytes) + " expected"};
  }
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(fds[0].get(), 0, reply.segment_bytes));
  auto mapping = ipc::Mapping::map(fds[0].get(), 0, reply.segment_bytes);
  if (!mapping.ok()) return mapping.status();
  segment_ = std::move(*mapping);
  auto* segment = segment_.at<abi::GroupSegment>(0);
  if (segment->magic != wanted.magic || segment->version != wanted.version ||
      segment->world_size != wanted.world_size || segment->rank != wanted.rank ||
      segment->lanes != wanted.lanes || segment->region_capacity != wanted.region_capacity ||
      segment->arrivals_offset != wanted.arrivals_offset ||
      segment->completed_offset != wanted.completed_offset ||
      segment->members_offset != wanted.members_offset || segment->regions_offset != wanted.regions_offset ||
      segment->board_offset != wanted.board_offset || segment->states_offset != wanted.states_offset) {
    return {StatusCode::kInternal, "its layout is not that of version " + std::to_string(abi::kVersion)};
  }
  if (std::uint64_t{segment->rails} >> session_->segment()->ring_count != 0) {
    return {StatusCode::kInternal, "it names rings that the session does not have"};
  }
  view_.session = session_->segment();
  view_.segment = segment;
  view_.rings = session_->rings();
  ring_share_ = view_.ring_share();
  for (std::uint32_t rank = 0; rank < options_.world_size; ++rank) {
    nodes_.emplace_back(ipc::text_of(view_.member(rank).node_name));
  }
  whereabouts_.attach(view_);
  session_->watch(segment);
  return {};
}

GroupCore::~GroupCore() {
  if (view_.segment != nullptr) session_->unwatch(view_.segment);
  // A leave that fails is the end of the session, and its watcher says so.
  (void)without_exceptions([&] { return leave_now(); });
}

std::string GroupCore::node_of(std::uint32_t rank) const {
  return nodes_[rank];
}

Deadline GroupCore::collective_deadline() const {
  // The daemon's own time-out comes first: it can name the ranks that are missing.
  return session_->request_deadline() + options_.timeout;
}

Status GroupCore::status() const {
  const Status group = read_failure(*view_.segment);
  if (!group.ok()) return group.with_context("group '" + options_.name + "'");
  return read_failure(view_.session->failure, view_.session->abort).with_context("session");
}

Status GroupCore::failure() const {
  const Status group = read_failure(view_.segment->failure, view_.segment->abort);
  return group.ok() ? read_failure(view_.session->failure, view_.session->abort) : group;
}

Status GroupCore::with_whereabouts(const Status& why) const {
  constexpr std::chrono::seconds kPatience{2};  // the other daemons tell theirs at once
  const bool alone = !session_->status().ok();
  const std::string text = whereabouts_.describe(alone ? Clock::now() : Clock::now() + kPatience);
  return text.empty() ? why : Status(why.code(), why.text() + "; " + text);
}

Status GroupCore::fail(const Status& why) {
  if (why.ok()) return {StatusCode::kInvalidArgument, "a group does not fail with OK"};
  abi::FailGroup message{};
  message.group = handle_;
  message.code = static_cast<std::uint32_t>(why.code());
  ipc::copy_text(message.text, why.text());
  abi::PlainReply reply;
  return session_->connection().request(abi::MessageType::kFailGroup, message, reply,
                                        session_->request_deadline());
}

Status GroupCore::reject_launch(const Status& why) {
  if (why.ok()) return {StatusCode::kInvalidArgument, "a launch is not rejected with OK"};
  MK_RETURN_IF_ERROR(status());
  abi::RejectLaunch message{};
  message.group = handle_;
  message.code = static_cast<std::uint32_t>(why.code());
  message.launch = whereabouts_.reject_launch(why.text());
  ipc::copy_text(message.text, why.text());
  abi::PlainReply reply;
  return session_->connection().request(abi::MessageType::kRejectLaunch, message, reply,
                                        session_->request_deadline());
}

Status GroupCore::leave() {
  if (!worker_.idle() || !whereabouts_.idle()) {
    return {StatusCode::kFailedPrecondition,
            "group '" + options_.name + "': a launch or a collective call may be under way"};
  }
  return leave_now();
}

Status GroupCore::leave_now() {
  if (!joined_.exchange(false) || !session_->status().ok()) return {};
  abi::LeaveGroup message{};
  message.group = handle_;
  abi::PlainReply reply;
  return session_->connection().request(abi::MessageType::kLeaveGroup, message, reply,
                                        session_->request_deadline());
}

Result<std::vector<Ballot>> GroupCore::vote(const Ballot& mine) {
  const MutexLock lock(collective_mutex_);
  MK_RETURN_IF_ERROR(status());
  std::vector<Retired> retired;
  {
    const MutexLock pools(pools_mutex_);
    retired.swap(retired_);
  }
  abi::Exchange message{};
  message.group = handle_;
  message.timeout_ms = milliseconds(options_.timeout);
  message.round = ++round_;
  std::memcpy(message.payload, &mine, sizeof(mine));
  abi::PlainReply reply;
  whereabouts_.begin_call(call_of(mine));
  const Status exchanged =
      session_->connection().request(abi::MessageType::kExchange, message, reply, collective_deadline());
  if (!exchanged.ok()) {
    const Status cause = status();
    if (!cause.ok()) return with_whereabouts(cause);
    const Status why = exchanged.with_context("collective call " + std::to_string(message.round));
    (void)fail(why);
    return with_whereabouts(why.with_context("group '" + options_.name + "'"));
  }
  whereabouts_.end_call();
  std::vector<Ballot> ballots(options_.world_size);
  std::memcpy(ballots.data(), view_.at<std::byte>(view_.segment->board_offset),
              ballots.size() * sizeof(Ballot));
  reclaim(retired);
  const Status said = verdict(ballots, nodes_);
  if (!said.ok()) return said.with_context("group '" + options_.name + "'");
  return ballots;
}

Status GroupCore::agree(const std::string& text, const Status& mine) {
  return vote(agreement_ballot(text, mine)).status();
}

Status GroupCore::await_regions(std::uint32_t index, std::uint64_t bytes) const {
  const auto* map = view_.at<abi::RegionEntry>(view_.segment->regions_offset);
  const Deadline deadline = session_->request_deadline();
  for (std::uint32_t rank = 0; rank < options_.world_size; ++rank) {
    auto& entry = const_cast<std::uint64_t&>(map[rank * options_.region_capacity + index].bytes);
    // The daemons tell each other beside the exchange; shared memory has no event, so look again soon.
    while (std::atomic_ref(entry).load(std::memory_order_acquire) != bytes) {
      MK_RETURN_IF_ERROR(status());
      if (Clock::now() >= deadline) {
        return {StatusCode::kDeadlineExceeded, "region " + std::to_string(index) + " of rank " +
                                                   std::to_string(rank) + " on node " + nodes_[rank] +
                                                   " was not announced in time"};
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  return {};
}

}  // namespace mkernel::client
