#include "daemon/memory/gpu/queue.cuh"

#include <utility>

namespace mkernel::memory::gpu {
namespace {

/// The engines have one batch to work on and one to go on with; what comes meanwhile becomes the next.
constexpr std::size_t kBatchesInFlight = 2;

}  // namespace

Result<std::unique_ptr<Queue>> Queue::open(std::shared_ptr<const Device> runs_on) {
  auto queue = std::make_unique<Queue>(std::move(runs_on));
  const Driver& driver = queue->driver();
  MK_RETURN_IF_ERROR(queue->runs_on_->make_current());
  MK_RETURN_IF_ERROR(driver.status(driver.cuStreamCreate(&queue->stream_, CU_STREAM_NON_BLOCKING),
                                   "cuStreamCreate on " + queue->runs_on_->name()));
  return queue;
}

Queue::~Queue() {
  if (stream_ == nullptr || !runs_on_->make_current().ok()) return;
  (void)driver().cuStreamSynchronize(stream_);
  for (const Batch& batch : batches_) spare_events_.push_back(batch.over);
  for (const CUevent event : spare_events_) (void)driver().cuEventDestroy(event);
  (void)driver().cuStreamDestroy(stream_);
}

std::uint64_t Queue::start(std::shared_ptr<Memory> source, std::uint64_t source_offset,
                           std::shared_ptr<Memory> target, std::uint64_t target_offset, std::uint64_t bytes) {
  sources_.push_back(source->address(*runs_on_) + source_offset);
  targets_.push_back(target->address(*runs_on_) + target_offset);
  sizes_.push_back(bytes);
  copies_.push_back({std::move(source), std::move(target)});
  return ++started_;
}

Status Queue::poll() {
  if (completed_ == started_) return {};
  MK_RETURN_IF_ERROR(runs_on_->make_current());
  while (!batches_.empty()) {
    const CUresult state = driver().cuEventQuery(batches_.front().over);
    if (state == CUDA_ERROR_NOT_READY) break;
    MK_RETURN_IF_ERROR(driver().status(state, "copying on " + runs_on_->name()));
    for (; completed_ < batches_.front().last; ++completed_) copies_.pop_front();
    spare_events_.push_back(batches_.front().over);
    batches_.pop_front();
  }
  return sizes_.empty() || batches_.size() >= kBatchesInFlight ? Status{} : hand_over();
}

Status Queue::hand_over() {
  auto event = take_event();
  if (!event.ok()) return event.status();
  batches_.push_back({event.value(), started_});
  MK_RETURN_IF_ERROR(
      copy_gathered().with_context(std::to_string(sizes_.size()) + " copies on " + runs_on_->name()));
  sources_.clear();
  targets_.clear();
  sizes_.clear();
  return driver().status(driver().cuEventRecord(event.value(), stream_), "cuEventRecord");
}

Status Queue::copy_gathered() {
  if (sizes_.size() > 1 && driver().cuMemcpyBatchAsync_13 != nullptr) {
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;  // of the copies that the attributes hold for: all
    return driver().status(driver().cuMemcpyBatchAsync_13(targets_.data(), sources_.data(), sizes_.data(),
                                                          sizes_.size(), &attributes, &first, 1, stream_),
                           "cuMemcpyBatchAsync");
  }
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    MK_RETURN_IF_ERROR(driver().status(driver().cuMemcpyAsync(targets_[i], sources_[i], sizes_[i], stream_),
                                       "cuMemcpyAsync"));
  }
  return {};
}

Result<CUevent> Queue::take_event() {
  CUevent event = nullptr;
  if (spare_events_.empty()) {
    MK_RETURN_IF_ERROR(
        driver().status(driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  } else {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  return event;
}

}  // namespace mkernel::memory::gpu
