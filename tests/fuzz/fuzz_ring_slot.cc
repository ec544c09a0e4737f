// Ring slots as a hostile client writes them. The tables are made from the first bytes of the input, then
// each 32 bytes are one slot: whatever check_slot() accepts must lie within what is registered (computed here
// in 128 bits), and whatever it refuses must have a text.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "daemon/dataplane/slot_check.h"

namespace {

using namespace mkernel;

constexpr std::uint32_t kLanes = 3;
constexpr std::uint32_t kCapacity = 4;

/// Two ranks, three lanes, two rings; region sizes from the input.
struct Tables {
  explicit Tables(const std::uint8_t* seed) {
    auto port = std::make_shared<dataplane::GroupPort>();
    port->name = "fuzz";
    port->world_size = 2;
    port->lanes = kLanes;
    port->region_capacity = kCapacity;
    port->first_channel = seed[0];
    port->ranks.resize(2);
    port->channels.grow(2 * kLanes);
    abi::GroupSegment layout{};
    const std::uint64_t bytes = abi::layout_group(layout, 2, 0, kLanes, kCapacity);
    auto fd = ipc::create_shared_memory("fuzz", bytes);
    if (!fd.ok()) std::abort();
    auto mapping = ipc::Mapping::map(fd->get(), 0, bytes);
    if (!mapping.ok()) std::abort();
    port->segment = std::move(mapping).value();
    group.port = port;
    if (!dataplane::build_group(group, {.index = 0, .count = 2, .max_put_bytes = 1U << 16}).ok())
      std::abort();
    for (std::uint32_t i = 0; i < kCapacity; ++i) {
      group.remote_bytes_of(1, i) = std::uint64_t{seed[1 + i]} << (seed[5] % 41);
      if (seed[6] >> i & 1) {
        auto region = std::make_shared<memory::Region>();
        region->kind = seed[7] >> i & 1 ? abi::RegionKind::kVmm : abi::RegionKind::kHostMemory;
        region->bytes = std::uint64_t{seed[1 + i]} << (seed[5] % 23);
        group.regions[i] = region;
      }
    }
    channels.resize(port->first_channel + group.outbound.size());
    for (std::size_t i = 0; i < group.outbound.size(); ++i) {
      channels[port->first_channel + i] = &group.outbound[i];
    }
  }
  dataplane::Group group;
  std::vector<dataplane::Outbound*> channels;
};

void require(bool condition) {
  if (!condition) std::abort();
}

void check_accepted(const Tables& tables, const abi::WorkRequest& r) {
  require(r.channel < tables.channels.size() && tables.channels[r.channel] != nullptr);
  const dataplane::Outbound& channel = *tables.channels[r.channel];
  require(r.opcode == 1 && channel.lane % 2 == 0 && r.peer == channel.target);
  if (r.length == 0) return;
  require(r.length <= channel.max_put_bytes);
  require(r.local_region < kCapacity && tables.group.regions[r.local_region] != nullptr);
  const memory::Region& region = *tables.group.regions[r.local_region];
  require(region.kind == abi::RegionKind::kHostMemory);
  require(static_cast<unsigned __int128>(r.local_offset) + r.length <= region.bytes);
  require(r.remote_region < kCapacity);
  require(static_cast<unsigned __int128>(r.remote_offset) + r.length <=
          channel.remote_bytes[r.remote_region]);
}

void check_one(const Tables& tables, const abi::WorkSlot& slot, std::size_t position) {
  const abi::WorkRequest request = abi::decode(slot);
  const auto fault = dataplane::check_slot(slot, request, tables.channels);
  const Status why = dataplane::explain(fault, {1, "fuzz", 0, position}, slot, request, tables.channels);
  if (fault == dataplane::SlotFault::kNone) {
    check_accepted(tables, request);
    require(why.ok() && (slot.word[3] & abi::kReservedMask) == 0);
  } else {
    require(!why.ok() && why.text().find("session 1 (fuzz)") == 0);
  }
  const abi::WorkSlot again = abi::encode(request, slot.word[0] & abi::kLapBit);
  require(again.word[0] == slot.word[0] && again.word[1] == slot.word[1] && again.word[2] == slot.word[2]);
}

/// The same slot with its fields brought near what exists, so that the deeper checks are reached often.
abi::WorkSlot steered(const Tables& tables, abi::WorkRequest r) {
  r.opcode = 1;
  r.channel %= static_cast<std::uint32_t>(tables.channels.size() + 1);
  r.peer %= 3;
  r.length %= (1U << 16) + 2;
  r.local_region %= kCapacity + 1;
  r.remote_region %= kCapacity + 1;
  r.local_offset %= 1ULL << (r.local_offset >> 42);
  r.remote_offset %= 1ULL << (r.remote_offset >> 42);
  return abi::encode(r, 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kSeedBytes = 8;
  if (size < kSeedBytes) return 0;
  const Tables tables(data);
  for (std::size_t at = kSeedBytes; at + sizeof(abi::WorkSlot) <= size; at += sizeof(abi::WorkSlot)) {
    abi::WorkSlot slot;
    std::memcpy(&slot, data + at, sizeof(slot));
    check_one(tables, slot, at);
    check_one(tables, steered(tables, abi::decode(slot)), at);
  }
  return 0;
}
