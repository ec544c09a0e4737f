#include "daemon/memory/open_region.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace mkernel::memory {
namespace {

constexpr std::uint64_t kMaxBytes = 1 << 20;

/// Holds of a daemon that these tests share.
ipc::WriteHolds& holds() {
  static ipc::WriteHolds all;
  return all;
}

Result<std::unique_ptr<Region>> opened(RegionRequest request, std::uint64_t id, const RegionRules& rules) {
  return open_region(std::move(request), id, rules, holds());
}

RegionRequest host_request(ipc::UniqueFd fd, std::uint64_t offset, std::uint64_t bytes) {
  return {.kind = static_cast<std::uint32_t>(abi::RegionKind::kHostMemory),
          .fd = std::move(fd),
          .offset = offset,
          .bytes = bytes,
          .no_dma_buf = {}};
}

ipc::UniqueFd memory(std::uint64_t bytes) {
  ipc::UniqueFd fd = std::move(ipc::create_shared_memory("region", bytes)).value();
  REQUIRE(std::move(ipc::Mapping::map(fd.get(), 0, bytes)).value().populate().ok());
  return fd;
}

TEST_CASE("memory with a page that nobody has written is refused by its place, and taken once it is there") {
  constexpr std::uint64_t kBytes = 5 * 4096;
  ipc::UniqueFd fd = std::move(ipc::create_shared_memory("holes", kBytes)).value();
  const auto pages = ipc::Mapping::map(fd.get(), 0, kBytes);
  REQUIRE(pages.ok());
  for (const std::uint64_t page : {0, 1, 2, 4}) pages.value().data()[page * 4096] = std::byte{1};
  // A session would keep the first that was taken.
  std::vector<Result<std::unique_ptr<Region>>> taken;
  const auto open = [&](std::uint64_t offset, std::uint64_t bytes) {
    taken.push_back(opened(host_request(std::move(fd.duplicate()).value(), offset, bytes), 1, {kMaxBytes}));
    return taken.back().status();
  };
  REQUIRE(::lseek(fd.get(), 77, SEEK_SET) == 77);
  CHECK(open(4096, kBytes - 4096).code() == StatusCode::kFailedPrecondition);
  CHECK(open(4096, kBytes - 4096).text().find("region of 16384 bytes has a hole at byte 8192") == 0);
  CHECK(::lseek(fd.get(), 0, SEEK_CUR) == 77);
  CHECK(open(0, 3 * 4096).ok());
  CHECK(open(4 * 4096, 4096).ok());
  REQUIRE(pages.value().populate().ok());
  CHECK(open(0, kBytes).ok());
  CHECK(pages.value().data()[4096] == std::byte{1});
}

/// Whether `bytes` at `offset` can be taken out of the memory, by either of the two calls that can.
bool punched(int fd, std::byte* mapped, std::uint64_t offset, std::uint64_t bytes) {
  return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes)) == 0 ||
         ::madvise(mapped + offset, bytes, MADV_REMOVE) == 0;
}

TEST_CASE("no hole can be punched into memory that has been registered, and its mappings go on") {
  ipc::UniqueFd fd = memory(8192);
  const auto mine = ipc::Mapping::map(fd.get(), 0, 8192);
  auto region = opened(host_request(std::move(fd.duplicate()).value(), 4096, 4096), 1, {kMaxBytes});
  REQUIRE_MESSAGE(region.ok(), region.status().text());
  CHECK_FALSE(punched(fd.get(), mine->data(), 0, 8192));
  CHECK(::lseek(fd.get(), 0, SEEK_HOLE) == 8192);
  *(*region)->host(7) = std::byte{9};
  CHECK(mine->data()[4096 + 7] == std::byte{9});
  mine->data()[4096 + 8] = std::byte{10};
  CHECK(*(*region)->host(8) == std::byte{10});
}

