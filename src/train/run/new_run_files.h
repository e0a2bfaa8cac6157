// What a new run makes before its first step, and what goes again when it is refused.
#pragma once

#include <string>
#include <vector>

namespace sluice {

class NewRunFiles {
 public:
  /// Looks at what there is before. `directory`: the run's. `metrics`: its file, wherever that is. Either may be empty.
  NewRunFiles(const std::string& directory, const std::string& metrics);

  /// Removes what has come since: the metrics, if they have no line, tokens of the run's text, and the directories, as
  /// far as nothing else is in them. The run's directory must be this process's (RunDirectory::make), and its records
  /// gone.
  void remove() const;

 private:
  std::string metrics_, tokens_;      ///< that are not there yet, else empty
  std::vector<std::string> folders_;  ///< likewise, the deepest first
};

}  // namespace sluice
