#include "daemon/base/utf8.h"

#include <doctest/doctest.h>

#include <string>

namespace mkernel::base {

TEST_CASE("what is UTF-8 stays as it is") {
  for (const std::string text : {"", "plain", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                                 "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "a\xc3\xa9z"}) {
    CHECK(valid_utf8(text) == text);
  }
  CHECK(valid_utf8(std::string("\0a", 2)) == std::string("\0a", 2));
}

TEST_CASE("a byte of no character becomes a question mark, and the text goes on behind it") {
  CHECK(valid_utf8("\xff") == "?");
  CHECK(valid_utf8("a\x80z") == "a?z");
  CHECK(valid_utf8("\xc0\xaf") == "??");            // over-long
  CHECK(valid_utf8("\xe0\x9f\xbf") == "???");       // over-long
  CHECK(valid_utf8("\xf0\x8f\xbf\xbf") == "????");  // over-long
  CHECK(valid_utf8("\xed\xa0\x80") == "???");       // a surrogate
  CHECK(valid_utf8("\xf4\x90\x80\x80") == "????");  // beyond the last character
  CHECK(valid_utf8("\xf5\x80\x80\x80") == "????");
  CHECK(valid_utf8("\xe2\x82") == "??");  // cut off
  CHECK(valid_utf8("\xe2\x82z") == "??z");
  CHECK(valid_utf8("\xc3\xc3\xa9") == "?\xc3\xa9");  // the second begins a character
}

}  // namespace mkernel::base
