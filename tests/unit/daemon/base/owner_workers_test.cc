// Jobs of several owners: in order for each, at the same time for all, and on no other thread; what hangs
// holds up its owner alone, and not the end.
#include "daemon/base/owner_workers.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/ipc/fd.h"

namespace mkernel::base {
namespace {

constexpr std::chrono::seconds kWorkersPatience{30};  ///< a loaded machine is slow, a hang is for ever

/// Something that a job waits for: a close() that takes as long as a client likes.
struct Gate {
  std::promise<void> promise;
  std::shared_future<void> opened{promise.get_future().share()};
  void open() { promise.set_value(); }
};

}  // namespace

TEST_CASE("jobs of one owner keep their order, and each runs and dies on a thread of the workers") {
  struct Death {
    ~Death() {
      done += name;
      elsewhere = elsewhere && std::this_thread::get_id() != caller;
    }
    std::string& done;
    bool& elsewhere;
    std::thread::id caller;
    char name;
  };
  std::string done;
  bool elsewhere = true;
  std::promise<void> last;
  OwnerWorkers workers("test");
  for (const char name : std::string("abcdefgh")) {
    const auto caller = std::this_thread::get_id();
    workers.post(1, [death = std::shared_ptr<Death>(new Death{done, elsewhere, caller, name})] {});
  }
  workers.post(1, [&last] { last.set_value(); });
  REQUIRE(last.get_future().wait_for(kWorkersPatience) == std::future_status::ready);
  CHECK(done == "abcdefgh");
  CHECK(elsewhere);
}

TEST_CASE("a job that does not end delays its owner alone") {
  // Sockets that linger stopped the one thread that opened everybody's regions, and the one that freed them.
  const auto gate = std::make_shared<Gate>();
  const auto behind = std::make_shared<std::atomic<bool>>(false);
  OwnerWorkers workers("test");
  for (std::uint64_t owner = 0; owner < 20; ++owner) {  // several who hang, one after the other
    workers.post(owner, [gate] { gate->opened.wait(); });
  }
  workers.post(7, [behind] { *behind = true; });
  for (int i = 0; i < 3; ++i) {
    std::promise<void> answered;
    workers.post(100, [&answered] { answered.set_value(); });
    REQUIRE(answered.get_future().wait_for(kWorkersPatience) == std::future_status::ready);
  }
  CHECK_FALSE(behind->load());
  gate->open();
  std::promise<void> through;
  workers.post(7, [&through] { through.set_value(); });
  REQUIRE(through.get_future().wait_for(kWorkersPatience) == std::future_status::ready);
  CHECK(behind->load());
}

TEST_CASE("a close() that lingers is interrupted when many jobs of its owner wait") {
  const ipc::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(listener.get(), name, size) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  REQUIRE(::getsockname(listener.get(), name, &size) == 0);
  const auto near = std::make_shared<ipc::UniqueFd>(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(near->get(), name, size) == 0);
  const ipc::UniqueFd far(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::vector<char> bytes(1 << 16);
  while (::send(near->get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  const linger hour{1, 3600};
  REQUIRE(::setsockopt(near->get(), SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)) == 0);
  std::promise<void> last;
  OwnerWorkers workers("test");
  workers.post(1, [near] { near->reset(); });
  for (int i = 0; i < 100; ++i) workers.post(1, [] {});
  workers.post(1, [&last] { last.set_value(); });
  auto through = last.get_future();
  // The signal may come before close() waits: every further job sends one.
  const auto deadline = std::chrono::steady_clock::now() + kWorkersPatience;
  while (through.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    workers.post(1, [] {});
  }
}

TEST_CASE("workers end with a job that hangs, and what is quick has been done by then") {
  const auto gate = std::make_shared<Gate>();
  const auto ended = std::make_shared<std::promise<void>>();
  const auto quick = std::make_shared<std::promise<void>>();
  {
    OwnerWorkers workers("test");
    workers.post(1, [gate] { gate->opened.wait(); });
    workers.post(1, [ended] { ended->set_value(); });
    workers.post(2, [quick] { quick->set_value(); });
    REQUIRE(quick->get_future().wait_for(kWorkersPatience) == std::future_status::ready);
  }  // returns although the gate is closed
  auto later = ended->get_future();
  CHECK(later.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  gate->open();  // what was left goes on, after the workers
  CHECK(later.wait_for(kWorkersPatience) == std::future_status::ready);
}

}  // namespace mkernel::base
