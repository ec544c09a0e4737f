#include "daemon/base/id_map.h"

#include <doctest/doctest.h>

namespace mkernel::base {

TEST_CASE("where every id is mapped the overflow id is an id like any other") {
  const IdMap map(IdKind::kUser, "         0          0 4294967295\n", "65534\n");
  CHECK(map.complete());
  CHECK(map.known(65534));
  // In parts, and shifted.
  CHECK(IdMap(IdKind::kUser, "0 1000 1\n1 100000 4294867294\n4294867295 1 100000\n", "65534\n").complete());
}

TEST_CASE("in a namespace that maps some ids the overflow id is nobody's, also where it is mapped itself") {
  for (const char* text : {"0 1001 1\n", "0 1001 1\n1 100000 65536\n", "0 0 4294967294\n", ""}) {
    CAPTURE(text);
    const IdMap map(IdKind::kUser, text, "65534\n");
    CHECK_FALSE(map.complete());
    CHECK_FALSE(map.known(65534));
    CHECK(map.known(0));
    CHECK(map.known(65533));
  }
}

TEST_CASE("the overflow id is the kernel's setting, and its default where that cannot be read") {
  CHECK_FALSE(IdMap(IdKind::kGroup, "0 0 1", "60001\n").known(60001));
  CHECK(IdMap(IdKind::kGroup, "0 0 1", "60001\n").known(65534));
  CHECK_FALSE(IdMap(IdKind::kGroup, "0 0 1", "").known(65534));
}

TEST_CASE("what a namespace maps is said with the file and the numbers") {
  CHECK(IdMap(IdKind::kUser, "0 1001 1\n1 100000 65536\n", "").describe() ==
        "/proc/self/uid_map maps 65537 of 4294967295 user ids");
  CHECK(IdMap(IdKind::kGroup, "", "").describe() == "/proc/self/gid_map maps 0 of 4294967295 group ids");
}

}  // namespace mkernel::base
