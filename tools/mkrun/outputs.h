// The files that one rank writes: opened before the group is joined, and published together at the end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/base/output_file.h"
#include "tools/mkrun/options.h"

namespace mkernel::mkrun {

/// Output files by flag. One thread.
class Outputs {
 public:
  /// What another rank needs to find out whether it writes the same file. Ranks exchange it as bytes.
  struct Claim {
    std::uint64_t path_hash = 0;  ///< of the absolute name; 0: no file
    std::uint64_t token = 0;      ///< of the temporary file
  };
  static constexpr std::size_t kMost = 4;
  using Claims = std::array<Claim, kMost>;

  /// Opens what the flags of this operation name. Errors name the flag and the file: those of
  /// OutputFile::open(); kInvalidArgument when two outputs are one file, or an output is a file that this
  /// rank reads.
  static Result<Outputs> open(const Options& options);

  /// Writes the array of `flag`, which has been opened.
  Status write(const std::string& flag, std::span<const std::int64_t> shape, std::span<const float> values);
  Status write(const std::string& flag, std::span<const std::int64_t> shape,
               const std::vector<std::uint16_t>& values, DataType dtype);
  /// All files have their names from now on. Errors: those of OutputFile::publish().
  Status publish();

  Claims claims() const;
  /// The flag whose file the rank with these claims writes too; empty when there is none. Ranks of other
  /// nodes may write files of the same name on disks of their own: only a file that is seen from here counts.
  std::string shared_with(const Claims& other) const;

 private:
  Status check_inputs(const Options& options) const;

  std::vector<std::pair<std::string, tools::OutputFile>> files_;  ///< by flag
};

}  // namespace mkernel::mkrun
