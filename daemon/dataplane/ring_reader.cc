#include "daemon/dataplane/ring_reader.h"

#include <string>

namespace mkernel::dataplane {

Result<RingReader> RingReader::open(const ipc::Mapping& segment, std::uint32_t count, abi::RingWriter writer,
                                    std::uint32_t ring) {
  constexpr std::uint32_t kMaxLog2Slots = 24;
  const auto refuse = [&](const std::string& why) {
    return Status{StatusCode::kInvalidArgument, "ring " + std::to_string(ring) + " of " +
                                                    std::to_string(count) + " in a session segment of " +
                                                    std::to_string(segment.bytes()) + " bytes: " + why};
  };
  if (segment.bytes() < sizeof(abi::SessionSegment)) return refuse("no room for its head");
  if (ring >= count || count > abi::kMaxRings) return refuse("there is no such ring");
  auto* header = segment.at<abi::SessionSegment>(0);
  const std::uint32_t log2_slots =
      std::atomic_ref<std::uint32_t>(header->log2_slots).load(std::memory_order_relaxed);
  if (log2_slots > kMaxLog2Slots || abi::ring_offset(count, log2_slots, writer, ring + 1) > segment.bytes()) {
    return refuse("2^" + std::to_string(log2_slots) + " slots do not fit");
  }
  RingReader reader;
  reader.slots_ = segment.at<abi::WorkSlot>(abi::ring_offset(count, log2_slots, writer, ring));
  reader.head_ = &header->head(writer, ring);
  reader.mask_ = (std::uint64_t{1} << log2_slots) - 1;
  reader.log2_slots_ = log2_slots;
  return reader;
}

std::uint64_t RingReader::depth() const {
  const auto written = [this](std::uint64_t position) {
    const std::uint64_t word =
        std::atomic_ref<std::uint64_t>(slots_[position & mask_].word[3]).load(std::memory_order_relaxed);
    return (word & abi::kLapBit) == abi::lap_bit(position, log2_slots_);
  };
  std::uint64_t waiting = 0;         // every slot before position_ + waiting is written
  std::uint64_t beyond = mask_ + 2;  // the slot at position_ + beyond - 1 is not, or is out of the ring
  while (beyond - waiting > 1) {
    const std::uint64_t middle = waiting + (beyond - waiting) / 2;
    (written(position_ + middle - 1) ? waiting : beyond) = middle;
  }
  return waiting;
}

}  // namespace mkernel::dataplane
