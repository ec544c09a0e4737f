// Configuration files with anything in them: parse() answers with a configuration or with one line per
// mistake, and what was accepted is said again by dump() and read to the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "daemon/config/config.h"

namespace {

using namespace mkernel;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Every line of a refusal begins with where the mistake is, and says something after it.
void check_refusal(const std::string& text) {
  require(!text.empty());
  require(text.find("fuzz.toml") != std::string::npos);
}

/// The values of a dump without the remarks behind them, which name lines of the file it came from.
std::string values_of(const std::string& dump) {
  std::string values;
  bool quoted = false, remark = false;
  for (std::size_t i = 0; i < dump.size(); ++i) {
    const char c = dump[i];
    if (c == '"' && !remark) quoted = !quoted;
    if (c == '#' && !quoted) remark = true;
    if (c == '\n') quoted = remark = false;
    if (!remark) values += c;
    if (c == '\\' && quoted) values += dump[++i];  // whatever it escapes: there is one
  }
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = config::parse(text, "fuzz.toml");
  if (!config.ok()) {
    check_refusal(config.status().text());
    return 0;
  }
  const std::string said = config::dump(config.value());
  const auto again = config::parse(said, "again.toml");
  require(again.ok());
  require(values_of(config::dump(again.value())) == values_of(said));
  const config::Reload reload = config::reload(config.value(), again.value());
  require(reload.applied.empty() && reload.needs_restart.empty());  // the same file changes nothing
  return 0;
}
