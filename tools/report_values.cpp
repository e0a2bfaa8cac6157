// Values of JSON as people read them.
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "tools/report_source.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string value_text(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  const double number = value.get<double>();
  if (name.ends_with("bytes_per_second")) return format_rate(number);
  if (name.ends_with("flop_per_second")) return format_count(number) + "FLOP/s";
  const bool is_bytes =
      name.ends_with("_bytes") || name == "device_memory" || name == "host_memory" || name == "nvme_space";
  if (is_bytes && number > 0 && number < 1e19) return format_bytes(value.get<std::uint64_t>());
  return value.dump();
}

void add_values(const Json& values, const std::string& prefix, std::vector<ReportSource::Row>& rows) {
  for (const auto& [key, value] : values.items()) {
    const std::string name = prefix + key;
    if (value.is_object() && !value.empty())
      add_values(value, name + ".", rows);
    else if (!value.is_null() && !value.empty() && value != "")
      rows.emplace_back(name, value_text(name, value));
  }
}

}  // namespace

std::vector<ReportSource::Row> value_rows(const Json& values) {
  std::vector<ReportSource::Row> rows;
  if (values.is_object()) add_values(values, "", rows);
  return rows;
}

std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace sluice::tools
