// A run that goes on is asked to save a checkpoint: a file in its directory, which it looks for between steps, and
// removes when the checkpoint is there.
#pragma once

#include <optional>
#include <string>

#include "sluice/status.h"

namespace sluice {

/// Of the run in `directory`.
class SaveRequest {
 public:
  explicit SaveRequest(const std::string& directory) : path_(directory + "/save.request") {}
  /// Asks for one in this directory of checkpoints. bad_request when another one is asked for.
  Status ask(const std::string& parent) const;
  /// Where it is wanted; none: nowhere.
  std::optional<std::string> asked() const;
  bool is_open() const;
  void take_back() const;
  /// It is there, or why not, which answer() then says.
  void done(const Status& how) const;
  Status answer() const;

 private:
  std::string path_;
};

}  // namespace sluice
