// Loaded in front of any program (`tools/test --pauses`): now and then a thread stops for some milliseconds
// where threads and processes meet, which is behind a look at the clock, around a wait for file descriptors
// and behind the release of a lock; and, in what is built with -finstrument-functions, before any function.
// What a busy machine does to one run in a thousand happens here in most.
#undef _FORTIFY_SOURCE  // with it the C library defines poll() and ppoll() inline

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>

namespace {

constexpr std::uint64_t kEvery = 20;           ///< calls of a thread, on average,
constexpr std::uint64_t kEveryFunction = 300;  ///< of functions of ours,
constexpr std::uint64_t kShare = 6;            ///< but of either for no more than this part of its time
constexpr std::uint64_t kShortest = 200'000, kLongest = 15'000'000;  ///< ns

/// What the functions below replace.
template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int look(clockid_t clock, timespec* now) {
  static const auto real = next<int(clockid_t, timespec*)>("clock_gettime");
  return real(clock, now);
}

/// Of one thread.
class Pauses {
 public:
  explicit Pauses(std::uint64_t every) : every_(every) {}

  void maybe() {
    if (random() % every_ != 0 || paused_ > (nanoseconds() - begin_) / kShare) return;
    const std::uint64_t length = kShortest + random() % (kLongest - kShortest);
    const timespec pause{0, static_cast<long>(length)};
    const int error = errno;
    ::syscall(SYS_nanosleep, &pause, nullptr);
    errno = error;
    paused_ += length;
  }

 private:
  static std::uint64_t nanoseconds() {
    timespec now{};
    look(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
  }
  std::uint64_t random() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

  const std::uint64_t every_;
  const std::uint64_t begin_ = nanoseconds();
  std::uint64_t paused_ = 0;
  std::uint64_t state_ = (begin_ << 20 ^ static_cast<std::uint64_t>(::syscall(SYS_gettid))) | 1;
};

void maybe_pause() {
  static thread_local Pauses pauses(kEvery);
  pauses.maybe();
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = look(clock, now);
  maybe_pause();
  return result;
}

int poll(pollfd* fds, nfds_t count, int limit_ms) {
  static const auto real = next<int(pollfd*, nfds_t, int)>("poll");
  maybe_pause();
  const int result = real(fds, count, limit_ms);
  maybe_pause();
  return result;
}

int ppoll(pollfd* fds, nfds_t count, const timespec* limit, const sigset_t* signals) {
  static const auto real = next<int(pollfd*, nfds_t, const timespec*, const sigset_t*)>("ppoll");
  maybe_pause();
  const int result = real(fds, count, limit, signals);
  maybe_pause();
  return result;
}

int epoll_wait(int epoll, epoll_event* events, int most, int limit_ms) {
  static const auto real = next<int(int, epoll_event*, int, int)>("epoll_wait");
  maybe_pause();
  const int result = real(epoll, events, most, limit_ms);
  maybe_pause();
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto real = next<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  const int result = real(mutex);
  maybe_pause();
  return result;
}

void __cyg_profile_func_enter(void*, void*) {
  static thread_local Pauses pauses(kEveryFunction);
  pauses.maybe();
}

void __cyg_profile_func_exit(void*, void*) {}

}  // extern "C"
