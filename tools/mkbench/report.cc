#include "tools/mkbench/report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <thread>

#include "tools/base/output_file.h"

namespace mkernel::bench {
namespace {

bool is_number(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || cell[0] == '-');
}

/// Whether any row below the heading has something in column `c`.
bool has_content(const std::vector<std::vector<std::string>>& rows, std::size_t c) {
  return rows.size() < 2 || std::any_of(rows.begin() + 1, rows.end(),
                                        [c](const auto& row) { return !row[c].empty() && row[c] != "-"; });
}

std::vector<std::vector<std::string>> without_empty_columns(
    const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> kept(rows.size());
  for (std::size_t c = 0; c < rows[0].size(); ++c) {
    if (!has_content(rows, c)) continue;
    for (std::size_t r = 0; r < rows.size(); ++r) kept[r].push_back(rows[r][c]);
  }
  return kept;
}

std::string first_match(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const auto colon = line.find(':');
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &parts);
  return text;
}

void print_table(std::ostream& out, const std::vector<std::vector<std::string>>& all) {
  if (all.empty()) return;
  const std::vector<std::vector<std::string>> rows = without_empty_columns(all);
  std::vector<std::size_t> width(rows[0].size(), 0);
  std::vector<bool> right(rows[0].size(), rows.size() > 1);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      width[c] = std::max(width[c], rows[r][c].size());
      if (r > 0 && !is_number(rows[r][c])) right[c] = false;
    }
  }
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool last = c + 1 == row.size();
      out << (right[c] ? std::right : std::left)
          << std::setw(last && !right[c] ? 0 : static_cast<int>(width[c])) << row[c] << (last ? "\n" : "  ");
    }
  }
  out << std::flush;
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  const bool whole = bytes == std::floor(bytes);
  return fixed(bytes, whole ? 0 : 1) + " " + units[unit];
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string fixed_or_dash(const std::optional<double>& value, int digits) {
  return value.has_value() ? fixed(*value, digits) : "-";
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double spread(const std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return (*high - *low) / median(values);
}

nlohmann::json machine() {
  utsname name{};
  uname(&name);
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return {{"processor", first_match("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel", name.release},
          {"load_before", load}};
}

bool record(const std::string& path, const std::string& what, const nlohmann::json& rows) {
  nlohmann::json file = nlohmann::json::object();
  if (std::ifstream old(path); old) {
    file = nlohmann::json::parse(old, nullptr, false);
    if (!file.is_object()) {
      std::cerr << "mkbench: " << path << " is not a file of recorded results\n";
      return false;
    }
  }
  file[what] = {{"date", today()}, {"machine", machine()}, {"rows", rows}};
  const Status written = tools::replace_file(path, file.dump(1) + "\n");
  if (!written.ok()) std::cerr << "mkbench: " << written.text() << "\n";
  return written.ok();
}

Status append_rows(const std::string& path, const nlohmann::json& rows) {
  nlohmann::json all = nlohmann::json::array();
  if (std::ifstream old(path); old) all = nlohmann::json::parse(old, nullptr, false);
  if (!all.is_array()) return {StatusCode::kInvalidArgument, path + " is not a list of rows"};
  all.insert(all.end(), rows.begin(), rows.end());
  return tools::replace_file(path, all.dump(1) + "\n");
}

}  // namespace mkernel::bench
