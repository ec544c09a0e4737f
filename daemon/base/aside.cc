#include "daemon/base/aside.h"

#include <boost/asio/post.hpp>
#include <csignal>
#include <exception>
#include <future>
#include <system_error>
#include <thread>

#include "daemon/base/thread.h"
#include "proto/base/mutex.h"

namespace mkernel::base {
namespace {

std::string text_of(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s"
                                  : std::to_string(time.count()) + " ms";
}

Status too_late(const std::string& what, std::chrono::milliseconds limit) {
  return {StatusCode::kDeadlineExceeded, what + " did not end within " + text_of(limit)};
}

/// Runs `work` on a thread that nobody joins, then `after` with what came of it.
Status start_thread(const std::string& what, std::function<void()> work,
                    std::function<void(const Status&)> after) {
  try {
    std::thread([what, work = std::move(work), after = std::move(after)]() mutable {
      name_this_thread("mk-aside");
      sigset_t all;  // signals are the other threads'
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
      Status status;
      try {
        work();
      } catch (const std::exception& error) {
        status = {StatusCode::kInternal, what + ": " + error.what()};
      }
      work = nullptr;
      after(status);
    }).detach();
  } catch (const std::system_error& error) {
    return {StatusCode::kResourceExhausted, what + ": no thread for it: " + error.what()};
  }
  return {};
}

}  // namespace

/// What a thread that comes back late may still reach.
struct Aside::Shared {
  explicit Shared(Aside* aside) : owner(aside) {}
  Aside* living() {
    const MutexLock lock(mutex);
    return owner;
  }
  Mutex mutex;
  Aside* owner MK_GUARDED_BY(mutex);  ///< null: it is gone, and the io_context perhaps with it
};

Aside::Aside(boost::asio::io_context& io, std::string what)
    : io_(io), what_(std::move(what)), timer_(io), shared_(std::make_shared<Shared>(this)) {}

Aside::~Aside() {
  const MutexLock lock(shared_->mutex);
  shared_->owner = nullptr;
}

bool Aside::busy() const {
  return out_;
}

void Aside::begin(std::chrono::milliseconds limit, std::function<void()> work, Done done) {
  const auto now = std::chrono::steady_clock::now();
  const auto refuse = [&](const Status& why) {
    boost::asio::post(io_, [done = std::move(done), why] { done(why); });
  };
  if (out_) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - since_).count();
    return refuse({StatusCode::kUnavailable, what_ + ": an attempt that began " + std::to_string(seconds) +
                                                 " s ago has not ended yet"});
  }
  // Runs on the thread; what it posts runs on the control thread, if the owner still lives then.
  const auto after = [shared = shared_](const Status& status) {
    const MutexLock lock(shared->mutex);
    if (shared->owner == nullptr) return;
    boost::asio::post(shared->owner->io_, [shared, status] {
      Aside* const owner = shared->living();
      if (owner == nullptr) return;
      owner->out_ = false;
      owner->finish(status);
    });
  };
  if (const Status started = start_thread(what_, std::move(work), after); !started.ok())
    return refuse(started);
  out_ = true;
  since_ = now;
  done_ = std::move(done);
  timer_.expires_after(limit);
  timer_.async_wait([shared = shared_, limit](const boost::system::error_code& cancelled) {
    Aside* const owner = cancelled ? nullptr : shared->living();
    if (owner != nullptr) owner->finish(too_late(owner->what_, limit));
  });
}

void Aside::finish(const Status& status) {
  const Done done = std::exchange(done_, nullptr);
  if (done == nullptr) return;  // its time was over before
  timer_.cancel();
  done(status);
}

Status wait_aside(std::chrono::milliseconds limit, const std::string& what, std::function<void()> work) {
  const auto promise = std::make_shared<std::promise<Status>>();
  auto ended = promise->get_future();
  MK_RETURN_IF_ERROR(
      start_thread(what, std::move(work), [promise](const Status& status) { promise->set_value(status); }));
  return ended.wait_for(limit) == std::future_status::ready ? ended.get() : too_late(what, limit);
}

}  // namespace mkernel::base
