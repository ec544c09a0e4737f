#include "daemon/transport/emulated/copier.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "daemon/memory/touching.h"

namespace mkernel::transport::emulated {

bool Copier::supports(abi::RegionKind kind) const {
  switch (kind) {
    case abi::RegionKind::kHostMemory: return true;
    case abi::RegionKind::kIpc:
    case abi::RegionKind::kVmm: return moves_gpu_memory();
    case abi::RegionKind::kNone: break;
  }
  return false;
}

Result<std::shared_ptr<ImportedRegion>> Copier::import(const Announced& announced) {
  ImportedRegion region{.kind = announced.kind, .bytes = announced.bytes};
  switch (announced.kind) {
    case abi::RegionKind::kHostMemory: {
      MK_RETURN_IF_ERROR(ipc::check_shared_memory(announced.fd, announced.offset, announced.bytes));
      // Its own daemon has sealed it: nobody maps it for writing any more.
      auto mapping = ipc::Mapping::map_read_only(announced.fd, announced.offset, announced.bytes);
      if (!mapping.ok()) return mapping.status();
      region.mapping = std::move(mapping).value();
      return unmapped_elsewhere(std::move(region));
    }
    case abi::RegionKind::kIpc:
    case abi::RegionKind::kVmm: {
      auto engine = reach(announced);
      region.unusable = engine.status();
      if (engine.ok()) region.engine = std::move(engine).value();
      return std::make_shared<ImportedRegion>(std::move(region));
    }
    default:
      return Status(StatusCode::kInvalidArgument,
                    "its kind " + std::to_string(static_cast<std::uint32_t>(announced.kind)) + " is unknown");
  }
}

std::shared_ptr<ImportedRegion> Copier::unmapped_elsewhere(ImportedRegion region) const {
  return {new ImportedRegion(std::move(region)), [unmapper = unmapper_](ImportedRegion* gone) {
            gone->engine.reset();  // on this thread, as everything of the engines
            unmapper->post(0, [rest = std::shared_ptr<ImportedRegion>(gone)] {});
          }};
}

Result<std::shared_ptr<memory::EngineMemory>> Copier::reach(const Announced& announced) {
  if (engines_ == nullptr) {
    return Status(StatusCode::kFailedPrecondition,
                  "GPU memory, which this node's transport does not move (transport.gpu_memory)");
  }
  if (announced.kind == abi::RegionKind::kIpc) {
    return engines_->open(announced.cuda_ipc, announced.offset, announced.bytes);
  }
  if (announced.offset == 0) return engines_->map(announced.fd, announced.bytes);
  return Status(StatusCode::kInvalidArgument,
                "GPU memory at offset " + std::to_string(announced.offset) + " of its allocation, not 0");
}

Result<Copier::Started> Copier::start(ImportedRegion& source, std::uint64_t source_offset,
                                      const Target& target, std::uint64_t length, std::uint64_t budget) {
  if (budget == 0) return Started{};
  if (source.kind == abi::RegionKind::kHostMemory && !target.region->on_gpu()) {
    const std::uint64_t piece = std::min(budget, length);
    // The source belongs to a session of the peer's daemon, which this one cannot end; both are of one group.
    const memory::Touching touching(target.region->session);
    std::memcpy(target.region->host(target.offset), source.mapping.data() + source_offset, piece);
    return Started{piece, {}};
  }
  MK_RETURN_IF_ERROR(source.unusable.with_context("source"));
  if (source.engine == nullptr) {
    auto pinned = engines_->pin(source.mapping.data(), source.bytes, memory::Access::kRead);
    if (!pinned.ok()) return pinned.status().with_context("source");
    source.engine = std::move(pinned).value();
  }
  auto at = targets_.reach(*engines_, *target.region);
  if (!at.ok()) return at.status().with_context("target");
  auto ticket = engines_->start(source.engine, source_offset, at.value(), target.offset, length);
  if (!ticket.ok()) return ticket.status();
  return Started{length, ticket.value()};
}

}  // namespace mkernel::transport::emulated
