// Jobs of several owners on one thread: in turn, in order, all of them, and on no other thread.
#include "daemon/base/fair_worker.h"

#include <doctest/doctest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

namespace mkernel::base {

TEST_CASE("owners take turns whatever they bring, and each one's jobs keep their order") {
  std::string done;
  std::promise<void> open;
  {
    FairWorker worker("test");
    worker.post(1, [gate = open.get_future().share()] { gate.wait(); });
    for (const char name : std::string("abcd")) worker.post(1, [&done, name] { done += name; });
    worker.post(2, [&done] { done += '2'; });
    for (const char name : std::string("xy")) worker.post(3, [&done, name] { done += name; });
    open.set_value();
  }  // does all of it before it ends
  CHECK(done == "2xaybcd");
}

TEST_CASE("a job runs and dies on the worker's thread, one after the other") {
  struct Told {
    explicit Told(std::vector<std::thread::id>& list) : where(list) {}
    ~Told() { where.push_back(std::this_thread::get_id()); }
    std::vector<std::thread::id>& where;
  };
  std::vector<std::thread::id> deaths;
  std::size_t before_second = 0;
  {
    FairWorker worker("test");
    worker.post(1, [told = std::make_shared<Told>(deaths)] {});
    worker.post(1, [&] { before_second = deaths.size(); });
  }
  REQUIRE(deaths.size() == 1);
  CHECK(deaths[0] != std::this_thread::get_id());
  CHECK(before_second == 1);
}

}  // namespace mkernel::base
