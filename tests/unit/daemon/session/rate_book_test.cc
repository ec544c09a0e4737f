// Rates and idle time of sessions, from counters at given moments.
#include "daemon/session/rate_book.h"

#include <doctest/doctest.h>

namespace mkernel::session {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const RateBook::Clock::time_point kStart{seconds(1000)};

SessionSnapshot session(std::uint64_t id, std::uint64_t requests, std::uint64_t bytes, double age = 0) {
  SessionSnapshot made;
  made.id = id;
  made.age_seconds = age;
  made.counters.requests_total = requests;
  made.counters.bytes_total = bytes;
  made.counters.arrived_bytes_total = 2 * bytes;
  return made;
}

TEST_CASE("rates are those between the last two looks, and unknown before the second") {
  RateBook book;
  SessionSnapshot seen = session(1, 1, 500);
  book.fill(seen, kStart);
  CHECK_FALSE(seen.sent_per_second.has_value());
  book.look({session(1, 1, 500)}, kStart);
  book.fill(seen, kStart);
  CHECK_FALSE(seen.sent_per_second.has_value());
  book.look({session(1, 3, 2500)}, kStart + milliseconds(500));
  book.look({session(1, 3, 2500 + 600)}, kStart + milliseconds(2500));
  book.fill(seen, kStart + milliseconds(2600));
  CHECK(seen.sent_per_second == 300.0);
  CHECK(seen.arrived_per_second == 600.0);
  // Two looks at one moment: no division by no time, and what was known stays.
  book.look({session(1, 3, 3100)}, kStart + milliseconds(2500));
  book.fill(seen, kStart + milliseconds(2600));
  CHECK(seen.sent_per_second == 300.0);
}

TEST_CASE("idle time counts from the last change, and ends with the next one without waiting for a look") {
  RateBook book;
  SessionSnapshot seen = session(1, 5, 100);
  book.look({seen}, kStart);
  book.look({seen}, kStart + seconds(1));
  book.look({seen}, kStart + seconds(7));
  book.fill(seen, kStart + seconds(8));
  CHECK(seen.idle_seconds == 8.0);
  CHECK(seen.sent_per_second == 0.0);
  seen.counters.requests_total = 6;  // a signal: no byte moves
  book.fill(seen, kStart + seconds(8));
  CHECK(seen.idle_seconds == 0.0);
  book.look({seen}, kStart + seconds(8));
  book.fill(seen, kStart + seconds(11));
  CHECK(seen.idle_seconds == 3.0);
}

TEST_CASE("a session that never moved anything is as idle as it is old") {
  RateBook book;
  SessionSnapshot seen = session(1, 0, 0, 2.5);
  book.fill(seen, kStart);
  CHECK(seen.idle_seconds == 2.5);
  book.look({seen}, kStart);
  book.look({seen}, kStart + seconds(1));
  book.fill(seen, kStart + seconds(2));
  CHECK(seen.idle_seconds == 4.5);
}

TEST_CASE("sessions that are gone are forgotten, and the others are not mixed up") {
  RateBook book;
  book.look({session(1, 1, 100), session(2, 1, 1000)}, kStart);
  book.look({session(2, 2, 4000)}, kStart + seconds(1));
  SessionSnapshot first = session(1, 1, 100, 9), second = session(2, 2, 4000, 9);
  book.fill(first, kStart + seconds(1));
  book.fill(second, kStart + seconds(1));
  CHECK_FALSE(first.sent_per_second.has_value());
  CHECK(second.sent_per_second == 3000.0);
}

}  // namespace
}  // namespace mkernel::session
