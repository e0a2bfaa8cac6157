#include "src/train/request/check_places.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "io/files/publish.h"
#include "sluice/size.h"
#include "src/device/profile.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// 0, or why no file can be made: shown by one without a name, which is gone when it is closed.
int why_not_writable(const std::string& directory) {
  const int fd = open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) {
    close(fd);
    return 0;
  }
  // Not every file system has such files.
  const bool unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
  if (!unknown) return errno;
  return access(directory.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
}

std::uint64_t moments_bytes(MomentFormat format) {
  return format == MomentFormat::f32 ? 8 : format == MomentFormat::bf16 ? 4 : 2;
}

}  // namespace

Status check_writable_directory(const std::string& option, const std::string& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (!fs::exists(status))
    return bad_request(fmt::format("{} {}: {}; give a directory that there is", option, directory,
                                   error ? error.message() : std::strerror(ENOENT)));
  if (!fs::is_directory(status))
    return bad_request(fmt::format("{} {}: it is not a directory; give one", option, directory));
  if (const int why = why_not_writable(directory); why != 0)
    return bad_request(fmt::format("{} {}: no file can be made there: {}; give a directory that can be written to",
                                   option, directory, std::strerror(why)));
  return success();
}

Status check_makeable_directory(const std::string& option, const std::string& directory) {
  std::error_code ignored;
  const std::string above = nearest_directory(directory);
  const int why = fs::is_directory(above, ignored) ? why_not_writable(above) : ENOTDIR;
  if (why == 0) return success();
  return bad_request(fmt::format("{} {}: can not be made or written to: {}: {}; give another directory", option,
                                 directory, above, std::strerror(why)));
}

Status check_room(const RunConfig& config, std::uint64_t parameters) {
  struct statvfs space {};
  if (statvfs(nearest_directory(config.run).c_str(), &space) != 0) return success();  // making it says why
  const bool stops_to_file = config.nvme.empty() || config.durable == Durable::off;
  const std::uint64_t states = stops_to_file ? sizeof(float) + moments_bytes(config.moments) : 0;
  const std::uint64_t needed = parameters * (dtype_bytes(config.dtype) + states);
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (needed <= free) return success();
  return bad_request(fmt::format(
      "--run {}: {} at least {}, and {} are free there; make room, or choose another directory", config.run,
      states > 0 ? "the states of a run that is stopped, and the model, take" : "the model at the end of the run takes",
      format_bytes(needed), format_bytes(free)));
}

Status check_drives(const RunConfig& config) {
  for (const std::string& directory : config.nvme) SLUICE_TRY(check_writable_directory("--nvme", directory));
  return success();
}

Status check_profile(const RunConfig& config) {
  std::string path = config.profile;
  if (path.empty()) {
    SLUICE_ASSIGN(path, default_profile_path());
  }
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    const fs::path folder = fs::path(path).parent_path();
    return check_makeable_directory("--profile", folder.empty() ? "." : folder.string());
  }
  if (config.profile.empty()) return success();  // an old or damaged one is made anew
  const Result<HardwareProfile> profile = load_profile(path);
  return profile.ok() ? success() : Status(profile.error());
}

}  // namespace sluice
