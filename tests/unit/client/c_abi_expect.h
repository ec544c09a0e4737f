/* What the C programs of the tests check with; each of their functions returns "" or what went wrong. */
#pragma once

#define TEXT_OF_LINE2(line) #line
#define TEXT_OF_LINE(line) TEXT_OF_LINE2(line)
#define SIZE(object) sizeof(object)
#define EXPECT(condition) \
  if (!(condition)) return "line " TEXT_OF_LINE(__LINE__) ": " #condition
