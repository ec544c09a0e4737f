#include "tools/mkctl/table.h"

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <ostream>
#include <vector>

#include "tools/mkctl/text.h"

namespace mkernel::mkctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

Json field_value(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  const bool optional = field->has_presence() && field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
  if (optional && !reflection->HasField(message, field)) return nullptr;
  if (field->is_repeated()) {
    Json list = Json::array();
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          list.push_back(to_json(reflection->GetRepeatedMessage(message, field, i)));
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          list.push_back(reflection->GetRepeatedUInt32(message, field, i));
          break;
        default: list.push_back(reflection->GetRepeatedString(message, field, i));
      }
    }
    return list;
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: return to_json(reflection->GetMessage(message, field));
    case FieldDescriptor::CPPTYPE_STRING: return reflection->GetString(message, field);
    case FieldDescriptor::CPPTYPE_BOOL: return reflection->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return reflection->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_INT32: return reflection->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT32: return reflection->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64: return reflection->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT64: return reflection->GetUInt64(message, field);
    default: return nullptr;
  }
}

const std::string kPerSecond = "_per_second";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_total(const std::string& column) {
  return ends_with(column, "_total");
}

std::string cell(const std::string& column, const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>().empty() ? "-" : value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (ends_with(column, kPerSecond)) return scaled(value.get<double>(), true);
  if (value.is_number_float()) return fixed(value.get<double>(), 1);
  if (value.is_array() && (value.empty() || value.front().is_object())) return std::to_string(value.size());
  if (!value.is_number()) return value.dump();
  const auto number = value.get<double>();
  if (column.find("bytes") != std::string::npos) return scaled(number, true);
  return is_total(column) ? scaled(number, false) : value.dump();
}

/// "arrived_bytes_total" -> "ARRIVED_BYTES"; as a rate "ARRIVED_BYTES/S", as are columns that the daemon
/// tells as rates.
std::string heading(std::string column, bool rate) {
  if (ends_with(column, kPerSecond)) column = column.substr(0, column.size() - kPerSecond.size()) + "/s";
  if (is_total(column)) column = column.substr(0, column.size() - 6) + (rate ? "/s" : "");
  std::transform(column.begin(), column.end(), column.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return column;
}

/// Two rows of different replies speak of the same thing when everything but their measurements is equal.
bool same_thing(const Json& a, const Json& b) {
  for (const auto& [key, value] : a.items()) {
    const bool measurement = is_total(key) || ends_with(key, kPerSecond) || key == "rails" ||
                             value.is_number_float() || key == "active" || key == "ring_depth" ||
                             key == "regions" || key == "groups" || key == "pinned_bytes" ||
                             key == "gpu_bytes";
    if (!measurement && b.value(key, Json()) != value) return false;
  }
  return true;
}

}  // namespace

Json to_json(const Message& message) {
  Json json = Json::object();
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    json[descriptor->field(i)->name()] = field_value(message, descriptor->field(i));
  }
  return json;
}

void print_rows(std::ostream& out, const Json& rows, const Json& before, double seconds) {
  if (rows.empty()) {
    out << "(none)\n";
    return;
  }
  const bool rates = seconds > 0;
  std::vector<std::vector<std::string>> table(1);
  for (const auto& [column, value] : rows.front().items()) table[0].push_back(heading(column, rates));
  std::size_t last = SIZE_MAX;
  for (const Json& row : rows) {
    const Json* old =
        rates ? find_row(before, last, [&](const Json& b) { return same_thing(row, b); }) : nullptr;
    table.emplace_back();
    for (const auto& [column, value] : row.items()) {
      if (rates && is_total(column) && value.is_number()) {
        const double start = old == nullptr ? 0 : (*old)[column].get<double>();
        table.back().push_back(
            scaled((value.get<double>() - start) / seconds, column.find("bytes") != std::string::npos));
      } else {
        table.back().push_back(cell(column, value));
      }
    }
  }
  print_aligned(out, table);
}

void print_fields(std::ostream& out, const Json& fields) {
  std::size_t width = 0;
  for (const auto& [key, value] : fields.items()) width = std::max(width, key.size());
  for (const auto& [key, value] : fields.items()) {
    if (!value.is_array()) {
      out << std::left << std::setw(static_cast<int>(width) + 2) << key << cell(key, value) << "\n";
      continue;
    }
    for (const Json& line : value) {
      out << std::left << std::setw(static_cast<int>(width) + 2) << key << cell(key, line) << "\n";
    }
  }
}

}  // namespace mkernel::mkctl
