// The C ABI of sessions, groups, memory, puts and waits.
#include "client/src/c_abi.h"

#include <algorithm>
#include <cstring>

#include "proto/abi/version.h"

namespace mkernel::c_abi {

/// No version of a struct will be larger: a size above it is whatever was there, and must not be read.
constexpr std::size_t kMostStructBytes = 4096;

Status read_struct(const char* name, const void* given, std::size_t given_bytes, void* ours,
                   std::size_t known, std::size_t least) {
  const auto refuse = [&](StatusCode code, const std::string& why) {
    return Status(code, std::string(name) + ".struct_size = " + std::to_string(given_bytes) + why);
  };
  if (given_bytes < least) {
    return refuse(StatusCode::kInvalidArgument,
                  ", must be at least " + std::to_string(least) + ": sizeof(" + name + ")");
  }
  if (given_bytes > kMostStructBytes) {
    return refuse(StatusCode::kInvalidArgument,
                  ", must be at most " + std::to_string(kMostStructBytes) + ": it was not set");
  }
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (std::size_t i = known; i < given_bytes; ++i) {
    if (bytes[i] == 0) continue;
    return refuse(StatusCode::kUnimplemented, std::string(", of which this libmkernel ") + version() +
                                                  " knows " + std::to_string(known) +
                                                  ", and those beyond are not 0");
  }
  std::memcpy(ours, given, std::min(known, given_bytes));
  return {};
}

}  // namespace mkernel::c_abi

using namespace mkernel;         // NOLINT: this file is the C face of that namespace
using namespace mkernel::c_abi;  // NOLINT

namespace {

Status give_number(const Result<std::uint64_t>& result, std::uint64_t* number) {
  if (result.ok() && number != nullptr) *number = result.value();
  return result.status();
}

}  // namespace

extern "C" {

const char* mk_version(void) {
  return version();
}
uint32_t mk_protocol_version(void) {
  return abi::kVersion;
}
const char* mk_status_name(mk_status status) {
  return to_string(static_cast<StatusCode>(status)).data();
}
const char* mk_last_error(void) {
  return last_error().c_str();
}

mk_status mk_connect(const mk_session_options* options, mk_session** session) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_connect", options, session));
    const auto given = read("mk_session_options", options);
    if (!given.ok()) return given.status();
    SessionOptions converted;
    if (given->socket != nullptr) converted.socket = given->socket;
    if (given->name != nullptr) converted.name = given->name;
    converted.device = given->device;
    if (given->weight != 0) converted.weight = given->weight;
    if (given->timeout_ms != 0) converted.timeout = std::chrono::milliseconds(given->timeout_ms);
    return give(Session::connect(converted), session);
  });
}
void mk_session_destroy(mk_session* session) {
  delete unwrap<Session>(session);
}

mk_status mk_session_count_fallback(mk_session* session) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_session_count_fallback", session));
    return unwrap<Session>(session)->count_fallback();
  });
}

mk_status mk_join(mk_session* session, const mk_group_options* options, mk_group** group) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_join", session, options, group));
    const auto given = read("mk_group_options", options);
    if (!given.ok()) return given.status();
    GroupOptions converted;
    if (given->name != nullptr) converted.name = given->name;
    converted.world_size = given->world_size;
    converted.rank = given->rank;
    if (given->lanes != 0) converted.lanes = given->lanes;
    if (given->region_capacity != 0) converted.region_capacity = given->region_capacity;
    if (given->timeout_ms != 0) converted.timeout = std::chrono::milliseconds(given->timeout_ms);
    if (given->secret != nullptr)
      std::memcpy(converted.secret.data(), given->secret, converted.secret.size());
    return give(unwrap<Session>(session)->join(converted), group);
  });
}
void mk_group_destroy(mk_group* group) {
  delete unwrap<Group>(group);
}

