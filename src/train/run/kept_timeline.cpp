#include "src/train/run/kept_timeline.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "src/train/request/step_json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format = "sluice-timeline";
constexpr std::uint64_t file_bytes_max = 64u << 20;

std::string path_in(const RunDirectory& directory) { return directory.path() + "/timeline.json"; }

}  // namespace

Status keep_timeline(const RunDirectory& directory, const Prepared& run, const MeasuredStep& measured) {
  Json j{{"format", format}, {"version", kept_timeline_version}, {"run", run_name(directory.run()->id)}};
  j["parameters"] = run.model.parameters;
  j["machine"] = machine_json(run);
  if (!measured.timeline.empty()) j["measured_step"] = {{"step", measured.step}, {"is_first", measured.is_first}};
  j["step"] = step_json(run, measured.timeline, measured.ahead);
  return publish_file(path_in(directory), j.dump() + "\n");
}

Result<std::optional<Json>> kept_timeline(const RunDirectory& directory) {
  std::error_code ignored;
  const std::string path = path_in(directory);
  if (!std::filesystem::exists(path, ignored)) return std::optional<Json>();
  SLUICE_ASSIGN(const std::string text, read_json_file(path, file_bytes_max));
  Json j = Json::parse(text, nullptr, false);
  if (!j.is_object() || j.value("format", Json()) != format || !j.contains("run"))
    return bad_request(path + " is damaged; remove it: the run writes another when it goes on");
  if (j.value("version", Json()) != kept_timeline_version)
    return bad_request(path + " is of another version of sluice; use that one, or remove the file");
  if (j["run"] != run_name(directory.run()->id)) return std::optional<Json>();
  return std::optional<Json>(std::move(j));
}

}  // namespace sluice
