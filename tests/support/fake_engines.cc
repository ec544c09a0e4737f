#include "tests/support/fake_engines.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/ipc/fd.h"

namespace mkernel::test {
namespace {

struct FakeMemory final : memory::EngineMemory {
  FakeMemory(std::byte* at, std::uint64_t size) : data(at), bytes(size) {}
  FakeMemory(ipc::Mapping of, std::shared_ptr<std::size_t> live)
      : mapping(std::move(of)), count(std::move(live)), data(mapping.data()), bytes(mapping.bytes()) {
    ++*count;
  }
  ~FakeMemory() override {
    if (count != nullptr) --*count;
  }
  ipc::Mapping mapping;
  std::shared_ptr<std::size_t> count;
  std::byte* data;
  std::uint64_t bytes;
};

}  // namespace

FakeEngines::~FakeEngines() {
  release();
  while (failure_.ok() && !copies_.empty()) static_cast<void>(poll());
}

abi::IpcMemory FakeEngines::name(int fd) {
  abi::IpcMemory memory{};
  std::memcpy(memory.handle, &fd, sizeof(fd));
  return memory;
}

Result<std::shared_ptr<memory::EngineMemory>> FakeEngines::map(int fd, std::uint64_t bytes) {
  return reach(fd, 0, bytes);
}

Result<std::shared_ptr<memory::EngineMemory>> FakeEngines::open(const abi::IpcMemory& memory,
                                                                std::uint64_t offset, std::uint64_t bytes) {
  int fd = -1;
  std::memcpy(&fd, memory.handle, sizeof(fd));
  return reach(fd, offset, bytes);
}

Result<std::shared_ptr<memory::EngineMemory>> FakeEngines::reach(int fd, std::uint64_t offset,
                                                                 std::uint64_t bytes) {
  const Status there = ipc::check_shared_memory(fd, offset, bytes);
  if (!there.ok()) return Status(StatusCode::kInvalidArgument, "no such allocation: " + there.text());
  auto mapping = ipc::Mapping::map(fd, offset, bytes);
  if (!mapping.ok()) return mapping.status();
  return std::shared_ptr<memory::EngineMemory>(
      std::make_shared<FakeMemory>(std::move(mapping).value(), mapped_));
}

Result<std::shared_ptr<memory::EngineMemory>> FakeEngines::pin(std::byte* data, std::uint64_t bytes,
                                                               memory::Access) {
  return std::shared_ptr<memory::EngineMemory>(std::make_shared<FakeMemory>(data, bytes));
}

Result<memory::CopyTicket> FakeEngines::start(const std::shared_ptr<memory::EngineMemory>& source,
                                              std::uint64_t source_offset,
                                              const std::shared_ptr<memory::EngineMemory>& target,
                                              std::uint64_t target_offset, std::uint64_t bytes) {
  MK_RETURN_IF_ERROR(failure_);
  const auto& from = static_cast<const FakeMemory&>(*source);
  const auto& to = static_cast<const FakeMemory&>(*target);
  if (source_offset + bytes > from.bytes || target_offset + bytes > to.bytes) {
    return Status(StatusCode::kInternal, "a copy outside its memory: the caller checks");
  }
  const std::uint64_t polls = held_polls_ > 0 ? held_polls_ : random_() % (slowest_ + 1);
  copies_.push_back(
      {++started_, source, target, from.data + source_offset, to.data + target_offset, bytes, polls});
  return memory::CopyTicket{0, started_};
}

void FakeEngines::release() {
  held_polls_ = 0;
  for (Copy& copy : copies_) copy.polls = 0;
}

Status FakeEngines::poll() {
  MK_RETURN_IF_ERROR(failure_);
  // A piece of each with every poll, the last byte with the last: whoever counts too early finds a hole.
  std::erase_if(copies_, [this](Copy& copy) {
    const std::uint64_t piece = copy.polls == 0 ? copy.left : random_() % copy.left;
    std::memcpy(copy.to, copy.from, piece);
    copy.from += piece;
    copy.to += piece;
    copy.left -= piece;
    return copy.polls-- == 0;
  });
  return {};
}

bool FakeEngines::done(const memory::CopyTicket& ticket) const {
  return std::none_of(copies_.begin(), copies_.end(),
                      [&](const Copy& copy) { return copy.number == ticket.number; });
}

}  // namespace mkernel::test