uint32_t mk_group_rank(const mk_group* group) {
  return get<Group>("mk_group_rank", group, [](const Group& g) { return g.rank(); });
}
uint32_t mk_group_world_size(const mk_group* group) {
  return get<Group>("mk_group_world_size", group, [](const Group& g) { return g.world_size(); });
}
uint32_t mk_group_node_count(const mk_group* group) {
  return get<Group>("mk_group_node_count", group, [](const Group& g) { return g.node_count(); });
}
mk_status mk_group_rank_info(const mk_group* group, uint32_t rank, mk_rank_info* info) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_group_rank_info", group, info));
    const std::uint32_t world = unwrap<Group>(group).world_size();
    if (rank >= world) {
      return {StatusCode::kOutOfRange, "mk_group_rank_info: rank " + std::to_string(rank) +
                                           " of a group of " + std::to_string(world) + " ranks"};
    }
    const auto asked = read("mk_rank_info", info);
    if (!asked.ok()) return asked.status();
    const RankInfo found = unwrap<Group>(group).rank_info(rank);
    mk_rank_info filled{info->struct_size, found.node, found.local_rank, {}};
    found.node_name.copy(filled.node_name, sizeof(filled.node_name) - 1);
    *info = filled;
    return {};
  });
}
mk_status mk_group_status(const mk_group* group) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_group_status", group));
    return unwrap<Group>(group).status();
  });
}
mk_status mk_group_fail(mk_group* group, mk_status code, const char* text) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_group_fail", group, text));
    return unwrap<Group>(group)->fail({static_cast<StatusCode>(code), text});
  });
}
mk_status mk_group_reject_launch(mk_group* group, mk_status code, const char* text) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_group_reject_launch", group, text));
    return unwrap<Group>(group)->reject_launch({static_cast<StatusCode>(code), text});
  });
}
mk_status mk_group_leave(mk_group* group) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_group_leave", group));
    return unwrap<Group>(group)->leave();
  });
}
mk_status mk_barrier(mk_group* group) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_barrier", group));
    return unwrap<Group>(group)->barrier();
  });
}

mk_status mk_exchange(mk_group* group, const void* mine, size_t bytes, void* all) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_exchange", group, mine, all));
    const auto board = unwrap<Group>(group)->exchange({static_cast<const std::byte*>(mine), bytes});
    if (!board.ok()) return board.status();
    for (std::size_t rank = 0; rank < board->size(); ++rank) {
      const std::vector<std::byte>& said = board.value()[rank];
      if (said.size() == bytes) continue;
      return {StatusCode::kInvalidArgument, "rank " + std::to_string(rank) + " contributed " +
                                                std::to_string(said.size()) + " bytes, this rank " +
                                                std::to_string(bytes)};
    }
    for (std::size_t rank = 0; rank < board->size() && bytes > 0; ++rank) {
      std::memcpy(static_cast<std::byte*>(all) + rank * bytes, board.value()[rank].data(), bytes);
    }
    return {};
  });
}

mk_status mk_symmetric_create(mk_group* group, uint64_t bytes, mk_symmetric** buffer) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_symmetric_create", group, buffer));
    return give(unwrap<Group>(group)->symmetric(bytes), buffer);
  });
}
mk_status mk_symmetric_gpu_create(mk_group* group, uint64_t bytes, mk_symmetric** buffer) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_symmetric_gpu_create", group, buffer));
    return give(unwrap<Group>(group)->symmetric_gpu(bytes), buffer);
  });
}
mk_status mk_symmetric_gpu_register(mk_group* group, void* data, uint64_t bytes, mk_symmetric** buffer) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_symmetric_gpu_register", group, buffer));
    return give(unwrap<Group>(group)->register_gpu(data, bytes), buffer);
  });
}
void* mk_symmetric_data(const mk_symmetric* buffer) {
  return get<SymmetricBuffer>("mk_symmetric_data", buffer,
                              [](const SymmetricBuffer& b) -> void* { return b.data(); });
}
uint32_t mk_symmetric_region(const mk_symmetric* buffer) {
  return get<SymmetricBuffer>("mk_symmetric_region", buffer,
                              [](const SymmetricBuffer& b) { return b.region(); });
}
void* mk_symmetric_peer(const mk_symmetric* buffer, uint32_t rank) {
  return get<SymmetricBuffer>("mk_symmetric_peer", buffer,
                              [rank](const SymmetricBuffer& b) -> void* { return b.peer(rank); });
}
void mk_symmetric_destroy(mk_symmetric* buffer) {
  delete unwrap<SymmetricBuffer>(buffer);
}

