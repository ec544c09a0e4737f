// What becomes of the transports' reports: lines in the log, counts, what mkctl shows.
#include "daemon/app/path_book.h"

#include <doctest/doctest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>

namespace mkernel::app {
namespace {

/// The log goes into a string, as long as this lives.
class CapturedLog {
 public:
  CapturedLog() {
    auto logger = std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_, true));
    logger->set_pattern("%l: %v");
    spdlog::set_default_logger(logger);
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  std::string take() {
    std::string text = text_.str();
    text_.str("");
    return text;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_CASE("a loss is a warning and counted, its end an info; both name rail, node and path") {
  CapturedLog log;
  PathBook book(2);
  CHECK(book.rails("b").size() == 2);
  CHECK(book.problem("b") == "");

  book.changed("b", 1, "x -> y", {StatusCode::kUnavailable, "no answer"});
  CHECK(log.take() == "warning: rail 1 to node b: lost x -> y: no answer; puts wait for another path\n");
  CHECK(book.rails("b")[1].down);
  CHECK(book.problem("b") == "no path to peer b on rail 1: lost x -> y: no answer");

  book.changed("b", 1, "x -> z", {});
  CHECK(log.take() == "info: rail 1 to node b: puts go over x -> z now\n");
  const cluster::RailSnapshot rail = book.rails("b")[1];
  CHECK(rail.rail == 1);
  CHECK_FALSE(rail.down);
  CHECK(rail.paths_lost_total == 1);
  CHECK(rail.path == "x -> z");
  CHECK(rail.last_loss == "x -> y: no answer");
  CHECK(book.rails("b")[0].paths_lost_total == 0);
  CHECK(book.problem("b") == "");
}

TEST_CASE("a reason that begins with the path is not said twice; a path that is only changed is no loss") {
  CapturedLog log;
  PathBook book(1);
  book.changed("b", 0, "x -> y", {StatusCode::kUnavailable, "x -> y: retries exceeded"});
  CHECK(log.take() ==
        "warning: rail 0 to node b: lost x -> y: retries exceeded; puts wait for another path\n");
  book.changed("c", 0, "u -> v", {});
  CHECK(book.rails("c")[0].paths_lost_total == 0);
  CHECK(book.rails("b")[0].paths_lost_total == 1);
}

TEST_CASE("a node that is started anew has its count, and no path that is lost") {
  CapturedLog log;
  PathBook book(1);
  book.changed("b", 0, "x", {StatusCode::kUnavailable, "why"});
  book.down("b");
  CHECK(book.problem("b") == "");
  CHECK(book.rails("b")[0].path.empty());
  CHECK(book.rails("b")[0].paths_lost_total == 1);
  book.changed("b", 7, "x", {});  // a rail that is not there
  book.connected("b", 7);
}

TEST_CASE("a rail that has not connected waits since its peer is up") {
  PathBook book(2);
  const base::TimePoint start{};
  CHECK(book.rails("b", start)[0].waiting_seconds == 0);  // nobody knows it
  book.up("b", start);
  book.connected("b", 1);
  const auto rails = book.rails("b", start + std::chrono::milliseconds(2500));
  CHECK_FALSE(rails[0].connected);
  CHECK(rails[0].waiting_seconds == doctest::Approx(2.5));
  CHECK(rails[1].connected);
  CHECK(rails[1].waiting_seconds == 0);
  book.down("b");
  CHECK_FALSE(book.rails("b")[1].connected);
  CHECK(book.rails("b", start + std::chrono::hours(1))[0].waiting_seconds == 0);
}

}  // namespace
}  // namespace mkernel::app
