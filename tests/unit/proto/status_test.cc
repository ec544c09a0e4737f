#include "proto/abi/status.h"

#include <doctest/doctest.h>

#include <memory>

namespace mkernel {
namespace {

TEST_CASE("a status says its code and text, and context goes in front") {
  CHECK(Status().ok());
  CHECK(Status().to_string() == "OK");
  const Status lost(StatusCode::kUnavailable, "node b is gone");
  CHECK_FALSE(lost.ok());
  CHECK(lost.to_string() == "UNAVAILABLE: node b is gone");
  CHECK(lost.with_context("rank 3").to_string() == "UNAVAILABLE: rank 3: node b is gone");
  CHECK(Status().with_context("rank 3").ok());
  CHECK(to_string(static_cast<StatusCode>(99)) == "UNKNOWN");
}

Status pass_on(const Status& status, bool& reached) {
  MK_RETURN_IF_ERROR(status);
  reached = true;
  return {};
}

TEST_CASE("an error returns from the enclosing function, OK goes on") {
  bool reached = false;
  CHECK(pass_on({StatusCode::kAborted, "x"}, reached).code() == StatusCode::kAborted);
  CHECK_FALSE(reached);
  CHECK(pass_on({}, reached).ok());
  CHECK(reached);
}

TEST_CASE("a result holds a value, also a move-only one, or the reason why not") {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(5));
  REQUIRE(good.ok());
  CHECK(**good == 5);
  const std::unique_ptr<int> taken = std::move(good).value();
  CHECK(*taken == 5);
  const Result<int> bad(Status(StatusCode::kNotFound, "no"));
  CHECK_FALSE(bad.ok());
  CHECK(bad.status().code() == StatusCode::kNotFound);
}

}  // namespace
}  // namespace mkernel
