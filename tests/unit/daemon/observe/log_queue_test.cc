#include "daemon/observe/log_queue.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "proto/ipc/fd.h"

namespace mkernel::observe {
namespace {

constexpr std::size_t kQueueBytes = 4096, kLineBytes = 100;
/// No test waits so long unless it fails.
constexpr std::chrono::seconds kPatience{60};

/// A pipe of one page, which nobody reads unless a test does.
struct Reader {
  Reader() {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    out = ipc::UniqueFd(ends[0]);
    in = ipc::UniqueFd(ends[1]);
    ::fcntl(in.get(), F_SETPIPE_SZ, 4096);
  }
  /// Leaves no room: from here on a writer waits until somebody reads.
  std::size_t fill() const {
    ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
    std::size_t bytes = 0;
    while (::write(in.get(), "x", 1) == 1) ++bytes;
    ::fcntl(in.get(), F_SETFL, 0);
    return bytes;
  }
  LogQueue::Options options() const {
    return {in.get(), kQueueBytes,
            [](std::uint64_t dropped) { return "missing " + std::to_string(dropped) + "\n"; }};
  }
  /// All that comes until `end` has come.
  std::string read_until(const std::string& end) const {
    std::string text;
    char piece[512];
    while (text.find(end) == std::string::npos) {
      const ssize_t got = ::read(out.get(), piece, sizeof(piece));
      REQUIRE(got > 0);
      text.append(piece, static_cast<std::size_t>(got));
    }
    return text;
  }
  ipc::UniqueFd out, in;
};

std::string line(int number) {
  std::string text = "line " + std::to_string(number) + " ";
  text.resize(kLineBytes - 1, '.');
  return text + "\n";
}

TEST_CASE("lines come in their order, and flush() waits for the last") {
  const Reader reader;
  const LogQueue::Options options = reader.options();
  LogQueue queue(options);
  for (int i = 0; i < 10; ++i) queue.push(line(i));
  queue.flush(kPatience);
  REQUIRE(queue.idle());
  std::string expected;
  for (int i = 0; i < 10; ++i) expected += line(i);
  CHECK(reader.read_until(line(9)) == expected);
  CHECK(queue.dropped_total() == 0);
}

TEST_CASE(
    "a reader that has stopped stops nobody: lines are dropped, counted, and named when there is room") {
  const Reader reader;
  const std::size_t filled = reader.fill();
  LogQueue queue(reader.options());
  constexpr int kLines = 1000;  // far more than the queue holds
  for (int i = 0; i < kLines; ++i) queue.push(line(i));
  const std::uint64_t dropped = queue.dropped_total();
  CHECK(dropped > kLines / 2);
  CHECK(dropped < kLines);
  queue.flush(std::chrono::milliseconds(1));  // comes back although nothing moves
  CHECK_FALSE(queue.idle());

  // The reader reads again: what had been kept comes, then how much is missing.
  const std::string missing = "missing " + std::to_string(dropped) + "\n";
  std::string text = reader.read_until(missing);
  CHECK(text.find(line(0)) == filled);
  CHECK(text.find("missing") == text.size() - missing.size());
  queue.push("behind the gap\n");
  CHECK(reader.read_until("behind the gap\n") == "behind the gap\n");
  CHECK(queue.dropped_total() == dropped);
}

TEST_CASE("what cannot be written is counted, and is no signal") {
  Reader reader;
  LogQueue queue(reader.options());
  reader.out.reset();
  queue.push(line(0));
  queue.flush(kPatience);
  CHECK(queue.dropped_total() == 1);
}

TEST_CASE("a queue whose writer is stuck can be destroyed") {
  const Reader reader;
  const std::size_t filled = reader.fill();
  LogQueue::Options options = reader.options();
  options.max_bytes = 1 << 20;
  {
    LogQueue queue(options);
    for (int i = 0; i < 100; ++i) queue.push(line(i));
  }
  // All of it is read: what a thread that is left behind writes must not go into the next test's pipe.
  CHECK(reader.read_until(line(99)).find(line(0)) == filled);
}

TEST_CASE("an open file that another process has made non-blocking is waited for") {
  const Reader reader;
  ::fcntl(reader.in.get(), F_SETFL, O_NONBLOCK);
  LogQueue::Options options = reader.options();
  options.max_bytes = 1 << 20;
  LogQueue queue(options);
  for (int i = 0; i < 1000; ++i) queue.push(line(i));
  const std::string text = reader.read_until(line(999));
  CHECK(text.size() == 1000 * kLineBytes);
  CHECK(queue.dropped_total() == 0);
}

}  // namespace
}  // namespace mkernel::observe
