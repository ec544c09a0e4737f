#include "client/src/home.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <string>

namespace mkernel::client {
namespace {

/// A word that reads 0 in every child, however it was forked: pages can be wiped then (Linux 4.14). Null
/// where they cannot. It is kept for ever.
std::atomic<std::uint64_t>* wiped_word() {
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, bytes, MADV_WIPEONFORK) == 0) return static_cast<std::atomic<std::uint64_t>*>(page);
  (void)::munmap(page, bytes);
  return nullptr;
}

}  // namespace

std::uint64_t process_token() {
  static std::atomic<std::uint64_t>* const word = wiped_word();
  if (word == nullptr) return static_cast<std::uint64_t>(::getpid());
  std::uint64_t token = word->load(std::memory_order_relaxed);
  if (token != 0) return token;
  // The first call in this process. The count is the parent's, so every number below it may be on a handle.
  static std::atomic<std::uint64_t> last{0};
  const std::uint64_t next = ++last;
  return word->compare_exchange_strong(token, next) ? next : token;
}

Status Home::check() const {
  if (here()) return {};
  return {StatusCode::kFailedPrecondition,
          "process " + std::to_string(::getpid()) +
              " was forked from the one that made this handle: connect a session of its own"};
}

}  // namespace mkernel::client
