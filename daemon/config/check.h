// The mistakes of one configuration file, and the rules that span several keys.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"

namespace mkernel::config {

/// Collects every mistake, so that one run of `mkerneld --check` shows them all.
class Mistakes {
 public:
  explicit Mistakes(std::string path) : path_(std::move(path)) {}
  /// `line` 0: not in the file.
  void add(int line, const std::string& key, const std::string& what);
  /// OK when there is none; else kInvalidArgument with one line per mistake, in the order of the file.
  Status status() const;

 private:
  struct Mistake {
    int line;
    std::string text;
  };
  std::string path_;
  std::vector<Mistake> mistakes_;
};

/// Rules that one key alone cannot break.
void check_together(const Config& config, Mistakes& mistakes);

}  // namespace mkernel::config
