#include "daemon/observe/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <memory>
#include <utility>

#include "daemon/observe/log_queue.h"
#include "proto/base/mutex.h"

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

using Formatter = std::unique_ptr<spdlog::formatter>;

/// Formats on the thread that logs, and leaves the writing to the queue's.
class QueueSink final : public spdlog::sinks::sink {
 public:
  QueueSink(LogQueue& queue, Formatter formatter) : queue_(queue), formatter_(std::move(formatter)) {}

  void log(const spdlog::details::log_msg& message) override {
    const MutexLock lock(mutex_);  // a formatter keeps the time that it has formatted last
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    queue_.push({line.data(), line.size()});
  }
  void flush() override {}
  void set_pattern(const std::string& pattern) override {
    set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
  }
  void set_formatter(Formatter formatter) override {
    const MutexLock lock(mutex_);
    formatter_ = std::move(formatter);
  }

 private:
  LogQueue& queue_;
  Mutex mutex_;
  Formatter formatter_ MK_GUARDED_BY(mutex_);
};

Formatter make_formatter(const std::string& format) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (format == "journal" || (format == "auto" && standard_error_is_socket())) {
    formatter->add_flag<PriorityFlag>('*').set_pattern("%*%v");
  } else if (format == "json") {
    formatter->add_flag<JsonTextFlag>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","text":"%*"})");
  } else {
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %-7l %v");
  }
  return formatter;
}

/// What the line about missing lines looks like, on the thread that writes.
std::function<std::string(std::uint64_t)> describe_dropped(Formatter formatter) {
  return [formatter = std::shared_ptr<spdlog::formatter>(std::move(formatter))](std::uint64_t dropped) {
    const std::string text =
        std::to_string(dropped) + " lines are missing here: the log was not read as fast as it was written";
    spdlog::memory_buf_t line;
    formatter->format({"mkerneld", spdlog::level::warn, text}, line);
    return std::string(line.data(), line.size());
  };
}

/// The process's own, from start_logging() on. Never destroyed: threads of libraries log while the process
/// ends.
std::atomic<LogQueue*> log_queue{nullptr};

/// How long the last lines may take to be written before the process ends.
constexpr std::chrono::milliseconds kLastLines{1000};

/// Lets the lines be written that say why; abort() goes on when this returns. Asks only what a signal handler
/// may ask.
void wait_before_abort(int) {
  const LogQueue* queue = log_queue.load();
  const timespec look{0, 5'000'000};
  for (int i = 0; i < 100 && queue != nullptr && !queue->idle(); ++i) ::nanosleep(&look, nullptr);
}

}  // namespace

void start_logging(const std::string& level, const std::string& format) {
  LogQueue::Options options;
  options.describe = describe_dropped(make_formatter(format));
  auto* queue = new LogQueue(std::move(options));
  log_queue = queue;
  auto logger = std::make_shared<spdlog::logger>("mkerneld",
                                                 std::make_shared<QueueSink>(*queue, make_formatter(format)));
  // By default spdlog prints an entry that it could not format, and waits for the reader.
  logger->set_error_handler([queue](const std::string& why) { queue->push("log entry: " + why + "\n"); });
  spdlog::set_default_logger(std::move(logger));
  set_log_level(level);
  std::signal(SIGABRT, wait_before_abort);
}

void set_log_level(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level));
}

void finish_logging() {
  if (const LogQueue* queue = log_queue.load()) queue->flush(kLastLines);
}

std::uint64_t dropped_log_lines() {
  const LogQueue* queue = log_queue.load();
  return queue == nullptr ? 0 : queue->dropped_total();
}

}  // namespace mkernel::observe
