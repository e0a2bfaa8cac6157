// Where a run is kept: the directory that --run names, one of its own below runs/, or nowhere.
#pragma once

#include <string>

#include "sluice/status.h"
#include "tools/run_options.h"

namespace sluice::tools {

/// The value of --run that keeps nothing.
inline constexpr const char* keep_nothing = "none";

/// A directory that no run has yet, "runs/<model>-<date>T<time>" below the current one. It is not made, but kept free
/// for this process: runs that are started at one time have one each. Move-only.
class NewRunHome {
 public:
  /// `model` as --model takes it. bad_request where no directory can be made.
  static Result<NewRunHome> find(const std::string& model);
  NewRunHome() = default;
  ~NewRunHome();
  NewRunHome(NewRunHome&& other) noexcept { *this = std::move(other); }
  NewRunHome& operator=(NewRunHome&& other) noexcept;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int claim_ = -1;
};

/// As NewRunHome names it now, for who makes no directory and needs none: `plan`.
std::string run_home_to_come(const std::string& model);

/// The run below runs/ that was begun last among those that are not complete; empty where there is none.
std::string newest_unfinished_run();

/// Where the checkpoints are that are named by a directory: of a run, where it puts them; else there. Absolute.
/// bad_request for a run that has none, or what is not there.
Result<std::string> checkpoints_of(const std::string& path);

/// "run: DIR (...)", or that nothing is kept: for the first line of a run. `run` is RunConfig::run.
std::string told_at_start(const std::string& run);

}  // namespace sluice::tools
