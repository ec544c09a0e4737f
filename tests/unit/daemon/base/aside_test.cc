#include "daemon/base/aside.h"

#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mkernel::base {
namespace {

constexpr std::chrono::seconds kPatience{60};

/// Work that hangs until the test lets it go, as on a file server that does not answer.
struct Hanging {
  std::promise<void> let_go;
  std::shared_future<void> gone = let_go.get_future().share();
  std::function<Result<int>()> work() const {
    return [gone = gone]() -> Result<int> {
      gone.wait();
      return 7;
    };
  }
};

bool contains(const Status& status, const std::string& part) {
  return status.text().find(part) != std::string::npos;
}

/// An io_context that is run by the test, and what the work of its Aside came to.
struct Fixture {
  void run(std::chrono::milliseconds limit, std::function<Result<int>()> work) {
    aside->run<int>(limit, std::move(work), [this](const Result<int>& result) { results.push_back(result); });
  }
  bool wait_for(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (results.size() < count && std::chrono::steady_clock::now() < end) {
      io.restart();
      io.run_one_for(std::chrono::milliseconds(20));
    }
    return results.size() >= count;
  }
  boost::asio::io_context io;
  std::unique_ptr<Aside> aside = std::make_unique<Aside>(io, "reading /f");
  std::vector<Result<int>> results;
};

TEST_CASE("what work returns, or throws, comes on the io_context") {
  Fixture fixture;
  fixture.run(kPatience, []() -> Result<int> { return 3; });
  CHECK(fixture.results.empty());  // never from inside run()
  REQUIRE(fixture.wait_for(1));
  CHECK(fixture.results[0].value() == 3);
  fixture.run(kPatience, []() -> Result<int> { throw std::runtime_error("odd"); });
  REQUIRE(fixture.wait_for(2));
  CHECK(fixture.results[1].status().code() == StatusCode::kInternal);
  CHECK(contains(fixture.results[1].status(), "reading /f: odd"));
}

TEST_CASE("work that hangs costs its time limit, is named, and holds up nothing but its own kind") {
  Hanging hanging;
  Fixture fixture;
  fixture.run(std::chrono::milliseconds(5), hanging.work());
  CHECK(fixture.aside->busy());
  REQUIRE(fixture.wait_for(1));
  CHECK(fixture.results[0].status().code() == StatusCode::kDeadlineExceeded);
  CHECK(contains(fixture.results[0].status(), "reading /f did not end within 5 ms"));

  fixture.run(kPatience, []() -> Result<int> { return 1; });
  REQUIRE(fixture.wait_for(2));
  CHECK(fixture.results[1].status().code() == StatusCode::kUnavailable);
  CHECK(contains(fixture.results[1].status(), "has not ended yet"));

  // It comes back late: nobody is called again, and the next one runs.
  hanging.let_go.set_value();
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (fixture.aside->busy() && std::chrono::steady_clock::now() < end) {
    fixture.io.restart();
    fixture.io.run_one_for(std::chrono::milliseconds(20));
  }
  REQUIRE(fixture.results.size() == 2);
  fixture.run(kPatience, []() -> Result<int> { return 2; });
  REQUIRE(fixture.wait_for(3));
  CHECK(fixture.results[2].value() == 2);
}

TEST_CASE("an owner that goes does not wait for its work, and is not called by it") {
  Hanging hanging;
  Fixture fixture;
  fixture.run(kPatience, hanging.work());
  fixture.aside.reset();
  hanging.let_go.set_value();
  fixture.io.restart();
  fixture.io.run_for(std::chrono::milliseconds(20));
  CHECK(fixture.results.empty());
}

TEST_CASE("waiting for work has the same limit") {
  Hanging hanging;
  const auto late = wait_aside_for<int>(std::chrono::milliseconds(5), "looking up x", hanging.work());
  CHECK(late.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(contains(late.status(), "looking up x did not end within 5 ms"));
  hanging.let_go.set_value();
  const auto done = wait_aside_for<int>(kPatience, "x", []() -> Result<int> { return 4; });
  CHECK(done.value() == 4);
}

}  // namespace
}  // namespace mkernel::base