TEST_CASE("shared memory is sealed when its neighbours have mapped it, and only then looked through") {
  ipc::UniqueFd fd = memory(8192);
  RegionRequest request = host_request(std::move(fd.duplicate()).value(), 0, 8192);
  request.shared = true;
  auto region = opened(std::move(request), 1, {kMaxBytes});
  REQUIRE_MESSAGE(region.ok(), region.status().text());
  CHECK((*region)->needs_seal());
  const auto neighbour = ipc::Mapping::map(fd.get(), 0, 8192);
  REQUIRE(neighbour.ok());
  REQUIRE(punched(fd.get(), neighbour->data(), 4096, 4096));
  CHECK(seal_region(**region).text().find("has a hole at byte 4096") != std::string::npos);
  neighbour->data()[4096] = std::byte{3};
  CHECK(seal_region(**region).ok());
  CHECK_FALSE(punched(fd.get(), neighbour->data(), 4096, 4096));
  CHECK(*(*region)->host(4096) == std::byte{3});
}

TEST_CASE("a memfd can be registered again while its user has something of it, by nobody else") {
  ipc::UniqueFd fd = memory(16 * 4096);
  const auto open = [&](std::uint64_t owner, std::uint64_t offset, std::uint64_t bytes) {
    RegionRequest request = host_request(std::move(fd.duplicate()).value(), offset, bytes);
    request.owner = owner;
    return opened(std::move(request), 1, {kMaxBytes});
  };
  auto first = open(7, 8192, 4096);
  REQUIRE_MESSAGE(first.ok(), first.status().text());
  auto again = open(7, 8192, 4096);
  auto before = open(7, 0, 5000);
  auto behind = open(7, 3 * 4096, 13 * 4096);
  REQUIRE(again.ok());
  REQUIRE(before.ok());
  REQUIRE_MESSAGE(behind.ok(), behind.status().text());
  *(*first)->host(1) = std::byte{21};
  CHECK(*(*again)->host(1) == std::byte{21});
  *(*behind)->host(12 * 4096) = std::byte{22};
  std::byte last{};
  REQUIRE(::pread(fd.get(), &last, 1, 15 * 4096) == 1);
  CHECK(last == std::byte{22});
  const auto other = open(8, 0, 4096).status();
  CHECK(other.code() == StatusCode::kFailedPrecondition);
  CHECK(other.text().find("F_SEAL_FUTURE_WRITE") != std::string::npos);
  // What a session keeps of it is enough.
  const auto kept = (*first)->hold;
  first = open(7, 0, 4096);
  CHECK(first.ok());
}

TEST_CASE("a memfd that takes no more seals is refused with what to do") {
  ipc::UniqueFd fd = memory(4096);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL) == 0);
  const auto region = opened(host_request(std::move(fd), 0, 4096), 1, {kMaxBytes});
  CHECK(region.status().code() == StatusCode::kFailedPrecondition);
  CHECK(region.status().text().find("F_SEAL_SEAL") != std::string::npos);
}

