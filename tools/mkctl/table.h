// Replies of the control service as JSON and as tables, by reflection: field names are keys and columns.
#pragma once

#include <google/protobuf/message.h>

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

namespace mkernel::mkctl {

/// The message with its field names as keys and raw numbers.
nlohmann::ordered_json to_json(const google::protobuf::Message& message);

/// A list of rows as an aligned table with people's units; `rates`: columns that end in _total are shown per
/// second, from the difference to `before` (rows of an earlier reply, matched by their identifying columns).
void print_rows(std::ostream& out, const nlohmann::ordered_json& rows, const nlohmann::ordered_json& before,
                double seconds);

/// One row as "key  value" lines.
void print_fields(std::ostream& out, const nlohmann::ordered_json& fields);

}  // namespace mkernel::mkctl
