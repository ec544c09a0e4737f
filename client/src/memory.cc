#include "client/src/memory.h"

#include <utility>

namespace mkernel::client {
namespace {

Result<MappedMemory> populated(Result<ipc::Mapping> mapping) {
  if (!mapping.ok()) return mapping.status();
  MK_RETURN_IF_ERROR(mapping->populate());
  auto hold = std::make_shared<const ipc::Mapping>(std::move(*mapping));
  return MappedMemory{hold->data(), hold};
}

class HostMemory final : public MemorySource {
 public:
  abi::RegionKind kind() const override { return abi::RegionKind::kHostMemory; }
  std::uint64_t whole(std::uint64_t bytes) const override { return bytes; }

  Result<NewMemory> make(const std::string& label, std::uint64_t bytes) override {
    auto fd = ipc::create_shared_memory(label, bytes);
    if (!fd.ok()) return fd.status();
    auto mapped = map_own(fd->get(), 0, bytes);
    if (!mapped.ok()) return mapped.status();
    NewMemory made;
    made.mapped = std::move(*mapped);
    made.shared.fd = std::move(*fd);
    return made;
  }

  Result<MappedMemory> map(const SharedMemory& theirs, std::uint64_t bytes) override {
    MK_RETURN_IF_ERROR(ipc::check_shared_memory(theirs.fd.get(), theirs.offset, bytes));
    return map_host(theirs.fd.get(), theirs.offset, bytes);
  }
};

}  // namespace

MemorySource& host_memory() {
  static HostMemory memory;
  return memory;
}

Result<MappedMemory> map_own(int memfd, std::uint64_t offset, std::uint64_t bytes) {
  return populated(ipc::Mapping::map(memfd, offset, bytes));
}

Result<MappedMemory> map_own(const ipc::WriteHold& memfd, std::uint64_t offset, std::uint64_t bytes) {
  return populated(memfd.map(offset, bytes));
}

ipc::WriteHolds& write_holds() {
  static ipc::WriteHolds holds;
  return holds;
}

Result<MappedMemory> map_host(int memfd, std::uint64_t offset, std::uint64_t bytes) {
  auto mapping = ipc::Mapping::map(memfd, offset, bytes);
  if (!mapping.ok()) return mapping.status();
  auto hold = std::make_shared<const ipc::Mapping>(std::move(*mapping));
  return MappedMemory{hold->data(), hold};
}

}  // namespace mkernel::client
