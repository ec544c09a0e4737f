// Results as a table for people and as JSON rows for tests/perf/results.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "proto/abi/status.h"

namespace mkernel::bench {

/// Rows of equal width; the first row is the heading. Columns whose cells are numbers are right-aligned;
/// those in which no row has anything but "-" are left out.
void print_table(std::ostream& out, const std::vector<std::vector<std::string>>& rows);

/// "1.5 GiB", "64 KiB", "17 B".
std::string human_bytes(double bytes);
/// `value` with `digits` decimals.
std::string fixed(double value, int digits);
/// The same, or "-" where there is none.
std::string fixed_or_dash(const std::optional<double>& value, int digits);

/// Middle of the values (mean of the two middle ones when their number is even); 0 for none.
double median(std::vector<double> values);
/// (max - min) / median: how far apart the repetitions lie.
double spread(const std::vector<double>& values);

/// Processor, cores, kernel, load at the start: what a recorded figure was measured on.
nlohmann::json machine();

/// Adds {machine, date, command, rows} under `what` to the JSON file, which is created when missing. Returns
/// false with a message on stderr when the file cannot be written or is not such a file.
bool record(const std::string& path, const std::string& what, const nlohmann::json& rows);

/// "2026-11-21", in UTC.
std::string today();

/// Adds `rows` to the list in the JSON file, which is created when missing. Errors: kInvalidArgument when it
/// holds something else; those of tools::replace_file().
Status append_rows(const std::string& path, const nlohmann::json& rows);

}  // namespace mkernel::bench