TEST_CASE("a region at the end of a huge sparse memfd is refused: its mapping could take all addresses") {
  const ipc::UniqueFd fd(::memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  constexpr off_t kEnd = off_t{1} << 45;
  REQUIRE(::ftruncate(fd.get(), kEnd) == 0);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const auto region =
      opened(host_request(std::move(fd.duplicate()).value(), kEnd - 4096, 4096), 1, {kMaxBytes});
  CHECK(region.status().code() == StatusCode::kOutOfRange);
}

TEST_CASE("host memory has a limit of its own where only that of the machine is known") {
  RegionRules rules{kMaxBytes};
  rules.max_host_bytes = 4096;
  const auto refused = opened(host_request(memory(8192), 0, 8192), 1, rules).status();
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(refused.text().find("8192 bytes of host memory is above 4096") != std::string::npos);
}

TEST_CASE("a region is the part of its fd that was asked for, and keeps it alive") {
  ipc::UniqueFd fd = memory(8192);
  const auto whole = ipc::Mapping::map(fd.get(), 0, 8192);
  REQUIRE(whole.ok());
  whole.value().data()[4096 + 5] = std::byte{77};
  const auto region = opened(host_request(std::move(fd), 4096, 4000), 9, {kMaxBytes});
  REQUIRE_MESSAGE(region.ok(), region.status().text());
  const Region& found = *region.value();
  CHECK(found.id == 9);
  CHECK_FALSE(found.needs_seal());
  CHECK(found.offset == 4096);
  CHECK(found.bytes == 4000);
  CHECK(*found.host(5) == std::byte{77});
  *found.host(3999) = std::byte{78};
  CHECK(whole.value().data()[4096 + 3999] == std::byte{78});
}

TEST_CASE("in_bounds holds for every input, the largest included") {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  CHECK(in_bounds(0, 0, 0));
  CHECK(in_bounds(5, 5, 10));
  CHECK_FALSE(in_bounds(5, 6, 10));
  CHECK_FALSE(in_bounds(kMax, 1, kMax - 1));
  CHECK_FALSE(in_bounds(1, kMax, kMax));
  CHECK(in_bounds(kMax, 0, kMax));
}

TEST_CASE("huge pages are refused: a hole in them would kill the daemon") {
  ipc::UniqueFd fd(::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd.valid() || ::ftruncate(fd.get(), 2 << 20) != 0) {
    MESSAGE("skipped: this kernel offers no huge-page memfd");
    return;
  }
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const auto region = opened(host_request(std::move(fd), 0, 4096), 1, {kMaxBytes});
  REQUIRE_FALSE(region.ok());
  CHECK(region.status().code() == StatusCode::kUnimplemented);
  CHECK(region.status().text().find("MFD_HUGETLB") != std::string::npos);
}

TEST_CASE("kinds are told apart by name") {
  CHECK(std::string(kind_name(abi::RegionKind::kHostMemory)) == "host");
  CHECK(std::string(kind_name(abi::RegionKind::kVmm)) == "vmm");
  CHECK(std::string(kind_name(abi::RegionKind::kIpc)) == "ipc");
  RegionRequest none = host_request(memory(4096), 0, 4096);
  none.kind = 0;
  CHECK(opened(std::move(none), 1, {kMaxBytes}).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("GPU memory is an fd to keep: nothing is mapped, its device is its session's") {
  const auto request = [](std::int32_t device) {
    RegionRequest vmm = host_request(ipc::UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 0, 8192);
    vmm.kind = static_cast<std::uint32_t>(abi::RegionKind::kVmm);
    vmm.device = device;
    return vmm;
  };
  const RegionRules rules{kMaxBytes, 1};
  const auto region = opened(request(2), 5, rules);
  REQUIRE_MESSAGE(region.ok(), region.status().text());
  CHECK(region.value()->on_gpu());
  CHECK(region.value()->device == 2);
  CHECK(region.value()->bytes == 8192);
  CHECK(region.value()->mapping.data() == nullptr);
  CHECK(region.value()->fd.valid());
  CHECK_FALSE(region.value()->dma_buf.valid());
  const RegionRules stand_in{.max_bytes = kMaxBytes, .gpu_major = 1, .dma_buf_type = TMPFS_MAGIC};
  RegionRequest with_dma_buf = request(2);
  with_dma_buf.dma_buf = memory(8192);
  const auto both = opened(std::move(with_dma_buf), 5, stand_in);
  REQUIRE_MESSAGE(both.ok(), both.status().text());
  CHECK(both.value()->fd.valid());
  CHECK(both.value()->dma_buf.valid());
  RegionRequest short_dma_buf = request(2);
  short_dma_buf.dma_buf = memory(4096);
  CHECK(opened(std::move(short_dma_buf), 5, stand_in).status().text().find("outside its dma-buf of 4096") !=
        std::string::npos);
  CHECK(opened(request(-1), 5, rules).status().code() == StatusCode::kFailedPrecondition);
  CHECK(opened(request(2), 5, {kMaxBytes}).status().code() == StatusCode::kInvalidArgument);
}

/// Plain GPU memory; a memfd stands in for its dma-buf.
struct Plain {
  RegionRequest request = host_request({}, 12345, 5000);
  RegionRules rules{.max_bytes = kMaxBytes, .dma_buf_type = TMPFS_MAGIC};
  Plain() {
    request.kind = static_cast<std::uint32_t>(abi::RegionKind::kIpc);
    request.device = 1;
    request.cuda_ipc.handle[63] = 9;
    request.no_dma_buf = "the driver said no";
  }
  Result<std::unique_ptr<Region>> open() { return opened(std::move(request), 1, rules); }
  std::string refusal() { return open().status().to_string(); }
};

TEST_CASE("plain GPU memory is a name to keep, at any offset, and a dma-buf where there is one") {
  Plain named;
  const auto region = named.open();
  REQUIRE_MESSAGE(region.ok(), region.status().text());
  CHECK(region.value()->on_gpu());
  CHECK(region.value()->offset == 12345);
  CHECK(region.value()->cuda_ipc.handle[63] == 9);
  CHECK(region.value()->no_dma_buf == "the driver said no");
  CHECK_FALSE(region.value()->fd.valid());
  CHECK_FALSE(region.value()->dma_buf.valid());

  Plain with_dma_buf;
  with_dma_buf.request.dma_buf = memory(8192);
  with_dma_buf.request.dma_buf_offset = 8192 - 5000;
  const auto both = with_dma_buf.open();
  REQUIRE_MESSAGE(both.ok(), both.status().text());
  CHECK(both.value()->dma_buf.valid());
  CHECK_FALSE(both.value()->fd.valid());
  CHECK(both.value()->dma_buf_offset == 3192);
}

TEST_CASE("what cannot be plain GPU memory is refused with the value") {
  const auto refusal = [](auto spoil) {
    Plain plain;
    spoil(plain);
    return plain.refusal();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(refusal([](Plain& p) { p.request.device = -1; }),
            "FAILED_PRECONDITION: region of kind ipc from a session of device -1"));
  CHECK(has(refusal([](Plain& p) { p.request.bytes = 0; }), "INVALID_ARGUMENT: region of 0 bytes"));
  CHECK(has(refusal([](Plain& p) { p.request.offset = ~std::uint64_t{0} - 10; }),
            "OUT_OF_RANGE: region [18446744073709551605, +5000) of an allocation"));
  CHECK(has(refusal([](Plain& p) { p.request.bytes = kMaxBytes + 1; }), "above limits.max_region_bytes"));
  CHECK(has(refusal([](Plain& p) {
              p.request.dma_buf = memory(8192);
              p.request.dma_buf_offset = 8192 - 4999;
            }),
            "OUT_OF_RANGE: region [3193, +5000) lies outside its dma-buf of 8192 bytes"));
  CHECK(has(refusal([](Plain& p) {
              p.request.dma_buf = memory(8192);
              p.request.dma_buf_offset = ~std::uint64_t{0};
            }),
            "lies outside its dma-buf"));
  CHECK(has(refusal([](Plain& p) {
              p.request.dma_buf = memory(8192);
              p.rules.dma_buf_type = kDmaBufType;
            }),
            "INVALID_ARGUMENT: dma-buf of a region is a regular file or memfd, not a dma-buf"));
  CHECK(has(refusal([](Plain& p) {
              p.request.dma_buf = ipc::UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC));
              p.rules.dma_buf_type = kDmaBufType;
            }),
            "is character device 1:5, not a dma-buf"));
}

TEST_CASE("a region above the limit is refused before anything is mapped") {
  const auto region = opened(host_request(memory(kMaxBytes + 4096), 0, kMaxBytes + 1), 1, {kMaxBytes});
  CHECK(region.status().code() == StatusCode::kResourceExhausted);
  CHECK(region.status().text().find("1048577 bytes is above limits.max_region_bytes = 1048576") !=
        std::string::npos);
}

}  // namespace
}  // namespace mkernel::memory
