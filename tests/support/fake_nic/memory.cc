// Protection domains and memory regions.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

constexpr unsigned kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

std::uint64_t page_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

ibv_pd* alloc_pd(ibv_context* context) {
  Device& device = *of(context)->device;
  const std::lock_guard held(device.fabric->lock);
  if (device.dead) return fail(EIO);
  auto* const pd = new Pd();
  pd->context = context;
  pd->handle = device.fabric->next_handle++;
  of(context)->alive.insert(name_of("pd", pd->handle));
  return pd;
}

int dealloc_pd(ibv_pd* pd) {
  Device& device = device_of(pd);
  const std::lock_guard held(device.fabric->lock);
  if (of(pd)->users != 0) {
    device.fabric->complaints.push_back("a pd of " + device.settings.name + " was freed in use");
    return EBUSY;
  }
  of(pd->context)->alive.erase(name_of("pd", pd->handle));
  delete of(pd);
  return 0;
}

bool mapped(std::uint64_t address) {
  unsigned char resident = 0;
  const std::uint64_t page = address & ~(page_bytes() - 1);
  return ::mincore(reinterpret_cast<void*>(page), 1, &resident) == 0;
}

/// 0, or why a registration fails whatever it is of.
int refused(Device& device, std::size_t length, unsigned access) {
  if (device.dead) return EIO;
  if (device.registration_failures > 0) {
    --device.registration_failures;
    return device.registration_error;
  }
  if (length == 0) return EINVAL;
  if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  return 0;
}

Mr* make(ibv_pd* pd, Device& device, std::uint64_t iova, std::size_t length, unsigned access) {
  auto* const mr = new Mr();
  mr->context = pd->context;
  mr->pd = pd;
  mr->length = length;
  mr->handle = device.fabric->next_handle++;
  mr->iova = iova;
  mr->access = access;
  device.fabric->next_key += 1 + static_cast<std::uint32_t>(device.fabric->random() % 1000);
  mr->lkey = mr->rkey = device.fabric->next_key;  // never one that was used before
  device.keys[mr->lkey] = mr;
  ++of(pd)->users;
  of(pd->context)->alive.insert(name_of("mr", mr->handle));
  return mr;
}

ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
  Device& device = device_of(pd);
  std::unique_lock held(device.fabric->lock);
  device.fabric->changed.wait_for(held, std::chrono::seconds(10),
                                  [&] { return device.held_bytes == 0 || length < device.held_bytes; });
  if (const int error = refused(device, length, access)) return fail(error);
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  if (!mapped(begin) || !mapped(begin + length - 1)) return fail(EFAULT);
  if (length > device.settings.memlock_bytes - device.pinned_bytes) return fail(ENOMEM);
  Mr* const mr = make(pd, device, iova, length, access);
  mr->addr = address;
  mr->base = static_cast<std::byte*>(address);
  mr->pinned_bytes = length;
  device.pinned_bytes += length;
  return mr;
}

ibv_mr* reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                      int access) {
  Device& device = device_of(pd);
  const std::lock_guard held(device.fabric->lock);
  if (!device.settings.dma_buf) return fail(EOPNOTSUPP);
  struct stat file {};
  if (::fstat(fd, &file) != 0) return fail(EBADF);
  if (const int error = refused(device, length, static_cast<unsigned>(access))) return fail(error);
  const auto bytes = static_cast<std::uint64_t>(file.st_size);
  if (offset > bytes || length > bytes - offset) return fail(EINVAL);
  const std::uint64_t within = page_bytes() - 1;
  if ((offset & within) != (iova & within)) return fail(EINVAL);
  const std::size_t mapped_bytes = length + (offset & within);
  void* const memory = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                              static_cast<off_t>(offset & ~within));
  if (memory == MAP_FAILED) return fail(errno);
  Mr* const mr = make(pd, device, iova, length, static_cast<unsigned>(access));
  mr->mapped = memory;
  mr->mapped_bytes = mapped_bytes;
  mr->base = static_cast<std::byte*>(memory) + (offset & within);
  return mr;
}

int dereg_mr(ibv_mr* verbs) {
  Mr* const mr = of(verbs);
  Device& device = device_of(verbs);
  const std::lock_guard held(device.fabric->lock);
  device.keys.erase(mr->lkey);
  device.pinned_bytes -= mr->pinned_bytes;
  if (mr->mapped != nullptr) ::munmap(mr->mapped, mr->mapped_bytes);
  --of(mr->pd)->users;
  of(mr->context)->alive.erase(name_of("mr", mr->handle));
  delete mr;
  return 0;
}

}  // namespace

std::byte* reach(Device& device, std::uint32_t key, const ibv_pd* pd, std::uint64_t address,
                 std::uint64_t length, unsigned rights) {
  const auto found = device.keys.find(key);
  if (found == device.keys.end()) return nullptr;
  const Mr& mr = *found->second;
  if (mr.pd != pd || (mr.access & rights) != rights) return nullptr;
  if (address < mr.iova || address - mr.iova > mr.length || length > mr.length - (address - mr.iova)) {
    return nullptr;
  }
  return mr.base + (address - mr.iova);
}

void fill_memory_calls(transport::rdma::VerbsLibrary& verbs) {
  verbs.alloc_pd = alloc_pd;
  verbs.dealloc_pd = dealloc_pd;
  verbs.reg_mr = reg_mr;
  verbs.reg_dmabuf_mr = reg_dmabuf_mr;
  verbs.dereg_mr = dereg_mr;
}

}  // namespace mkernel::test::nic
