// Values of JSON as people read them.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/request/run_config.h"
#include "tools/json_text.h"
#include "tools/report_source.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

/// What run.json has as a number and an option takes as a word.
std::string word_of(const std::string& name, std::size_t value) {
  const auto in = [value](const auto& names) { return value < names.size() ? std::string(names[value]) : ""; };
  if (name == "dtype" || name == "gradient_dtype") return dtype_name(static_cast<Dtype>(value));
  if (name == "activation_dtype") return in(activation_dtype_names);
  if (name == "moments") return moment_format_name(static_cast<MomentFormat>(value));
  if (name == "lr_schedule") return in(std::array{"cosine", "linear", "constant"});
  if (name == "durable") return in(std::array{"auto", "on", "off"});
  if (name == "pipeline") return in(pipeline_order_names);
  if (name == "cp_attention") return in(context_attention_names);
  if (name == "reduction") return in(reduction_names);
  if (name == "reduce") return in(rank_sums_names);
  if (name == "gather") return in(rank_gathers_names);
  if (name == "transport") return in(transport_names);
  if (name == "states" || name == "activations") return in(place_names);
  return "";
}

std::string value_text(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return json_text(value);
  const double number = value.get<double>();
  const std::string word =
      value.is_number_integer() && number >= 0 && number < 16 ? word_of(name, static_cast<std::size_t>(number)) : "";
  if (!word.empty()) return word;
  if (name.ends_with("bytes_per_second")) return format_rate(number);
  if (name.ends_with("flop_per_second")) return format_count(number) + "FLOP/s";
  const bool is_bytes =
      name.ends_with("_bytes") || name == "device_memory" || name == "host_memory" || name == "nvme_space";
  if (is_bytes && number > 0 && number < 1e19) return format_bytes(value.get<std::uint64_t>());
  if (value.is_number_float()) return fmt::format("{:.6g}", number);
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

}  // namespace sluice::tools
