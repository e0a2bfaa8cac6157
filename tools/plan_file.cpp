#include "tools/plan_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files/json_guard.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t file_bytes_max = 64u << 20;
constexpr auto wanted = "give the directory of a run, or what 'sluice plan ... --json' has printed";

}  // namespace

Result<Json> read_plan_file(const std::string& path) {
  const Result<std::string> text = read_json_file(path, file_bytes_max);
  if (!text.ok() && text.error().code == ErrorCode::bad_request)
    return bad_request(text.error().message + "; " + wanted);
  SLUICE_TRY(text.ok() ? success() : Status(text.error()));
  Json j = Json::parse(*text, nullptr, false);
  const Json format = j.is_object() ? j.value("format", Json()) : Json();
  if (format == "sluice-run" || format == "sluice-timeline")
    return bad_request(path + " is a file of a run; give its directory, " +
                       std::filesystem::path(path).parent_path().string());
  if (format != plan_format) {
    const bool is_early = j.is_object() && j.contains("fits") && j.contains("smallest");
    return bad_request(path + (is_early ? " is a plan that an early version of sluice has printed; print it again with "
                                          "'sluice plan ... --json'"
                                        : std::string(" is no plan; ") + wanted));
  }
  if (j.value("version", Json()) != plan_version)
    return bad_request(path + " is a plan of another version of sluice, and this one reads version " +
                       std::to_string(plan_version) + "; print it again with 'sluice plan ... --json'");
  return j;
}

}  // namespace sluice::tools
