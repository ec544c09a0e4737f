// What a client may ask for about memory: register, unregister, map a neighbour's.
#include <utility>

#include "daemon/base/printable.h"
#include "daemon/memory/open_region.h"
#include "daemon/memory/reaped.h"
#include "daemon/session/session_send.h"

namespace mkernel::session {
namespace {

using abi::MessageType;

constexpr std::uint64_t kMaxRegionBytes = std::uint64_t{1} << 48;  ///< offsets of puts have so many bits

memory::RegionRules region_rules(const Services& services) {
  const config::Limits& limits = services.limits;
  memory::RegionRules rules;
  rules.max_bytes = limits.max_region_bytes != 0 ? limits.max_region_bytes : kMaxRegionBytes;
  rules.max_host_bytes = limits.max_region_bytes != 0 ? 0 : limits.region_limit();
  rules.gpu_major = services.gpu_major;
  return rules;
}

}  // namespace

Result<Session::RegionCharges> Session::charge_for_region(const abi::RegisterRegion& ask, std::size_t fds) {
  settle_in_flight();
  const bool host = static_cast<abi::RegionKind>(ask.kind) == abi::RegionKind::kHostMemory;
  auto held = services_.accounts.take(
      account_, {{Resource::kRegions, 1}, {host ? Resource::kPinnedBytes : Resource::kGpuBytes, ask.bytes}});
  if (!held.ok()) return held.status();
  // Host memory is mapped, and so is the first page of its memfd (ipc::WriteHold).
  auto open =
      services_.accounts.take(account_, {{Resource::kFds, fds}, {Resource::kMappings, host ? 2U : 0U}});
  if (!open.ok()) return open.status();
  auto keep = services_.accounts.take(account_, {{Resource::kMappings, ask.keep}});
  if (!keep.ok()) return keep.status();
  return RegionCharges{std::move(held).value(), std::move(open).value(), std::move(keep).value()};
}

/// Takes the fds of the request out of its packet.
memory::RegionRequest Session::region_request(const abi::RegisterRegion& ask,
                                              std::vector<ipc::UniqueFd>& fds) const {
  // Its own fd, where this kind has one, then its dma-buf: the decoder has counted them.
  const std::size_t own = ask.kind == static_cast<std::uint32_t>(abi::RegionKind::kIpc) ? 0 : 1;
  return {.kind = ask.kind,
          .owner = uid(),
          .session = id_,
          .shared = ask.shared == 1,
          .fd = own > 0 ? std::move(fds.front()) : ipc::UniqueFd(),
          .offset = ask.offset,
          .bytes = ask.bytes,
          .device = device_,
          .cuda_ipc = ask.ipc,
          .dma_buf = fds.size() > own ? std::move(fds[own]) : ipc::UniqueFd(),
          .dma_buf_offset = ask.dma_buf_offset,
          .no_dma_buf = base::one_line(ipc::text_of(ask.no_dma_buf))};
}

void Session::on(const abi::RegisterRegion& ask, ipc::Packet& packet) {
  const auto group = require_group(ask.group, ask.header);
  if (group == nullptr) return;
  const auto refuse = [&](const Status& why) {
    reply(MessageType::kRegisterRegionReply, ask.header.sequence, why.with_context("register_region"));
  };
  if (const Status wrong = group->check_new_region(ask.index); !wrong.ok()) return refuse(wrong);
  if (ask.shared > 1) {
    return refuse(
        {StatusCode::kInvalidArgument, "shared = " + std::to_string(ask.shared) + ", allowed are 0 and 1"});
  }
  if (ask.keep > 1) {
    return refuse(
        {StatusCode::kInvalidArgument, "keep = " + std::to_string(ask.keep) + ", allowed are 0 and 1"});
  }
  auto charges = charge_for_region(ask, packet.fds.size());
  if (!charges.ok()) return refuse(charges.status());
  spend(*group, 1);
  memory::RegionRequest request = region_request(ask, packet.fds);
  group->begin_region(ask.index);
  // Looking at every page takes time, and each look takes a lock that the client may hold: not on this
  // thread.
  auto job = [door = services_.door, weak = weak_from_this(), ask, charges = std::move(charges).value(),
              asked = std::make_shared<memory::RegionRequest>(std::move(request)),
              undertaker = services_.undertaker->workers(), holds = services_.holds,
              id = ++services_.last_region_id, owner = uid(), rules = region_rules(services_)]() mutable {
    auto opened = memory::open_region(std::move(*asked), id, rules, *holds);
    Result<std::shared_ptr<const memory::Region>> region(opened.status());
    if (opened.ok()) {
      (*opened)->charge = std::move(charges.open);
      region = memory::reaped(std::move(*opened), undertaker, owner);
    }
    auto answer = [door, weak, ask, held = std::move(charges.held), keep = std::move(charges.keep),
                   region = std::move(region)]() mutable {
      door->post([weak, ask, held = std::move(held), keep = std::move(keep), region = std::move(region)] {
        if (const auto self = weak.lock()) self->opened_region(ask, region, held, keep);
      });
    };
    if (opened.ok()) return answer();
    // Before the client hears of a refusal, what it was charged for must be free again, and its fds closed:
    // where that may take as long as the client likes.
    undertaker->post(owner, [asked = std::move(asked), open = std::move(charges.open),
                             answer = std::move(answer)]() mutable {
      *asked = {};
      open.reset();
      answer();
    });
  };
  services_.opener->post(uid(), std::move(job));
}

void Session::opened_region(const abi::RegisterRegion& ask,
                            const Result<std::shared_ptr<const memory::Region>>& region, Charge held,
                            Charge keep) {
  const auto group = find_group(ask.group);
  Status status = region.status();
  if (group == nullptr) {
    status = {StatusCode::kNotFound,
              "group handle " + std::to_string(ask.group) + " has been left meanwhile"};
  } else {
    const Status usable = group->end_region(ask.index);
    if (status.ok()) status = usable;
  }
  if (!status.ok() || ending_) {
    return reply(MessageType::kRegisterRegionReply, ask.header.sequence,
                 status.with_context("register_region"));
  }
  if (ask.keep == 1) kept_.emplace(region.value()->hold, std::move(keep));
  group->add_region(ask.index, region.value(), std::move(held),
                    replier(MessageType::kRegisterRegionReply, ask.header.sequence));
}

void Session::on(const abi::SealRegion& seal, ipc::Packet&) {
  const auto group = require_group(seal.group, seal.header);
  if (group == nullptr) return;
  const auto region = group->begin_seal(seal.index);
  if (!region.ok()) {
    return reply(MessageType::kSealRegionReply, seal.header.sequence,
                 region.status().with_context("seal_region"));
  }
  auto job = [door = services_.door, weak = weak_from_this(), seal, region = region.value()] {
    door->post([weak, seal, region, status = memory::seal_region(*region)] {
      const auto self = weak.lock();
      const auto joined = self == nullptr || self->ending_ ? nullptr : self->find_group(seal.group);
      if (joined == nullptr) return;  // left or gone: nothing waits for the answer
      joined->end_seal(seal.index, region, status.with_context("seal_region"),
                       self->replier(MessageType::kSealRegionReply, seal.header.sequence));
    });
  };
  services_.opener->post(uid(), std::move(job));
}

void Session::on(const abi::UnregisterRegion& unregister, ipc::Packet&) {
  const auto group = require_group(unregister.group, unregister.header);
  if (group == nullptr) return;
  spend(*group, 1);
  group->remove_region(unregister.index,
                       replier(MessageType::kUnregisterRegionReply, unregister.header.sequence));
}

Result<std::shared_ptr<const memory::Region>> Session::find_shared_region(const SessionGroup& group,
                                                                          const abi::MapRegion& map) const {
  const std::string what = "map_region " + std::to_string(map.index) + " of rank " + std::to_string(map.rank);
  const FormedMember* member = group.member(map.rank);
  if (member == nullptr) {
    return Status(StatusCode::kOutOfRange,
                  what + ": the group has " + std::to_string(group.request().world_size) + " ranks");
  }
  if (!member->port.local) {
    return Status(StatusCode::kPermissionDenied, what + ": that rank is on node " + member->node_name +
                                                     ", only regions of the own node " + services_.node_name +
                                                     " can be mapped");
  }
  const Session* owner = services_.find_session(member->port.local_key.session);
  const auto theirs = owner == nullptr ? nullptr : owner->find_group(member->port.local_key.handle);
  const auto region = theirs == nullptr ? nullptr : theirs->region(map.index);
  if (region == nullptr) return Status(StatusCode::kNotFound, what + ": nothing is registered there");
  if (!region->shared) {
    return Status(StatusCode::kPermissionDenied, what + ": its owner did not register it as shared");
  }
  if (owner->uid() != uid()) {
    return Status(StatusCode::kPermissionDenied, what + ": it belongs to user " +
                                                     std::to_string(owner->uid()) +
                                                     ", this session to user " + std::to_string(uid()));
  }
  return region;
}

void Session::on(const abi::MapRegion& map, ipc::Packet&) {
  const auto group = require_group(map.group, map.header);
  if (group == nullptr) return;
  const auto region = find_shared_region(*group, map);
  if (!region.ok()) return reply(MessageType::kMapRegionReply, map.header.sequence, region.status());
  const memory::Region& found = *region.value();
  const std::size_t fds = found.kind == abi::RegionKind::kIpc ? 0 : 1;  // a dma-buf is the daemon's alone
  abi::MapRegionReply answer{};
  answer.header = ipc::header_of<abi::MapRegionReply>(MessageType::kMapRegionReply, map.header.sequence);
  answer.kind = static_cast<std::uint32_t>(found.kind);
  answer.offset = found.offset;
  answer.bytes = found.bytes;
  answer.ipc = found.cuda_ipc;
  const int fd = found.fd.get();
  const Status sent = send_with_fds(answer, {&fd, fds});
  if (!sent.ok()) reply(MessageType::kMapRegionReply, map.header.sequence, sent.with_context("map_region"));
}

}  // namespace mkernel::session
