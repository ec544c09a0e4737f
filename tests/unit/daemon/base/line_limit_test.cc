#include "daemon/base/line_limit.h"

#include <doctest/doctest.h>

namespace mkernel::base {
namespace {

using std::chrono::seconds;

TEST_CASE("a source may write its rate, the rest is left out and counted") {
  const LineLimit::TimePoint start{};
  LineLimit limit({.each = 2, .all = 1000}, start);
  int written = 0;
  for (int i = 0; i < 100; ++i) written += limit.admit(7, start) ? 1 : 0;
  CHECK(written == 20);  // ten seconds' worth at once
  CHECK(limit.admit(8, start));
  CHECK(limit.left_out_total() == 80);
  const auto seen = limit.take_left_out(start);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].source == 7);
  CHECK(seen[0].lines == 80);
  CHECK(limit.take_left_out(start).empty());
  CHECK(limit.admit(7, start + seconds(1)));
}

TEST_CASE("all sources together have a rate as well") {
  const LineLimit::TimePoint start{};
  LineLimit limit({.each = 1, .all = 3}, start);
  int written = 0;
  for (std::uint64_t source = 0; source < 100; ++source) written += limit.admit(source, start) ? 1 : 0;
  CHECK(written == 30);
  CHECK(limit.left_out_total() == 70);
  CHECK(limit.take_left_out(start).size() == 70);
}

}  // namespace
}  // namespace mkernel::base
