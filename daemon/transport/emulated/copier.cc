#include "daemon/transport/emulated/copier.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace mkernel::transport::emulated {

bool Copier::supports(abi::RegionKind kind) const {
  return kind == abi::RegionKind::kHostMemory || (kind == abi::RegionKind::kVmm && moves_gpu_memory());
}

Result<ImportedRegion> Copier::import(abi::RegionKind kind, int fd, std::uint64_t offset,
                                      std::uint64_t bytes) {
  ImportedRegion region{.kind = kind, .bytes = bytes};
  if (kind == abi::RegionKind::kHostMemory) {
    MK_RETURN_IF_ERROR(ipc::check_shared_memory(fd, offset, bytes));
    auto mapping = ipc::Mapping::map(fd, offset, bytes);
    if (!mapping.ok()) return mapping.status();
    region.mapping = std::move(mapping).value();
    return region;
  }
  if (kind != abi::RegionKind::kVmm) {
    return Status(StatusCode::kInvalidArgument,
                  "its kind " + std::to_string(static_cast<std::uint32_t>(kind)) + " is unknown");
  }
  if (engines_ == nullptr) {
    region.unusable = {StatusCode::kFailedPrecondition,
                       "GPU memory, which this node's transport does not move (transport.gpu_memory)"};
  } else if (offset != 0) {
    region.unusable = {StatusCode::kInvalidArgument,
                       "GPU memory at offset " + std::to_string(offset) + " of its allocation, not 0"};
  } else if (auto engine = engines_->map(fd, bytes); engine.ok()) {
    region.engine = std::move(engine).value();
  } else {
    region.unusable = engine.status();
  }
  return region;
}

Result<Copier::Started> Copier::start(ImportedRegion& source, std::uint64_t source_offset,
                                      const Target& target, std::uint64_t length, std::uint64_t budget) {
  if (budget == 0) return Started{};
  if (source.kind == abi::RegionKind::kHostMemory && !target.region->on_gpu()) {
    const std::uint64_t piece = std::min(budget, length);
    std::memcpy(target.region->host(target.offset), source.mapping.data() + source_offset, piece);
    return Started{piece, {}};
  }
  MK_RETURN_IF_ERROR(source.unusable.with_context("source"));
  if (source.engine == nullptr) {
    auto pinned = engines_->pin(source.mapping.data(), source.bytes);
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
