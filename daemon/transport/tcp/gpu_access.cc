#include "daemon/transport/tcp/gpu_access.h"

#include <new>
#include <utility>

namespace mkernel::transport::tcp {
namespace {

constexpr std::align_val_t kPage{4096};  ///< pages are what is pinned

}  // namespace

StagingBlock::StagingBlock() : memory_(new (kPage) std::byte[kStagingBytes]) {}

void StagingBlock::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, kPage);
}

GpuAccess::~GpuAccess() {
  engines_.reset();  // before the blocks: it ends the last copies
}

Result<std::shared_ptr<memory::EngineMemory>> GpuAccess::reach(const memory::Region& region) {
  if (!available()) {
    return Status(StatusCode::kUnimplemented,
                  "transport tcp moves GPU memory only with transport.gpu_memory = true");
  }
  MK_RETURN_IF_ERROR(failure_);
  return regions_.reach(*engines_, region);
}

Result<StagingBlock*> GpuAccess::lend() {
  if (!spare_.empty()) {
    StagingBlock* block = spare_.back();
    spare_.pop_back();
    return block;
  }
  auto block = std::make_unique<StagingBlock>();
  auto pinned = engines_->pin(block->data(), kStagingBytes);
  if (!pinned.ok()) return pinned.status().with_context("staging memory");
  block->engine = std::move(pinned).value();
  blocks_.push_back(std::move(block));
  spare_.reserve(blocks_.size());
  return blocks_.back().get();
}

const Status& GpuAccess::poll() {
  if (engines_ != nullptr && failure_.ok()) failure_ = engines_->poll();
  return failure_;
}

}  // namespace mkernel::transport::tcp
