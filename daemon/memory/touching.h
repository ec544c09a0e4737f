// Whose memory a thread reads or writes at the moment.
#pragma once

#include <atomic>
#include <cstdint>

namespace mkernel::memory {

/// The session whose memory the calling thread works on; 0: none, or several at once. Other threads read it
/// (SleepWatch).
inline constinit thread_local std::atomic<std::uint64_t> touched_session{0};

/// While it lives, the calling thread reads or writes memory of a session, in which a page may be missing:
/// should the thread sleep there, SleepWatch can name the session. Costs two stores.
class Touching {
 public:
  explicit Touching(std::uint64_t session) : before_(touched_session.load(std::memory_order_relaxed)) {
    touched_session.store(session, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the access behind it
  }
  ~Touching() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    touched_session.store(before_, std::memory_order_relaxed);
  }
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;

 private:
  const std::uint64_t before_;
};

}  // namespace mkernel::memory