mk_status mk_host_buffer_create(mk_group* group, uint64_t bytes, mk_host_buffer** buffer) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_host_buffer_create", group, buffer));
    return give(unwrap<Group>(group)->allocate(bytes), buffer);
  });
}
mk_status mk_host_buffer_register(mk_group* group, int memfd, uint64_t offset, uint64_t bytes,
                                  mk_host_buffer** buffer) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_host_buffer_register", group, buffer));
    return give(unwrap<Group>(group)->register_memory(memfd, offset, bytes), buffer);
  });
}
void* mk_host_buffer_data(const mk_host_buffer* buffer) {
  return get<HostBuffer>("mk_host_buffer_data", buffer,
                         [](const HostBuffer& b) -> void* { return b.data(); });
}
uint32_t mk_host_buffer_region(const mk_host_buffer* buffer) {
  return get<HostBuffer>("mk_host_buffer_region", buffer, [](const HostBuffer& b) { return b.region(); });
}
void mk_host_buffer_destroy(mk_host_buffer* buffer) {
  delete unwrap<HostBuffer>(buffer);
}

mk_status mk_reserve_lanes(mk_group* group, uint32_t count, uint32_t* first_lane) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_reserve_lanes", group, first_lane));
    const auto first = unwrap<Group>(group)->reserve_lanes(count);
    if (first.ok()) *first_lane = first.value();
    return first.status();
  });
}
mk_status mk_put(mk_group* group, uint32_t target, uint32_t lane, const mk_symmetric* source, uint64_t offset,
                 uint32_t remote_region, uint64_t remote_offset, uint64_t bytes, uint32_t timeout_ms,
                 uint64_t* number) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_put", group, source));
    return give_number(
        unwrap<Group>(group)->put(target, lane, unwrap<SymmetricBuffer>(source), offset, remote_region,
                                  remote_offset, bytes, std::chrono::milliseconds(timeout_ms)),
        number);
  });
}
mk_status mk_put_host(mk_group* group, uint32_t target, uint32_t lane, const mk_host_buffer* source,
                      uint64_t offset, uint32_t remote_region, uint64_t remote_offset, uint64_t bytes,
                      uint32_t timeout_ms, uint64_t* number) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_put_host", group, source));
    return give_number(
        unwrap<Group>(group)->put(target, lane, unwrap<HostBuffer>(source), offset, remote_region,
                                  remote_offset, bytes, std::chrono::milliseconds(timeout_ms)),
        number);
  });
}
mk_status mk_signal(mk_group* group, uint32_t target, uint32_t lane, uint32_t timeout_ms, uint64_t* number) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_signal", group));
    return give_number(unwrap<Group>(group)->signal(target, lane, std::chrono::milliseconds(timeout_ms)),
                       number);
  });
}
mk_status mk_puts(const mk_group* group, uint32_t target, uint32_t lane, uint64_t* count) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_puts", group, count));
    *count = unwrap<Group>(group).puts(target, lane);
    return {};
  });
}
mk_status mk_wait_arrival(mk_group* group, uint32_t source, uint32_t lane, uint64_t count,
                          uint32_t deadline_ms) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_wait_arrival", group));
    return unwrap<Group>(group)->wait_arrival(source, lane, count, std::chrono::milliseconds(deadline_ms));
  });
}
mk_status mk_wait_completed(mk_group* group, uint32_t target, uint32_t lane, uint64_t count,
                            uint32_t deadline_ms) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_wait_completed", group));
    return unwrap<Group>(group)->wait_completed(target, lane, count, std::chrono::milliseconds(deadline_ms));
  });
}
mk_status mk_arrivals(const mk_group* group, uint32_t source, uint32_t lane, uint64_t* count) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_arrivals", group, count));
    *count = unwrap<Group>(group).arrivals(source, lane);
    return {};
  });
}

mk_status mk_activity_create(mk_group* group, mk_activity** activity) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_activity_create", group, activity));
    return give(Result<Activity>(unwrap<Group>(group)->keep_active()), activity);
  });
}
void mk_activity_destroy(mk_activity* activity) {
  delete unwrap<Activity>(activity);
}

}  // extern "C"
