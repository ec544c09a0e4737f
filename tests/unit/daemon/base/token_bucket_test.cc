// Token buckets by a clock that the test moves, and SHA-256 by the standard's own examples.
#include "daemon/base/token_bucket.h"

#include <doctest/doctest.h>

#include "daemon/base/hex.h"
#include "daemon/base/printable.h"
#include "daemon/base/sha256.h"

namespace mkernel::base {
namespace {

using namespace std::chrono_literals;

TEST_CASE("ten seconds' worth comes at once, the rest at its rate, and what was overspent is waited for") {
  TokenBucket::TimePoint now{};
  TokenBucket bucket(100, now);
  bucket.spend(999, now);
  CHECK(bucket.wait(now) == 0ns);
  bucket.spend(1, now);
  const auto one_token = bucket.wait(now);
  CHECK(one_token > 9ms);
  CHECK(one_token <= 10ms + 1ns);
  now += 10ms + 1us;
  CHECK(bucket.wait(now) == 0ns);
  bucket.spend(501, now);
  CHECK(bucket.wait(now) > 4900ms);
  CHECK(bucket.share(now) < -0.49);
  now += 1h;
  CHECK(bucket.share(now) == 1);
}

TEST_CASE("a new rate holds from then on and caps what has been saved up") {
  TokenBucket::TimePoint now{};
  TokenBucket bucket(100, now);
  bucket.set_rate(1, now);
  bucket.spend(10, now);
  CHECK(bucket.wait(now) > 900ms);
  bucket.set_rate(1000, now);
  CHECK(bucket.wait(now) <= 1ms + 1ns);
}

TEST_CASE("SHA-256 is that of FIPS 180") {
  const auto digest = sha256("abc");
  REQUIRE(digest.ok());
  REQUIRE(digest.value().size() == 32);
  std::string text;
  for (const char c : digest.value()) {
    const char* const digits = "0123456789abcdef";
    text += digits[static_cast<unsigned char>(c) >> 4];
    text += digits[static_cast<unsigned char>(c) & 15];
  }
  CHECK(text == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("what is no printable byte is found by its place, and becomes a space on one line") {
  CHECK_FALSE(first_unprintable("a name ~").has_value());
  CHECK(first_unprintable("ab\x1b[2J") == 2);
  CHECK(first_unprintable("\xc3\xa4") == 0);
  CHECK(one_line("a\nb\x7f"
                 "c") == "a b c");
  CHECK(one_line("a\xc2\x9b"
                 "b") == "a b");  // C1
  CHECK(one_line("a\xe2\x80\xae"
                 "b") == "a b");  // U+202E turns the direction of what follows
  CHECK(one_line("a\xe2\x81\xa6"
                 "b") == "a b");  // U+2066 isolates it
  CHECK(one_line("a\xe2\x80\xa8"
                 "b") == "a b");  // U+2028 begins a line
  CHECK(one_line("a\xe2\x80\x8b"
                 "b") == "a b");       // U+200B cannot be seen
  CHECK(one_line("\xd8\x9c") == " ");  // U+061C
  CHECK(one_line("\xe2\x82\xac \xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80") ==
        "\xe2\x82\xac \xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80");  // letters and signs stay
}

TEST_CASE("what turns the direction of writing, has no width or ends a line becomes a space on one line") {
  for (const char* character :
       {"\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2060", "\u2066",
        "\u2069", "\ufeff", "\u00ad", "\u180e", "\ufffb", "\U000e0041", "\U0001d173", "\u0085"}) {
    CAPTURE(character);
    CHECK(one_line(std::string("a") + character + "b") == "a b");
    CHECK(first_unprintable(std::string("a") + character) == 1);
  }
  // What is written stays, in every script, and of each length.
  for (const char* text :
       {"\u00e9", "\u05d0\u05d1", "\u2013", "\u6f22\u5b57", "\U0001f600", "\u2027\u202f\u2070"}) {
    CHECK(one_line(text) == text);
  }
}

}  // namespace
}  // namespace mkernel::base
