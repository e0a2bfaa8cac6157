#include "tools/report_step.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "sluice/size.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Reads what has to be there, and remembers the first that is not.
class Reader {
 public:
  const std::string& wrong() const { return wrong_; }

  double number(const Json& j, const char* key) {
    const Json* const value = find(j, key);
    if (value != nullptr && value->is_number()) return value->get<double>();
    return refuse(key), 0;
  }
  std::uint64_t count(const Json& j, const char* key) {
    const Json* const value = find(j, key);
    if (value != nullptr && value->is_number_unsigned()) return value->get<std::uint64_t>();
    return refuse(key), 0;
  }
  std::string text(const Json& j, const char* key) {
    const Json* const value = find(j, key);
    if (value != nullptr && value->is_string()) return value->get<std::string>();
    return refuse(key), "";
  }
  /// An empty one where there is none.
  const Json& list(const Json& j, const char* key) {
    static const Json none = Json::array();
    const Json* const value = find(j, key);
    if (value != nullptr && value->is_array()) return *value;
    return refuse(key), none;
  }
  const Json& object(const Json& j, const char* key) {
    static const Json none = Json::object();
    const Json* const value = find(j, key);
    if (value != nullptr && value->is_object()) return *value;
    return refuse(key), none;
  }
  /// A list of so many numbers.
  bool is_line(const Json& line, std::size_t numbers, const char* key) {
    if (line.is_array() && line.size() == numbers &&
        std::ranges::all_of(line, [](const Json& v) { return v.is_number(); }))
      return true;
    return refuse(key), false;
  }
  void refuse(const std::string& key) {
    if (wrong_.empty()) wrong_ = key;
  }

 private:
  static const Json* find(const Json& j, const char* key) {
    if (!j.is_object()) return nullptr;
    const auto found = j.find(key);
    return found == j.end() ? nullptr : &*found;
  }
  std::string wrong_;
};

std::string contents_at_peak(Reader& read, const Json& tier) {
  const Json& contents = read.list(tier, "contents");
  const Json* highest = nullptr;
  double most = -1;
  for (const Json& point : read.list(tier, "points")) {
    if (!read.is_line(point, contents.size() + 1, "points")) return "";
    double alive = 0;
    for (std::size_t i = 1; i < point.size(); ++i) alive += point[i].get<double>();
    if (alive > most) most = alive, highest = &point;
  }
  if (highest == nullptr) return read.refuse("points"), "";
  std::string text;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    if (!contents[i].is_string()) return read.refuse("contents"), "";
    const double bytes = (*highest)[i + 1].get<double>();
    if (!(bytes > 0 && bytes < 1e19)) continue;
    text += (text.empty() ? "" : ", ") + contents[i].get<std::string>() + " " +
            format_bytes(static_cast<std::uint64_t>(bytes));
  }
  return text;
}

/// What charts draw of it is as they expect it.
void check_lanes(Reader& read, const Json& picture) {
  const Json& names = read.list(picture, "names");
  if (!std::ranges::all_of(names, [](const Json& name) { return name.is_string(); })) read.refuse("names");
  for (const Json& lane : read.list(picture, "lanes")) {
    static_cast<void>(read.text(lane, "lane"));
    for (const Json& slice : read.list(lane, "slices"))
      if (!read.is_line(slice, 5, "slices") || !slice[4].is_number_unsigned() ||
          slice[4].get<std::size_t>() >= names.size())
        return read.refuse("slices");
  }
}

std::vector<MemoryRow> read_memory(Reader& read, const Json& picture) {
  std::vector<MemoryRow> rows;
  for (const Json& tier : read.list(picture, "memory"))
    rows.push_back({read.text(tier, "tier"), contents_at_peak(read, tier), read.count(tier, "budget_bytes"),
                    read.count(tier, "arena_bytes"), read.count(tier, "peak_bytes")});
  return rows;
}

/// Adds what a picture has of each kind of work, as `seconds` of a row.
void read_work(Reader& read, const Json& picture, double WorkRow::*seconds, std::vector<WorkRow>& rows) {
  for (const Json& work : read.list(picture, "work")) {
    const std::string lane = read.text(work, "lane"), op = read.text(work, "op");
    auto row = std::ranges::find_if(rows, [&](const WorkRow& r) { return r.lane == lane && r.op == op; });
    if (row == rows.end()) row = rows.insert(row, {lane, op, read.count(work, "ops"), read.count(work, "bytes")});
    (*row).*seconds += read.number(work, "seconds");
  }
}

void read_pass_seconds(Reader& read, const Json& picture, double PassRow::*seconds, std::vector<PassRow>& rows) {
  const Json& list = read.list(picture, "pass_seconds");
  if (!read.is_line(list, rows.size(), "pass_seconds")) return;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*seconds = list[i].get<double>();
}

}  // namespace

Result<ReportedStep> read_step(const Json& json) {
  Reader read;
  ReportedStep step;
  step.bound_seconds = read.number(json, "bound_seconds");
  step.pass_bound_seconds = read.number(json, "pass_bound_seconds");
  step.bottleneck = read.text(json, "bottleneck");
  step.ranks = read.count(json, "ranks");
  for (const auto& [name, seconds] : read.object(json, "resources").items()) {
    if (!seconds.is_number()) read.refuse("resources");
    step.resources.push_back({name, seconds.is_number() ? seconds.get<double>() : 0});
  }
  for (const Json& pass : read.list(json, "passes"))
    step.passes.push_back({read.text(pass, "unit"), read.text(pass, "direction"), read.text(pass, "limit"),
                           read.count(pass, "times"), read.number(pass, "bound_seconds")});
  const Json& predicted = read.object(json, "predicted");
  step.step_seconds = read.number(predicted, "step_seconds");
  step.has_measured = json.is_object() && json.contains("measured");
  step.memory = read_memory(read, predicted);
  const auto add = [&](const Json& picture, double WorkRow::*work, double PassRow::*pass) {
    static_cast<void>(read.number(picture, "seconds"));
    check_lanes(read, picture);
    read_work(read, picture, work, step.work);
    read_pass_seconds(read, picture, pass, step.passes);
  };
  add(predicted, &WorkRow::predicted, &PassRow::predicted);
  if (step.has_measured) {
    const Json& measured = read.object(json, "measured");
    add(measured, &WorkRow::measured, &PassRow::measured);
    static_cast<void>(read_memory(read, measured));
  }
  if (!read.wrong().empty()) return bad_request("\"" + read.wrong() + "\" of its step is missing or damaged");
  return step;
}

}  // namespace sluice::tools
