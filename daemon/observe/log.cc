#include "daemon/observe/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

namespace mkernel::observe {
namespace {

/// %* : the syslog priority of the entry, as journald reads it at the begin of a line.
class PriorityFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    char digit = '6';
    switch (message.level) {
      case spdlog::level::trace:
      case spdlog::level::debug: digit = '7'; break;
      case spdlog::level::warn: digit = '4'; break;
      case spdlog::level::err: digit = '3'; break;
      case spdlog::level::critical: digit = '2'; break;
      default: break;
    }
    out.push_back('<');
    out.push_back(digit);
    out.push_back('>');
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PriorityFlag>(); }
};

/// %* : the entry's text with what JSON wants escaped.
class JsonTextFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    for (const char c : message.payload) {
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char escaped[8];
        std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
        out.append(escaped, escaped + 6);
      } else {
        out.push_back(c);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonTextFlag>(); }
};

bool standard_error_is_socket() {
  struct stat info {};
  return ::fstat(STDERR_FILENO, &info) == 0 && S_ISSOCK(info.st_mode);
}

}  // namespace

void start_logging(const std::string& level, const std::string& format) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (format == "journal" || (format == "auto" && standard_error_is_socket())) {
    formatter->add_flag<PriorityFlag>('*').set_pattern("%*%v");
  } else if (format == "json") {
    formatter->add_flag<JsonTextFlag>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","text":"%*"})");
  } else {
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %-7l %v");
  }
  auto logger =
      std::make_shared<spdlog::logger>("mkerneld", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(std::move(logger));
  set_log_level(level);
}

void set_log_level(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level));
}

}  // namespace mkernel::observe
